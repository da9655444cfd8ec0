"""Waits that many share: for something to read on any connection, and for the deadline of any exchange.

Promises of the poller: each watched descriptor is told of by a plain call as long as there is something to
read, and not once it was forgotten; a call that fails stops nothing but its own descriptor; other tasks have
their turn soon. Linux only (epoll); see `available`.

Why: a wait of trio's own costs several times what receiving does, and under load dozens are ready at once.
Where few are, what was sent is often answered sooner than a process falls asleep and is woken. So it lingers
for a moment before it waits, as long as that pays; where it does not it is tried again now and then.

A cancel scope for each exchange would cost more than the exchange, too. So a sweeper cuts off what is late,
within SWEEP_SECONDS and again and again until it is forgotten. Nothing runs while nothing is watched.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter
from typing import Final, Protocol

import structlog
import trio

from mcpmux.errors import Overdue

log = structlog.get_logger()

MOST_AT_ONCE: Final = 64  # calls before other tasks get their turn
MOST_LINGERED: Final = 16  # the same where each may have been waited for, besides those that are ready then
LINGER_SECONDS = 60e-6  # about as long as it takes to be woken
MOST_MISSES: Final = 6  # that are counted: twice as many waits without lingering after each, 64 in the end
FEW: Final = 8  # connections that are busy; with more of them something is ready all the time
COUNTED_WAITS: Final = 64  # after which it is found out anew which connections are busy

available = sys.platform == "linux"


def clock() -> Callable[[], float]:
    """Tells trio's time, without a call of trio's for each look."""
    current = trio.lowlevel.current_clock()
    if type(current).__name__ != "SystemClock":
        return current.current_time  # a test's
    ahead = current.current_time() - perf_counter()  # which it counts by

    def tell() -> float:
        return perf_counter() + ahead

    return tell


class ReadinessPoller:
    """Who is to be told of which descriptor."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._told: dict[int, Callable[[], None]] = {}
        self._busy: set[int] = set()  # descriptors that were told of lately
        self._waits = 0
        self._gives_way = False
        self._misses = 0  # times that lingering brought nothing, since it last did
        self._pause = 0  # waits without lingering that are still to come

    def __repr__(self) -> str:
        return f"<ReadinessPoller of {len(self._told)}>"

    def watch(self, descriptor: int, tell: Callable[[], None]) -> None:
        """From now on `tell` is called whenever there is something to read.

        Raises OSError, and nothing is watched, when the system watches too much already.
        """
        self._epoll.register(descriptor, select.EPOLLIN)
        self._told[descriptor] = tell

    def forget(self, descriptor: int) -> None:
        """To be called before the descriptor is closed."""
        if self._told.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def give_way(self) -> None:
        """A task has been woken: the event loop has its turn without lingering."""
        self._gives_way = True

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._epoll)
            self._gives_way = False
            self._waits += 1
            if self._waits % COUNTED_WAITS == 0:
                self._busy.clear()
            told = self._tell_ready()
            while told < MOST_LINGERED and not self._gives_way and self._linger():
                told += self._tell_ready()

    def _tell_ready(self) -> int:
        """Tell of what is ready, until nothing is or others must have their turn; of how many it was."""
        told = 0
        while told < MOST_AT_ONCE and (ready := self._epoll.poll(0, MOST_AT_ONCE - told)):
            told += len(ready)
            for descriptor, _ in ready:
                self._busy.add(descriptor)
                tell = self._told.get(descriptor)  # none when an earlier call has forgotten it
                try:
                    if tell is not None:
                        tell()
                except Exception:  # the wall between those who are told: a mistake of ours
                    log.exception("what was received could not be taken")
                    self.forget(descriptor)
        return told

    def _linger(self) -> bool:
        """Whether something has come within a moment. Others who want the processor have it meanwhile."""
        if self._pause or len(self._busy) > FEW:
            self._pause = max(0, self._pause - 1)
            return False
        until = perf_counter() + LINGER_SECONDS
        while perf_counter() < until:
            os.sched_yield()
            if self._epoll.poll(0, 1):
                self._misses = 0
                return True
        self._misses = min(self._misses + 1, MOST_MISSES)
        self._pause = 2**self._misses
        return False

    def close(self) -> None:
        """Give the poller back. Nothing may run any more."""
        self._told.clear()
        self._epoll.close()


SWEEP_SECONDS = 0.1  # how late a deadline may be kept


class Deadline:
    """`seconds` from now, less those `waited`; `at` in trio's time. Progress renews it, up to `maximum`.

    `now`: the time, for who has just looked.
    """

    __slots__ = ("_latest", "_maximum", "_scope", "at", "seconds")

    def __init__(self, seconds: float, waited: float, maximum: float, now: float | None = None) -> None:
        self.seconds = seconds
        self.at = (trio.current_time() if now is None else now) + seconds - waited
        self._maximum = maximum
        self._latest: float | None = None  # with all progress, once there was some
        self._scope: trio.CancelScope | None = None

    @property
    def left(self) -> float:
        """Seconds until it has passed."""
        return self.at - trio.current_time()

    @property
    def exhausted(self) -> bool:
        """Whether progress has used up all that it may."""
        return self._latest is not None and self.at >= self._latest

    def renew(self) -> None:
        """There was progress."""
        if self._latest is None:
            self._latest = self.at + max(0.0, self._maximum - self.seconds)
        self.at = max(self.at, min(self._latest, trio.current_time() + self.seconds))
        if self._scope is not None:
            self._scope.deadline = self.at

    @contextmanager
    def limit(self) -> Iterator[None]:
        """End whatever waits in here at the deadline. May be nested. Raises Overdue."""
        if self._scope is not None:
            yield
            return
        self._scope = scope = trio.CancelScope(deadline=self.at)
        try:
            with scope:
                yield
        finally:
            self._scope = None
        if scope.cancelled_caught:
            raise Overdue(f"not within {self.seconds:g} s")


def limited(deadline: Deadline | None) -> AbstractContextManager[None]:
    """Wait until `deadline` in here, or without end when there is none. Raises Overdue."""
    return nullcontext() if deadline is None else deadline.limit()


class Timed(Protocol):
    """Something that has a deadline."""

    @property
    def until(self) -> float:
        """The deadline, in trio's time."""

    def cut_off(self) -> None:
        """End it: the deadline has passed."""


class DeadlineSweeper:
    """Everything that has a deadline at the moment: what is `watched`. `run` must run while there is any."""

    __slots__ = ("_rest", "_resting", "forget", "watched")

    def __init__(self) -> None:
        self.watched: set[Timed] = set()
        self.forget = self.watched.discard  # called for what is over, or has no deadline any more
        self._rest = trio.lowlevel.ParkingLot()
        self._resting = False

    def __repr__(self) -> str:
        return f"<DeadlineSweeper of {len(self.watched)}>"

    def watch(self, timed: Timed) -> None:
        """Cut it off once its `until` has passed."""
        self.watched.add(timed)
        if self._resting:
            self._resting = False
            self._rest.unpark()

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            if not self.watched:
                self._resting = True
                await self._rest.park()
            await trio.sleep(SWEEP_SECONDS)
            self._sweep()

    def _sweep(self) -> None:  # not in `run`, which would keep the last one
        now = trio.current_time()
        for timed in [timed for timed in self.watched if timed.until <= now]:
            timed.cut_off()
