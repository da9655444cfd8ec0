"""A message pipe over WebSocket (RFC 6455): one message per text frame, subprotocol `mcp`.

Promises: a message past the limit, in bytes, closes the connection with 1009, a binary message with 1003,
much without any message with 1008, and what is no WebSocket with 1002 or 1007, as its parser says; a peer's
goodbye and its pings are answered; closing says goodbye and is bounded. Refuses to know who the peer is and
what a message says. Both ends are alike here; the handshakes are in `client` and `server`.

The parser does no I/O. Whoever receives reads the stream for it; all that is sent goes through one writer.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import trio
from wsproto import WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import BytesMessage, CloseConnection, Event, Message, Ping, TextMessage

from mcpmux.errors import TransportClosed
from mcpmux.transports.pipe import LAST_WORDS_SECONDS, QUEUE_BYTES, RECEIVE_BYTES
from mcpmux.transports.stream import PatientStream

# Writing frames to one stream, each of them whole.
#
# Promises: only `run` ever sends, and nothing interrupts it but `stop`, after which nothing is sent any
# more: so no frame follows half of another one. A peer that reads slowly makes `room` wait, in bounded
# memory. Refuses to know what a frame says.

BROKEN = (trio.BrokenResourceError, trio.ClosedResourceError)


class FrameWriter:
    """The frames that wait to be sent on `stream`. Whoever makes it runs `run` in a task."""

    def __init__(self, stream: PatientStream) -> None:
        self._stream = stream
        self._frames: list[bytes] = []
        self._queued_bytes = 0
        self._pong = b""
        self._last: bytes | None = None  # the frame to end with, once it is decided
        self._writing = trio.CancelScope(shield=True)
        self._work = trio.lowlevel.ParkingLot()
        self._room = trio.lowlevel.ParkingLot()
        self.done = trio.Event()  # nothing more is sent: all of it is, or the stream broke

    def __repr__(self) -> str:
        return f"<FrameWriter {self._queued_bytes} bytes queued, done={self.done.is_set()}>"

    @property
    def has_room(self) -> bool:
        """Whether not too much is queued."""
        return self._queued_bytes < QUEUE_BYTES

    async def room(self) -> None:
        """Wait while too much is queued. A checkpoint only when it has to wait."""
        while self._queued_bytes >= QUEUE_BYTES:
            await self._room.park()

    def put(self, frame: bytes) -> None:
        """Queue one frame. It is dropped when nothing more is sent."""
        if self._last is None:
            self._frames.append(frame)
            self._queued_bytes += len(frame)
            self._work.unpark()

    def put_pong(self, frame: bytes) -> None:
        """Send this pong next, in place of one that still waits (RFC 6455 section 5.5.3)."""
        if self._last is None:
            self._pong = frame
            self._work.unpark()

    def finish(self, last: bytes = b"") -> None:
        """Send what is queued, then the frame `last`, then nothing more.

        `done` follows, as late as the peer reads. Only the first call counts.
        """
        if self._last is None:
            self._last = last
            self._work.unpark()

    def drop(self) -> None:
        """Forget what is queued, but for what is being sent, and the last frame."""
        self._take()

    def stop(self) -> None:
        """Send nothing more, now. What was being sent is cut off: the stream is of no use any more."""
        self._writing.cancel(reason="the connection is closed")

    async def run(self) -> None:
        """Send until `finish` or `stop`, or until the stream breaks. Only `stop` cancels it."""
        try:
            with self._writing:
                while True:
                    if data := self._take():
                        await self._stream.send_all(data)
                    elif self._last is not None:
                        await self._stream.send_all(self._last)
                        break
                    else:
                        await self._work.park()
        except BROKEN:  # whoever receives hears why
            pass
        finally:
            self.finish()
            self._take()
            self.done.set()

    def _take(self) -> bytes:
        data = self._pong + b"".join(self._frames)
        self._pong = b""
        self._frames.clear()
        self._queued_bytes = 0
        self._room.unpark_all()
        return data


SUBPROTOCOL = "mcp"  # what the SDKs' own WebSocket transports say; MCP itself specifies none

NORMAL, GOING_AWAY, UNSUPPORTED_DATA, TOO_BIG = 1000, 1001, 1003, 1009  # RFC 6455 section 7.4.1
POLICY_VIOLATION = 1008

CLOSE_SECONDS = 2.0  # for each of: the last messages, and the goodbyes of both sides
LINGER_RECEIVES = 64  # receives of what a peer still sends, so that it reads our goodbye, not a reset
ALLOWANCE_SHARES = 4  # messages' worth of bytes without a message, which only frames without end need
ALLOWANCE_BYTES = 2**20  # and pings
EVENTS_IN_A_ROW = 256  # without a message, after which other tasks get their turn: frames may be tiny
LOST = "the connection was lost"


def allowance(max_message_bytes: int) -> int:
    """How many bytes a peer may send before one message of it is whole: fragments may be empty."""
    return ALLOWANCE_SHARES * max_message_bytes + ALLOWANCE_BYTES


class WebSocketPipe:
    """A PromptPipe over an open WebSocket. Made by `open_websocket_pipe`.

    `close_code` is what it is closed with when this side closes it. `send` and `receive` are checkpoints only
    when they have to wait.
    """

    def __init__(self, protocol: WSConnection, stream: PatientStream, max_message_bytes: int) -> None:
        self.close_code = NORMAL
        self._protocol = protocol
        self._stream = stream
        self._limit = max_message_bytes
        self._writer = FrameWriter(stream)
        self._partial = bytearray()
        self._received = 0  # since the last message was whole
        self._garbled = False  # the parser has given up
        self._reading = trio.CancelScope()
        self._read_deadline = math.inf
        self._end: str | None = None  # why nothing more is received, nor taken to be sent

    def __repr__(self) -> str:
        return f"<WebSocketPipe {self._end or 'open'}>"

    async def send(self, message: bytes) -> None:
        """See MessagePipe."""
        await self._writer.room()
        if not self.offer(message):
            raise TransportClosed(self._end or LOST)

    def offer(self, message: bytes) -> bool:
        """See PromptPipe."""
        if not self._writer.has_room or self._end is not None or self._writer.done.is_set():
            return False
        self._writer.put(self._protocol.send(TextMessage(message.decode(errors="replace"))))
        return True

    def receive_nowait(self) -> None:
        """See PromptPipe. Nothing: frames are left to `receive`, which gives other tasks their turn."""

    async def receive(self) -> bytes:
        """The next message. Raises TransportClosed at the end, every time from then on."""
        while self._end is None:
            for number, event in enumerate(
                self._protocol.events(), 1
            ):  # the parser goes on where it was left
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
        with trio.CancelScope(deadline=self._read_deadline) as self._reading, suppress(*BROKEN):
            data = await self._stream.receive_some(RECEIVE_BYTES)
        if not data:
            self._end = self._end or LOST
            self._writer.stop()
        elif self._end is None:
            self._received += len(data)
            if self._received > allowance(self._limit):
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
            self._writer.put_pong(self._protocol.send(event.response()))
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
            self._end = describe_close(event)
            self._writer.finish(self._protocol.send(event.response()))
        else:
            self._garbled = True
            self._refuse(event.code, f"the peer breaks the rules of WebSocket: {event.reason}")

    def _refuse(self, code: int, reason: str) -> None:
        """End the connection from this side: nothing more is received, nor taken to be sent."""
        self._end = reason
        self._partial.clear()
        self._writer.finish(self._protocol.send(CloseConnection(code, reason)))

    async def aclose(self) -> None:
        """Send what is queued and say goodbye, each within bounds. May be called again."""
        if self._end is None:
            self._end = "the pipe is closed"
            self._writer.finish(self._protocol.send(CloseConnection(self.close_code)))
        try:
            with trio.move_on_after(CLOSE_SECONDS):
                await self._writer.done.wait()
        finally:
            self._writer.drop()
            with trio.move_on_after(CLOSE_SECONDS, shield=True):
                await self._writer.done.wait()
                await self._await_goodbye()
            self._writer.stop()

    async def _await_goodbye(self) -> None:
        """Let the peer read our last words: closing on bytes that nobody received would reset them away."""
        with suppress(*BROKEN, trio.BusyResourceError):  # busy: somebody still receives
            if self._garbled:
                await self._stream.send_eof()
            for _ in range(LINGER_RECEIVES):
                if self._protocol.state is not ConnectionState.LOCAL_CLOSING:
                    return
                data = await self._stream.receive_some(RECEIVE_BYTES)
                if not data or self._ends_with(data):
                    return

    def _ends_with(self, data: bytes | bytearray) -> bool:
        """Whether what came after our goodbye has the one of the peer."""
        if self._garbled:
            return False
        self._protocol.receive_data(bytes(data))
        return any(isinstance(event, CloseConnection) for event in self._protocol.events())

    async def run_writer(self) -> None:
        """Send what is queued until the pipe is closed; a broken stream ends it too. The pipe's own task."""
        await self._writer.run()
        if self._end is None:  # the stream broke: what the peer has said before that is still taken
            self._read_deadline = trio.current_time() + LAST_WORDS_SECONDS
            self._reading.deadline = self._read_deadline


def describe_close(event: CloseConnection) -> str:
    """Why the peer closed the connection, in words."""
    said = f": {event.reason}" if event.reason else ""
    return f"the connection was closed with {int(event.code)}{said}"


async def linger(stream: PatientStream) -> None:
    """Let the peer read our last words: say that nothing more comes, then receive a bounded rest.

    The caller bounds the time.
    """
    with suppress(*BROKEN):
        await stream.send_eof()
        for _ in range(LINGER_RECEIVES):
            if not await stream.receive_some(RECEIVE_BYTES):
                return


@asynccontextmanager
async def open_websocket_pipe(
    protocol: WSConnection, stream: PatientStream, max_message_bytes: int
) -> AsyncIterator[WebSocketPipe]:
    """A pipe over `stream`, where the handshake of `protocol` is done. At the end it says goodbye.

    The stream stays the caller's to close. Cancelling drops what is queued; the goodbye is still said.
    """
    async with trio.open_nursery() as nursery:
        pipe = WebSocketPipe(protocol, stream, max_message_bytes)
        nursery.start_soon(pipe.run_writer, name="websocket writer")
        try:
            yield pipe
        finally:
            await pipe.aclose()
