"""A message stream over WebSocket (RFC 6455): one message per text frame, subprotocol `mcp`.

Promises: a message past the limit, in bytes, closes the connection with 1009, a binary message with 1003,
much without any message with 1008, and what is no WebSocket with 1002 or 1007, as its parser says; a peer's
goodbye and its pings are answered; closing says goodbye and is bounded. Refuses to know who the peer is and
what a message says. Both ends are alike here; the handshakes are in `client` and `server`.

The parser does no I/O. Whoever receives reads the stream for it; all that is sent goes through one queue.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import trio
from wsproto import WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import BytesMessage, CloseConnection, Event, Message, Ping, TextMessage

from mcpmux.errors import TransportClosed
from mcpmux.transports.message_stream import RECEIVE_BYTES, MessageStream
from mcpmux.transports.send_queue import BROKEN, SendQueue
from mcpmux.transports.stream import PatientStream

SUBPROTOCOL = "mcp"  # what the SDKs' own WebSocket transports say; MCP itself specifies none

NORMAL, GOING_AWAY, UNSUPPORTED_DATA, TOO_BIG = 1000, 1001, 1003, 1009  # RFC 6455 section 7.4.1
POLICY_VIOLATION = 1008

CLOSE_SECONDS = 2.0  # for each of: the last messages, and the goodbyes of both sides
LINGER_RECEIVES = 64  # receives of what a peer still sends, so that it reads our goodbye, not a reset
ALLOWANCE_SHARES = 4  # messages' worth of bytes without a message, which only frames without end need
ALLOWANCE_BYTES = 2**20  # and pings
EVENTS_IN_A_ROW = 256  # without a message, after which other tasks get their turn: frames may be tiny
LOST = "the connection was lost"


class WebSocketStream(MessageStream):
    """A message stream over an open WebSocket. Made by `open_websocket_stream`.

    `close_code` is what it is closed with when this side closes it. `send` and `receive` are checkpoints only
    when they have to wait. Frames are left to `receive`, which gives other tasks their turn.
    """

    def __init__(self, protocol: WSConnection, stream: PatientStream, max_message_bytes: int) -> None:
        self.close_code = NORMAL
        self._protocol = protocol
        self._stream = stream
        self._limit = max_message_bytes
        self._allowance = ALLOWANCE_SHARES * max_message_bytes + ALLOWANCE_BYTES
        self._queue = SendQueue(stream.send_all, shield=True)
        self.run_writer = self._queue.run
        self._partial = bytearray()
        self._received = 0  # since the last message was whole
        self._garbled = False  # the parser has given up
        self._end: str | None = None  # why nothing more is received, nor taken to be sent

    async def send(self, message: bytes) -> None:
        await self._queue.room()
        if not self.offer(message):
            raise TransportClosed(self._end or LOST)

    def offer(self, message: bytes) -> bool:
        if not self._queue.takes_more:
            return False
        return self._queue.offer(self._protocol.send(TextMessage(message.decode(errors="replace"))))

    async def receive(self) -> bytes:
        """The next message. Raises TransportClosed at the end, every time from then on."""
        while self._end is None:
            # The parser goes on where it was left.
            for number, event in enumerate(self._protocol.events(), 1):
                message = self._take(event)
                if message is not None:
                    self._received = 0
                    return message
                if number % EVENTS_IN_A_ROW == 0:
                    await trio.lowlevel.checkpoint()
                if self._end is not None:
                    break
            else:
                await self._read_more()
        raise TransportClosed(self._end)

    async def _read_more(self) -> None:
        data: bytes | bytearray = b""
        with self._queue.reading(), suppress(*BROKEN):
            data = await self._stream.receive_some(RECEIVE_BYTES)
        if not data:
            self._end = self._end or LOST
            self._queue.finish()
            self._queue.stop()
        elif self._end is None:
            self._received += len(data)
            if self._received > self._allowance:
                self._refuse(POLICY_VIOLATION, "much comes, and no message")
            else:
                self._protocol.receive_data(bytes(data))

    def _take(self, event: Event) -> bytes | None:
        """A whole message, when the event makes one whole."""
        if isinstance(event, TextMessage):
            return self._take_text(event)
        if isinstance(event, BytesMessage):
            self._refuse(UNSUPPORTED_DATA, "a binary message came; MCP messages are text")
        elif isinstance(event, Ping):
            # In place of a pong that still waits (RFC 6455 section 5.5.3).
            self._queue.put_first(self._protocol.send(event.response()))
        elif isinstance(event, CloseConnection):
            self._take_close(event)
        return None

    def _take_text(self, event: Message[str]) -> bytes | None:
        part = event.data.encode()
        if len(self._partial) + len(part) > self._limit:
            self._refuse(TOO_BIG, f"a message is over the limit of {self._limit} bytes")
            return None
        if event.message_finished and not self._partial:
            return part
        self._partial += part
        if not event.message_finished:
            return None
        message = bytes(self._partial)
        self._partial.clear()
        return message

    def _take_close(self, event: CloseConnection) -> None:
        """The peer says goodbye, or the parser that what came is no WebSocket, and with which code to go."""
        if self._protocol.state is ConnectionState.REMOTE_CLOSING:
            said = f": {event.reason}" if event.reason else ""
            self._end = f"the connection was closed with {int(event.code)}{said}"
            self._queue.finish(self._protocol.send(event.response()))
        else:
            self._garbled = True
            self._refuse(event.code, f"the peer breaks the rules of WebSocket: {event.reason}")

    def _refuse(self, code: int, reason: str) -> None:
        """End the connection from this side: nothing more is received, nor taken to be sent."""
        self._end = reason
        self._partial.clear()
        self._queue.finish(self._protocol.send(CloseConnection(code, reason)))

    async def aclose(self) -> None:
        """Send what is queued and say goodbye, each within bounds. May be called again."""
        if self._end is None:
            self._end = "the stream is closed"
            self._queue.finish(self._protocol.send(CloseConnection(self.close_code)))
        try:
            with trio.move_on_after(CLOSE_SECONDS):
                await self._queue.done.wait()
        finally:
            self._queue.drop()
            with trio.move_on_after(CLOSE_SECONDS, shield=True):
                await self._queue.done.wait()
                await self._await_goodbye()
            self._queue.stop()

    async def _await_goodbye(self) -> None:
        """Receive the rest: closing on bytes that nobody received would reset our last words away."""
        with suppress(*BROKEN, trio.BusyResourceError):  # busy: somebody still receives
            if self._garbled:
                await self._stream.send_eof()
            for _ in range(LINGER_RECEIVES):
                if self._protocol.state is not ConnectionState.LOCAL_CLOSING:
                    return
                if not (data := await self._stream.receive_some(RECEIVE_BYTES)):
                    return
                if not self._garbled:
                    self._protocol.receive_data(bytes(data))
                    if any(isinstance(event, CloseConnection) for event in self._protocol.events()):
                        return


@asynccontextmanager
async def open_websocket_stream(
    protocol: WSConnection, stream: PatientStream, max_message_bytes: int
) -> AsyncIterator[WebSocketStream]:
    """A message stream over `stream`, where the handshake of `protocol` is done. At the end it says goodbye.

    The stream stays the caller's to close. Cancelling drops what is queued; the goodbye is still said.
    """
    async with trio.open_nursery() as nursery:
        messages = WebSocketStream(protocol, stream, max_message_bytes)
        nursery.start_soon(messages.run_writer, name="websocket writer")
        try:
            yield messages
        finally:
            await messages.aclose()
