"""Writing frames to one stream, each of them whole.

Promises: only `run` ever sends, and nothing interrupts it but `stop`, after which nothing is sent any more:
so no frame follows half of another one. A peer that reads slowly makes `room` wait, in bounded memory.
Refuses to know what a frame says.
"""

from __future__ import annotations

import trio

from mcpmux.transports.pipe import QUEUE_BYTES
from mcpmux.transports.stream import PatientStream

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
