"""What carries exchanges to one peer, and what all such channels have in common.

An exchange adds a pending request, sends it, and waits until that has its answer. How a request is sent, and
who reads, is each channel's own: a duplex stream (`duplex_channel`), or HTTP (`http_channel`).

Promises: an answer reaches exactly the exchange that asked. A peer is told once that an exchange is
cancelled, and its late answer is dropped. The pending request is closed however its exchange ends. An
exchange needs a task only where it waits for something besides its answer.

What a server asks in the middle of a call is for `questions`: the exchange ends with `input_required`, and
`resume` goes on with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog
import trio

from mcpmux.channels.pending import PendingRequest, PendingRequests
from mcpmux.channels.questions import Questions
from mcpmux.config.expansion import Hide
from mcpmux.errors import RpcError, TransportError
from mcpmux.printable import excerpt
from mcpmux.protocol import method as m
from mcpmux.protocol.call import PROGRESS_TOKEN, Call, Event, Hear, Notify, encode_call
from mcpmux.protocol.envelope import BadMessage, ErrorReply, Reply
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.raw_json import Fields
from mcpmux.transports.inline import in_task, woken
from mcpmux.transports.waiting import Deadline, DeadlineSweeper, limited

log = structlog.get_logger()


class Channel:
    """Exchanges with one peer. Its tasks are in `_nursery`, which whoever opens it sets.

    `closed`: the peer will say nothing more. `legacy_only`: no modern server is to be expected there.
    `hearing`: whether what a legacy server says of its own accord is heard; `HEARING` says when that changes.
    `doubtful`: the server has refused something as one of another era would. `session`: the id that a legacy
    server gave us over HTTP, or the address with HTTP+SSE.
    """

    legacy_only = False
    source = "the connection"  # where the peer's messages come from, for the log
    _nursery: trio.Nursery

    def __init__(self, send: Callable[[bytes], Awaitable[None]], hear: Hear, closed: trio.Event) -> None:
        """`send` carries our answers to what the peer asks; `hear` hears what belongs to no exchange."""
        self.pending_requests = PendingRequests()
        self.deadlines = DeadlineSweeper()
        self.questions = Questions(
            self.pending_requests, self.deadlines, send, hear, self._end, self._start_unless_closed
        )
        self.asks_progress = False  # of tool calls, also where their client does not want to know it
        self._hear = hear
        self.closed = closed
        self.hearing = True
        self.doubtful = False
        self.session: str | None = None
        self._refused = 0  # messages of the peer that could not be taken
        self.hide: Hide = str  # takes what the peer was given out of what it says in the log

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.pending_requests!r}>"

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
        pending = parked or self.pending_requests.open(self._pending(call))
        try:
            if deadline is not None:
                pending.deadline = deadline
                self.deadlines.watch(pending)
            if parked is None and not self._send_now(pending):
                await self._send(pending, deadline)
            while pending.events or (pending.answer is None and (pending.asked or not pending.overdue)):
                if pending.events:
                    await in_task()
                    with limited(deadline):  # for a client that does not read
                        await _pass_on(pending.events.pop(0), pending.call, notify)
                elif pending.asked:
                    return self.questions.park(pending)
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

    def _pending(self, call: Call) -> PendingRequest:
        return PendingRequest(call)

    def _log_refused(self, bad: BadMessage) -> None:
        """Log that a message could not be taken, and its beginning."""
        shown = {"begins": excerpt(bad.begins, self.hide)} if bad.begins else {}
        self._log_seldom("message refused", reason=bad.message, source=self.source, **shown)

    def _log_unmatched(self, answer: Reply | ErrorReply) -> None:
        """Log an answer that no call waits for: a late one is usual, any other is a mistake of the peer."""
        if self.pending_requests.was_used(answer.id):
            log.debug("late answer dropped", id=answer.id)
            return
        shown = {}
        if isinstance(answer, ErrorReply):
            shown["error"] = excerpt(answer.message.encode(), self.hide)
        self._log_seldom("answer matches no request", id=answer.id, source=self.source, **shown)

    def _log_seldom(self, event: str, **facts: object) -> None:
        """Log the 1st, 2nd, 4th, 8th … of the messages that make no sense: a flood must not flood the log."""
        self._refused += 1
        if self._refused.bit_count() == 1:
            log.warning(event, **facts, refused_so_far=self._refused)

    def _encoded(self, pending: PendingRequest) -> bytes:
        return encode_call(pending.id, pending.call, asks_progress=self.asks_progress)

    def _send_now(self, pending: PendingRequest) -> bool:
        """Send without waiting; False, and nothing is done, when that cannot be. Raises TransportError."""
        raise NotImplementedError

    async def _send(self, pending: PendingRequest, deadline: Deadline | None) -> None:
        """Send a pending request. Raises TransportError, Overdue."""
        raise NotImplementedError

    def _abandon(self, pending: PendingRequest) -> None:
        raise NotImplementedError

    def _close(self, pending: PendingRequest) -> None:
        """Wait for a request no more, unless its client is asked and may come back to it."""
        self.deadlines.forget(pending)
        if pending.parked_at is None:
            self._end(pending)

    def _end(self, pending: PendingRequest) -> None:
        """Give up a request; the peer is told if it may still work on it."""
        if pending.dropped:
            method, count = pending.call.method, pending.dropped
            log.warning("events dropped for a slow client", method=method, count=count)
            pending.dropped = 0
        if self.pending_requests.close(pending):
            self._abandon(pending)

    async def resume(self, call: Call, notify: Notify, deadline: Deadline | None = None) -> Fields:
        """Go on with a parked call. Raises RpcError for a state that was not given to it, or not any more."""
        await in_task()
        with limited(deadline):
            pending = await self.questions.resume(call)
        return await self.exchange(call, notify, deadline, pending)

    def _start_unless_closed(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        if not self.closed.is_set():
            self._nursery.start_soon(work, name=name)

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
        self.questions.revision = facts.revision

    def give_up(self, reason: TransportError) -> None:
        """What was agreed does not hold any more: sets `closed`."""
        raise NotImplementedError


async def _pass_on(event: Event, call: Call, notify: Notify) -> None:
    """Hand an event to the client, progress under its own token; progress it did not ask for stops here.

    The token is our id then, which may well be the token of another call of that client.
    """
    if event.method != m.PROGRESS:
        await notify(event)
    elif (token := call.meta.get(PROGRESS_TOKEN)) is not None:
        await notify(Event(event.method, {**event.params, PROGRESS_TOKEN: token}))


async def ignore_event(_event: Event) -> None:
    """The `Notify` of an exchange whose notifications are of no use."""
