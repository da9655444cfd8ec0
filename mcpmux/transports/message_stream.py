"""Whole messages over a duplex byte stream, one line each: our stdio, a child's stdio, a TCP or Unix socket.

Promises: a message is written whole or, when the stream fails, not at all; a cancelled `send` has queued
the whole message or none of it; a slow reader makes `send` wait, in bounded memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Protocol, TypeVar

import trio
from trio.abc import HalfCloseableStream, ReceiveStream

from mcpmux.errors import MessageTooLarge, TransportClosed
from mcpmux.protocol.codes import Busy
from mcpmux.protocol.envelope import encode_error
from mcpmux.protocol.framing import Line, LineDecoder, Oversized, encode_line
from mcpmux.transports.body_budget import SETTING, Holding
from mcpmux.transports.send_queue import BROKEN, SendQueue

RECEIVE_BYTES = 64 * 1024  # what a pipe holds; larger reads are not faster
LINGER_SECONDS = 2.0  # for which a refused peer may go on sending before it is cut off
LINGER_RECEIVES = 1024  # and how much: 64 MiB at most
LATE = "a large message did not come in time (`limits.body_timeout`)"


class MessageStream(Protocol):
    """Whole messages in both directions. Any task may send; one task receives.

    `offer` and `receive_nowait` are cheaper where many messages come at once. A stream may leave them out:
    these here leave everything to `send` and `receive`.
    """

    async def send(self, message: bytes) -> None:
        """Queue `message` to be sent, waiting while too much is queued. Raises TransportClosed."""

    async def receive(self) -> bytes:
        """Return the next message.

        Raises TransportClosed at the end, in every call from then on, and MessageTooLarge for a message over
        the limit; the next call returns the message after it.
        """

    async def aclose(self) -> None:
        """Send the queued messages, within bounds, then close both directions. May be called again."""

    def offer(self, message: bytes) -> bool:
        """Queue a message like `send`; return False, without effect, if that would wait or fail."""
        return False

    def receive_nowait(self) -> bytes | None:
        """Return a message that has arrived, None if `receive` would wait. Raises MessageTooLarge."""
        return None


Messages = TypeVar("Messages", bound=MessageStream)


class LineStream(MessageStream):
    """A message stream over a byte stream. `send` and `receive` are checkpoints only when they wait."""

    def __init__(
        self, stream: HalfCloseableStream, max_message_bytes: int, holding: Holding | None = None
    ) -> None:
        """`holding`: counts the bytes that have arrived and were not received; too many end the stream."""
        self._stream = stream
        self._holding = holding
        self._limit = max_message_bytes
        self._decoder = LineDecoder(max_message_bytes)
        self._received: deque[Line] = deque()
        self._receive_end: str | None = None
        self._is_refused = False  # the bytes that have arrived did not fit
        self.queue = SendQueue(lambda lines: stream.send_all(b"".join(lines)))

    async def send(self, message: bytes) -> None:
        # Queued whole, or not at all if this is cancelled while it waits.
        line = encode_line(message)
        while not self.queue.offer(line):
            if self.queue.end is not None:
                raise TransportClosed(self.queue.end)
            await self.queue.room()

    def offer(self, message: bytes) -> bool:
        return self.queue.offer(encode_line(message))

    async def receive(self) -> bytes:
        holding = self._holding
        while (message := self.receive_nowait()) is None:
            if self._receive_end is not None:
                raise await self._ended(self._receive_end)
            try:
                # When sending breaks, the queue ends `scope` a moment later: last messages still arrive.
                with self.queue.reading() as scope:
                    # Only a message that takes room in the budget is hurried.
                    if holding is None or not holding.size:
                        chunk = await self._stream.receive_some(RECEIVE_BYTES)
                    else:
                        chunk = await receive_held(self._stream, scope, holding)
                    self._received += self._decoder.feed(bytes(chunk)) if chunk else self._decoder.close()
                    if not chunk:
                        self._receive_end = "the stream has ended"
                    if holding is not None:
                        self._count(holding)
            except BROKEN as error:
                self._receive_end = f"cannot receive: {error.__cause__ or error}"
            if scope.cancelled_caught:
                self._receive_end = self.queue.end or LATE
        return message

    def receive_nowait(self) -> bytes | None:
        if not self._received:
            return None
        line = self._received.popleft()
        # From here on the receiver counts the message, if it keeps it.
        if self._holding is not None and self._holding.size:
            self._holding.hold(self._kept_bytes())
        if isinstance(line, Oversized):
            limit = f"over the limit of {self._limit} bytes (`limits.max_message_bytes`)"
            raise MessageTooLarge(f"a message of {line.size} bytes is {limit}", line.excerpt)
        return line

    async def _ended(self, reason: str) -> TransportClosed:
        """Return the error with which `receive` ends."""
        return TransportClosed(reason)

    async def send_eof(self) -> None:
        """Send the queued messages, then close the sending direction; receiving goes on.

        Waits as long as the peer does not read: the caller owns the deadline.
        """
        self.queue.finish()
        await self.queue.done.wait()
        with suppress(*BROKEN):
            await self._stream.send_eof()

    async def aclose(self) -> None:
        try:
            await self.queue.close()
            if self._is_refused:
                with trio.move_on_after(LINGER_SECONDS), suppress(*BROKEN):
                    await linger_on(self._stream, LINGER_RECEIVES)
        finally:
            if self._holding is not None:
                self._holding.hold(0)
            await trio.aclose_forcefully(self._stream)

    def _kept_bytes(self) -> int:
        """Return the number of bytes that have arrived and were not received."""
        lines = sum(len(line) for line in self._received if isinstance(line, bytes))
        return self._decoder.kept_bytes + lines

    def _count(self, holding: Holding) -> None:
        """Count the bytes that have arrived; if they do not fit, queue a refusal and receive no more."""
        if holding.hold(self._kept_bytes()):
            return
        self._receive_end, self._is_refused = holding.bodies.full, True
        self.queue.offer(encode_line(encode_error(None, Busy(self._receive_end, SETTING))))
        self._received.clear()
        self._decoder.close()
        holding.hold(0)


async def linger_on(stream: HalfCloseableStream, receives: int) -> None:
    """End sending, then receive and discard a bounded rest. Raises trio.BrokenResourceError."""
    # Closing a socket with unread bytes resets it, and the peer would lose our refusal.
    await stream.send_eof()
    for _ in range(receives):
        if not await stream.receive_some(RECEIVE_BYTES):
            return


async def receive_held(stream: ReceiveStream, scope: trio.CancelScope, holding: Holding) -> bytes | bytearray:
    """Receive more of a message that counts in a budget; `scope` is cancelled if it comes too slowly."""
    began = trio.current_time()
    scope.deadline = min(scope.deadline, began + holding.left)
    chunk = await stream.receive_some(RECEIVE_BYTES)
    holding.note_wait(trio.current_time() - began)
    return chunk


@asynccontextmanager
async def sending(messages: Messages, queue: SendQueue) -> AsyncIterator[Messages]:
    """Run the writer of a stream's queue; close the stream on leaving."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(queue.run, name="message writer")
        try:
            yield messages
        finally:
            # While the writer still runs, as it sends what is queued: leaving the nursery waits for it.
            await messages.aclose()


def open_line_stream(
    stream: HalfCloseableStream, max_message_bytes: int, holding: Holding | None = None
) -> AbstractAsyncContextManager[LineStream]:
    """Open a message stream over `stream`, which it owns. Leaving sends its queue and closes both.

    `trio.StapledStream` joins two one-way streams. Cancelling closes without sending the queue.
    """
    messages = LineStream(stream, max_message_bytes, holding)
    return sending(messages, messages.queue)
