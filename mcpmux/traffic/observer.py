"""A message and an exchange, as whoever watches the traffic is told of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias, runtime_checkable

import msgspec

from mcpmux.protocol.call import Call
from mcpmux.protocol.raw_json import Fields
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


# Who is told by the recorder: sinks and an archive of messages, keepers of exchanges.

LONG: Final = 16 * 2**10  # bytes; longer messages do not wait, so that those that do take little memory


class Sink(Protocol):
    """Told of every message."""

    def take(self, seen: Seen) -> None:
        """Must not wait."""
        ...


class Archive(Protocol):
    """Told of every message, of many at a time.

    `patience`: how many messages of up to LONG bytes may wait to be told. It does not count them until then.
    """

    patience: int

    def expect(self, settle: Callable[[], None]) -> None:
        """A message has passed. `settle`, which has it told of all that have, is to be called before long."""
        ...

    def take_all(self, batch: Sequence[Seen]) -> None:
        """In the order in which they passed. Must not wait."""
        ...


class Keeper(Protocol):
    """Asked and told about every exchange."""

    def admit(self, exchange: Exchange) -> Awaitable[None]:
        """Before it is worked on. May wait; see `Tap.admit`. Raises RpcError when it must not be."""
        ...

    def ended(self, exchange: Exchange, outcome: Fields | BaseException, seconds: float) -> Awaitable[None]:
        """After it was worked on, before the client has the answer. May wait, may raise RpcError."""
        ...


@runtime_checkable
class Doorkeeper(Keeper, Protocol):
    """Only holds exchanges back; how they end is nothing to it."""

    @property
    def is_open(self) -> bool:
        """Whether `admit` would not wait."""
        ...
