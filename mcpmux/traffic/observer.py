"""The interfaces of observers of the traffic: of messages, and of exchanges."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

from mcpmux.channels.tap import Direction, Intercepted, Leg, Said
from mcpmux.protocol.call import Call
from mcpmux.protocol.raw_json import Fields, Id
from mcpmux.traffic.record import ANSWERS


class Observation:
    """One message that passed, with what is known about it. See `record` for the members.

    `number`: of the message in its run, `seq` of its record. `answers`: the number of the request of an
    answer, 0 when it is unknown. `ms`: of an answer, since its request, to the microsecond. Until it is read,
    `exchange` is the one in whose context it passed, or, once it `has_begun` one, its own; `said` are its
    contents if another part has decoded it. See `recorder.observe`.
    """

    __slots__ = (
        "answers",
        "at",
        "code",
        "data",
        "direction",
        "exchange",
        "failed",
        "has_begun",
        "id",
        "kind",
        "leg",
        "method",
        "ms",
        "number",
        "said",
        "status",
        "target",
    )

    def __init__(
        self,
        leg: Leg,
        direction: Direction,
        data: bytes,
        at: float,
        kind: str = "",
        exchange: int = 0,
        method: str | None = None,
        id: Id | None = None,  # noqa: A002 - the field's name
        target: str | None = None,
        code: int | None = None,
        failed: bool | None = None,
        ms: float | None = None,
        status: int | None = None,
        number: int = 0,
        answers: int = 0,
        said: Said | None = None,
    ) -> None:
        self.leg, self.direction, self.data, self.at = leg, direction, data, at
        self.number, self.answers = number, answers
        self.kind, self.exchange, self.method, self.id, self.target = kind, exchange, method, id, target
        self.code, self.failed, self.ms, self.status = code, failed, ms, status
        self.said, self.has_begun = said, False

    def __repr__(self) -> str:
        return f"<Observation {self.kind} {self.method} of {self.leg.peer}, {self.direction}>"

    def facts(self) -> tuple[Any, ...]:
        """Return the facts about the message, in the order of the parameters, from `kind` on."""
        more = (self.target, self.code, self.failed, self.ms, self.status, self.number, self.answers)
        return (self.kind, self.exchange, self.method, self.id, *more)

    @property
    def own(self) -> bool:
        """Whether it is a message of mcpmux itself (to connect, to check health), or the answer to one."""
        if self.exchange or self.leg.upstream is None:
            return False
        return self.direction == ("in" if self.kind in ANSWERS else "out")


PendingRequest: TypeAlias = tuple[int, str, float, bool, int]
"""An unanswered request: its exchange, its method, when it was made, whether it was cancelled, its number."""


class Exchange:
    """One exchange that is being worked on. `upstreams`: configured names, in the order they were asked.

    `intercepted`: the verdicts of interceptors, in their order.
    """

    __slots__ = ("began", "call", "headers", "intercepted", "leg", "number", "upstreams")

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
        self.intercepted: Sequence[Intercepted] = ()


BATCH: Final = 128  # messages that wait to be decoded: decoding many together costs less for each
LONG_BYTES: Final = 16 * 2**10  # longer messages do not wait, so that the waiting ones take little memory


class MessageObserver(Protocol):
    """Gets every message, many at a time.

    `most_waiting`: how many messages of up to LONG_BYTES may be held back from it. With 1 it gets each when
    it passes, in the context of the work that it is sent or received for.
    """

    most_waiting: int

    def expect(self, settle: Callable[[], None]) -> None:
        """Note that a message has passed. Call `settle` before anything is read: it leads to `take_all`."""

    def take_all(self, batch: Sequence[Observation]) -> None:
        """Take messages in the order in which they passed. Must not wait."""


class ExchangeObserver(Protocol):
    """May delay or refuse every exchange, and gets its outcome. May return AT_ONCE instead of waiting."""

    @property
    def passes(self) -> bool:
        """Whether an exchange that begins now may do so without `admit` and `ended`."""

    def admit(self, exchange: Exchange) -> Awaitable[None]:
        """Admit an exchange before it is worked on. May wait; see `Tap.admit`. Raises RpcError to refuse."""

    def ended(self, exchange: Exchange, outcome: Fields | BaseException, seconds: float) -> Awaitable[None]:
        """Take the outcome, before the client has the answer. May wait, may raise RpcError."""
