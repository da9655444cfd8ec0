"""Bytes that wait to be sent to one peer, in pieces that go out whole: events, frames.

Promises: only `run` sends, and nothing follows a piece that was cut off, as nothing more is sent then. A peer
that reads slowly makes `room` wait, in bounded memory. Refuses to know what a piece says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from mcpmux.transports.message_stream import QUEUE_BYTES

BROKEN = (trio.BrokenResourceError, trio.ClosedResourceError)


class SendQueue:
    """What waits for `send`. Whoever makes it runs `run` in a task.

    `shield`: only `stop` cancels sending. `filler`: sent whenever nothing else was for `quiet` seconds.
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
        self._last: bytes | None = None  # the piece to end with, once it is decided
        self._sending = trio.CancelScope(shield=shield)
        self._work = trio.lowlevel.ParkingLot()
        self._room = trio.lowlevel.ParkingLot()
        self.done = trio.Event()  # nothing more is sent: all of it is, or the stream broke

    def __repr__(self) -> str:
        return f"<SendQueue {self._queued_bytes} bytes queued, done={self.done.is_set()}>"

    @property
    def has_room(self) -> bool:
        """Whether not too much is queued."""
        return self._queued_bytes < QUEUE_BYTES

    @property
    def is_finished(self) -> bool:
        """Whether nothing more is taken."""
        return self._last is not None

    async def room(self) -> None:
        """Wait while too much is queued and more would be taken. A checkpoint only when it has to wait."""
        while self._queued_bytes >= QUEUE_BYTES and self._last is None:
            await self._room.park()

    def put(self, piece: bytes) -> None:
        """Queue one piece. It is dropped once the queue is finished."""
        if self._last is None:
            self._pieces.append(piece)
            self._queued_bytes += len(piece)
            self._work.unpark()

    def put_first(self, piece: bytes) -> None:
        """Send this piece next, in place of one that was put first and still waits."""
        if self._last is None:
            self._urgent = piece
            self._work.unpark()

    def finish(self, last: bytes = b"") -> None:
        """Send what is queued, then the piece `last`, then nothing more.

        `done` follows, as late as the peer reads. Only the first call counts.
        """
        if self._last is None:
            self._last = last
            self._work.unpark()
            self._room.unpark_all()

    def drop(self) -> None:
        """Forget what is queued, but for what is being sent, and the last piece."""
        self._take()

    def stop(self) -> None:
        """Send nothing more, now. What was being sent is cut off: the stream is of no use any more."""
        self._sending.cancel(reason="the connection is closed")

    async def run(self) -> None:
        """Send until `finish` or `stop`, or until the stream breaks: whoever receives is told why."""
        try:
            with self._sending:
                while (data := self._take()) or self._last is None:
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
        except BROKEN:
            pass
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
