"""Whole messages over a duplex byte stream, one line each: our stdio, a child's stdio, a TCP or Unix socket.

Promises: a message is written whole or, when the stream fails, not at all; a cancelled `send` has queued
the whole message or nothing; a slow reader makes `send` wait, in bounded memory.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Protocol, TypeVar

import trio
from trio.abc import HalfCloseableStream

from mcpmux.errors import MessageTooLarge, TransportClosed
from mcpmux.protocol.framing import Line, LineDecoder, Oversized, encode_line

QUEUE_BYTES = 256 * 1024  # waiting to be sent, after which senders wait: a few full kernel buffers
FLUSH_SECONDS = 2.0  # for the last messages when closing; a peer that does not read loses them
LAST_WORDS_SECONDS = 2.0  # a peer that stopped reading is gone; what it said before that is still taken

BROKEN = (trio.BrokenResourceError, trio.ClosedResourceError)


class SendQueue:
    """What waits for `send`. Whoever makes it runs `run` in a task.

    `end`: why nothing more is taken. `shield`: only `stop` cancels sending. `filler`: sent whenever nothing
    else was for `quiet` seconds.
    """

    def __init__(
        self,
        send: Callable[[bytes], Awaitable[None]],
        *,
        shield: bool = False,
        filler: bytes = b"",
        quiet: float = 0.0,
    ) -> None:
        self._send = send
        self._filler = filler
        self._quiet = quiet
        self._pieces: list[bytes] = []
        self._queued_bytes = 0
        self._urgent = b""
        self._last = b""  # the piece to end with
        self.end: str | None = None
        self._sending = trio.CancelScope(shield=shield)
        self._reading = trio.CancelScope()
        self._read_deadline = math.inf
        self._work = trio.lowlevel.ParkingLot()
        self._room = trio.lowlevel.ParkingLot()
        self.done = trio.Event()  # nothing more is sent: all of it is, or the stream broke

    @property
    def takes_more(self) -> bool:
        """Whether `offer` would take a piece."""
        return self._queued_bytes < QUEUE_BYTES and self.end is None

    async def room(self) -> None:
        """Wait while too much is queued and more would be taken. A checkpoint only when it has to wait."""
        while self._queued_bytes >= QUEUE_BYTES and self.end is None:
            await self._room.park()

    def offer(self, piece: bytes) -> bool:
        """Queue one piece; False, and nothing is done, when too much is queued or nothing more is taken."""
        if self._queued_bytes >= QUEUE_BYTES or self.end is not None:
            return False
        if not self._pieces:
            self._work.unpark()
        self._pieces.append(piece)
        self._queued_bytes += len(piece)
        return True

    def put_first(self, piece: bytes) -> None:
        """Send this piece next, in place of one that was put first and still waits."""
        if self.end is None:
            self._urgent = piece
            self._work.unpark()

    def finish(self, last: bytes = b"", reason: str = "the stream is closed") -> None:
        """Send what is queued, then the piece `last`, then nothing more.

        `done` follows, as late as the peer reads. Only the first call counts.
        """
        if self.end is None:
            self._last, self.end = last, reason
            self._work.unpark()
            self._room.unpark_all()

    def drop(self) -> None:
        """Forget what is queued, but for what is being sent, and the last piece."""
        self._take()

    def stop(self) -> None:
        """Send nothing more, now. What was being sent is cut off: the stream is of no use any more."""
        self._sending.cancel(reason="the connection is closed")

    async def close(self) -> None:
        """Send what is queued, within FLUSH_SECONDS, then stop."""
        self.finish()
        try:
            with trio.move_on_after(FLUSH_SECONDS):
                await self.done.wait()
        finally:
            self.stop()

    def reading(self) -> trio.CancelScope:
        """A scope to receive in. When sending breaks, it ends LAST_WORDS_SECONDS later."""
        self._reading = trio.CancelScope(deadline=self._read_deadline)
        return self._reading

    async def run(self) -> None:
        """Send until `finish` or `stop`, or until the stream breaks: whoever receives is told why.

        Cancelling loses what is queued and may leave half a piece in the stream; nothing is sent after that.
        """
        try:
            with self._sending:
                while (data := self._take()) or self.end is None:
                    if data:
                        await self._send(data)
                    elif self._filler:
                        with trio.move_on_after(self._quiet) as patience:
                            await self._work.park()
                        if patience.cancelled_caught:
                            await self._send(self._filler)
                    else:
                        await self._work.park()
                if self._last:
                    await self._send(self._last)
        except BROKEN as error:
            self.finish(reason=f"cannot send: {error.__cause__ or error}")
            self._read_deadline = self._reading.deadline = trio.current_time() + LAST_WORDS_SECONDS
        finally:
            self.finish()
            self._take()
            self.done.set()

    def _take(self) -> bytes:
        data = self._urgent + b"".join(self._pieces)
        self._urgent = b""
        self._pieces.clear()
        self._queued_bytes = 0
        self._room.unpark_all()
        return data


RECEIVE_BYTES = 64 * 1024  # what a pipe holds; larger reads gain nothing


class MessageStream(Protocol):
    """Whole messages in both directions. Any task may send; one task receives.

    `offer` and `receive_nowait` are cheaper where many messages come at once; a stream need not have them.
    """

    async def send(self, message: bytes) -> None:
        """Queue `message` to be sent, waiting while too much is queued. Raises TransportClosed."""

    async def receive(self) -> bytes:
        """The next message.

        Raises TransportClosed at the end, every time from then on, and MessageTooLarge in place of a
        message past the limit; the next call gives the message after it.
        """

    async def aclose(self) -> None:
        """Send what is queued, within bounds, then close both directions. May be called again."""

    def offer(self, message: bytes) -> bool:
        """Queue a message as `send` does; False, and nothing is done, when that must wait or would fail."""
        return False

    def receive_nowait(self) -> bytes | None:
        """A message that is here already, None when `receive` has to wait for one. Raises MessageTooLarge."""
        return None


Messages = TypeVar("Messages", bound=MessageStream)


class LineStream(MessageStream):
    """A message stream over a byte stream. `send` and `receive` are checkpoints only when they wait."""

    def __init__(self, stream: HalfCloseableStream, max_message_bytes: int) -> None:
        self._stream = stream
        self._limit = max_message_bytes
        self._decoder = LineDecoder(max_message_bytes)
        self._received: deque[Line] = deque()
        self._receive_end: str | None = None
        self.queue = SendQueue(stream.send_all)

    async def send(self, message: bytes) -> None:
        line = encode_line(message)
        while not self.queue.offer(line):
            if self.queue.end is not None:
                raise TransportClosed(self.queue.end)
            await self.queue.room()

    def offer(self, message: bytes) -> bool:
        return self.queue.offer(encode_line(message))

    async def receive(self) -> bytes:
        while (message := self.receive_nowait()) is None:
            await self._read_more()
        return message

    def receive_nowait(self) -> bytes | None:
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
        self.queue.finish()
        await self.queue.done.wait()
        with suppress(*BROKEN):
            await self._stream.send_eof()

    async def aclose(self) -> None:
        try:
            await self.queue.close()
        finally:
            await trio.aclose_forcefully(self._stream)

    async def _read_more(self) -> None:
        if self._receive_end is not None:
            raise TransportClosed(self._receive_end)
        try:
            with self.queue.reading() as scope:
                chunk = await self._stream.receive_some(RECEIVE_BYTES)
                self._received += self._decoder.feed(bytes(chunk)) if chunk else self._decoder.close()
                if not chunk:
                    self._receive_end = "the stream has ended"
        except BROKEN as error:
            self._receive_end = f"cannot receive: {error.__cause__ or error}"
        if scope.cancelled_caught:
            self._receive_end = self.queue.end


@asynccontextmanager
async def sending(messages: Messages, queue: SendQueue) -> AsyncIterator[Messages]:
    """Have the queue of a stream sent; at the end the stream is closed."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(queue.run, name="message writer")
        try:
            yield messages
        finally:
            await messages.aclose()


def open_line_stream(
    stream: HalfCloseableStream, max_message_bytes: int
) -> AbstractAsyncContextManager[LineStream]:
    """A message stream over `stream`, which it owns; at the end it writes its queue and closes that.

    Two one-way streams are made one by `trio.StapledStream`. Cancelling closes without writing the queue.
    """
    messages = LineStream(stream, max_message_bytes)
    return sending(messages, messages.queue)
