"""A channel carries exchanges with one peer. This module has the part that all kinds of channels share.

An exchange adds a pending request, sends it, and waits until that has its answer. The kinds differ in how
they send and read: over a duplex stream (`duplex_channel`), or over HTTP (`http_channel`).

Promises: an answer reaches exactly the exchange that asked. A cancelled exchange is reported to the peer
once, and its late answer is dropped. The pending request is closed however its exchange ends. An exchange
needs a task only where it waits for something besides its answer.

A server's question in the middle of a call goes to `questions`: the exchange ends with `input_required`, and
`resume` goes on with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import ClassVar, Final

import structlog
import trio

from mcpmux.channels.pending import PendingRequest, PendingRequests
from mcpmux.channels.questions import Questions
from mcpmux.config.expansion import Hide
from mcpmux.errors import RpcError, TransportError
from mcpmux.printable import excerpt
from mcpmux.protocol import method as m
from mcpmux.protocol.call import PROGRESS_TOKEN, Call, Event, Hear, Notify, encode_call
from mcpmux.protocol.codes import METHOD_NOT_FOUND
from mcpmux.protocol.envelope import BadMessage, ErrorReply, Notification, Reply, Request
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.raw_json import Fields
from mcpmux.transports.inline import in_task, woken
from mcpmux.transports.waiting import Deadline, DeadlineSweeper, limited

log = structlog.get_logger()

FAREWELL_SECONDS: Final = 2.0  # for telling the peer that an exchange, a question or the session is over


class Channel:
    """Exchanges with one peer. Its tasks run in `_nursery`, which its opener sets.

    `closed`: no more messages of the peer come. `legacy_only`: the transport is one of legacy servers only.
    `hearing`: whether a legacy server's notifications outside of requests are received; a notification
    `HEARING` reports a change. `doubtful`: the server has refused something like a server of another era.
    `session`: the id that a legacy server gave us over HTTP, or the address with HTTP+SSE. `output`: the last
    lines of a child process on its standard error, which go on to change.
    """

    legacy_only = False
    takes_headers = False  # of single calls
    source = "the connection"  # where the peer's messages come from, for the log
    pending_kind: ClassVar[type[PendingRequest]] = PendingRequest
    _nursery: trio.Nursery

    def __init__(self, send: Callable[[bytes], Awaitable[None]], hear: Hear, closed: trio.Event) -> None:
        """`send` sends our answers to the peer's requests; `hear` gets notifications of no exchange."""
        self.pending_requests = PendingRequests()
        self.deadlines = DeadlineSweeper()
        self.questions = Questions(
            self.pending_requests, self.deadlines, send, hear, self._end, self._start_unless_closed
        )
        self.asks_progress = False  # for tool calls, even if their client does not ask for progress
        self._hear = hear
        self.closed = closed
        self.hearing = True
        self.doubtful = False
        self.session: str | None = None
        self.output: Collection[str] = ()
        self._refused = 0  # messages of the peer that could not be taken
        self.hide: Hide = str  # removes the secrets that the peer was given from its text in the log

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.pending_requests!r}>"

    @property
    def close_reason(self) -> TransportError:
        """The reason for the end of the channel, once `closed` is set."""
        raise NotImplementedError

    async def exchange(
        self,
        call: Call,
        notify: Notify,
        deadline: Deadline | None = None,
        parked: PendingRequest | None = None,
    ) -> Fields:
        """Send `call` unchanged and return its answer, passing its notifications to `notify` meanwhile.

        `parked`: a request that was sent before, whose answer is awaited again. If the server asks something
        first, the request is parked and the answer is `input_required`. On the wire our progress token
        replaces the client's, which is put back into events. Raises RpcError (the peer's answer),
        TransportError (there is none), Overdue (not within `deadline`).
        """
        # From here on the answer can be matched: it may come before `_send` returns.
        pending = parked or self.pending_requests.open(self.pending_kind(call))
        try:
            if deadline is not None:
                pending.deadline = deadline
                self.deadlines.watch(pending)
            # Most requests are sent or queued at once, and need no task for that.
            if parked is None and not self._send_now(pending):
                await self._send(pending, deadline)
            # Events that came before the answer go to the client before it.
            while pending.events or (pending.answer is None and (pending.asked or not pending.overdue)):
                if pending.events:
                    await in_task()
                    with limited(deadline):  # the sweeper cannot end the wait for a client that reads slowly
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
            self.deadlines.forget(pending)
            if pending.parked_at is None:  # else its client may come back to it
                self._end(pending)
        # Only now: the repeated call is another pending request.
        return await again

    def _after_error(
        self, call: Call, notify: Notify, deadline: Deadline | None, error: RpcError
    ) -> Awaitable[Fields] | None:
        """Return the repetition of a call after the peer's error; None if the error is the answer."""
        return None

    def _log_refused(self, bad: BadMessage) -> None:
        """Log that a message could not be taken, and its beginning."""
        shown = {"begins": excerpt(bad.begins, self.hide)} if bad.begins else {}
        self._log_seldom("message refused", reason=bad.message, source=self.source, **shown)

    def _take_log(self, message: Notification, params: Fields) -> None:
        """Take a log message that names no request. Among requests of several clients it is dropped."""
        # It may belong to the only request in flight, and another client must not see it then.
        if self.pending_requests.is_quiet:
            self._hear(message)
        elif (sole := self.pending_requests.sole(message.method)) is not None:
            sole.push(Event(message.method, params))

    def _log_unmatched(self, answer: Reply | ErrorReply) -> None:
        """Log an answer for which no call waits: a late one is usual, any other is a mistake of the peer."""
        if self.pending_requests.was_used(answer.id):
            log.debug("late answer dropped", id=answer.id)
            return
        shown = {}
        if isinstance(answer, ErrorReply):
            shown["error"] = excerpt(answer.message.encode(), self.hide)
        self._log_seldom("answer matches no request", id=answer.id, source=self.source, **shown)

    def _log_seldom(self, event: str, **facts: object) -> None:
        """Log the 1st, 2nd, 4th, 8th … of the senseless messages: a flood of them must not flood the log."""
        self._refused += 1
        if self._refused.bit_count() == 1:  # a power of two
            log.warning(event, **facts, refused_so_far=self._refused)

    def _encoded(self, pending: PendingRequest) -> bytes:
        return encode_call(pending.id, pending.call, asks_progress=self.asks_progress)

    def _send_now(self, pending: PendingRequest) -> bool:
        """Send without waiting; return False, without effect, if it would wait. Raises TransportError."""
        raise NotImplementedError

    async def _send(self, pending: PendingRequest, deadline: Deadline | None) -> None:
        """Send a pending request. Raises TransportError, Overdue."""
        raise NotImplementedError

    def _abandon(self, pending: PendingRequest) -> None:
        """Tell the peer that a request is cancelled, to which it has not answered yet."""
        raise NotImplementedError

    def _end(self, pending: PendingRequest) -> None:
        """Forget a request; cancel it at the peer if that may still work on it."""
        if pending.dropped:
            method, count = pending.call.method, pending.dropped
            log.warning("events dropped for a slow client", method=method, count=count)
            pending.dropped = 0
        if self.pending_requests.close(pending):
            self._abandon(pending)

    async def resume(self, call: Call, notify: Notify, deadline: Deadline | None = None) -> Fields:
        """Go on with a parked call. Raises RpcError for a state that is not, or no longer, the call's."""
        await in_task()
        with limited(deadline):
            pending = await self.questions.resume(call)
        return await self.exchange(call, notify, deadline, pending)

    def _start_unless_closed(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        if not self.closed.is_set():
            self._nursery.start_soon(work, name=name)

    # Further methods for the session with a server

    def notify(self, method: str, params: Fields | None = None) -> Awaitable[None]:
        """Send a notification. Raises TransportError."""
        raise NotImplementedError

    async def listen(self) -> None:
        """Receive a legacy server's notifications outside of requests, from now on."""

    async def older(self) -> Channel | None:
        """Open the transport of 2024-11-05 to a server that refused `initialize`; None if it has none."""
        return None

    def learn_tools(self, result: Fields) -> Fields:
        """Learn from a modern server's list of tools; return it without those that cannot be called here."""
        return result

    def settle(self, facts: ServerFacts) -> None:
        """Use the agreed revision from now on."""
        self.questions.revision = facts.revision

    def give_up(self, reason: TransportError) -> None:
        """End the channel, whose agreement with the peer no longer holds; sets `closed`."""
        raise NotImplementedError


async def _pass_on(event: Event, call: Call, notify: Notify) -> None:
    """Pass an event to the client; progress gets the client's token, and is dropped without one.

    On the wire its token is our request's id, which may be the token of another call of that client.
    """
    if event.method != m.PROGRESS:
        await notify(event)
    elif (token := call.meta.get(PROGRESS_TOKEN)) is not None:
        await notify(Event(event.method, {**event.params, PROGRESS_TOKEN: token}))


async def answer_server(request: Request, _notify: Notify) -> Fields:
    """Answer a server's request for mcpmux itself: only `ping` is supported. Raises RpcError for others."""
    if request.method == m.PING:
        return {}
    raise RpcError(METHOD_NOT_FOUND, f"Method not found: {request.method}")


async def ignore_event(_event: Event) -> None:
    """Drop a notification: the `Notify` of an exchange whose notifications are of no use."""
