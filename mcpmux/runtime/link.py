"""Exchanges over one duplex stream: many requests, both directions, one pipe.

Promises: an answer reaches exactly the exchange that asked; a cancelled exchange tells the peer once and
its late answer is swallowed; when the stream ends everybody who waits hears it. Refuses to know revisions,
sessions and what a method means, but for cancellation, progress and log messages, which belong to a stream.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import structlog
import trio

from mcpmux.errors import MessageTooLarge, RpcError, TransportClosed, TransportError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import META, PROGRESS_TOKEN, SUBSCRIPTION_ID, Call, Event, Notify, with_meta
from mcpmux.protocol.codes import BUSY, INTERNAL_ERROR, INVALID_REQUEST
from mcpmux.protocol.envelope import (
    BadMessage,
    ErrorReply,
    Fields,
    Id,
    Notification,
    Reply,
    Request,
    decode_any,
    decode_fields,
    decode_message,
    encode_error,
    encode_notification,
    encode_reply,
    encode_request,
    raw,
)
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.inflight import Outgoing, Ticket
from mcpmux.transports.pipe import MessagePipe

log = structlog.get_logger()

Answer = Callable[[Request, Notify], Awaitable[Fields]]
"""Answers one request of the peer, or raises RpcError."""

Hear = Callable[[Notification], None]
"""Takes a notification of the peer that belongs to no exchange. Never waits."""

INCOMING_LIMIT = 1024  # exchanges of one peer at a time; more than any host opens, less than hurts
OBJECTION_LIMIT = 16  # refusals of one peer's messages that wait to be sent; more are not worth an answer
FAREWELL_SECONDS = 2.0  # for telling a peer that an exchange is cancelled, or what was wrong with a message


class Link:
    """One duplex stream carrying exchanges. Made by `open_link`."""

    def __init__(self, pipe: MessagePipe, answer: Answer, hear: Hear, *, objects: bool) -> None:
        self._pipe = pipe
        self._answer = answer
        self._hear = hear
        self._objects = objects
        self._refused = 0
        self._objections = 0
        self._outgoing = Outgoing()
        self._incoming: dict[Id, trio.CancelScope] = {}
        self.closed = trio.Event()  # the peer will say nothing more
        self.ended = trio.Event()  # and everything it asked is done with
        self.close_reason: TransportError = TransportClosed("the stream has ended")

    def __repr__(self) -> str:
        return f"<Link {self._outgoing!r}, {len(self._incoming)} incoming>"

    async def exchange(self, call: Call, notify: Notify) -> Fields:
        """Send one request and wait for its answer, handing its notifications to `notify` on the way.

        The client's progress token is replaced by our own on the wire and put back in what returns.
        Raises RpcError (the peer's answer), TransportClosed (the stream ended first).
        """
        if self.closed.is_set():
            raise self.close_reason
        ticket = self._outgoing.open()
        token = call.meta.get(PROGRESS_TOKEN)
        meta = call.meta if token is None else {**call.meta, PROGRESS_TOKEN: raw(ticket.id)}
        finished = False
        try:
            params = with_meta(call.params, meta)
            await self._pipe.send(encode_request(ticket.id, call.method, params or None))
            answer = await self._await_answer(ticket, token, notify)
            finished = True
            return answer
        finally:
            if self._outgoing.close(ticket) and not finished and call.method != m.INITIALIZE:
                await self._say_cancelled(ticket.id)

    async def _await_answer(self, ticket: Ticket, token: object, notify: Notify) -> Fields:
        while True:
            while ticket.events:
                event = ticket.events.popleft()
                if event.method == m.PROGRESS and token is not None:
                    event = Event(event.method, {**event.params, PROGRESS_TOKEN: token})  # type: ignore[dict-item]
                await notify(event)
            answer = ticket.answer
            if answer is None:
                await _parked(ticket)
            elif isinstance(answer, Reply):
                return _result_fields(answer)
            elif isinstance(answer, ErrorReply):
                raise answer.as_error()
            else:
                raise answer

    async def listen(self) -> None:
        """A duplex stream is heard all the time."""

    def settle(self, facts: ServerFacts) -> None:
        """A duplex stream looks the same in every revision."""

    async def notify(self, method: str, params: Fields | None = None) -> None:
        """Send a notification. Raises TransportClosed."""
        await self._pipe.send(encode_notification(method, params))

    async def _say_cancelled(self, ticket_id: int) -> None:
        params = {"requestId": ticket_id, "reason": "the client gave up"}
        with trio.move_on_after(FAREWELL_SECONDS, shield=True):
            await _quietly(self._pipe.send(encode_notification(m.CANCELLED, params)))

    async def run(self, linger: float) -> None:
        """Take the peer's messages until the stream ends, then tell everybody who waits.

        The peer's own exchanges get `linger` seconds to finish after that: a peer that only closed its
        sending side still hears the answers.
        """
        async with trio.open_nursery() as self._nursery:
            try:
                await self._read()
            except TransportError as error:
                self.close_reason = error
            finally:
                self.closed.set()
                self._outgoing.fail_all(self.close_reason)
            self._nursery.cancel_scope.deadline = trio.current_time() + linger
        self.ended.set()

    async def _read(self) -> None:
        while True:
            try:
                self._take(decode_message(await self._pipe.receive()))
            except BadMessage as bad:
                self._object_to(bad)
            except MessageTooLarge as error:
                self._object_to(BadMessage(INVALID_REQUEST, f"Invalid request: {error}"))

    def _object_to(self, bad: BadMessage) -> None:
        """A message could not be taken. A client is told; a server never is, it did not ask anything."""
        self._refused += 1
        if self._refused.bit_count() == 1:  # the 1st, 2nd, 4th, 8th …: a flood must not flood the log
            log.warning("message refused", reason=bad.message, refused_so_far=self._refused)
        if self._objects and self._objections < OBJECTION_LIMIT:
            self._objections += 1
            self._nursery.start_soon(self._send_objection, encode_error(bad.id, bad))

    def _take(self, message: Request | Notification | Reply | ErrorReply) -> None:
        if isinstance(message, Reply | ErrorReply):
            if not self._outgoing.take_answer(message):
                log.debug("late or unknown answer dropped", id=message.id)
        elif isinstance(message, Request):
            self._take_request(message)
        else:
            self._take_notification(message)

    def _take_request(self, request: Request) -> None:
        if request.id in self._incoming:
            refusal = RpcError(INVALID_REQUEST, f"Invalid request: id {request.id!r} is already in flight")
            self._object_to(BadMessage(refusal.code, refusal.message))
        elif len(self._incoming) >= INCOMING_LIMIT:
            refusal = RpcError(BUSY, f"Busy: more than {INCOMING_LIMIT} requests in flight; try again later")
            self._object_to(BadMessage(refusal.code, refusal.message, request.id))
        else:
            scope = self._incoming[request.id] = trio.CancelScope()
            self._nursery.start_soon(self._serve, request, scope, name=f"exchange {request.method}")

    def _take_notification(self, message: Notification) -> None:
        try:
            params = decode_fields(message.params)
        except ValueError:
            return
        if message.method == m.CANCELLED:
            scope = self._incoming.get(_id_of(params, "requestId"))  # type: ignore[arg-type]
            if scope is not None:
                scope.cancel(reason="the peer cancelled the request")
        elif message.method == m.PROGRESS:
            self._outgoing.take_event(_id_of(params, PROGRESS_TOKEN), Event(message.method, params))
        elif message.method == m.ACKNOWLEDGED:
            self._outgoing.take_event(_subscription_of(params), Event(message.method, params))
        elif message.method == m.LOG_MESSAGE and (only := self._outgoing.only()) is not None:
            only.push(Event(message.method, params))
        else:
            listen = _subscription_of(params)
            if listen is None or self._outgoing.is_open(listen):  # else another listen has taken over
                self._hear(message)

    async def _serve(self, request: Request, scope: trio.CancelScope) -> None:
        """One incoming request, from its arrival to its answer. A cancelled one is not answered."""

        async def notify(event: Event) -> None:
            await self._pipe.send(encode_notification(event.method, event.params))

        try:
            with scope:
                try:
                    data = encode_reply(request.id, await self._answer(request, notify))
                except RpcError as error:
                    data = encode_error(request.id, error)
                except Exception:  # the wall around one request
                    log.exception("request failed", method=request.method)
                    data = encode_error(request.id, RpcError(INTERNAL_ERROR, "Internal error"))
                await _quietly(self._pipe.send(data))
        finally:
            del self._incoming[request.id]

    async def _send_objection(self, data: bytes) -> None:
        try:
            await _quietly(self._pipe.send(data))
        finally:
            self._objections -= 1


async def _quietly(sending: Awaitable[None]) -> None:
    """Send to a peer that may be gone; the reader notices that on its own."""
    with suppress(TransportError):
        await sending


def _result_fields(reply: Reply) -> Fields:
    try:
        return decode_fields(reply.result)
    except ValueError:
        raise RpcError(INTERNAL_ERROR, "the upstream's result is not an object") from None


def _id_of(params: Fields, key: str) -> Id | None:
    value = params.get(key)
    found = decode_any(value) if value is not None else None
    return found if isinstance(found, int | str) and not isinstance(found, bool) else None


def _subscription_of(params: Fields) -> Id | None:
    """The id of our listen that a notification belongs to."""
    try:
        return _id_of(decode_fields(params.get(META)), SUBSCRIPTION_ID)
    except ValueError:
        return None


async def _parked(ticket: Ticket) -> None:
    """Sleep until something is put into the ticket."""
    task = trio.lowlevel.current_task()

    def wake() -> None:
        ticket.wake = None
        trio.lowlevel.reschedule(task)

    def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
        ticket.wake = None
        return trio.lowlevel.Abort.SUCCEEDED

    ticket.wake = wake
    await trio.lowlevel.wait_task_rescheduled(abort)


@asynccontextmanager
async def open_link(
    pipe: MessagePipe, answer: Answer, hear: Hear, *, objects: bool, linger: float = 0
) -> AsyncIterator[Link]:
    """A link over `pipe`, reading in the background. The pipe stays the caller's.

    `objects`: whether the peer is told about messages that cannot be taken (clients are, servers not).

    When the stream ends `link.closed` is set and the body goes on. Leaving cancels the peer's exchanges.
    """
    async with trio.open_nursery() as nursery:
        link = Link(pipe, answer, hear, objects=objects)
        nursery.start_soon(link.run, linger, name="link reader")
        yield link
        nursery.cancel_scope.cancel()
