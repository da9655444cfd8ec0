"""How long things took of late: per upstream and method, and over time. Pure.

Durations are in milliseconds; percentiles are nearest ranks of the durations themselves, so exact. Histograms
have one bucket for each factor of the square root of ten, from 0.1 ms up; the last has no upper end.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

EDGES = tuple(round(10 ** (exponent / 2), 4) for exponent in range(-2, 11))  # 0.1 ms to 100 s
GROUPS = 200  # more pairs of upstream and method than a person reads
REST = "(others)"


class Timed(NamedTuple):
    """One thing that took time. `at`: when it began, milliseconds since 1970. `upstream` "" is mcpmux."""

    at: float
    upstream: str
    method: str
    ms: float
    failed: bool


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one method at one upstream. `buckets`: how many were up to each of EDGES, and above."""

    upstream: str
    method: str
    count: int
    errors: int
    p50: float
    p90: float
    p99: float
    most: float
    buckets: list[int]


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the window. Without anything in it, its durations are None."""

    at: float
    count: int
    errors: int
    p50: float | None = None
    p95: float | None = None
    most: float | None = None


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Groups, those with most first, and slots, the oldest first."""

    edges: tuple[float, ...]
    groups: list[Group]
    slots: list[Slot]


def measure(timed: Iterable[Timed], now: float, window_ms: float, slots: int) -> Stats:
    """What took how long in the window before `now`; what is older is left out. Clocks may differ."""
    by_pair: dict[tuple[str, str], list[Timed]] = {}
    by_slot: list[list[Timed]] = [[] for _ in range(slots)]
    begin, width = now - window_ms, window_ms / slots
    for each in timed:
        if each.at < begin:
            continue
        pair = (each.upstream, each.method)
        if pair not in by_pair and len(by_pair) >= GROUPS:
            pair = (REST, REST)
        by_pair.setdefault(pair, []).append(each)
        by_slot[min(slots - 1, int((each.at - begin) / width))].append(each)
    groups = [_group(*pair, members) for pair, members in by_pair.items()]
    groups.sort(key=lambda group: -group.count)
    return Stats(
        edges=EDGES,
        groups=groups,
        slots=[_slot(begin + index * width, members) for index, members in enumerate(by_slot)],
    )


def percentile(ordered: list[float], share: float) -> float:
    """The smallest of the ordered values that so much of all are not above. `share` in (0, 1]."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _group(upstream: str, method: str, members: list[Timed]) -> Group:
    ordered = sorted(each.ms for each in members)
    buckets = [0] * (len(EDGES) + 1)
    for ms in ordered:
        buckets[bisect.bisect_left(EDGES, ms)] += 1
    return Group(
        upstream=upstream,
        method=method,
        count=len(members),
        errors=sum(each.failed for each in members),
        p50=percentile(ordered, 0.5),
        p90=percentile(ordered, 0.9),
        p99=percentile(ordered, 0.99),
        most=ordered[-1],
        buckets=buckets,
    )


def _slot(at: float, members: list[Timed]) -> Slot:
    if not members:
        return Slot(at=at, count=0, errors=0)
    ordered = sorted(each.ms for each in members)
    return Slot(
        at=at,
        count=len(members),
        errors=sum(each.failed for each in members),
        p50=percentile(ordered, 0.5),
        p95=percentile(ordered, 0.95),
        most=ordered[-1],
    )
