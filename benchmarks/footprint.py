"""Rows: the start of a process of mcpmux, and its memory when it is idle."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.asking import first_answer
from benchmarks.bench import UPSTREAMS, Bench
from benchmarks.naming import exposed_subjects, exposed_uri, http_config
from benchmarks.process import Child
from benchmarks.rates import LARGE
from benchmarks.report import MEGA, Goal, Row, at_most, memory_row, spread, time_row
from benchmarks.upstream import LARGE_BYTES, item_uri

IDLE_UPSTREAMS = 10
SETTLE_SECONDS = 1.0  # after which a process that has started is idle

START = at_most(0.6, " s", absolute=True)
LARGE_IN_FLIGHT = 32
LARGE_GOAL = at_most(3, " × the payload")
IDLE = Goal("≤ 45 MB", most=45e6)


def start(bench: Bench) -> list[Row]:
    """Measure the start, with running upstreams. `direct` is the time of the upstream's own start."""
    measure = f"start to first answer, {UPSTREAMS} upstreams, beside the upstream's own start"
    bench.note(measure)
    direct, through = [], []
    with bench.upstream(UPSTREAMS) as upstream:
        urls = upstream.lines(UPSTREAMS)
        with bench.mux(http_config(urls)) as child:  # missing bytecode is compiled here
            first_answer(child.lines(1)[0], exposed_uri(0))
        for _ in range(bench.effort.runs):
            with bench.upstream(1) as child:
                direct.append(first_answer(child.lines(1)[0], item_uri(0)) - child.started)
            with bench.mux(http_config(urls)) as child:
                through.append(first_answer(child.lines(1)[0], exposed_uri(0)) - child.started)
    return [time_row(measure, direct, through).judged(START, through)]


def memory(bench: Bench) -> list[Row]:
    """Measure the memory after a read from each of the upstreams."""
    measure = f"resident memory, idle, {IDLE_UPSTREAMS} upstreams (direct: the one process that serves them)"
    bench.note(measure)
    direct: list[float] = []
    through: list[float] = []
    with bench.upstream(IDLE_UPSTREAMS) as upstream:
        urls = upstream.lines(IDLE_UPSTREAMS)
        for _ in range(bench.effort.runs):
            with _warm(bench, urls) as (mux, _):
                time.sleep(SETTLE_SECONDS)
                direct.append(upstream.resident_bytes())
                through.append(mux.resident_bytes())
    return [memory_row(measure, direct, through, IDLE)]


def large(bench: Bench) -> list[Row]:
    """Divide the largest growth of the process by the number of reads in flight."""
    measure = f"memory of each of {LARGE_IN_FLIGHT} reads of 2 MB in flight (direct: the payload)"
    bench.note(measure)
    load = LARGE._replace(connections=LARGE_IN_FLIGHT)
    sizes = []
    with bench.upstream(UPSTREAMS) as upstream:
        urls = upstream.lines(UPSTREAMS)
        for _ in range(bench.effort.runs):
            with _warm(bench, urls) as (mux, url):
                start = mux.resident_bytes()
                bench.load(load, [url], exposed_subjects(load, UPSTREAMS))
                sizes.append((mux.peak_bytes() - start) / LARGE_IN_FLIGHT)
    payloads = [size / LARGE_BYTES for size in sizes]
    own = spread([size / MEGA for size in sizes], " MB", 1)
    row = Row(measure, f"{LARGE_BYTES / MEGA:.1f} MB", own, spread(payloads, " × the payload", 2))
    return [row.judged(LARGE_GOAL, payloads)]


@contextmanager
def _warm(bench: Bench, urls: Sequence[str]) -> Iterator[tuple[Child, str]]:
    """Run mcpmux, which has answered for each of the upstreams, and yield it with its URL."""
    with bench.mux(http_config(urls)) as mux:
        (url,) = mux.lines(1)
        for number in range(len(urls)):
            first_answer(url, exposed_uri(number))
        yield mux, url
