"""Rows: exchanges a second through mcpmux, and the time of a single one, beside its upstreams asked directly.

With one connection one process is busy at a time, so both placements mean something. With all processes on
one core, it is the time that mcpmux computes. With mcpmux on its own core, it includes waking another core
twice; a relay of bytes in mcpmux's place shows the time of that on this machine (`proxies.latency`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from benchmarks.bench import Bench
from benchmarks.naming import CALL, READ, Load
from benchmarks.report import Goal, Row, at_least, at_most, bystanders, latency_row, rate_row
from benchmarks.upstream import LARGE_BYTES, LARGE_URI, LEGACY, MODERN
from mcpmux.protocol import method as m

LARGE_CONNECTIONS = 4
LARGE = Load(MODERN, m.RESOURCES_READ, [LARGE_URI], LARGE_BYTES, LARGE_CONNECTIONS)
FRESH = "--ttl-ms=600000"  # longer than any run: what is remembered stays good
SLOW_READ = "--read-ms=20"  # a server that has to fetch what it answers from somewhere
SLOW_ITEMS = 100  # each is asked of the slow server once


THIRD = at_least(0.33)
OVER = "64 connections,"


def _rate(measure: str, load: Load, goal: Goal | None, options: Sequence[str], bench: Bench) -> list[Row]:
    """Measure a load. `options`: of the upstreams."""
    bench.note(measure)
    pairs = bench.pairs(load, *options)
    bench.remarks.append(bystanders(measure, pairs))
    return [rate_row(measure, pairs, goal)]


read_modern = partial(_rate, f"read 1 KB, {OVER} modern", READ, THIRD, ())
read_legacy = partial(_rate, f"read 1 KB, {OVER} legacy", READ._replace(era=LEGACY), THIRD, ())
call = partial(_rate, f"call a tool, {OVER} modern", CALL, None, ())
# In sessions a call outlives its connection; most servers answer in event streams.
call_legacy = partial(_rate, f"call a tool, {OVER} legacy", CALL._replace(era=LEGACY), None, ())
call_streamed = partial(
    _rate,
    f"call a tool, {OVER} legacy, answers in event streams",
    CALL._replace(era=LEGACY),
    None,
    ["--streams"],
)
# Contents that are copied, scanned and sent in many pieces.
read_large = partial(_rate, "read 2 MB, 4 connections, modern", LARGE, at_least(0.6), ())


def read_slow(bench: Bench) -> list[Row]:
    """Measure contents that are public and fresh, which are asked for once."""
    measure = f"read 1 KB, {OVER} modern, 100 public URIs of a server that takes 20 ms"
    bench.note(measure)
    pairs = bench.pairs(READ._replace(subjects=READ.subjects[:SLOW_ITEMS]), FRESH, SLOW_READ)
    return [rate_row(measure, pairs, at_least(1))._replace(ratio=None, bound=None)]  # far off the picture


P50, P99 = at_most(120, " µs", absolute=True), at_most(400, " µs", absolute=True)


def _latencies(place: str, is_apart: bool, p50: Goal | None, p99: Goal | None, bench: Bench) -> list[Row]:
    """Measure with mcpmux on its own core, or with all on one, without the machine's time to wake a core."""
    measure = f"latency of a 1 KB read, 1 connection, {place}"
    bench.note(measure)
    core = bench.mux_core if is_apart else bench.load_core
    pairs = bench.pairs(READ._replace(connections=1), core=core)
    return [
        latency_row(f"{measure}, p50", pairs, lambda tally: tally.p50, p50),
        latency_row(f"{measure}, p99", pairs, lambda tally: tally.p99, p99),
    ]


own_core = partial(_latencies, "mcpmux on its own core", True, P50, P99)  # as in all other rows
one_core = partial(_latencies, "all on one core", False, None, None)
