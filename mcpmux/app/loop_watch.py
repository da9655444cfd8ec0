"""Log a warning when one step holds the event loop for long, as all clients wait meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import structlog
import trio

log = structlog.get_logger()

HELD_SECONDS: Final = 0.1  # of the processor's time, in one round of the event loop
SAMPLE_SECONDS: Final = 0.05  # between looks at the processor's time, each of which is a system call
PAUSE_SECONDS: Final = 60.0  # between warnings; the next one counts those in between


class LoopWatch(trio.abc.Instrument):
    """Measures the rounds of the event loop, each of which lets every task that can run take one step."""

    def __init__(
        self, clock: Callable[[], float] = time.thread_time, wall: Callable[[], float] = time.perf_counter
    ) -> None:
        """`clock` returns the processor's time, `wall` the wall-clock time, in seconds. `wall` is cheap."""
        # The processor's time of this thread: on a busy machine, rounds that do little take long, too.
        self._clock, self._wall = clock, wall
        self._began = clock()
        self._round_ended = self._sampled = wall()
        self._warned = -PAUSE_SECONDS
        self._rounds, self._longest = 0, 0.0  # since the last warning

    def before_io_wait(self, timeout: float) -> None:
        """End a round, and warn if it was long. Waiting for I/O takes no time of the processor."""
        # The processor's time is read now and then, and after a round that was long by wall-clock time, waits
        # included.
        now = self._wall()
        if now - self._round_ended >= HELD_SECONDS:
            self.end(self._round_ended - self._sampled)
        if now - self._sampled >= SAMPLE_SECONDS:
            self._sampled = now
            self.begin()
        self._round_ended = now

    def begin(self) -> None:
        """Begin a measurement."""
        self._began = self._clock()

    def end(self, before: float = 0.0) -> float:
        """End a measurement, and report it if it was long. Return its seconds.

        `before`: seconds between `begin` and the end of the round before, which are subtracted.
        """
        # As if the processor had been busy all that time: a round is never reported for work before it.
        held = self._clock() - self._began - before
        if held >= HELD_SECONDS:
            self.report(held)
        return held

    def report(self, held: float) -> None:
        """Warn of a long round, unless there was a warning within PAUSE_SECONDS. `held`: seconds."""
        self._rounds += 1
        self._longest = max(self._longest, held)
        now = trio.current_time()
        if now - self._warned >= PAUSE_SECONDS:
            log.warning(
                "the event loop was held, and everybody waited",
                longest_ms=round(self._longest * 1000),
                times=self._rounds,
            )
            self._warned, self._rounds, self._longest = now, 0, 0.0
