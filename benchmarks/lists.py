"""Rows: merged lists, cold and from memory."""

from __future__ import annotations

from functools import partial

from benchmarks.asking import first_answer, timed_walk
from benchmarks.bench import UPSTREAMS, Bench
from benchmarks.goal import Goal
from benchmarks.naming import Load, exposed_uri, http_config
from benchmarks.rates import FRESH
from benchmarks.report import Row, time_row
from benchmarks.upstream import MODERN
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
