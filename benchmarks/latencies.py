"""Rows: the time that mcpmux adds to a read when there is no other request.

With one connection one process is busy at a time, so both placements mean something. With all processes on
one core, it is the time that mcpmux computes. With mcpmux on its own core, it includes waking another core
twice. A relay of bytes in mcpmux's place shows the time of that on this machine.
"""

from __future__ import annotations

from functools import partial

from benchmarks.bench import Bench
from benchmarks.goal import Goal, at_most
from benchmarks.naming import READ
from benchmarks.process import Child
from benchmarks.report import Pair, Row, latency_row

MEASURE = "latency of a 1 KB read, 1 connection"
P50, P99 = at_most(120, " µs", absolute=True), at_most(400, " µs", absolute=True)


def relayed(bench: Bench) -> list[Row]:
    """Measure the part that every program in that place takes."""
    bench.note("latency of a relay of bytes")
    load = READ._replace(connections=1)
    with bench.upstream(1, "--era", load.era) as upstream:
        (url,) = upstream.lines(1)
        with Child(["benchmarks.relay", url], bench.mux_core) as relay:
            (relay_url,) = relay.lines(1)
            pairs = bench.alternate(
                lambda: bench.load(load, [url], load.subjects),
                lambda: bench.load(load, [relay_url], load.subjects),
                relay,
            )
    return _both(f"{MEASURE}, a relay of bytes in place of mcpmux", pairs, None, None)


def _rows(place: str, is_apart: bool, p50: Goal | None, p99: Goal | None, bench: Bench) -> list[Row]:
    """Measure with mcpmux on its own core, or with all on one, without the machine's time to wake a core."""
    measure = f"{MEASURE}, {place}"
    bench.note(measure)
    core = bench.mux_core if is_apart else bench.load_core
    return _both(measure, bench.pairs(READ._replace(connections=1), core=core), p50, p99)


own_core = partial(_rows, "mcpmux on its own core", True, P50, P99)  # as in all other rows
one_core = partial(_rows, "all on one core", False, None, None)


def _both(measure: str, pairs: list[Pair], p50: Goal | None, p99: Goal | None) -> list[Row]:
    return [
        latency_row(f"{measure}, p50", pairs, lambda tally: tally.p50, p50),
        latency_row(f"{measure}, p99", pairs, lambda tally: tally.p99, p99),
    ]
