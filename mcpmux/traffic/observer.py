"""What observers of the traffic are told: of messages, and of exchanges."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

from mcpmux.channels.tap import Direction, Leg, Said
from mcpmux.protocol.call import Call
from mcpmux.protocol.raw_json import Fields, Id
from mcpmux.traffic.record import ANSWERS


class Observation:
    """One message that passed, with what is known about it. See `record` for the members.

    `ms`: of an answer, since its request, to the microsecond.
    """

    __slots__ = (
        "at",
        "code",
        "data",
        "direction",
        "exchange",
        "failed",
        "id",
        "kind",
        "leg",
        "method",
        "ms",
        "status",
        "target",
    )

    def __init__(
        self,
        leg: Leg,
        direction: Direction,
        data: bytes,
        at: float,
        kind: str,
        exchange: int,
        method: str | None = None,
        id: Id | None = None,  # noqa: A002 - the field's name
        target: str | None = None,
        code: int | None = None,
        failed: bool | None = None,
        ms: float | None = None,
        status: int | None = None,
    ) -> None:
        self.leg, self.direction, self.data, self.at = leg, direction, data, at
        self.kind, self.exchange, self.method, self.id, self.target = kind, exchange, method, id, target
        self.code, self.failed, self.ms, self.status = code, failed, ms, status

    def __repr__(self) -> str:
        return f"<Observation {self.kind} {self.method} of {self.leg.peer}, {self.direction}>"

    def facts(self) -> tuple[Any, ...]:
        """What is known of the message, in the order of the parameters, from `kind` on."""
        more = (self.target, self.code, self.failed, self.ms, self.status)
        return (self.kind, self.exchange, self.method, self.id, *more)

    @property
    def own(self) -> bool:
        """Whether mcpmux sends this by itself (to connect, to check health), or it answers that."""
        if self.exchange or self.leg.upstream is None:
            return False
        return self.direction == ("in" if self.kind in ANSWERS else "out")


class UnreadMessage:
    """A message that has not been looked at. `said`: what it says, if somebody has read it.

    `exchange`: the one that is worked for, or, once it `has_begun` one, its own.
    """

    __slots__ = ("at", "data", "direction", "exchange", "has_begun", "leg", "said", "status")

    def __init__(
        self,
        leg: Leg,
        direction: Direction,
        data: bytes,
        at: float,
        status: int | None = None,
        exchange: int = 0,
        said: Said | None = None,
    ) -> None:
        self.leg, self.direction, self.data, self.at = leg, direction, data, at
        self.status, self.exchange, self.said = status, exchange, said
        self.has_begun = False


PendingRequest: TypeAlias = tuple[int, str, float, bool]
"""A request that is not answered: its exchange, its method, when it was made, whether it was taken back."""


class Exchange:
    """One exchange that is being worked on. `upstreams`: configured names, in the order they were asked."""

    __slots__ = ("began", "call", "headers", "leg", "number", "upstreams")

    def __init__(
        self,
        number: int,
        leg: Leg,
        call: Call,
        began: float,
        upstreams: list[str],
        headers: Mapping[str, str],
    ) -> None:
        self.number, self.leg, self.call, self.began = number, leg, call, began
        self.upstreams, self.headers = upstreams, headers


BATCH: Final = 128  # messages that wait to be looked at: one look costs less for many
LONG_BYTES: Final = 16 * 2**10  # longer messages do not wait, so that those that do take little memory


class MessageObserver(Protocol):
    """Told of every message when it passes, in the context of what it is sent or received for."""

    def take(self, observed: Observation) -> None:
        """Must not wait."""


class BatchObserver(Protocol):
    """Told of every message, of many at a time.

    `most_waiting`: how many messages of up to LONG_BYTES may be held back from it.
    """

    most_waiting: int

    def expect(self, settle: Callable[[], None]) -> None:
        """A message has passed. `settle` leads to `take_all`, and is to be called before anybody reads."""

    def take_all(self, batch: Sequence[Observation]) -> None:
        """In the order in which they passed. Must not wait."""


class ExchangeObserver(Protocol):
    """Asked and told about every exchange. What never waits gives AT_ONCE, which need not be awaited."""

    @property
    def passes(self) -> bool:
        """Whether an exchange that begins now may go without being asked or told about."""

    def admit(self, exchange: Exchange) -> Awaitable[None]:
        """Before it is worked on. May wait; see `Tap.admit`. Raises RpcError when it must not be."""

    def ended(self, exchange: Exchange, outcome: Fields | BaseException, seconds: float) -> Awaitable[None]:
        """After it was worked on, before the client has the answer. May wait, may raise RpcError."""
