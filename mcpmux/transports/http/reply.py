"""The answer to one request, and how its bytes are sent.

A response is either complete in a single `send`, or streamed by `open`, `write` and `finish`:

    NEW  -- send -->   FINISHED
    NEW  -- open -->   OPEN
    OPEN -- write -->  OPEN
    OPEN -- write_nowait --> OPEN   `flush` comes next if it returns False
    OPEN -- finish --> FINISHED   the server finishes what a returning handler left open
    NEW, OPEN -- silent for KEEP_ALIVE_SECONDS --> OPEN   with a comment, if `is_kept_alive`

Any other order is a LocalProtocolError. Sending never fails because of the peer: a peer that is gone cancels
the handler.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Protocol

import trio

from mcpmux.errors import LocalProtocolError, TransportClosed
from mcpmux.protocol.envelope import Part
from mcpmux.protocol.headers import ALLOW_ORIGIN
from mcpmux.transports.http.message import (
    JOIN_BYTES,
    LAST_CHUNK,
    HeaderFields,
    HttpRequest,
    encode_response_head,
    has_no_body,
)
from mcpmux.transports.inline import AT_ONCE, in_task
from mcpmux.transports.sse import KEEP_ALIVE, STREAM_HEADERS
from mcpmux.transports.tls import ByteStream

if TYPE_CHECKING:  # the connection makes its replies
    from mcpmux.transports.http.server_connection import ServerState


COMMENT_BYTES: Final = len(b"3\r\n%b\r\n" % KEEP_ALIVE)  # as a chunk


class Stage(Enum):
    """The state of a response, see the module's table."""

    NEW = auto()
    OPEN = auto()
    FINISHED = auto()


NEW: Final = Stage.NEW
OPEN: Final = Stage.OPEN
FINISHED: Final = Stage.FINISHED


class ReplyTap(Protocol):
    """Sees the bytes that a reply sends. It must not wait."""

    def see_body(self, status: int, body: bytes) -> None: ...
    def see_stream(self, status: int, data: bytes) -> None: ...
    def see_more(self, data: bytes) -> None: ...


class ReplyWriter:
    """Sends to one client. One that is gone, or does not read for too long, ends the connection.

    `deadline`: the time by which the client must read on, infinite if no write waits for it. `rest`: of what
    was sent, as much as the kernel has not taken yet.
    """

    __slots__ = ("_scope", "_state", "byte_stream", "deadline", "rest")

    def __init__(self, state: ServerState, byte_stream: ByteStream, scope: trio.CancelScope) -> None:
        """`scope`: the connection's."""
        self._state = state
        self.byte_stream = byte_stream
        # Cancelling it ends the handler, so that sending never has to fail.
        self._scope = scope
        self.deadline = math.inf
        self.rest: memoryview | None = None

    def send(self, data: bytes) -> Awaitable[None]:
        """Send all of `data`. The result must be awaited at once."""
        # The rest of a cancelled call comes before the next.
        if self.rest is not None:
            return self._send_behind(data)
        try:
            sent = self.byte_stream.send_nowait(data)
        except TransportClosed:
            return self._lose_client()
        if sent == len(data):
            return AT_ONCE
        self.rest = memoryview(data)[sent:]
        return self.flush()

    async def _send_behind(self, data: bytes) -> None:
        await self.flush()
        await self.send(data)

    async def send_parts(self, parts: Sequence[Part]) -> None:
        """Send all `parts`, one after the other, as `send` does. Cancelling ends the connection."""
        if self.rest is not None:
            await self.flush()
        try:
            sent = self.byte_stream.send_parts_nowait(parts)
        except TransportClosed:
            await self._lose_client()
            return
        try:
            for part in parts:
                if sent < len(part):
                    self.rest = memoryview(part)[sent:]
                    await self.flush()
                sent = max(0, sent - len(part))
        except BaseException:
            self._scope.cancel(reason="half an answer was sent")
            raise

    def send_nowait(self, data: bytes) -> bool:
        """Take all of `data`, and send some without waiting; return False if `flush` must send the rest."""
        waiting: bytes | memoryview = data
        if self.rest is not None:
            # The rest of a comment has no flush. All else has, or what waits here would grow without bound.
            if data and len(self.rest) > COMMENT_BYTES:
                raise LocalProtocolError("what was sent before has not been flushed")
            waiting = bytes(self.rest) + data if data else self.rest
        try:
            sent = self.byte_stream.send_nowait(waiting)
        except TransportClosed:
            self._scope.cancel(reason="the client left")
            return True
        if sent == len(waiting):
            self.rest, self.deadline = None, math.inf
            return True
        self.rest = memoryview(waiting)[sent:]
        if sent or self.deadline == math.inf:
            self.deadline = self._state.now + self._state.limits.client_stall
        return False

    async def flush(self) -> None:
        """Send the rest of earlier data, as `send` does."""
        if self.rest is None:
            return
        await in_task()
        try:
            while self.rest is not None:
                # Renewed whenever the peer has read something: only a stalled one is cut off.
                self.deadline = self._state.now + self._state.limits.client_stall
                await self.byte_stream.wait_sendable()
                if self.rest is not None:  # the sweeper may have sent it meanwhile
                    sent = self.byte_stream.send_nowait(self.rest)
                    self.rest = self.rest[sent:] or None
        except TransportClosed:
            self.rest = None
            await self._lose_client()
        finally:
            self.deadline = math.inf

    async def _lose_client(self) -> None:
        self._scope.cancel(reason="the client left")
        # The handler ends here, by cancelling, and needs no code for errors of sending.
        await in_task()
        await trio.lowlevel.checkpoint_if_cancelled()


class HttpReply:
    """The answer to one request. To be used by one task at a time.

    `tap`, if there is one, sees all of a body, or each part of a stream when it is sent. `call_off` cancels
    the handler, for a reason: its answer is ended, an empty one if it has not begun, and the connection goes
    on. Another task calls it while the handler works.
    """

    __slots__ = (
        *("_chunked", "_quiet_since", "_state", "_writer", "call_off", "context", "is_kept_alive"),
        *("request", "stage", "tap"),
    )

    def __init__(
        self, request: HttpRequest, writer: ReplyWriter, state: ServerState, call_off: Callable[[str], None]
    ) -> None:
        self.request = request
        # In place of a cancel scope of the handler's own, which would cost it a task.
        self.call_off = call_off
        self._writer = writer
        self._state = state
        self.stage = NEW
        # If True, comments keep proxies on the way from taking a quiet connection for dead. An event stream
        # has them in any case.
        self.is_kept_alive = False
        self._quiet_since = state.now
        self.context: Context | None = None  # in which the handler works
        self._chunked = False
        self.tap: ReplyTap | None = None

    def __repr__(self) -> str:
        return f"HttpReply({self.stage.name}, to={self.request.method} {self.request.path})"

    @property
    def started(self) -> bool:
        """True once a byte of the response may have left."""
        return self.stage is not NEW

    def send(self, status: int, fields: HeaderFields, body: bytes = b"") -> Awaitable[None]:
        """Send the whole response. `fields` are without framing: Content-Length and the like are added.

        The result must be awaited next.
        """
        if self.stage is not NEW:  # a call of `_advance` less for most responses
            self._advance(NEW, FINISHED)
        self.stage = FINISHED
        if self.tap is not None:
            self.tap.see_body(status, body)
        head = self._encode_head(status, fields)
        if status != 200 and has_no_body(status):
            return self._writer.send(head + b"\r\n")
        length = len(body)
        # A response to HEAD has the Content-Length of the body that GET would get (RFC 9110 section 9.3.2).
        if self.request.method == "HEAD":
            body = b""
        if len(body) <= JOIN_BYTES:
            return self._writer.send(b"%bContent-Length: %d\r\n\r\n%b" % (head, length, body))
        return self._writer.send_parts([b"%bContent-Length: %d\r\n\r\n" % (head, length), body])

    async def send_parts(self, status: int, fields: HeaderFields, body: Sequence[Part]) -> None:
        """Send the whole response as `send` does, without copying the parts of its body together."""
        if has_no_body(status) or self.request.method == "HEAD":
            raise LocalProtocolError("a response without a body has no parts")
        self._advance(NEW, FINISHED)
        if self.tap is not None:
            self.tap.see_body(status, b"".join(body))
        size = sum(map(len, body))
        head = b"%bContent-Length: %d\r\n\r\n" % (self._encode_head(status, fields), size)
        await self._writer.send_parts([head, *body])

    async def open(self, status: int, fields: HeaderFields, data: bytes = b"") -> None:
        """Start a streamed response; its head and the first `data` are sent together."""
        await self._writer.send(self._begin(status, fields, data))

    def _begin(self, status: int, fields: HeaderFields, data: bytes) -> bytes:
        if self.request.method == "HEAD":
            raise LocalProtocolError("a response to HEAD cannot be streamed")
        self._advance(NEW, OPEN)
        self._quiet_since = self._state.now
        # Not one of another replica, with names in lower case: it is passed on in parts, which may end inside
        # an event.
        if STREAM_HEADERS[0] in fields:
            self.is_kept_alive = True
        if self.tap is not None:
            self.tap.see_stream(status, data)
        self._chunked = not self.request.http_1_0
        # HTTP/1.0 has no chunks: only the end of the connection ends the body.
        if not self._chunked:
            self.request.keep_alive = False
        head = self._encode_head(status, fields)
        if self._chunked:
            head += b"Transfer-Encoding: chunked\r\n"
        return head + b"\r\n" + self._encode_part(data)

    def is_quiet_since(self, time: float) -> bool:
        """Return whether the connection is to be kept alive and no byte was sent since `time`."""
        return self.is_kept_alive and self._quiet_since <= time

    def say_alive(self) -> None:
        """Send a comment, which begins an event stream if no byte was sent before.

        Any task may call it: while something else waits to be sent, that goes on in place of a comment.
        """
        if self._writer.rest is not None:
            self._writer.send_nowait(b"")
        elif self.stage is NEW and self.context is not None:  # a tap reads from it whose exchange this is
            self._writer.send_nowait(self.context.run(self._begin, 200, STREAM_HEADERS, KEEP_ALIVE))
        elif self.stage is OPEN:
            self.write_nowait(KEEP_ALIVE)

    async def write(self, data: bytes) -> None:
        """Send more of a streamed response."""
        self._advance(OPEN, OPEN)
        self._quiet_since = self._state.now
        if self.tap is not None:
            self.tap.see_more(data)
        if data:
            await self._writer.send(self._encode_part(data))

    def write_nowait(self, data: bytes) -> bool:
        """Take more of a streamed response, and send as much as possible without waiting.

        Return False if a part is left: `flush` sends it, and must be called before the next write. May be
        called by any task, while the one that uses the reply is not writing.
        """
        if self.stage is not OPEN:
            self._advance(OPEN, OPEN)
        self._quiet_since = self._state.now
        if self.tap is not None:
            self.tap.see_more(data)
        if not data:
            return True
        # As `_encode_part` does, with a call less: one event may go to many clients at once.
        return self._writer.send_nowait(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def flush(self) -> Awaitable[None]:
        """Send what `write_nowait` has left, if anything."""
        return self._writer.flush()

    async def finish(self, data: bytes = b"") -> None:
        """End a streamed response; the last `data` and the end are sent together."""
        self._advance(OPEN, FINISHED)
        if self.tap is not None:
            self.tap.see_more(data)
        end = LAST_CHUNK if self._chunked else b""
        await self._writer.send(self._encode_part(data) + end)

    def _advance(self, before: Stage, after: Stage) -> None:
        if self.stage is not before:
            raise LocalProtocolError(f"the response is {self.stage.name}, not {before.name}")
        self.stage = after

    def _encode_head(self, status: int, fields: HeaderFields) -> bytes:
        request, state = self.request, self._state
        if state.draining:
            request.keep_alive = False
        if state.grants is not None and (origin := request.headers.get("origin")) is not None:
            fields = readable(fields, state.grants(origin))
        # Most responses repeat the last head. `is`: comparing the fields would cost as much as looking it up.
        last = state.last_head
        if fields is last[1] and status == last[0]:
            head = last[2]
        else:
            head = encode_response_head(status, fields)
            state.last_head = status, fields, head
        if not request.keep_alive:
            head += b"Connection: close\r\n"
        elif request.http_1_0:
            head += b"Connection: keep-alive\r\n"
        return head + state.date_field

    def _encode_part(self, data: bytes) -> bytes:
        # No chunk for empty data: it would end the body (RFC 9112 section 7.1).
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunked and data else data


def readable(fields: HeaderFields, grant: HeaderFields) -> HeaderFields:
    """Add the fields that let a page read a response, unless the response has them already."""
    # A browser refuses a response that names the permitted origin twice.
    return fields if any(name == ALLOW_ORIGIN for name, _ in fields) else fields + grant
