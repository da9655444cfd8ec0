"""Whole messages over a duplex byte stream, one line each: our stdio, a child's stdio, a TCP or Unix socket.

Promises: a message is written whole or, when the stream fails, not at all; a cancelled `send` has queued
the whole message or nothing; a slow reader makes `send` wait, in bounded memory. Refuses to know who the
peer is and what a message says.

One task owns the writing, because an interrupted `send_all` may have sent half a message. It writes all
that is queued at once, so a burst of messages costs one system call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Protocol, runtime_checkable

import trio
from trio.abc import HalfCloseableStream

from mcpmux.errors import MessageTooLarge, TransportClosed
from mcpmux.protocol.framing import Line, LineDecoder, Oversized, encode_line

RECEIVE_BYTES = 64 * 1024  # what a pipe holds; larger reads gain nothing
QUEUE_BYTES = 256 * 1024  # waiting to be written, after which `send` waits: a few full kernel buffers
FLUSH_SECONDS = 2.0  # for the last messages when closing; a peer that does not read loses them
LAST_WORDS_SECONDS = 2.0  # a peer that stopped reading is gone; what it said before that is still taken

_BROKEN = (trio.BrokenResourceError, trio.ClosedResourceError)


class MessageStream(Protocol):
    """Whole messages in both directions. Any task may send; one task receives."""

    async def send(self, message: bytes) -> None:
        """Queue `message` to be sent, waiting while too much is queued. Raises TransportClosed."""

    async def receive(self) -> bytes:
        """The next message.

        Raises TransportClosed at the end, every time from then on, and MessageTooLarge in place of a
        message past the limit; the next call gives the message after it.
        """

    async def aclose(self) -> None:
        """Send what is queued, within bounds, then close both directions. May be called again."""


@runtime_checkable
class NowaitMessageStream(MessageStream, Protocol):
    """A message stream that can also be used without waiting: cheaper where many messages come at once."""

    def offer(self, message: bytes) -> bool:
        """Queue `message` as `send` does; False, and nothing is done, when that must wait or would fail."""

    def receive_nowait(self) -> bytes | None:
        """A message that is here already, None when `receive` has to wait for one. Raises MessageTooLarge."""


def offer_to(messages: MessageStream) -> Callable[[bytes], bool]:
    """How to send without waiting; what cannot do that takes nothing."""
    return messages.offer if isinstance(messages, NowaitMessageStream) else _take_nothing


def receive_from(messages: MessageStream) -> Callable[[], bytes | None]:
    """How to receive without waiting; what cannot do that has nothing."""
    return messages.receive_nowait if isinstance(messages, NowaitMessageStream) else _have_nothing


def _take_nothing(_message: bytes) -> bool:
    return False


def _have_nothing() -> None:
    return None


class LineStream:
    """A NowaitMessageStream over a byte stream. Made by `open_line_stream`.

    `send` and `receive` are checkpoints only when they have to wait.
    """

    def __init__(self, stream: HalfCloseableStream, max_message_bytes: int) -> None:
        self._stream = stream
        self._limit = max_message_bytes
        self._decoder = LineDecoder(max_message_bytes)
        self._received: deque[Line] = deque()
        self._receive_end: str | None = None
        self._reading = trio.CancelScope()
        self._read_deadline = float("inf")
        self._queue: list[bytes] = []
        self._queued_bytes = 0
        self._send_end: str | None = None
        self._writing = trio.CancelScope()
        self._work = trio.lowlevel.ParkingLot()
        self._room = trio.lowlevel.ParkingLot()
        self._writer_done = trio.Event()

    def __repr__(self) -> str:
        state = f"{len(self._received)} received, {self._queued_bytes} bytes queued"
        ends = [end for end in (self._receive_end, self._send_end) if end]
        return f"<LineStream {', '.join([state, *ends])}>"

    async def send(self, message: bytes) -> None:
        """See MessageStream."""
        while self._queued_bytes >= QUEUE_BYTES:
            await self._room.park()
        if self._send_end is not None:
            raise TransportClosed(self._send_end)
        self._enqueue(message)

    def offer(self, message: bytes) -> bool:
        """See NowaitMessageStream."""
        if self._queued_bytes >= QUEUE_BYTES or self._send_end is not None:
            return False
        self._enqueue(message)
        return True

    def _enqueue(self, message: bytes) -> None:
        line = encode_line(message)
        if not self._queue:
            self._work.unpark()
        self._queue.append(line)
        self._queued_bytes += len(line)

    async def receive(self) -> bytes:
        """See MessageStream."""
        while (message := self.receive_nowait()) is None:
            await self._read_more()
        return message

    def receive_nowait(self) -> bytes | None:
        """See NowaitMessageStream."""
        if not self._received:
            return None
        line = self._received.popleft()
        if isinstance(line, Oversized):
            raise MessageTooLarge(f"a message of {line.size} bytes is over the limit of {self._limit} bytes")
        return line

    async def send_eof(self) -> None:
        """Send what is queued, then tell the peer that nothing more comes; receiving goes on.

        Waits as long as the peer does not read: the caller owns the deadline.
        """
        await self._flush()
        with suppress(*_BROKEN):
            await self._stream.send_eof()

    async def aclose(self) -> None:
        """See MessageStream."""
        try:
            with trio.move_on_after(FLUSH_SECONDS):
                await self._flush()
        finally:
            self._writing.cancel(reason="the stream is closed")
            await trio.aclose_forcefully(self._stream)

    async def _flush(self) -> None:
        self._refuse_sends("the stream is closed")
        self._work.unpark()
        await self._writer_done.wait()

    async def _read_more(self) -> None:
        if self._receive_end is not None:
            raise TransportClosed(self._receive_end)
        try:
            with trio.CancelScope(deadline=self._read_deadline) as self._reading:
                self._take(await self._stream.receive_some(RECEIVE_BYTES))
        except _BROKEN as error:
            self._receive_end = f"cannot receive: {error.__cause__ or error}"
        if self._reading.cancelled_caught:
            self._receive_end = self._send_end

    def _take(self, chunk: bytes | bytearray) -> None:
        if chunk:
            self._received += self._decoder.feed(bytes(chunk))
        else:
            self._received += self._decoder.close()
            self._receive_end = "the stream has ended"

    async def run_writer(self) -> None:
        """Write what is queued until the stream is closed and all is written.

        A broken stream ends it too, without an error: `send` and `receive` tell. Cancelling it loses
        what is queued and may leave half a message in the stream; nothing is written after that.
        """
        try:
            with self._writing:
                while self._queue or self._send_end is None:
                    if self._queue:
                        await self._stream.send_all(self._take_queue())
                    else:
                        await self._work.park()
        except _BROKEN as error:
            self._refuse_sends(f"cannot send: {error.__cause__ or error}")
            self._read_deadline = trio.current_time() + LAST_WORDS_SECONDS
            self._reading.deadline = self._read_deadline
        finally:
            self._refuse_sends("the stream is closed")
            self._take_queue()
            self._writer_done.set()

    def _take_queue(self) -> bytes:
        data = b"".join(self._queue)
        self._queue.clear()
        self._queued_bytes = 0
        self._room.unpark_all()
        return data

    def _refuse_sends(self, reason: str) -> None:
        if self._send_end is None:
            self._send_end = reason


@asynccontextmanager
async def open_line_stream(stream: HalfCloseableStream, max_message_bytes: int) -> AsyncIterator[LineStream]:
    """A message stream over `stream`, which it owns; at the end it writes its queue and closes that.

    Two one-way streams are made one by `trio.StapledStream`. Cancelling closes without writing the queue.
    """
    async with trio.open_nursery() as nursery:
        messages = LineStream(stream, max_message_bytes)
        nursery.start_soon(messages.run_writer, name="line writer")
        try:
            yield messages
        finally:
            await messages.aclose()
