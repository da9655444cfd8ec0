"""Send one answer over HTTP: as JSON, or as an event stream when other messages come before it.

WatchedReply shows the answer to a tap. A session is a leg; requests without one share the leg of their
client's address and view.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Final

import msgspec
import structlog

from mcpmux.channels.tap import Said, Watch, said_in_result
from mcpmux.errors import RpcError, forget_frames
from mcpmux.protocol.call import META, Event, encode_notice
from mcpmux.protocol.codes import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    NOT_READ,
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
from mcpmux.protocol.raw_json import Fields, Id, Raw
from mcpmux.transports.http.message import HeaderFields, HttpRequest
from mcpmux.transports.http.reply import NEW, HttpReply
from mcpmux.transports.inline import AT_ONCE
from mcpmux.transports.sse import STREAM_HEADERS, SseDecoder, encode_event

log = structlog.get_logger()

Say = Callable[[bytes], Awaitable[None]]
"""Send one more message to the client, before the answer."""

JSON_TYPE: Final = "application/json"
NOT_JSON: Final = f"Content-Type must be {JSON_TYPE}"
JSON: Final[HeaderFields] = (("Content-Type", JSON_TYPE),)
JSON_LATER: Final[HeaderFields] = (*JSON, ("Retry-After", str(RETRY_SECONDS)))


class NoSession(RpcError):
    """The error for a legacy request without a known session. `status`: the HTTP status of the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(INVALID_REQUEST, message)
        self.status = status


def is_json(request: HttpRequest) -> bool:
    """Return whether the Content-Type of a request is JSON, with any parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == JSON_TYPE


def status_of(error: RpcError) -> int:
    """Return the HTTP status of an error answer."""
    return error.status if isinstance(error, NoSession) else http_status(error)


def headers_of(error: RpcError) -> HeaderFields:
    """Return the headers of an error answer in JSON, with Retry-After where a later try may succeed."""
    if isinstance(error, Busy) and error.retry_seconds != RETRY_SECONDS:
        return (*JSON, ("Retry-After", str(error.retry_seconds)))
    return JSON_LATER if status_of(error) in (TOO_MANY_REQUESTS, UNAVAILABLE) else JSON


def answer_error(reply: HttpReply, error: RpcError, request_id: Id | None = None) -> Awaitable[None]:
    """Answer a request with an error in JSON. `request_id`: of the JSON-RPC request, if it was read."""
    return reply.send(status_of(error), headers_of(error), encode_error(request_id, error))


def failure(request: Request, error: Exception) -> tuple[int, HeaderFields, bytes]:
    """Return (HTTP status, headers, encoded answer) for a request that failed: the wall around it.

    Only an RpcError is shown to the client; any other error is logged and answered as an internal error.
    """
    # A frame that raised an error is in a cycle with it, which would keep the request's body.
    if isinstance(error, RpcError):
        forget_frames(error)
        return status_of(error), headers_of(error), encode_error(request.id, error)
    log.error("request failed", method=request.method, exc_info=error)
    forget_frames(error)
    return 500, JSON, encode_error(request.id, RpcError(INTERNAL_ERROR, "Internal error"))


class HttpNotify(msgspec.Struct):
    """Sends messages to a client before its answer, in an event stream; drops them if it takes no streams."""

    _reply: HttpReply
    streams: bool

    async def __call__(self, said: Event | bytes) -> None:
        """Send an event or an encoded message. Waits while the client is slow."""
        if not self.streams:
            return
        if isinstance(said, Event):
            said = encode_notification(said.method, said.params)
        data = encode_event(said)
        if self._reply.started:
            await self._reply.write(data)
        else:
            await self._reply.open(200, STREAM_HEADERS, data)

    def outlet(self, meta: Raw) -> HttpOutlet:
        """Return an outlet to the begun stream, which adds `meta` to each event."""
        return HttpOutlet(self._reply, Tagged(meta).encode)


class HttpOutlet:
    """An Outlet, see `client_outbox`: a begun event stream, and the function that encodes its events."""

    __slots__ = ("_encode", "_reply")

    def __init__(self, reply: HttpReply, encode: Callable[[Event], bytes]) -> None:
        self._reply = reply
        self._encode = encode

    def write_nowait(self, event: Event) -> bool:
        """See Outlet."""
        return self._reply.write_nowait(self._encode(event))

    def flush(self) -> Awaitable[None]:
        """See Outlet."""
        return self._reply.flush()


class Tagged:
    """Encodes notifications as SSE events with one `_meta`, appended to an encoding that clients share."""

    __slots__ = ("_alone", "_behind", "_meta")

    def __init__(self, meta: Raw) -> None:
        self._meta = meta
        member = b'"%b":%b' % (META.encode(), bytes(meta))
        self._behind = b",%b}}" % member
        self._alone = b',"params":{%b}}' % member

    def encode(self, event: Event) -> bytes:
        """Return `event` as an SSE event with that `_meta`, which replaces any other."""
        params = event.params
        if META in params:
            return encode_event(encode_notification(event.method, {**params, META: self._meta}))
        # Like `encode_event`, but without the search for line breaks: a notice has none. The last bytes are
        # closing braces; `_meta` goes in before them.
        data = encode_notice(event)
        return b"data: %b%b\n\n" % ((data[:-2], self._behind) if params else (data[:-1], self._alone))


async def respond(
    request: Request, reply: HttpReply, work: Awaitable[Fields], *, streams: bool, legacy: bool = False
) -> None:
    """Do the work and send its answer. Messages before the answer go by an HttpNotify.

    `streams`: the client takes event streams, so an answer that takes long becomes one, with comments until
    it comes. `legacy`: errors go with status 200.
    """
    reply.is_kept_alive = streams
    parts: list[Part] | None = None
    try:
        result = await work
        started = reply.stage is not NEW  # by `notify`, or by a question
        # A large answer is sent in parts, so that it is not copied into one body. A loop, as a generator in
        # `any` would cost a call for each value of every answer.
        for value in () if started else result.values():
            if len(value) > LARGE_BYTES and parts is None:
                parts = encode_large_reply(request.id, result)
        status, headers = 200, JSON
        data = b"" if parts is not None else encode_reply(request.id, result)
        if isinstance(reply.tap, WatchedReply):
            reply.tap.said = said_in_result(request.id, result, request.method)
        del result  # a slow client must not keep the result in memory besides its encoded answer
    except Exception as error:
        started = reply.started
        status, headers, data = failure(request, error)
        # The request was read: this is about one between mcpmux and a server. A 400 would look like that of
        # an older server, and the client would fall back to `initialize`.
        if status == 400 and isinstance(error, RpcError) and error.code in NOT_READ:
            status = 200
    if parts is not None:
        await reply.send_parts(200, JSON, parts)
        return
    if started:
        await reply.finish(encode_event(data))
    else:
        if legacy:  # a legacy client takes a 404 for the end of its session
            status, headers = 200, JSON
        sent = reply.send(status, headers, data)
        if sent is not AT_ONCE:  # an await costs something even if all was written
            await sent


async def refuse_with(reply: HttpReply, status: int, sentence: str, headers: HeaderFields = ()) -> None:
    """Answer a request that contains no message with a JSON-RPC error without an id."""
    fields, body = refuse(status, sentence)
    await reply.send(status, (*fields, *headers), body)


def refuse(status: int, sentence: str, limit: str = "limits.max_connections") -> tuple[HeaderFields, bytes]:
    """Return (headers, body) of a refusal: a JSON-RPC error without an id. `limit`: of a Busy one."""
    if status in (TOO_MANY_REQUESTS, UNAVAILABLE):
        return JSON_LATER, encode_error(None, Busy(sentence, limit))
    return JSON, encode_error(None, RpcError(INVALID_REQUEST, sentence[:1].upper() + sentence[1:]))


EVENT_LIMIT: Final = 2**40  # bytes; the size of what mcpmux sends was checked before


class WatchedReply:
    """The tap of a reply: shows `watch` its messages, which are a body or the events of a stream.

    `said`: the content of the next body if it is known, so that the watch need not decode it.
    """

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.said: Said | None = None

    def see_body(self, status: int, body: bytes) -> None:
        facts, self.said = self.said, None
        if body:
            self.watch.tap.message_passed(self.watch.leg, "out", body, status, facts)

    def see_stream(self, status: int, data: bytes) -> None:
        self._status = status
        self._decoder = SseDecoder(EVENT_LIMIT)
        # Other tasks may write to the stream; every event belongs to the exchange that opened it.
        self._context = copy_context()
        self.see_more(data)

    def see_more(self, data: bytes) -> None:
        for event in self._decoder.feed(data):
            if event.data:
                self._context.run(self.watch.sent, event.data, self._status)
