"""Rows: what mcpmux adds to the time of a read when nothing else is asked.

With one connection one process is busy at a time, so both placements mean something. All on one core, it is
what mcpmux computes; on its own core, that and waking another core twice.
"""

from __future__ import annotations

from benchmarks.bench import Bench
from benchmarks.goal import Goal, at_most
from benchmarks.naming import READ
from benchmarks.report import Row, latency_row

P50, P99 = at_most(120, " µs", absolute=True), at_most(400, " µs", absolute=True)


def own_core(bench: Bench) -> list[Row]:
    """The arrangement of every other row, for which the goals are."""
    return _rows(bench, "mcpmux on its own core", bench.mux_core, P50, P99)


def one_core(bench: Bench) -> list[Row]:
    """Without the machine's time to wake a core."""
    return _rows(bench, "all on one core", bench.load_core, None, None)


def _rows(bench: Bench, place: str, core: int, p50: Goal | None, p99: Goal | None) -> list[Row]:
    measure = f"latency of a 1 KB read, 1 connection, {place}"
    bench.note(measure)
    pairs = bench.pairs(READ._replace(connections=1), core=core)
    return [
        latency_row(f"{measure}, p50", pairs, lambda tally: tally.p50, p50),
        latency_row(f"{measure}, p99", pairs, lambda tally: tally.p99, p99),
    ]
