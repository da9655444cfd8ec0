"""One response: either complete in a single `send`, or streamed by `open`, `write` and `finish`.

    NEW  -- send -->   FINISHED
    NEW  -- open -->   OPEN
    OPEN -- write -->  OPEN
    OPEN -- write_nowait --> OPEN   `flush` comes next when it says that not all of it went
    OPEN -- finish --> FINISHED   the server finishes what a returning handler left open
    NEW  -- pass_on --> PASSED    another process answers, the server hands the connection over

Anything else is a LocalProtocolError. Sending never fails because of the peer: a peer that is gone
cancels the handler.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from enum import Enum, auto
from typing import Any, Final, Protocol

from mcpmux.errors import LocalProtocolError
from mcpmux.transports.byte_stream import Part
from mcpmux.transports.http.message import (
    JOIN_BYTES,
    LAST_CHUNK,
    Fields,
    encode_chunk,
    encode_response_head,
    has_no_body,
)
from mcpmux.transports.http.request import HttpRequest


class ServerState:
    """What all connections of a server share and look up instead of asking the clock each time.

    `now`: trio's time less that in which we did not run, at most a sweep old, for deadlines;
    `date_field`: b"Date: …\\r\\n".
    """

    __slots__ = ("date_field", "draining", "now")

    def __init__(self, now: float, date_field: bytes, draining: bool = False) -> None:
        self.now = now
        self.date_field = date_field
        self.draining = draining

    def __repr__(self) -> str:
        return f"<ServerState {self.date_field!r}{', draining' if self.draining else ''}>"


class Stage(Enum):
    """How far a response is, see above."""

    NEW = auto()
    OPEN = auto()
    FINISHED = auto()
    PASSED = auto()


NEW: Final = Stage.NEW
OPEN: Final = Stage.OPEN
FINISHED: Final = Stage.FINISHED
PASSED: Final = Stage.PASSED


class AtOnce(Protocol):
    """How bytes leave without waiting."""

    def send_nowait(self, data: bytes) -> bool:
        """Take all of `data` and send what goes; False when a rest waits for `flush`, which comes next."""
        ...

    async def flush(self) -> None:
        """Send what `send_nowait` has left."""
        ...

    async def send_parts(self, parts: Sequence[Part]) -> None:
        """Send all of them, one after the other."""
        ...

    def call_off(self, reason: str) -> None:
        """Cancel the handler, and nothing else."""
        ...


class HttpReply:
    """The answer to one request. To be used by one task at a time."""

    __slots__ = ("_at_once", "_chunked", "_send", "_state", "passed_to", "request", "stage")

    def __init__(
        self,
        request: HttpRequest,
        send: Callable[[bytes], Coroutine[Any, Any, None]],
        state: ServerState,
        at_once: AtOnce | None = None,
    ) -> None:
        """`at_once`: for `write_nowait`, which is not to be used without."""
        self.request = request
        self._send = send
        self._at_once = at_once
        self._state = state
        self.stage = NEW
        self._chunked = False
        self.passed_to: int | None = None

    def __repr__(self) -> str:
        return f"HttpReply({self.stage.name}, to={self.request.method} {self.request.path})"

    @property
    def started(self) -> bool:
        """True once a byte of the response may have left."""
        return self.stage is not NEW

    @property
    def finished(self) -> bool:
        return self.stage is FINISHED

    def send(self, status: int, fields: Fields, body: bytes = b"") -> Coroutine[Any, Any, None]:
        """Send the whole response. `fields` are without framing: Content-Length and the like are added.

        It is sent when what this returns is awaited, which comes next.
        """
        if self.stage is not NEW:
            self._advance(NEW, FINISHED)
        self.stage = FINISHED
        head = self._encode_head(status, fields)
        if status != 200 and has_no_body(status):
            return self._send(head + b"\r\n")
        length = len(body)
        if self.request.method == "HEAD":
            body = b""
        if len(body) <= JOIN_BYTES:
            return self._send(b"%bContent-Length: %d\r\n\r\n%b" % (head, length, body))
        return self._send_parts([b"%bContent-Length: %d\r\n\r\n" % (head, length), body])

    async def send_parts(self, status: int, fields: Fields, body: Sequence[Part]) -> None:
        """As `send`, of a body in parts, which are not copied together."""
        if has_no_body(status) or self.request.method == "HEAD":
            raise LocalProtocolError("a response without a body has no parts")
        self._advance(NEW, FINISHED)
        size = sum(map(len, body))
        head = b"%bContent-Length: %d\r\n\r\n" % (self._encode_head(status, fields), size)
        await self._send_parts([head, *body])

    async def _send_parts(self, parts: Sequence[Part]) -> None:
        if self._at_once is not None:
            await self._at_once.send_parts(parts)
        else:
            await self._send(b"".join(parts))

    async def open(self, status: int, fields: Fields, data: bytes = b"") -> None:
        """Start a streamed response; the head and the first `data` travel together."""
        if self.request.method == "HEAD":
            raise LocalProtocolError("a response to HEAD cannot be streamed")
        self._advance(NEW, OPEN)
        self._chunked = not self.request.http_1_0
        if not self._chunked:
            self.request.keep_alive = False
        head = self._encode_head(status, fields)
        if self._chunked:
            head += b"Transfer-Encoding: chunked\r\n"
        await self._send(head + b"\r\n" + self._encode_part(data))

    async def write(self, data: bytes) -> None:
        """Send more of a streamed response."""
        self._advance(OPEN, OPEN)
        if data:
            await self._send(self._encode_part(data))

    def write_nowait(self, data: bytes) -> bool:
        """Take more of a streamed response, and send what goes without waiting.

        False when some of it is left: `flush` sends that, and has to come before anything else is written.
        May be called by any task, while the one that uses the reply does something else than writing.
        """
        if self.stage is not OPEN:
            self._advance(OPEN, OPEN)
        if self._at_once is None:
            raise LocalProtocolError("this response cannot be written without waiting")
        if not data:
            return True
        # As `encode_chunk` has it: a call less, for many may be told at once.
        return self._at_once.send_nowait(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    async def flush(self) -> None:
        """Send what `write_nowait` has left, if it has."""
        if self._at_once is not None:
            await self._at_once.flush()

    async def finish(self, data: bytes = b"") -> None:
        """End a streamed response; the last `data` and the end travel together."""
        self._advance(OPEN, FINISHED)
        end = LAST_CHUNK if self._chunked else b""
        await self._send(self._encode_part(data) + end)

    def call_off(self, reason: str) -> None:
        """Cancel the handler; the server answers for it, with nothing, and the connection goes on.

        To be called by another task while the handler works, which needs no cancel scope of its own so.
        """
        if self._at_once is None:
            raise LocalProtocolError("this request cannot be called off")
        self._at_once.call_off(reason)

    def pass_on(self, worker: int) -> None:
        """Have another worker answer; the handler returns without an answer of its own."""
        self._advance(NEW, PASSED)
        self.passed_to = worker

    def _advance(self, before: Stage, after: Stage) -> None:
        if self.stage is not before:
            raise LocalProtocolError(f"the response is {self.stage.name}, not {before.name}")
        self.stage = after

    def _encode_head(self, status: int, fields: Fields) -> bytes:
        request = self.request
        if self._state.draining:
            request.keep_alive = False
        head = encode_response_head(status, fields)
        if not request.keep_alive:
            head += b"Connection: close\r\n"
        elif request.http_1_0:
            head += b"Connection: keep-alive\r\n"
        return head + self._state.date_field

    def _encode_part(self, data: bytes) -> bytes:
        return encode_chunk(data) if self._chunked else data
