"""Rows: exchanges a second through mcpmux, beside those of its upstreams asked directly."""

from __future__ import annotations

from benchmarks.bench import Bench
from benchmarks.goal import Goal, at_least
from benchmarks.naming import READ, Load
from benchmarks.report import Row, bystanders, rate_row
from benchmarks.upstream import LARGE_BYTES, LARGE_URI, LEGACY, MODERN, TOOL
from mcpmux.protocol import method as m

CALL = READ._replace(method=m.TOOLS_CALL, subjects=[TOOL])
LARGE_CONNECTIONS = 4
LARGE = Load(MODERN, m.RESOURCES_READ, [LARGE_URI], LARGE_BYTES, LARGE_CONNECTIONS)
FRESH = "--ttl-ms=600000"  # longer than any run: what is remembered stays good
SLOW_READ = "--read-ms=20"  # a server that has to fetch what it answers from somewhere
SLOW_ITEMS = 100  # each is asked of the slow server once


def read_modern(bench: Bench) -> list[Row]:
    """Measure small resources, without sessions."""
    return _rate(bench, "read 1 KB, 64 connections, modern", READ, at_least(0.33))


def read_legacy(bench: Bench) -> list[Row]:
    """Measure small resources with sessions on both sides."""
    return _rate(bench, "read 1 KB, 64 connections, legacy", READ._replace(era=LEGACY), at_least(0.33))


def call(bench: Bench) -> list[Row]:
    """Measure tools."""
    return _rate(bench, "call a tool, 64 connections, modern", CALL, None)


def call_legacy(bench: Bench) -> list[Row]:
    """Measure calls in sessions, where a call outlives its connection."""
    return _rate(bench, "call a tool, 64 connections, legacy", CALL._replace(era=LEGACY), None)


def call_streamed(bench: Bench) -> list[Row]:
    """Measure calls to servers that answer in event streams, as most do."""
    measure = "call a tool, 64 connections, legacy, answers in event streams"
    return _rate(bench, measure, CALL._replace(era=LEGACY), None, "--streams")


def read_large(bench: Bench) -> list[Row]:
    """Measure contents that are copied, scanned and sent in many pieces."""
    return _rate(bench, "read 2 MB, 4 connections, modern", LARGE, at_least(0.6))


def read_slow(bench: Bench) -> list[Row]:
    """Measure contents that are public and fresh, which are asked for once."""
    measure = "read 1 KB, 64 connections, modern, 100 public URIs of a server that takes 20 ms"
    bench.note(measure)
    pairs = bench.pairs(READ._replace(subjects=READ.subjects[:SLOW_ITEMS]), FRESH, SLOW_READ)
    return [rate_row(measure, pairs, at_least(1))._replace(ratio=None, bound=None)]  # far off the picture


def _rate(bench: Bench, measure: str, load: Load, goal: Goal | None, *upstream: str) -> list[Row]:
    bench.note(measure)
    pairs = bench.pairs(load, *upstream)
    bench.remarks.append(bystanders(measure, pairs))
    return [rate_row(measure, pairs, goal)]
