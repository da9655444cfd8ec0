"""What carries exchanges to one peer, and what all such channels have in common.

An exchange adds a pending request, sends it, and waits until that has its answer. How a request is sent, and
who reads, is each channel's own: a duplex stream (`duplex_channel`), or HTTP (`upstreams/http_channel`).

Promises: an answer reaches exactly the exchange that asked. A peer is told once that an exchange is
cancelled, and its late answer is dropped. The pending request is closed however its exchange ends. An
exchange needs a task only where it waits for something besides its answer.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

import structlog
import trio

from mcpmux.errors import RpcError, TransportError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import PROGRESS_TOKEN, Call, Event, Notify, PendingRequest
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.raw_json import Fields
from mcpmux.runtime.calls import Calls, FindClient, Hear, Send
from mcpmux.transports.inline import in_task, woken
from mcpmux.transports.waiting import Deadline, DeadlineSweeper, limited

log = structlog.get_logger()

EXPIRE_SECONDS: Final = 10.0  # how often parked calls are looked after


class Channel:
    """Exchanges with one peer. Its tasks are in `_nursery`, which whoever opens it sets.

    `closed`: the peer will say nothing more. `legacy_only`: no modern server is to be expected there.
    `hearing`: whether what a legacy server says of its own accord is heard; `HEARING` says when that changes.
    `doubtful`: the server has refused something as one of another era would.
    """

    legacy_only = False
    _pending_kind: type[PendingRequest] = PendingRequest
    _nursery: trio.Nursery

    def __init__(self, send: Send, hear: Hear, closed: trio.Event) -> None:
        """`send` carries our answers to what the peer asks; `hear` hears what belongs to no exchange."""
        self.calls = Calls(send, hear)
        self.deadlines = DeadlineSweeper()
        self.closed = closed
        self.hearing = True
        self.doubtful = False
        self._expiring = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.calls.pending_requests!r}>"

    @property
    def close_reason(self) -> TransportError:
        """Why it ended, once `closed` is set."""
        raise NotImplementedError

    async def exchange(
        self,
        call: Call,
        notify: Notify,
        deadline: Deadline | None = None,
        parked: PendingRequest | None = None,
    ) -> Fields:
        """Send `call` as it is and wait for its answer, handing its notifications to `notify` on the way.

        `parked`: was sent before, and is waited for again. The answer is `input_required`, and the request
        parked, when the server asks something first. The client's progress token is replaced by our own on
        the wire and put back in what returns. Raises RpcError (the peer's answer), TransportError (there is
        none), Overdue (not within `deadline`).
        """
        pending = parked or self.calls.pending_requests.open(call, self._pending_kind)
        try:
            if parked is None:
                if deadline is not None:
                    pending.deadline = deadline
                    self.deadlines.watch(pending)
                if not self._send_now(pending):
                    await self._send(pending, deadline)
            while pending.events or (pending.answer is None and (pending.asked or not pending.overdue)):
                if pending.events:
                    await in_task()
                    with limited(deadline):  # for a client that does not read
                        await _pass_on(pending.events.popleft(), pending.call, notify)
                elif pending.asked:
                    return self.calls.park(pending)
                else:
                    await woken(pending)
            return pending.result()
        except RpcError as error:
            again = self._after_error(call, notify, deadline, error)
            if again is None:
                raise
        finally:
            self._close(pending)
        return await again

    def _after_error(
        self, call: Call, notify: Notify, deadline: Deadline | None, error: RpcError
    ) -> Awaitable[Fields] | None:
        """How the call is done once more after the peer's error; None when that is its answer."""
        return None

    def _send_now(self, pending: PendingRequest) -> bool:
        """Send a pending request without waiting; False, and nothing is done, when that cannot be.

        Raises TransportError.
        """
        raise NotImplementedError

    async def _send(self, pending: PendingRequest, deadline: Deadline | None) -> None:
        """Send a pending request. Raises TransportError, Overdue."""
        raise NotImplementedError

    def _abandon(self, pending: PendingRequest) -> None:
        """Nobody waits any more for the answer to what was sent: the peer is told. Never waits."""
        raise NotImplementedError

    def _close(self, pending: PendingRequest) -> None:
        """The wait is over: the pending request is gone, or parked."""
        if pending.dropped:
            method, count = pending.call.method, pending.dropped
            log.warning("events dropped for a slow client", method=method, count=count)
            pending.dropped = 0
        self.deadlines.forget(pending)
        if pending.parked_until is not None:
            if not self._expiring:
                self._expiring = True
                self._nursery.start_soon(self._expire_parked, name="parked calls")
        elif self.calls.pending_requests.close(pending):
            self._abandon(pending)

    # Calls that wait for their client's answers

    async def resume(self, call: Call, notify: Notify) -> Fields:
        """Go on with a parked call. Raises RpcError for a state that is not known (any more)."""
        await in_task()
        return await self.exchange(call, notify, parked=await self.calls.resume(call))

    async def reply(self, call: Call) -> None:
        """Answer what a parked call asked, and wait for it no more. Raises like `resume`."""
        self._close(await self.calls.resume(call))

    def abandon(self, state: str) -> bool:
        """The client of a parked call has gone; False when no call was parked with that state."""
        pending = self.calls.parked.pop(state, None)
        if pending is not None and not self.closed.is_set():
            self._nursery.start_soon(self._give_up, pending)
        return pending is not None

    async def _expire_parked(self) -> None:
        while self.calls.parked:
            await trio.sleep(EXPIRE_SECONDS)
            parked, now = self.calls.parked, trio.current_time()
            late = [state for state, t in parked.items() if t.parked_until and t.parked_until < now]
            for pending in [parked.pop(state) for state in late]:
                await self._give_up(pending)
        self._expiring = False

    async def _give_up(self, pending: PendingRequest) -> None:
        """Nobody will go on with a parked call: the server is told, and forgets it."""
        await self.calls.refuse_questions(pending)
        pending.parked_until = None
        self._close(pending)

    def ask_clients_by(self, find: FindClient) -> None:
        """Who is asked when the server asks something that no call has caused."""
        self.calls.find_client = find

    # What a server's session needs besides

    def notify(self, method: str, params: Fields | None = None) -> Awaitable[None]:
        """Send a notification. Raises TransportError."""
        raise NotImplementedError

    async def listen(self) -> None:
        """From now on hear what a legacy server says of its own accord."""

    async def older(self) -> Channel | None:
        """After `initialize` was refused: the same server by the transport of 2024-11-05, if it has that."""
        return None

    def learn_tools(self, result: Fields) -> Fields:
        """A modern server has listed tools: the result without those that cannot be called here."""
        return result

    def settle(self, facts: ServerFacts) -> None:
        """The revision is agreed."""
        self.calls.revision = facts.revision

    def give_up(self, reason: TransportError) -> None:
        """What was agreed does not hold any more: sets `closed`."""
        raise NotImplementedError


async def _pass_on(event: Event, call: Call, notify: Notify) -> None:
    """Hand an event to the client, progress under the client's own token.

    Progress that the client did not ask for stops here: its token is our id, which may well be the token of
    another call of that client.
    """
    if event.method != m.PROGRESS:
        await notify(event)
    elif (token := call.meta.get(PROGRESS_TOKEN)) is not None:
        await notify(Event(event.method, {**event.params, PROGRESS_TOKEN: token}))
