"""A legacy client's tool call, which outlives its connection.

    put off --its answer comes soon and alone--> sent where it is read, as of any other errand
            --anything else, or some time--> it goes on in a stream that can be resumed (`Keeper.last`)

Promises: whatever is more than an answer finds the call as if it had had its stream from the beginning.
Refuses to know how the stream is kept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from mcpmux.protocol.envelope import Request
from mcpmux.runtime.downstreams.http_answer import Work
from mcpmux.runtime.downstreams.http_errand import HttpErrand
from mcpmux.runtime.incoming import Forwarded
from mcpmux.transports.http.reply import HttpReply


class CallStream:
    """A call's stream. `over` once its last event is in; `only_answer` when that was all there is.

    `number` and `arrival` are there once it is opened; `arrival` wakes who waits for the next event.
    """

    number: int
    arrival: trio.lowlevel.ParkingLot

    def __init__(self) -> None:
        self.events = 0
        self.only_answer: bytes | None = None
        self.over = False

    def open(self, number: int) -> None:
        """From now on there may be events."""
        self.number = number
        self.arrival = trio.lowlevel.ParkingLot()


class LastingCall:
    """A call, what is done for it, and until when it is answered without a stream, in trio's time."""

    def __init__(
        self, request: Request, reply: HttpReply, stream: CallStream, work: Work, until: float
    ) -> None:
        self.request = request
        self.reply = reply
        self.stream = stream
        self.work = work
        self.until = until
        self.scope: trio.CancelScope | None = None  # once it goes on by itself
        self._called_off: str | None = None
        self._hear: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<LastingCall {self.request.method} {self.request.id!r}>"

    def begin(self) -> trio.CancelScope:
        """It goes on by itself: the scope that cancels it, which may be so already."""
        self.scope = trio.CancelScope()
        if self._called_off is not None:
            self.scope.cancel(reason=self._called_off)
        return self.scope

    def call_off(self, reason: str) -> None:
        """Nobody wants its answer any more."""
        if self.scope is not None:
            self.scope.cancel(reason=reason)
        else:
            self._called_off = reason
            self.cut_off()

    def hear_by(self, hear: Callable[[], None] | None) -> None:
        """What `cut_off` calls."""
        self._hear = hear

    def cut_off(self) -> None:
        """It does not wait any more for an answer that comes soon."""
        if self._hear is not None:
            self._hear()


class Keeper(Protocol):
    """Who has the streams."""

    def over(self, call: LastingCall) -> None:
        """It was answered without one."""
        ...

    def last(self, call: LastingCall) -> Awaitable[None]:
        """Have it go on by itself, and tell its client what becomes of it for as long as that listens."""
        ...


class LastingErrand:
    """Such a call that was sent on, see PutOff."""

    __slots__ = ("_call", "_errand", "_forwarded", "_keeper")

    def __init__(self, call: LastingCall, forwarded: Forwarded, keeper: Keeper) -> None:
        self._call = call
        self._forwarded = forwarded
        self._keeper = keeper
        self._errand = HttpErrand(call.request, call.reply, forwarded, streams=True, legacy=True)

    def __repr__(self) -> str:
        return f"<LastingErrand {self._call!r}>"

    def tell(self, hear: Callable[[], None] | None) -> None:
        """See PutOff."""
        self._call.hear_by(hear)
        self._forwarded.tell(hear)

    def take(self) -> bool:
        """See PutOff."""
        try:
            taken = self._errand.take()
        except BaseException:
            self._keeper.over(self._call)
            raise
        if taken:
            self._keeper.over(self._call)
        return taken

    def carry_on(self) -> Awaitable[None]:
        """See PutOff."""
        return self._send_large() if self._errand.is_large else self._keeper.last(self._call)

    async def _send_large(self) -> None:
        try:
            await self._errand.carry_on()
        finally:
            self._keeper.over(self._call)
