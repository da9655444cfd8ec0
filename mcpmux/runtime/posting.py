"""What our side asks on one duplex stream, and waits for.

Promises: an answer reaches exactly the exchange that asked; a cancelled exchange tells the peer once and its
late answer is swallowed. A request that is posted needs no task that waits: its ticket says when there is
something to `take`, or to `go_on` with. Refuses to know how the stream is read.
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import suppress
from typing import Final

import trio

from mcpmux.errors import TransportClosed, TransportError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call, Notify
from mcpmux.protocol.envelope import Reply, encode_notification
from mcpmux.protocol.inflight import Ticket, encode_call
from mcpmux.protocol.raw_json import Fields
from mcpmux.runtime.calls import Calls, Hear, final_result
from mcpmux.runtime.term import Term, limited
from mcpmux.transports.pipe import MessagePipe, offer_to
from mcpmux.transports.punctuality import Punctuality

EXPIRE_SECONDS: Final = 10.0  # how often parked calls are looked after
FAREWELL_SECONDS: Final = 2.0  # for telling a peer that an exchange is cancelled
LAST_WORDS_SECONDS: Final = 1.0  # for the answers of a peer that takes nothing more


class Posting:
    """The half of a link that asks. Its tasks are in `_nursery`, which the other half opens."""

    _nursery: trio.Nursery

    def __init__(self, pipe: MessagePipe, hear: Hear) -> None:
        self._pipe = pipe
        self._offer = offer_to(pipe)
        self.punctuality = Punctuality()
        self.calls = Calls(pipe.send, hear)
        self.closed = trio.Event()  # the peer will say nothing more
        self.close_reason: TransportError = TransportClosed("the stream has ended")
        self._watching = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.calls!r}>"

    def exchange(self, call: Call, notify: Notify, term: Term | None = None) -> Awaitable[Fields]:
        """Send one request and wait for its answer, handing its notifications to `notify` on the way.

        The client's progress token is replaced by our own on the wire and put back in what returns. Raises,
        when it is awaited, RpcError (the peer's answer), TransportClosed (the stream ended first), Overdue.
        """
        ticket = self.post(call, term)
        if ticket is not None:
            return self.go_on(ticket, notify, term)
        return self._send_and_wait(call, notify, term)

    def post(self, call: Call, term: Term | None = None) -> Ticket | None:
        """Send one request as `exchange` does; None, and nothing is done, when that must wait or would fail.

        `take` or `go_on` must follow. The ticket's `wake` is called when there is something for them.
        """
        if self.closed.is_set():
            return None
        ticket = self.calls.outgoing.open(call)
        try:
            sent = self._offer(encode_call(ticket.id, ticket.call))
        except BaseException:
            self.calls.outgoing.close(ticket)
            raise
        if not sent:
            self.calls.outgoing.close(ticket)
            return None
        self._limit(ticket, term)
        return ticket

    def take(self, ticket: Ticket) -> Fields | None:
        """The result of a posted request, which is over then; None when there is more to it, see `go_on`.

        There is when the server has said something before, or the call is to go on with another one.
        """
        answer = ticket.answer
        if not isinstance(answer, Reply) or ticket.events:
            return None
        result = final_result(answer)
        if result is None:
            return None
        self.punctuality.forget(ticket)
        self.calls.outgoing.close(ticket)
        return result

    async def go_on(self, ticket: Ticket, notify: Notify, term: Term | None = None) -> Fields:
        """Wait for the answer to a posted request; the rest is as in `exchange`."""
        try:
            return await self.calls.wait(ticket, notify, term)
        finally:
            self.punctuality.forget(ticket)
            if ticket.answer is not None:
                self.calls.outgoing.close(ticket)
            else:
                await self._leave(ticket)

    async def _send_and_wait(self, call: Call, notify: Notify, term: Term | None) -> Fields:
        if self.closed.is_set():
            raise self.close_reason
        ticket = self.calls.outgoing.open(call)
        try:
            with limited(term):
                await self._send_or_end(encode_call(ticket.id, ticket.call))
        except BaseException:
            await self._leave(ticket)
            raise
        self._limit(ticket, term)
        return await self.go_on(ticket, notify, term)

    async def _send_or_end(self, message: bytes) -> None:
        """Send. Raises TransportClosed, and the link is closed by then, so that nobody repeats on it."""
        try:
            await self._pipe.send(message)
        except TransportClosed as error:
            with trio.move_on_after(LAST_WORDS_SECONDS):
                await self.closed.wait()
            if not self.closed.is_set():
                self.give_up(error.with_traceback(None))
                await self.closed.wait()
            raise

    def give_up(self, reason: TransportError) -> None:
        """Read nothing more; `closed` follows, unless it is set."""
        raise NotImplementedError

    def _limit(self, ticket: Ticket, term: Term | None) -> None:
        if term is not None:
            ticket.limit = term
            self.punctuality.watch(ticket)

    async def resume(self, call: Call, notify: Notify) -> Fields:
        """Go on with a parked call. Raises RpcError for a state that is not known (any more)."""
        ticket = await self.calls.resume(call)
        try:
            return await self.calls.wait(ticket, notify)
        finally:
            await self._leave(ticket)

    async def reply(self, call: Call) -> None:
        """Answer what a parked call asked, and wait for it no more. Raises like `resume`."""
        await self._leave(await self.calls.resume(call))

    async def _leave(self, ticket: Ticket) -> None:
        """The wait is over: the ticket is gone, or parked; the peer is told when nobody waits any more."""
        if ticket.parked_until is not None:
            self._watch_parked()
        elif self.calls.outgoing.close(ticket) and ticket.call.method != m.INITIALIZE:
            await self._say_cancelled(ticket.id)

    def abandon(self, state: str) -> bool:
        """The client of a parked call has gone; False when no call was parked with that state."""
        ticket = self.calls.take_back(state)
        if ticket is not None and not self.closed.is_set():
            self._nursery.start_soon(self._give_up, ticket)
        return ticket is not None

    def _watch_parked(self) -> None:
        if not self._watching:
            self._watching = True
            self._nursery.start_soon(self._expire_parked, name="parked calls")

    async def _expire_parked(self) -> None:
        while self.calls.has_parked:
            await trio.sleep(EXPIRE_SECONDS)
            for ticket in self.calls.overdue():
                await self._give_up(ticket)
        self._watching = False

    async def _give_up(self, ticket: Ticket) -> None:
        """Nobody will go on with a parked call: the server is told, and forgets it."""
        await self.calls.refuse_questions(ticket)
        if self.calls.outgoing.close(ticket):
            await self._say_cancelled(ticket.id)

    async def _say_cancelled(self, ticket_id: int) -> None:
        params = {"requestId": ticket_id, "reason": "the client gave up"}
        with trio.move_on_after(FAREWELL_SECONDS, shield=True):
            await quietly(self._pipe.send(encode_notification(m.CANCELLED, params)))


async def quietly(sending: Awaitable[None]) -> None:
    """Send to a peer that may be gone; the reader notices that on its own."""
    with suppress(TransportError):
        await sending
