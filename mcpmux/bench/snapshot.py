"""How far a run is, for a live view. Pure."""

from __future__ import annotations

import msgspec


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """At one moment. `elapsed`: seconds since load began; `warming`: whether the warm-up is still on.

    `seen`: requests that have ended, with the warm-up; `count` and `errors`: those that count.
    Percentiles are seconds, over all that counts so far; None without any. `step`: the last one's name.
    """

    elapsed: float
    warming: bool
    seen: int
    count: int
    errors: int
    in_flight: int
    p50: float | None
    p99: float | None
    p999: float | None
    most: float | None
    step: str | None = None
