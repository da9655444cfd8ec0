"""Exchanges over one duplex stream: many requests, both directions, one message stream.

Promises: an answer reaches exactly the exchange that asked; a cancelled exchange notifies the peer once, and
its late answer is dropped; the end of the stream ends all waiting exchanges with an error. Refuses to know
sessions, all of a revision but whether it has batches, and what a method means, except for cancellation,
progress and log messages, which belong to a stream.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any, Final

import structlog
import trio

from mcpmux.channels.channel import FAREWELL_SECONDS, Channel, answer_server
from mcpmux.channels.pending import PendingRequest
from mcpmux.errors import (
    MessageTooLarge,
    RemoteProtocolError,
    RpcError,
    TransportClosed,
    TransportError,
    forget_frames,
)
from mcpmux.protocol import method as m
from mcpmux.protocol.call import META, PROGRESS_TOKEN, SUBSCRIPTION_ID, Event, Hear, Notify
from mcpmux.protocol.codes import BUSY, IN_FLIGHT, INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR, Busy
from mcpmux.protocol.envelope import (
    BadMessage,
    ErrorReply,
    Message,
    Notification,
    Reply,
    Request,
    bad_message,
    decode_fields,
    decode_message,
    decode_reply,
    decode_request,
    encode_error,
    encode_notification,
    encode_reply,
    id_of,
    is_batch,
)
from mcpmux.protocol.framing import BatchAnswer, read_batch
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.input_requests import ASKS
from mcpmux.protocol.raw_json import Fields, Id
from mcpmux.protocol.revisions import allows_batch
from mcpmux.transports.body_budget import LargeRequests
from mcpmux.transports.inline import Inline, in_task
from mcpmux.transports.message_stream import MessageStream
from mcpmux.transports.waiting import Deadline, limited

log = structlog.get_logger()

_ANSWERS: Final = (Reply, ErrorReply)

INCOMING_LIMIT: Final = 1024  # exchanges of one peer at a time; more than any host opens, less than hurts
# Refusals of one peer's messages that wait to be sent, after which it is not read on.
OBJECTION_LIMIT: Final = 16
LAST_WORDS_SECONDS: Final = 1.0  # for the answers of a peer that no longer reads

Answer = Callable[[Request, Notify], Awaitable[Fields]]
"""Returns the answer to one request of the peer, or raises RpcError."""


class InlineExchange:
    """One request that is being answered: inline, and in a task once it needs one."""

    __slots__ = ("_attended", "_nursery", "_running", "_scope")

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._running: Inline | None = None
        self._scope: trio.CancelScope | None = None
        self._attended = False

    def start(self, work: Coroutine[Any, Any, None], context: Context, at_once: bool = True) -> None:
        """Run `work` in `context`, inline if `at_once`, otherwise in a task."""
        self._running = running = Inline(work, context, self.attend)
        if not at_once or not running.start():
            self.attend()

    def attend(self) -> None:
        """Give the exchange a task from now on, unless it is over."""
        running = self._running
        if running is None or self._attended:
            return
        if running.is_over:
            if (mistake := running.error) is not None:  # of ours, outside the wall
                log.error("an exchange ended badly", exc_info=mistake)
            return
        self._attended = True
        try:
            self._nursery.start_soon(self._go_on, running, self._make_scope(), name="exchange")
        except RuntimeError:  # the nursery is closed: the connection has ended
            running.close()

    def _make_scope(self) -> trio.CancelScope:
        if self._scope is None:
            self._scope = trio.CancelScope()
        return self._scope

    async def _go_on(self, running: Inline, scope: trio.CancelScope) -> None:
        with scope:
            await running

    def cancel(self, reason: str) -> None:
        """Cancel the exchange; it gets a task for its cleanup, as only tasks can be cancelled."""
        self._make_scope().cancel(reason=reason)
        self.attend()


class DuplexChannel(Channel):
    """One duplex stream carrying exchanges. Made by `open_duplex_channel`."""

    def __init__(self, messages: MessageStream, hear: Hear, answer: Answer | None) -> None:
        """`answer` answers a client; None if the peer is a server."""
        super().__init__(messages.send, hear, trio.Event())
        self._messages = messages
        self._close_reason: TransportError = TransportClosed("the stream has ended")
        self._offer = messages.offer
        self._receive_nowait = messages.receive_nowait
        self.large: LargeRequests | None = None  # counts the peer's large requests in a budget
        self.batches = False  # whether the peer may send them: set when the revision is agreed
        self.incoming_limit = INCOMING_LIMIT
        # A client gets an error for a message that cannot be taken, a server does not.
        self._objects = answer is not None
        # Clients mostly send requests, servers mostly answers: the fast decoder is for these.
        self._decode: Callable[[bytes], Message | None] = decode_request if answer else decode_reply
        self._objections = 0
        self._objected = trio.lowlevel.ParkingLot()
        self._answer = answer or answer_server
        self._incoming: dict[Id, InlineExchange] = {}  # the peer's exchanges in progress
        self._context = copy_context()  # each of them has its own copy
        self._reading = trio.CancelScope()
        self._draining = False
        self.ended = trio.Event()  # the peer has ended, and all its requests are answered or given up

    @property
    def close_reason(self) -> TransportError:
        return self._close_reason

    def _send_now(self, pending: PendingRequest) -> bool:
        if self.closed.is_set():
            raise self._close_reason.anew()
        return self._offer(self._encoded(pending))

    async def _send(self, pending: PendingRequest, deadline: Deadline | None) -> None:
        await in_task()
        with limited(deadline):
            try:
                await self._messages.send(self._encoded(pending))
            except TransportClosed as error:
                # The caller may repeat the call on another channel, and must find this one closed by then.
                # The reader may know a better reason for its end, such as the exit status of the process.
                with trio.move_on_after(LAST_WORDS_SECONDS):
                    await self.closed.wait()
                if not self.closed.is_set():
                    self.give_up(error.anew())
                    await self.closed.wait()
                raise error

    def _abandon(self, pending: PendingRequest) -> None:
        # `initialize` must not be cancelled (`basic/utilities/cancellation`, 2025-11-25).
        if self.closed.is_set() or pending.call.method == m.INITIALIZE:
            return
        params = {"requestId": pending.id, "reason": "the client gave up"}
        farewell = encode_notification(m.CANCELLED, params)
        if not self._offer(farewell):
            self._nursery.start_soon(self._say_farewell, farewell)

    async def _say_farewell(self, message: bytes) -> None:
        # Shielded, as the channel may be left right after an exchange was cancelled.
        with trio.move_on_after(FAREWELL_SECONDS, shield=True), suppress(TransportError):
            await self._messages.send(message)

    def settle(self, facts: ServerFacts) -> None:
        super().settle(facts)
        self.batches = allows_batch(facts.revision)

    def give_up(self, reason: TransportError) -> None:
        """Stop reading: all waiting exchanges fail with `reason`, and the owner closes the stream."""
        self._close_reason = reason
        self._reading.cancel(reason="given up")

    async def notify(self, method: str, params: Fields | None = None) -> None:
        await self._messages.send(encode_notification(method, params))

    def drain(self) -> None:
        """Refuse new requests of the peer; `ended` is set once its earlier requests are answered."""
        self._draining = True
        self._close_reason = TransportClosed("this side is stopping")
        self._stop_when_drained()  # without exchanges in progress, none will end and do this

    def _stop_when_drained(self) -> None:
        if self._draining and not self._incoming:
            self._reading.cancel(reason="everything is answered")

    async def run(self, linger: float) -> None:
        """Take the peer's messages until the stream ends, then fail all waiting exchanges.

        The peer's exchanges get `linger` seconds to finish after that: a peer that only closed its sending
        side still gets the answers.
        """
        async with trio.open_nursery() as self._nursery:
            try:
                with self._reading:
                    await self._read()
            except TransportError as error:
                self._close_reason = error.anew()  # the frames of `error` would keep the last message alive
            finally:
                # `closed` first: exchanges that fail below must not repeat their calls here.
                self.closed.set()
                for exchange in list(self._incoming.values()):  # they go on, in tasks of this nursery
                    exchange.attend()
                self.pending_requests.fail_all(self._close_reason)
            self._nursery.cancel_scope.deadline = trio.current_time() + linger
        self.ended.set()

    async def _read(self) -> None:
        while True:
            try:
                # Many messages may have come with one receive; taking them needs no checkpoint each.
                data = self._receive_nowait() or await self._messages.receive()
                # Counted until its request is answered: what waits here must stay in the budget.
                if self.large is not None:
                    self.large.read(len(data))
                if self.batches and is_batch(data):
                    self._take_batch(data)
                else:
                    self._take(self._decode(data) or decode_message(data))
            except BadMessage as bad:
                self._object_to(bad)
            except MessageTooLarge as error:
                self._object_to(bad_message(error.excerpt, INVALID_REQUEST, f"Invalid request: {error}"))
            data = b""  # the next message may come much later
            # A peer that sends garbage and reads no objections must not fill the memory with them.
            while self._objections >= OBJECTION_LIMIT:
                await self._objected.park()

    def _take_batch(self, data: bytes) -> None:
        batch = BatchAnswer()
        for message in read_batch(data):
            if isinstance(message, BadMessage):
                self._object_to(message, batch)
            elif isinstance(message, Request):
                self._take_request(message, batch)
            else:
                self._take(message)
        self._say_soon(batch.settle())

    def _object_to(self, bad: BadMessage, batch: BatchAnswer | None = None) -> None:
        """Treat a message that cannot be taken: fail the request that it answers, or tell a client."""
        self._log_refused(bad)
        if not self._objects:
            if bad.may_answer:
                self.pending_requests.fail_unread(bad.id, RemoteProtocolError(bad.as_answer))
        elif bad.is_answer:
            self.pending_requests.fail_unread(bad.id, RpcError(INTERNAL_ERROR, bad.as_answer))
        elif batch is not None:
            batch.expect()
            batch.settle(encode_error(bad.id, bad))  # never the last answer, as the batch is still being read
        else:
            self._say_soon(encode_error(bad.id, bad))

    def _say_soon(self, objection: bytes | None) -> None:
        if objection is not None:
            self._objections += 1
            self._nursery.start_soon(self._send_objection, objection)

    def _take(self, message: Request | Notification | Reply | ErrorReply) -> None:
        if isinstance(message, _ANSWERS):
            taken = self.pending_requests.take_answer(message)
            # A peer that cannot parse a request cannot give its id (JSON-RPC 2.0, section 5).
            if isinstance(message, ErrorReply) and message.id is None and message.code == PARSE_ERROR:
                taken = self.pending_requests.fail_unread(None, message.as_error())
            if not taken:
                self._log_unmatched(message)
        elif isinstance(message, Request):
            self._take_request(message)
        else:
            self._take_notification(message)

    def _take_request(self, request: Request, batch: BatchAnswer | None = None) -> None:
        if request.method in ASKS and not self._objects:  # a server's question to one of its clients
            self._nursery.start_soon(self.questions.take, request)
            return
        if request.id in self._incoming:  # the peer could not tell the two answers apart
            reason = f"Invalid request: id {request.id!r} is already in flight"
            self._object_to(BadMessage(INVALID_REQUEST, reason), batch)
            return
        if self._draining:
            self._object_to(BadMessage(BUSY, "Busy: mcpmux is stopping; try again later", request.id), batch)
            return
        try:
            if len(self._incoming) >= self.incoming_limit:
                raise Busy(f"more than {self.incoming_limit} requests in flight", IN_FLIGHT, own=True)
            if self.large is not None:
                self.large.begin(request.id)
        except Busy as busy:
            self._object_to(BadMessage(busy.code, busy.message, request.id, busy.data), batch)
            return
        if batch is not None:
            batch.expect()
        exchange = self._incoming[request.id] = InlineExchange(self._nursery)
        # In a task if it is part of a batch: all of the batch is read before its first answer.
        exchange.start(self._serve(request, batch), self._context.copy(), batch is None)

    # The peer's requests: each is answered once, alone or with the rest of its batch, or not at all if the
    # peer has cancelled it. A failing one affects no other. The last of a batch sends all its answers.

    async def _serve(self, request: Request, batch: BatchAnswer | None) -> None:
        try:
            try:
                data = encode_reply(request.id, await self._answer(request, self._say))
            except trio.Cancelled:
                if batch is not None:  # the others of the batch still get their answers
                    self._say_soon(batch.settle())
                raise
            except RpcError as refusal:
                forget_frames(refusal)
                data = encode_error(request.id, refusal)
            except Exception as error:  # the wall around one request
                # The text of the error is for the log only: it may hold secrets.
                log.error("request failed", method=request.method, exc_info=error)
                forget_frames(error)
                data = encode_error(request.id, RpcError(INTERNAL_ERROR, "Internal error"))
            whole = data if batch is None else batch.settle(data)
            if whole is not None and not self._offer(whole):
                await in_task()
                with suppress(TransportError):  # the reader notices that the peer is gone
                    await self._messages.send(whole)
        finally:
            # Only after the answer was queued, so that `drain` does not close the stream before.
            del self._incoming[request.id]
            if self.large is not None:
                self.large.end(request.id)
            self._stop_when_drained()

    async def _say(self, event: Event) -> None:
        message = encode_notification(event.method, event.params)
        if not self._offer(message):
            await in_task()
            # The reader notices that the peer is gone. Raised here, the error would count as that of the
            # server whose notification this is.
            with suppress(TransportError):
                await self._messages.send(message)

    def _take_notification(self, message: Notification) -> None:
        if message.method.startswith(m.OWN):
            return
        try:
            params = decode_fields(message.params)
        except ValueError:
            return
        if message.method == m.CANCELLED:
            request_id = id_of(params.get("requestId"))
            exchange = self._incoming.get(request_id) if request_id is not None else None
            if exchange is not None:
                exchange.cancel("the peer cancelled the request")
            # On one stream a server ends a listen so (`basic/patterns/cancellation`, 2026-07-28).
            elif not self.pending_requests.end_listen(request_id):
                self.questions.withdraw(request_id)
        elif message.method == m.PROGRESS:
            event = Event(message.method, params)
            if not self.pending_requests.take_event(id_of(params.get(PROGRESS_TOKEN)), event):
                self._hear(message)  # progress of a task, whose call was answered long ago
        elif message.method == m.ACKNOWLEDGED:
            self.pending_requests.take_event(_subscription_of(params), Event(message.method, params))
        elif message.method in m.UNASKED:
            self._hear_change(message, params)
        elif message.method == m.LOG_MESSAGE:
            self._take_log(message, params)
        else:
            # For listeners, and for the modern client that may have caused it, as that cannot listen for it.
            self._hear_change(message, params)
            sole = self.pending_requests.sole(message.method)
            if sole is not None and not sole.call.legacy:
                sole.push(Event(message.method, params))

    def _hear_change(self, message: Notification, params: Fields) -> None:
        listen = _subscription_of(params)
        if listen is None or self.pending_requests.is_open(listen):  # otherwise another listen has taken over
            self._hear(message)

    async def _send_objection(self, data: bytes) -> None:
        try:
            with suppress(TransportError):
                await self._messages.send(data)
        finally:
            self._objections -= 1
            self._objected.unpark()


def _subscription_of(params: Fields) -> Id | None:
    try:
        return id_of(decode_fields(params.get(META)).get(SUBSCRIPTION_ID))
    except ValueError:
        return None
