"""Rows: merged lists, cold and from memory, and of very many upstreams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median

from benchmarks.asking import first_answer, timed_walk
from benchmarks.bench import UPSTREAMS, Bench, mux_command
from benchmarks.counting import count_instructions
from benchmarks.naming import Load, exposed_uri, http_config
from benchmarks.process import Child
from benchmarks.rates import FRESH
from benchmarks.report import MEGA, Goal, Row, at_most, time_row
from benchmarks.upstream import MODERN
from mcpmux.cli.process import may_open
from mcpmux.protocol import method as m

ITEMS = 1000  # of each upstream
SLOW_PAGE_MS = 10  # a page of a list at a server that has to fetch it from somewhere
PAGE = Load(MODERN, m.RESOURCES_LIST, [""], 100 * ITEMS, connections=1)
COLD_FACTOR, COLD_EXTRA = 1.3, 0.020  # of the slowest upstream's own time, and seconds on top of it
WARM_SECONDS = 1 / 2000  # of a list, unless writing its bytes takes longer

COLD = Goal("≤ 1.3 × as long + 20 ms", most=COLD_EXTRA, absolute=True)
WARM = Goal("≥ 2,000 /s, or as fast as the bytes are written", most=1)


def _cold(page_ms: int, bench: Bench) -> list[Row]:
    """Measure lists of an mcpmux that was never asked before, a new one for each run."""
    measure = f"list 5 × 1,000 resources, pages of 100 at {page_ms} ms, cold, beside the slowest upstream"
    bench.note(measure)
    direct, through = [], []
    with bench.upstream(UPSTREAMS, f"--page-ms={page_ms}") as upstream:
        urls = upstream.lines(UPSTREAMS)
        for _ in range(bench.effort.runs):
            direct.append(max(timed_walk(url, ITEMS) for url in urls))
            with bench.mux(http_config(urls)) as mux:
                (url,) = mux.lines(1)
                first_answer(url, exposed_uri(UPSTREAMS - 1))
                through.append(timed_walk(url, ITEMS * UPSTREAMS))
    extra = [t - COLD_FACTOR * d for d, t in zip(direct, through, strict=True)]
    return [time_row(measure, direct, through).judged(COLD, extra)]


cold = partial(_cold, 0)
cold_slow = partial(_cold, SLOW_PAGE_MS)


def warm(bench: Bench) -> list[Row]:
    """Measure the first page of a cached merged list, beside one upstream's page of as many items."""
    measure = "first 1,000 of 5 × 1,000 resources, remembered, beside one upstream's page of 1,000"
    bench.note(measure)
    direct, through = [], []
    with bench.upstream(UPSTREAMS, FRESH) as upstream, bench.upstream(1, "--page=1000") as single:
        (own,) = single.lines(1)
        with bench.mux(http_config(upstream.lines(UPSTREAMS))) as mux:
            (url,) = mux.lines(1)
            first_answer(url, exposed_uri(UPSTREAMS - 1))
            timed_walk(url, ITEMS * UPSTREAMS)
            for _ in range(bench.effort.runs):
                direct.append(1 / bench.load(PAGE, [own], PAGE.subjects).rate)
                through.append(1 / bench.load(PAGE, [url], PAGE.subjects).rate)
    shares = [t / max(d, WARM_SECONDS) for d, t in zip(direct, through, strict=True)]
    return [time_row(measure, direct, through).judged(WARM, shares)]


# Lists of very many upstreams: does the cost grow with their number only?

FEW = 100  # resources of each upstream
FEWEST, MORE = 250, (500, 1000)
READY_SECONDS = 120.0  # until as many upstreams listen
FILES = 16  # that one upstream takes at most, in the process of all of them

LINEAR = at_most(1.3, " × as long")
EXACT = at_most(1.05, " × as many")


def many(bench: Bench) -> list[Row]:
    """Measure the processor time of lists, beside what it would be in proportion to a list of FEWEST."""
    may_open(FILES * max(MORE))
    fewest = _seconds(bench, FEWEST)
    table_rows = []
    for count in MORE:
        measure = (
            f"list {count:,} × {FEW} resources, processor time, "
            f"beside {count / FEWEST:g} × that of {FEWEST} × {FEW}"
        )
        through = _seconds(bench, count)
        expected = median(fewest) * count / FEWEST
        direct = [expected] * len(through)
        shares = [rate / expected for rate in through]
        table_rows.append(time_row(measure, direct, through).judged(LINEAR, shares))
    return table_rows


def many_counted(bench: Bench) -> list[Row]:
    """Count the largest of these lists in instructions, which no cache and no neighbour changes."""
    may_open(FILES * max(MORE))
    count = max(MORE)
    times = count / FEWEST
    measure = f"list {count:,} × {FEW} resources, instructions, beside {times:g} × those of {FEWEST}"
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
            timed_walk(url, FEW * count)
        yield lambda: timed_walk(url, FEW * count)

    with bench.upstream(count, f"--items={FEW}") as upstream:
        config = http_config(upstream.lines(count, READY_SECONDS))
        return count_instructions(mux_command(), bench.mux_core, config, prepare)


def _seconds(bench: Bench, count: int) -> list[float]:
    """Measure the processor time of each whole list, without the first, which connects."""
    bench.note(f"list {count:,} × {FEW} resources")
    seconds = []
    with bench.upstream(count, f"--items={FEW}") as upstream:
        urls = upstream.lines(count, READY_SECONDS)
        with bench.mux(http_config(urls)) as mux:
            (url,) = mux.lines(1, READY_SECONDS)
            timed_walk(url, FEW * count)
            for _ in range(bench.effort.runs):
                start = mux.cpu_seconds()
                timed_walk(url, FEW * count)
                seconds.append(mux.cpu_seconds() - start)
    return seconds
