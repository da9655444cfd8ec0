"""How one answer leaves over HTTP: as JSON, or as an event stream when something comes before it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import structlog

from mcpmux.errors import RpcError
from mcpmux.protocol.call import Event, Notify
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
from mcpmux.protocol.envelope import Request, encode_error, encode_notification, encode_reply
from mcpmux.protocol.large import LARGE_BYTES, Part, encode_large_reply
from mcpmux.protocol.raw_json import Fields
from mcpmux.transports.http.reply import HttpReply
from mcpmux.transports.sse import encode_event

log = structlog.get_logger()

Headers = tuple[tuple[str, str], ...]
Work = Callable[[Notify], Awaitable[Fields]]
Say = Callable[[bytes], Awaitable[None]]
"""Sends one more message to the client, before the answer."""

JSON: Final[Headers] = (("Content-Type", "application/json"),)
JSON_LATER: Final[Headers] = (*JSON, ("Retry-After", str(RETRY_SECONDS)))
STREAM_HEADERS: Final[Headers] = (
    ("Content-Type", "text/event-stream"),
    ("Cache-Control", "no-store"),
    ("X-Accel-Buffering", "no"),
)


class NoSession(RpcError):
    """A legacy request without a session that we know; `status` is its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(INVALID_REQUEST, message)
        self.status = status


def status_of(error: RpcError) -> int:
    """The HTTP status of an answer that is this error."""
    if isinstance(error, NoSession):
        return error.status
    if isinstance(error, Busy):
        return error.status
    return UNAVAILABLE if error.code == BUSY else http_status(error)


def headers_of(status: int) -> Headers:
    """What goes with an answer of that status, which is JSON."""
    return JSON_LATER if status in (TOO_MANY_REQUESTS, UNAVAILABLE) else JSON


async def outcome(request: Request, work: Work, notify: Notify) -> tuple[int, bytes]:
    """(HTTP status, encoded answer) of `work`, whatever becomes of it."""
    try:
        return 200, encode_reply(request.id, await work(notify))
    except Exception as error:
        return failure(request, error)


def failure(request: Request, error: Exception) -> tuple[int, bytes]:
    """(HTTP status, encoded answer) for a request that failed: the wall around it."""
    if isinstance(error, RpcError):
        return status_of(error), encode_error(request.id, error)
    log.error("request failed", method=request.method, exc_info=error)
    return 500, encode_error(request.id, RpcError(INTERNAL_ERROR, "Internal error"))


def streaming(reply: HttpReply, *, streams: bool) -> Say:
    """How to say something before the answer: by making it an event stream, if the client takes those."""

    async def say(message: bytes) -> None:
        if not streams:
            return
        data = encode_event(message)
        if reply.started:
            await reply.write(data)
        else:
            await reply.open(200, STREAM_HEADERS, data)

    return say


class HttpNotify(msgspec.Struct):
    """Tells the client of a request something before its answer, if it takes event streams."""

    _reply: HttpReply
    _streams: bool

    async def __call__(self, event: Event) -> None:
        """Tell it; waits while the client is slow."""
        if not self._streams:
            return
        data = encode_event(encode_notification(event.method, event.params))
        if self._reply.started:
            await self._reply.write(data)
        else:
            await self._reply.open(200, STREAM_HEADERS, data)

    def say_nowait(self, message: bytes) -> bool:
        """A message in a stream that has begun; False when `flush` has to send the rest of it."""
        return self._reply.write_nowait(encode_event(message))

    async def flush(self) -> None:
        """Send what `say_nowait` has left."""
        await self._reply.flush()


async def respond(
    request: Request, reply: HttpReply, work: Work, *, streams: bool, legacy: bool = False
) -> None:
    """Do the work and send its answer; its notifications before, when the client takes event streams.

    A legacy client hears of errors with status 200: it takes a 404 for the end of its session.
    """
    notify = HttpNotify(reply, streams)
    parts: list[Part] | None = None
    try:
        result = await work(notify)
        started = reply.started  # by `notify`, or by a question
        if not started and max(map(len, result.values()), default=0) > LARGE_BYTES:
            parts = encode_large_reply(request.id, result)
        status, data = 200, b"" if parts is not None else encode_reply(request.id, result)
        del result  # nothing has to be kept while it is sent but what is sent
    except Exception as error:
        started = reply.started
        status, data = failure(request, error)
    if parts is not None:
        await reply.send_parts(200, JSON, parts)
        return
    if started:
        await reply.finish(encode_event(data))
    else:
        status = 200 if legacy else status
        await reply.send(status, JSON if status == 200 else headers_of(status), data)


async def refuse_with(reply: HttpReply, status: int, sentence: str, headers: Headers = ()) -> None:
    """Answer a request that is not even a message: a JSON-RPC error without an id."""
    fields, body = refuse(status, sentence)
    await reply.send(status, (*fields, *headers), body)


def refuse(status: int, sentence: str) -> tuple[Headers, bytes]:
    """How the HTTP server words what it refuses itself: as a JSON-RPC error without an id."""
    if status == UNAVAILABLE:
        return JSON_LATER, encode_error(None, Busy(sentence, "limits.max_connections"))
    return JSON, encode_error(None, RpcError(INVALID_REQUEST, sentence[:1].upper() + sentence[1:]))
