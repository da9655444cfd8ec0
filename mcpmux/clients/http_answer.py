"""How one answer leaves over HTTP: as JSON, or as an event stream when something comes before it.

And what a tap sees of it. A session is a leg; requests without one are on the leg of their connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Final

import msgspec
import structlog

from mcpmux.channels.tap import Said, Watch, said_in_result
from mcpmux.errors import RpcError, forget_frames
from mcpmux.protocol import method as m
from mcpmux.protocol.call import META, Event, encode_notice
from mcpmux.protocol.codes import (
    BUSY,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    RETRY_SECONDS,
    TOO_MANY_REQUESTS,
    UNAVAILABLE,
    Busy,
    http_status,
)
from mcpmux.protocol.envelope import (
    LARGE_BYTES,
    Part,
    Request,
    encode_error,
    encode_large_reply,
    encode_notification,
    encode_reply,
)
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.runtime.client_outbox import Outlet
from mcpmux.transports.http.message import HeaderFields, HttpRequest
from mcpmux.transports.http.server_connection import NEW, HttpReply
from mcpmux.transports.inline import AT_ONCE
from mcpmux.transports.sse import STREAM_HEADERS, SseDecoder, encode_event

log = structlog.get_logger()

Say = Callable[[bytes], Awaitable[None]]
"""Sends one more message to the client, before the answer."""

JSON_TYPE: Final = "application/json"
NOT_JSON: Final = f"Content-Type must be {JSON_TYPE}"
JSON: Final[HeaderFields] = (("Content-Type", JSON_TYPE),)
JSON_LATER: Final[HeaderFields] = (*JSON, ("Retry-After", str(RETRY_SECONDS)))


class NoSession(RpcError):
    """A legacy request without a session that we know; `status` is its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(INVALID_REQUEST, message)
        self.status = status


def is_json(request: HttpRequest) -> bool:
    """Whether the body says that it is JSON."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == JSON_TYPE


def status_of(error: RpcError) -> int:
    """The HTTP status of an answer that is this error."""
    if isinstance(error, (NoSession, Busy)):
        return error.status
    return UNAVAILABLE if error.code == BUSY else http_status(error)


def headers_of(error: RpcError) -> HeaderFields:
    """What goes with an answer that is this error, which is JSON."""
    if isinstance(error, Busy) and error.retry_seconds != RETRY_SECONDS:
        return (*JSON, ("Retry-After", str(error.retry_seconds)))
    return JSON_LATER if status_of(error) in (TOO_MANY_REQUESTS, UNAVAILABLE) else JSON


def failure(request: Request, error: Exception) -> tuple[int, HeaderFields, bytes]:
    """(HTTP status, headers, encoded answer) for a request that failed: the wall around it."""
    if isinstance(error, RpcError):
        forget_frames(error)
        return status_of(error), headers_of(error), encode_error(request.id, error)
    log.error("request failed", method=request.method, exc_info=error)
    forget_frames(error)
    return 500, JSON, encode_error(request.id, RpcError(INTERNAL_ERROR, "Internal error"))


class HttpNotify(msgspec.Struct):
    """Tells the client of a request something before its answer: in an event stream, if it takes those."""

    _reply: HttpReply
    streams: bool

    async def __call__(self, said: Event | bytes) -> None:
        """Tell it of an event, or send it an encoded message; waits while the client is slow."""
        if not self.streams:
            return
        if isinstance(said, Event):
            said = encode_notification(said.method, said.params)
        data = encode_event(said)
        if self._reply.started:
            await self._reply.write(data)
        else:
            await self._reply.open(200, STREAM_HEADERS, data)

    def outlet(self, meta: Raw) -> Outlet:
        """What tells the client of events at once, each with `meta`, in its stream, which has begun."""
        return Outlet(self._reply, Tagged(meta).encode)


class Tagged:
    """Encodes notifications as SSE events that have the same `_meta`, behind what many clients share."""

    __slots__ = ("_alone", "_behind", "_meta")

    def __init__(self, meta: Raw) -> None:
        self._meta = meta
        member = b'"%b":%b' % (META.encode(), bytes(meta))
        self._behind = b",%b}}" % member
        self._alone = b',"params":{%b}}' % member

    def encode(self, event: Event) -> bytes:
        """`event` with that `_meta`, in place of any other."""
        params = event.params
        if META in params:
            return encode_event(encode_notification(event.method, {**params, META: self._meta}))
        # As `encode_event` has it, without the look for line breaks, of which a notice has none.
        data = encode_notice(event)
        return b"data: %b%b\n\n" % ((data[:-2], self._behind) if params else (data[:-1], self._alone))


async def respond(
    request: Request, reply: HttpReply, work: Awaitable[Fields], *, streams: bool, legacy: bool = False
) -> None:
    """Do the work and send its answer; what it says before goes by an HttpNotify.

    A legacy client gets errors with status 200: it takes a 404 for the end of its session. `streams`: the
    client takes event streams, so an answer that is long in coming becomes one, with comments until then.
    """
    reply.is_kept_alive = streams and request.method != m.LISTEN  # which sends comments itself
    parts: list[Part] | None = None
    try:
        result = await work
        started = reply.stage is not NEW  # by `notify`, or by a question
        for value in () if started else result.values():  # without a call for each
            if len(value) > LARGE_BYTES and parts is None:
                parts = encode_large_reply(request.id, result)
        status, headers = 200, JSON
        data = b"" if parts is not None else encode_reply(request.id, result)
        if isinstance(reply.tap, WatchedReply):
            reply.tap.said = said_in_result(request.id, result, request.method)
        del result  # nothing has to be kept while it is sent but what is sent
    except Exception as error:
        started = reply.started
        status, headers, data = failure(request, error)
    if parts is not None:
        await reply.send_parts(200, JSON, parts)
        return
    if started:
        await reply.finish(encode_event(data))
    else:
        if legacy:
            status, headers = 200, JSON
        sent = reply.send(status, headers, data)
        if sent is not AT_ONCE:
            await sent


async def refuse_with(reply: HttpReply, status: int, sentence: str, headers: HeaderFields = ()) -> None:
    """Answer a request that is not even a message: a JSON-RPC error without an id."""
    fields, body = refuse(status, sentence)
    await reply.send(status, (*fields, *headers), body)


def refuse(status: int, sentence: str, limit: str = "limits.max_connections") -> tuple[HeaderFields, bytes]:
    """How the HTTP server words what it refuses itself: as a JSON-RPC error without an id."""
    if status in (TOO_MANY_REQUESTS, UNAVAILABLE):
        return JSON_LATER, encode_error(None, Busy(sentence, limit))
    return JSON, encode_error(None, RpcError(INVALID_REQUEST, sentence[:1].upper() + sentence[1:]))


EVENT_LIMIT: Final = 2**40  # what mcpmux sends is bounded before it comes here


class WatchedReply:
    """The tap of a reply, whose messages `watch` sees: a body, or the events of a stream."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.said: Said | None = None  # by the body that comes next

    def see_body(self, status: int, body: bytes) -> None:
        said, self.said = self.said, None
        if body:
            self.watch.tap.message_passed(self.watch.leg, "out", body, status, said)

    def see_stream(self, status: int, data: bytes) -> None:
        self._status = status
        self._decoder = SseDecoder(EVENT_LIMIT)
        self._context = copy_context()  # of the exchange that all of it belongs to, whichever task sends it
        self.see_more(data)

    def see_more(self, data: bytes) -> None:
        for event in self._decoder.feed(data):
            if event.data:
                self._context.run(self.watch.sent, event.data, self._status)
