"""Rows: lists of very many upstreams, and whether their cost grows with their number only."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

from benchmarks.asking import timed_walk
from benchmarks.bench import Bench, mux_command
from benchmarks.counting import count_instructions
from benchmarks.goal import at_most
from benchmarks.naming import http_config
from benchmarks.process import Child
from benchmarks.report import MEGA, Row, time_row

ITEMS = 100  # of each upstream
FEWEST, MORE = 250, (500, 1000)
READY_SECONDS = 120.0  # until as many upstreams listen
FILES = 16  # that one upstream takes at most, in the process of all of them

LINEAR = at_most(1.3, " × as long")
EXACT = at_most(1.05, " × as many")


def rows(bench: Bench) -> list[Row]:
    """Measure the processor time of lists, beside what it would be in proportion to a list of FEWEST."""
    _allow_files(FILES * max(MORE))
    fewest = _seconds(bench, FEWEST)
    table_rows = []
    for count in MORE:
        measure = (
            f"list {count:,} × {ITEMS} resources, processor time, "
            f"beside {count / FEWEST:g} × that of {FEWEST} × {ITEMS}"
        )
        through = _seconds(bench, count)
        expected = median(fewest) * count / FEWEST
        direct = [expected] * len(through)
        shares = [rate / expected for rate in through]
        table_rows.append(time_row(measure, direct, through).judged(LINEAR, shares))
    return table_rows


def counted(bench: Bench) -> list[Row]:
    """Count the largest of these lists in instructions, which no cache and no neighbour changes."""
    _allow_files(FILES * max(MORE))
    count = max(MORE)
    times = count / FEWEST
    measure = f"list {count:,} × {ITEMS} resources, instructions, beside {times:g} × those of {FEWEST}"
    bench.note(measure)
    expected, actual = _instructions(bench, FEWEST) * times, _instructions(bench, count)
    share = actual / expected
    row = Row(measure, f"{expected / MEGA:,.0f} M", f"{actual / MEGA:,.0f} M", f"{share:.2f} × as many")
    return [row.judged(EXACT, [share])]


def _instructions(bench: Bench, count: int) -> int:
    """Count the instructions of mcpmux for one whole list, the third."""

    @contextmanager
    def prepare(mux: Child) -> Iterator[Callable[[], object]]:
        (url,) = mux.lines(1, READY_SECONDS)
        for _ in range(2):
            timed_walk(url, ITEMS * count)
        yield lambda: timed_walk(url, ITEMS * count)

    with bench.upstream(count, f"--items={ITEMS}") as upstream:
        config = http_config(upstream.lines(count, READY_SECONDS))
        return count_instructions(mux_command(), bench.mux_core, config, prepare)


def _seconds(bench: Bench, count: int) -> list[float]:
    """Measure the processor time of each whole list, without the first, which connects."""
    bench.note(f"list {count:,} × {ITEMS} resources")
    seconds = []
    with bench.upstream(count, f"--items={ITEMS}") as upstream:
        urls = upstream.lines(count, READY_SECONDS)
        with bench.mux(http_config(urls)) as mux:
            (url,) = mux.lines(1, READY_SECONDS)
            timed_walk(url, ITEMS * count)
            for _ in range(bench.effort.runs):
                start = mux.cpu_seconds()
                timed_walk(url, ITEMS * count)
                seconds.append(mux.cpu_seconds() - start)
    return seconds


def _allow_files(needed: int) -> None:
    """Allow child processes as many open files, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
