"""A warning in the log when the event loop is held for long, as everybody waits for that time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import structlog
import trio

log = structlog.get_logger()

HELD_SECONDS: Final = 0.1  # of the processor's time, in one round of the event loop
PAUSE_SECONDS: Final = 60.0  # between warnings; the next one counts those in between


class LoopWatch(trio.abc.Instrument):
    """Measures the rounds of the event loop, each of which lets every task that can run take one step.

    It goes by the processor's time of this thread: on a busy machine, rounds that do little take long, too.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        """`clock`: gives the processor's time in seconds."""
        self._clock = clock
        self._began = clock()
        self._warned = -PAUSE_SECONDS
        self._rounds, self._longest = 0, 0.0  # since the last warning

    def after_io_wait(self, timeout: float) -> None:
        """Begin a round."""
        self.begin()

    def before_io_wait(self, timeout: float) -> None:
        """End a round, and warn if it was long."""
        self.end()

    def begin(self) -> None:
        """Begin to measure."""
        self._began = self._clock()

    def end(self) -> float:
        """End what `begin` began, and report it if it was long. Returns its seconds."""
        held = self._clock() - self._began
        if held >= HELD_SECONDS:
            self.report(held)
        return held

    def report(self, held: float) -> None:
        """Warn of a long round, unless there was a warning of late. `held`: seconds."""
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
