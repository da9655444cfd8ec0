"""A message and an exchange, as whoever watches the traffic is told of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from mcpmux.protocol.call import Call
from mcpmux.protocol.shapes import Id
from mcpmux.runtime.tap import Direction, Leg
from mcpmux.traffic.record import ANSWERS


class Seen(msgspec.Struct, gc=False):
    """One message and what is known about it. See `record`.

    `ms`: of an answer, since its request, to the microsecond.
    """

    leg: Leg
    direction: Direction
    data: bytes
    at: float
    kind: str
    exchange: int
    method: str | None = None
    id: Id | None = None
    target: str | None = None
    code: int | None = None
    failed: bool | None = None
    ms: float | None = None
    status: int | None = None

    @property
    def own(self) -> bool:
        """Whether mcpmux says or asks this by itself (to connect, to see who lives), or it answers that."""
        if self.exchange or self.leg.upstream is None:
            return False
        return self.direction == ("in" if self.kind in ANSWERS else "out")


Passed: TypeAlias = tuple[Leg, Direction, bytes, float, int | None, int, bool]
"""A message that nobody has looked at: leg, direction, data, when, HTTP status, exchange.

The exchange is the one that is worked for, or, if the last member says so, its own.
"""


Pending: TypeAlias = tuple[int, str, float, bool]
"""A request that is not answered: its exchange, its method, when it was made, whether it was taken back."""


class Exchange(msgspec.Struct, gc=False):
    """One exchange that is being worked on. `upstreams`: configured names, in the order they were asked."""

    number: int
    leg: Leg
    call: Call
    began: float
    upstreams: list[str]
    headers: Mapping[str, str]
