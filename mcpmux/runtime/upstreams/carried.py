"""Calls in which a legacy server over HTTP may ask something: each carried by a task, as it can be parked.

One that was sent already is carried from where there is more to it than its answer.

A call is parked when the server asks and the client has to repeat its request with the answers: until then
nobody waits, but the connection on which the server will answer has to be read on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from mcpmux.errors import McpmuxError, TransportError
from mcpmux.protocol.call import Call, Notify
from mcpmux.protocol.envelope import ErrorReply, Reply
from mcpmux.protocol.inflight import Ticket
from mcpmux.protocol.raw_json import Fields
from mcpmux.runtime.calls import PARK_SECONDS, Calls, result_of
from mcpmux.runtime.upstreams.http_posting import SentTicket

Perform = Callable[[Ticket], Awaitable[Reply | ErrorReply]]
"""Sends the ticket's call, if that was not done, and reads until its answer. Raises McpmuxError.

Cancelled, it tells the server, if that has been sent the call and the ticket still waits for the answer.
"""


class CarriedCalls:
    """The carried calls of one channel. Its tasks are in `nursery`."""

    def __init__(self, calls: Calls, nursery: trio.Nursery, perform: Perform) -> None:
        self._calls = calls
        self._nursery = nursery
        self._perform = perform
        self._carriers: dict[int, trio.CancelScope] = {}
        self._over: TransportError | None = None

    def __repr__(self) -> str:
        return f"<CarriedCalls {len(self._carriers)}>"

    async def exchange(self, call: Call, notify: Notify) -> Fields:
        """Send one request and wait for its answer, or for what the server asks. Raises like a channel."""
        if self._over is not None:
            raise self._over
        ticket = self._calls.outgoing.open(call)
        self._begin(ticket, sent=False)
        return await self._wait(ticket, notify)

    async def go_on(self, ticket: SentTicket, notify: Notify) -> Fields:
        """The same for a call that was sent already, and whose ticket is open."""
        if self._over is None:
            ticket.take_time()
            self._begin(ticket, sent=True)
            return await self._wait(ticket, notify)
        try:
            return result_of(await self._perform(ticket))  # which ends at once, unless it is there
        except TransportError:
            raise self._over from None
        finally:
            self._calls.outgoing.close(ticket)

    def end(self, reason: TransportError) -> None:
        """The channel is over: who still comes hears why."""
        self._over = reason

    async def resume(self, call: Call, notify: Notify) -> Fields:
        """Go on with a parked call. Raises RpcError for a state that is not known (any more)."""
        return await self._wait(await self._calls.resume(call), notify)

    async def reply(self, call: Call) -> None:
        """Answer what a parked call asked, and wait for it no more. Raises like `resume`."""
        self._end(await self._calls.resume(call))

    def abandon(self, state: str) -> bool:
        """The client of a parked call has gone; False when no call was parked with that state."""
        ticket = self._calls.take_back(state)
        if ticket is not None:
            self._nursery.start_soon(self._give_up, ticket)
        return ticket is not None

    def _begin(self, ticket: Ticket, *, sent: bool) -> None:
        scope = self._carriers[ticket.id] = trio.CancelScope()
        self._nursery.start_soon(self._carry, ticket, scope, sent, name=f"carry {ticket.call.method}")

    async def _carry(self, ticket: Ticket, scope: trio.CancelScope, sent: bool) -> None:
        try:
            with scope:
                if sent or not scope.cancel_called:  # else it is taken back before its task has run
                    ticket.settle(await self._perform(ticket))
        except McpmuxError as error:
            ticket.settle(error)
        finally:
            del self._carriers[ticket.id]

    async def _wait(self, ticket: Ticket, notify: Notify) -> Fields:
        try:
            return await self._calls.wait(ticket, notify)
        finally:
            if ticket.parked_until is not None:
                self._nursery.start_soon(self._expire, name="parked call")
            else:
                self._end(ticket)

    def _end(self, ticket: Ticket) -> None:
        """Nobody waits any more: a server that still works on it is told."""
        if self._calls.outgoing.close(ticket) and (carrier := self._carriers.get(ticket.id)) is not None:
            carrier.cancel(reason="the client gave up")

    async def _expire(self) -> None:
        await trio.sleep(PARK_SECONDS)
        for late in self._calls.overdue():
            await self._give_up(late)

    async def _give_up(self, ticket: Ticket) -> None:
        await self._calls.refuse_questions(ticket)
        self._end(ticket)
