"""What observers of the traffic are told: of messages, and of exchanges."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias, runtime_checkable

import msgspec

from mcpmux.protocol.call import Call
from mcpmux.protocol.raw_json import Fields, Id
from mcpmux.runtime.tap import Direction, Leg
from mcpmux.traffic.record import ANSWERS


class Observation(msgspec.Struct, gc=False):
    """One message that passed, with what is known about it. See `record` for the members.

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
        """Whether mcpmux sends this by itself (to connect, to check health), or it answers that."""
        if self.exchange or self.leg.upstream is None:
            return False
        return self.direction == ("in" if self.kind in ANSWERS else "out")


UnreadMessage: TypeAlias = tuple[Leg, Direction, bytes, float, int | None, int, bool]
"""A message whose envelope has not been read: leg, direction, data, when, HTTP status, exchange.

The exchange is the one that is worked for, or, if the last member says so, its own.
"""

PendingRequest: TypeAlias = tuple[int, str, float, bool]
"""A request that is not answered: its exchange, its method, when it was made, whether it was taken back."""


class Exchange(msgspec.Struct, gc=False):
    """One exchange that is being worked on. `upstreams`: configured names, in the order they were asked."""

    number: int
    leg: Leg
    call: Call
    began: float
    upstreams: list[str]
    headers: Mapping[str, str]


LONG_BYTES: Final = 16 * 2**10  # longer messages do not wait, so that those that do take little memory


class MessageObserver(Protocol):
    """Told of every message."""

    def take(self, observed: Observation) -> None:
        """Must not wait."""


class BatchObserver(Protocol):
    """Told of every message, of many at a time.

    `most_waiting`: how many messages of up to LONG_BYTES may be held back from it.
    """

    most_waiting: int

    def expect(self, settle: Callable[[], None]) -> None:
        """A message has passed. `settle`, which leads to `take_all`, is to be called before long."""

    def take_all(self, batch: Sequence[Observation]) -> None:
        """In the order in which they passed. Must not wait."""


class ExchangeObserver(Protocol):
    """Asked and told about every exchange."""

    def admit(self, exchange: Exchange) -> Awaitable[None]:
        """Before it is worked on. May wait; see `Tap.admit`. Raises RpcError when it must not be."""

    def ended(self, exchange: Exchange, outcome: Fields | BaseException, seconds: float) -> Awaitable[None]:
        """After it was worked on, before the client has the answer. May wait, may raise RpcError."""


@runtime_checkable
class AdmissionObserver(ExchangeObserver, Protocol):
    """Only holds exchanges back; how they end does not matter to it."""

    @property
    def is_open(self) -> bool:
        """Whether `admit` would not wait."""
