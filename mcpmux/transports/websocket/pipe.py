"""A message pipe over WebSocket (RFC 6455): one message per text frame, subprotocol `mcp`.

Promises: a message past the limit, in bytes, closes the connection with 1009 and a binary message with 1003;
pings are answered; closing says goodbye and is bounded. Refuses to know who the peer is and what a message
says. Both ends are alike here; the handshakes are in `websocket_client` and `websocket_server`.

The library's reader runs in a task of its own. Whatever it dies of ends the connection and nothing else: it
does not expect some peers, such as one that pings after we have said goodbye.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar, cast

import trio
from trio_websocket import CloseReason, ConnectionClosed, WebSocketConnection
from wsproto.utilities import ProtocolError

from mcpmux.errors import TransportClosed
from mcpmux.transports.stream import PatientStream

SUBPROTOCOL = "mcp"  # what the SDKs' own WebSocket transports say; MCP itself specifies none

NORMAL, GOING_AWAY, UNSUPPORTED_DATA, TOO_BIG = 1000, 1001, 1003, 1009  # RFC 6455 section 7.4.1
POLICY_VIOLATION = 1008

CLOSE_SECONDS = 2.0  # for each of: the last messages, the goodbyes, and a peer that still sends
LINGER_RECEIVES = 64  # receives of what a peer still sends, so that it reads our goodbye, not a reset
ALLOWANCE_SHARES = 4  # messages' worth of bytes without a message, which only frames without end need
ALLOWANCE_BYTES = 2**20  # and pings

T = TypeVar("T")

_GONE = (trio.BrokenResourceError, trio.ClosedResourceError)


def allowance(max_message_bytes: int) -> int:
    """How many bytes a peer may send before one message of it is whole: fragments may be empty."""
    return ALLOWANCE_SHARES * max_message_bytes + ALLOWANCE_BYTES


class ReaderNursery:
    """Stands in for the nursery that the library starts its reader in; notices the reader's end."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.ended = trio.Event()
        self.failure: Exception | None = None

    def __repr__(self) -> str:
        return f"<ReaderNursery ended={self.ended.is_set()} failure={self.failure!r}>"

    @property
    def as_nursery(self) -> trio.Nursery:
        """For the library, which only calls `start_soon`."""
        return cast(trio.Nursery, self)

    def start_soon(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run the library's reader."""
        self._nursery.start_soon(self._run, function, name="websocket reader")

    async def unless_ended(self, shake_hands: Callable[[], Awaitable[T]]) -> T | None:
        """What the handshake gives; None when the reader ends first, as the library would wait for ever."""
        result = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_at_end, nursery.cancel_scope)
            result = await shake_hands()
            nursery.cancel_scope.cancel()
        return result

    async def _cancel_at_end(self, scope: trio.CancelScope) -> None:
        await self.ended.wait()
        scope.cancel(reason="the connection ended within the handshake")

    async def _run(self, function: Callable[[], Awaitable[None]]) -> None:
        try:
            await function()
        except Exception as error:  # the wall around foreign code: of its parser and that of HTTP below
            self.failure = error
        finally:
            self.ended.set()


class WebSocketPipe:
    """A MessagePipe over an open WebSocket. Made by `open_websocket_pipe`.

    `close_code` is what it is closed with when this side closes it.
    """

    def __init__(
        self,
        connection: WebSocketConnection,
        reader: ReaderNursery,
        stream: PatientStream,
        max_message_bytes: int,
    ) -> None:
        self.close_code = NORMAL
        self._connection = connection
        self._reader = reader
        self._stream = stream
        self._limit = max_message_bytes
        self._outbox, self._unsent = trio.open_memory_channel[str](0)
        self._writer_done = trio.Event()
        self._end: str | None = None

    def __repr__(self) -> str:
        return f"<WebSocketPipe {self._end or 'open'}>"

    async def send(self, message: bytes) -> None:
        """Hand `message` to the writer, waiting while it sends another one. Raises TransportClosed."""
        if self._end is not None or self._connection.closed is not None:
            raise TransportClosed(self._why())
        try:
            await self._outbox.send(message.decode(errors="replace"))
        except _GONE:
            raise TransportClosed(self._why()) from None

    async def receive(self) -> bytes:
        """The next message. Raises TransportClosed at the end, every time from then on."""
        if self._end is not None:
            raise TransportClosed(self._end)
        try:
            message = await self._connection.get_message()
        except ConnectionClosed:
            self._end = self._why()
            raise TransportClosed(self._end) from None
        self._stream.pardon()
        if isinstance(message, str):
            data = message.encode()
            if len(data) <= self._limit:
                return data
            await self._refuse(TOO_BIG, f"a message of {len(data)} bytes is over the limit of {self._limit}")
        await self._refuse(UNSUPPORTED_DATA, "a binary message came; MCP messages are text")
        raise AssertionError("unreachable")

    async def _refuse(self, code: int, reason: str) -> None:
        self._end = reason
        await self._say_goodbye(code, reason)
        raise TransportClosed(reason)

    def _why(self) -> str:
        if self._end is not None:
            return self._end
        reason = self._connection.closed
        return "the connection was lost" if reason is None else describe_close(reason)

    async def aclose(self) -> None:
        """Send what is queued and say goodbye, each within bounds. May be called again."""
        try:
            self._outbox.close()
            with trio.move_on_after(CLOSE_SECONDS):
                await self._writer_done.wait()
        finally:
            self._unsent.close()
            await self._say_goodbye(self.close_code, "")

    async def _say_goodbye(self, code: int, reason: str) -> None:
        with trio.move_on_after(CLOSE_SECONDS, shield=True):
            with suppress(ProtocolError):
                await self._connection.aclose(code, reason or None)
            await linger(self._stream, self._reader)

    async def run_writer(self) -> None:
        """Send what is handed over until pipe or connection is closed. Cancelling it loses a message."""
        try:
            with self._unsent:
                async for text in self._unsent:
                    await self._connection.send_message(text)
        except (ConnectionClosed, ProtocolError):  # whoever receives hears why
            pass
        finally:
            self._writer_done.set()


def describe_close(reason: CloseReason) -> str:
    """Why a connection ended, in words."""
    if reason.code == 1006:  # RFC 6455 section 7.1.5: no close frame at all
        return "the connection was lost"
    said = f": {reason.reason}" if reason.reason else ""
    return f"the connection was closed with {reason.code}{said}"


async def linger(stream: PatientStream, reader: ReaderNursery) -> None:
    """Let the peer read our last words: say that nothing more comes, then receive a bounded rest.

    Closing on bytes that nobody has received would reset those words away. The caller bounds the time.
    """
    with suppress(*_GONE):
        await stream.send_eof()
        await reader.ended.wait()  # until then it receives
        for _ in range(LINGER_RECEIVES):
            if not await stream.receive_some():
                return


@asynccontextmanager
async def open_websocket_pipe(
    connection: WebSocketConnection, reader: ReaderNursery, stream: PatientStream, max_message_bytes: int
) -> AsyncIterator[WebSocketPipe]:
    """A pipe over `connection`, which it owns from now on and closes at the end."""
    async with trio.open_nursery() as nursery:
        pipe = WebSocketPipe(connection, reader, stream, max_message_bytes)
        nursery.start_soon(pipe.run_writer, name="websocket writer")
        try:
            yield pipe
        finally:
            await pipe.aclose()
            nursery.cancel_scope.cancel()
