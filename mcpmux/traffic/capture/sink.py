"""The sink behind the capture: a bounded queue and the task that writes it. See `capture` for the whole.

`take` does as little as it can; redacting and encoding are done in the writer's task, a little at a time, and
files are touched in threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import structlog
import trio

from mcpmux.config.capture import Capture
from mcpmux.protocol.envelope import Fields
from mcpmux.traffic.capture.level import OFF, Levels
from mcpmux.traffic.capture.line import LineEncoder
from mcpmux.traffic.capture.message import Run
from mcpmux.traffic.capture.writer import CaptureWriter
from mcpmux.traffic.correlation import Seen
from mcpmux.traffic.recorder import Exchange
from mcpmux.traffic.redaction.redactor import Redactor

log = structlog.get_logger()

FLUSH_SECONDS = 0.25  # for how long a message may be in the queue alone
RETRY_SECONDS = 5.0  # between attempts to write while it does not work
COST = 300  # bytes that a message takes in the queue besides its own
BATCH_BYTES = 4 * 2**20  # of messages that are encoded and written together
BREATH = 64  # messages that are encoded before others may do something
LARGE = 128 * 2**10  # bytes; messages from here on are encoded in a thread


def reason_of(error: OSError) -> str:
    """What went wrong, for the end of a sentence."""
    return (error.strerror or str(error)).lower()


_Waiting = tuple[int, str, Seen]
"""Number, level, message."""


class CaptureSink:
    """Takes messages and writes them. See Sink and Keeper.

    `dropped` counts messages that found the queue full, or could not be written when it had to end; `paused`
    says that files cannot be written.
    `complete` is set, and replaced, when a file is complete; `finished` when `run` has written what was left.
    """

    def __init__(
        self,
        config: Capture,
        levels: Levels,
        redactor: Redactor,
        run: Run,
        writer: CaptureWriter,
        clock: Callable[[], float],
    ) -> None:
        self.dropped = 0
        self.paused = False
        self.complete = trio.Event()
        self.finished = trio.Event()
        self._limit = config.queue_bytes
        self._enough = config.queue_bytes // 4  # not to wait for more
        self._levels = levels
        self._lines = LineEncoder(run, redactor, config.body_bytes)
        self._run = run
        self._writer = writer
        self._clock = clock
        self._queue: deque[_Waiting] = deque()
        self._bytes = 0
        self._seq = 0
        self._told = 0
        self._lost = 0  # at the end
        self._has_paused = False  # since dropped messages were told last
        self._filled = trio.Event()
        self._hurry = trio.Event()
        self._room = trio.Event()
        self._closed = trio.Event()

    def __repr__(self) -> str:
        state = "paused" if self.paused else "writing"
        return f"<CaptureSink {state} {self._bytes} bytes waiting, {self.dropped} dropped>"

    def take(self, seen: Seen) -> None:
        """See Sink."""
        level = self._levels.level(seen)
        if level == OFF:
            return
        self._seq += 1
        size = self._bytes + len(seen.data) + COST
        if size > self._limit:
            self.dropped += 1
            return
        if not self._queue:
            self._filled.set()
        self._queue.append((self._seq, level, seen))
        self._bytes = size
        if size > self._enough:
            self._hurry.set()

    async def admit(self, exchange: Exchange) -> None:
        """See Keeper: waits for a slow disk, not for one that does not work."""
        while self._bytes > self._limit // 2 and not self.paused:
            await self._room.wait()

    async def ended(self, exchange: Exchange, outcome: Fields | BaseException, seconds: float) -> None:
        """See Keeper."""

    async def run(self) -> None:
        """Write what is taken until `close`, and what is left then. Cancelling it leaves whole lines."""
        while True:
            await self._filled.wait()
            self._filled = trio.Event()
            await self._gather()
            for batch in self._take_queue():
                await self._write(batch, await self._encode(batch))
            self._tell_dropped()
            if self._closed.is_set() and not self._queue:
                self._tell_lost()
                self.finished.set()
                return

    def wall(self) -> float:
        """Seconds since 1970, by the run's clock."""
        return self._run.wall + self._clock() - self._run.clock

    def close(self) -> None:
        """Nothing more will be taken; `run` returns when all is written."""
        self._closed.set()
        self._filled.set()
        self._hurry.set()

    async def _gather(self) -> None:
        """A moment for more messages to come, which are written together."""
        self._hurry = trio.Event()
        if self._bytes <= self._enough and not self._closed.is_set():
            with trio.move_on_after(FLUSH_SECONDS):
                await self._hurry.wait()

    def _take_queue(self) -> list[list[_Waiting]]:
        """What is there now, in batches; it stays counted until it is written."""
        if self._bytes <= BATCH_BYTES:
            batch = list(self._queue)
            self._queue.clear()
            return [batch]
        batches: list[list[_Waiting]] = []
        size = BATCH_BYTES
        for waiting in self._queue:
            if size >= BATCH_BYTES:
                batches.append([])
                size = 0
            batches[-1].append(waiting)
            size += len(waiting[2].data) + COST
        self._queue.clear()
        return batches

    async def _encode(self, batch: Sequence[_Waiting]) -> list[bytes]:
        lines: list[bytes] = []
        encode = self._lines.encode
        for seq, level, seen in batch:
            if len(seen.data) < LARGE:
                lines.append(encode(seen, seq, level))
            else:
                lines.append(await trio.to_thread.run_sync(encode, seen, seq, level, abandon_on_cancel=True))
            if not seq % BREATH:
                await trio.lowlevel.checkpoint()
        return lines

    async def _write(self, batch: Sequence[_Waiting], lines: Sequence[bytes]) -> None:
        """Write all of them, however long it does not work."""
        done = 0
        while done < len(lines):
            write = partial(self._writer.write, lines[done:], self._clock())
            try:
                written = await trio.to_thread.run_sync(write, abandon_on_cancel=True)
            except OSError as error:
                self._pause(error)
                if self._closed.is_set():
                    self._lost += len(lines) - done
                    return
                with trio.move_on_after(RETRY_SECONDS):
                    await self._closed.wait()
            else:
                self._written(batch[done : done + written])
                done += written

    def _written(self, batch: Sequence[_Waiting]) -> None:
        self._bytes -= COST * len(batch) + sum([len(seen.data) for _, _, seen in batch])
        if self.paused:
            self.paused = False
            log.warning("capture goes on")
        self._make_room()
        if self._writer.take_rotated():
            complete, self.complete = self.complete, trio.Event()
            complete.set()

    def _make_room(self) -> None:
        """Whoever waits in `admit` looks again."""
        room, self._room = self._room, trio.Event()
        room.set()

    def _pause(self, error: OSError) -> None:
        if not self.paused:
            self.paused = self._has_paused = True
            log.error(
                "capture pauses, its files cannot be written; traffic goes on",
                directory=str(self._writer.directory),
                reason=reason_of(error),
            )
        self._make_room()

    def _tell_dropped(self) -> None:
        if self.dropped > self._told:
            why = "its files could not be written" if self._has_paused else "they came faster than it writes"
            log.warning(
                f"messages are missing in the capture: {why}",
                dropped=self.dropped - self._told,
                in_all=self.dropped,
            )
            self._told = self.dropped
        self._has_paused = self.paused

    def _tell_lost(self) -> None:
        if self._lost:
            self.dropped += self._lost
            log.error("the capture is incomplete: its last messages could not be written", lost=self._lost)
