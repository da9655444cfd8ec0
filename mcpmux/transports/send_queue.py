"""Pieces that wait to be sent over a stream, in bounded memory, and the one task that sends them.

Promises: a piece is sent whole or, when the stream fails, not at all; a slow reader makes senders wait.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Final

import trio

QUEUE_BYTES: Final = 256 * 1024  # waiting to be sent, after which senders wait: a few full kernel buffers
FLUSH_SECONDS = 2.0  # for the last messages when closing; a peer that does not read loses them
LAST_WORDS_SECONDS = 2.0  # for what a peer has said that stopped reading

BROKEN: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


class SendQueue:
    """Pieces that wait for `send`. Its owner runs `run` in a task.

    `end`: why no more is taken. `shield`: only `stop` cancels sending.
    """

    def __init__(self, send: Callable[[list[bytes]], Awaitable[None]], *, shield: bool = False) -> None:
        self._send = send
        self._pieces: list[bytes] = []
        self._queued_bytes = 0
        self._is_woken = False  # to call `send` even without a piece
        self.end: str | None = None
        self._sending = trio.CancelScope(shield=shield)
        self._reading = trio.CancelScope()
        self._read_deadline = math.inf
        self._work = trio.lowlevel.ParkingLot()
        self._room = trio.lowlevel.ParkingLot()
        self.done = trio.Event()  # sending is over: all is sent, or the stream broke

    async def room(self) -> None:
        """Wait while too much is queued and more would be taken."""
        # A checkpoint only when it has to wait.
        while self._queued_bytes >= QUEUE_BYTES and self.end is None:
            await self._room.park()

    def offer(self, piece: bytes) -> bool:
        """Queue one piece; return False, without it, when too much is queued or the queue has ended."""
        if self._queued_bytes >= QUEUE_BYTES or self.end is not None:
            return False
        if not self._pieces:
            self._work.unpark()
        self._pieces.append(piece)
        self._queued_bytes += len(piece)
        return True

    def wake(self) -> None:
        """Call `send` soon, even without a piece: it has something else to send."""
        self._is_woken = True
        self._work.unpark()

    def finish(self, reason: str = "the stream is closed") -> None:
        """Send what is queued, and take no more.

        `done` follows, as late as the peer reads. Only the first call counts.
        """
        if self.end is None:
            self.end = reason
            self._work.unpark()
            self._room.unpark_all()

    def drop(self) -> None:
        """Forget what is queued, but for what is being sent."""
        self._take()

    def stop(self) -> None:
        """Stop sending at once."""
        # A piece that is being sent is cut off, so the stream is of no use any more.
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
        """Return a scope to receive in. When sending breaks, it ends LAST_WORDS_SECONDS later."""
        self._reading = trio.CancelScope(deadline=self._read_deadline)
        return self._reading

    async def run(self) -> None:
        """Send until `finish` or `stop`, or until the stream breaks. The receiver gets the reason.

        Cancelling loses what is queued and may leave half a piece in the stream, which then takes no more.
        """
        try:
            with self._sending:
                while (pieces := self._take()) or self._is_woken or self.end is None:
                    if pieces or self._is_woken:
                        self._is_woken = False
                        await self._send(pieces)
                    else:
                        await self._work.park()
        except BROKEN as error:
            # A peer that stopped reading is gone; what it said before that is still taken.
            self.finish(reason=f"cannot send: {error.__cause__ or error}")
            self._read_deadline = self._reading.deadline = trio.current_time() + LAST_WORDS_SECONDS
        finally:
            self.finish()
            self._take()
            self.done.set()

    def _take(self) -> list[bytes]:
        pieces, self._pieces = self._pieces, []
        self._queued_bytes = 0
        self._room.unpark_all()
        return pieces
