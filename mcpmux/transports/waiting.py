"""Waits that many share: for something to read on any connection, and for the deadline of any exchange.

Promises of the poller: a plain function of each watched descriptor is called as long as there is something to
read, and never after `forget`; a call that fails stops only its own descriptor; other tasks get their turn
soon. One epoll waits for all (Linux only). Where there is none, or it watches too much already, a task
waits for each descriptor, and all other code stays the same.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from time import perf_counter
from typing import Final, Protocol

import structlog
import trio

from mcpmux.errors import Overdue

log = structlog.get_logger()

MOST_AT_ONCE: Final = 64  # calls before other tasks get their turn
MOST_LINGERED: Final = 16  # calls after which it lingers no more before other tasks get their turn
LINGER_SECONDS = 60e-6  # about as long as it takes to wake a process
MOST_MISSES: Final = 6  # that are counted: each doubles the waits without lingering, up to 64
FEW: Final = 8  # busy connections; with more of them one is ready all the time
COUNTED_WAITS: Final = 64  # after which the busy connections are counted anew

has_epoll = sys.platform == "linux"


def stopwatch() -> Callable[[], float]:
    """Return a function for differences of time: trio's clock, less a constant, without calling trio."""
    current = trio.lowlevel.current_clock()
    is_system = type(current).__name__ == "SystemClock"  # else the clock of a test
    return perf_counter if is_system else current.current_time


def clock() -> Callable[[], float]:
    """Return a function that returns trio's time without calling trio, which costs more."""
    watch = stopwatch()
    ahead = trio.current_time() - watch()
    return lambda: watch() + ahead


class ReadinessPoller:
    """The watched descriptors, and the function to call for each. Made by `open_readiness_poller`."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._epoll = select.epoll() if has_epoll else None
        self._told: dict[int, Callable[[], None]] = {}
        self._apart: dict[int, trio.CancelScope] = {}  # of tasks that wait for one descriptor each
        # Shielded: tasks that are cancelled may still have something to receive, such as a last answer.
        self._running = trio.CancelScope(shield=True)
        self._busy: set[int] = set()  # descriptors that were ready lately
        self._waits = 0
        self._gives_way = False
        self._misses = 0  # times that lingering was in vain, since it last was not
        self._pause = 0  # waits without lingering that are still to come

    def __repr__(self) -> str:
        return f"<ReadinessPoller of {len(self._told)}>"

    def watch(self, descriptor: int, tell: Callable[[], None]) -> None:
        """Call `tell` whenever there is something to read, from now on."""
        self._told[descriptor] = tell
        if self._epoll is not None:
            with suppress(OSError):  # the system watches too much already
                self._epoll.register(descriptor, select.EPOLLIN)
                return
        self._apart[descriptor] = scope = trio.CancelScope(shield=True)
        self._nursery.start_soon(self._watch_apart, descriptor, scope, name="readiness of one")

    async def _watch_apart(self, descriptor: int, scope: trio.CancelScope) -> None:
        with scope:
            # Forgotten, also before this task has run, a descriptor may be closed or watched anew by now.
            while not scope.cancel_called:
                await trio.lowlevel.wait_readable(descriptor)
                if not scope.cancel_called:
                    try:
                        self._told[descriptor]()
                    except Exception as error:
                        self._fail(descriptor, error)

    def forget(self, descriptor: int) -> None:
        """Stop watching a descriptor. Must be called before the descriptor is closed."""
        if self._told.pop(descriptor, None) is None:
            return
        if (scope := self._apart.pop(descriptor, None)) is not None:
            scope.cancel(reason="forgotten")
        elif self._epoll is not None:
            self._epoll.unregister(descriptor)

    def give_way(self) -> None:
        """Let the event loop have its turn without lingering, because a task was woken."""
        self._gives_way = True

    async def run(self) -> None:
        """Call the functions of ready descriptors until `close`."""
        if self._epoll is None:
            return
        with self._running, self._epoll as epoll:
            while True:
                # One wait for all: in trio it costs several times as much as receiving, and under load dozens
                # of descriptors are ready at once.
                await trio.lowlevel.wait_readable(epoll)
                self._gives_way = False
                self._waits += 1
                if self._waits % COUNTED_WAITS == 0:
                    self._busy.clear()
                self._take_turn(epoll)

    def _take_turn(self, epoll: select.epoll) -> None:
        """Call the functions of ready descriptors, until none is ready or other tasks must have a turn."""
        count = 0
        until = 0.0  # end of lingering, while it does
        while count < MOST_AT_ONCE:
            if ready := epoll.poll(0, MOST_AT_ONCE - count):
                if until:  # an answer has come meanwhile, so that lingering pays
                    self._misses, until = 0, 0.0
                count += len(ready)
                for descriptor, _ in ready:
                    self._busy.add(descriptor)
                    tell = self._told.get(descriptor)  # none when an earlier call has forgotten it
                    try:
                        if tell is not None:
                            tell()
                    except Exception as error:
                        self._fail(descriptor, error)
                continue
            if not until:
                if count >= MOST_LINGERED or self._gives_way:
                    return
                if self._pause or len(self._busy) > FEW:
                    self._pause = max(0, self._pause - 1)
                    return
                # With few descriptors, an answer often comes sooner than a process falls asleep and is woken.
                # Lingering goes on as long as that pays, and is tried again now and then.
                until = perf_counter() + LINGER_SECONDS
            elif perf_counter() >= until:
                self._misses = min(self._misses + 1, MOST_MISSES)
                self._pause = 2**self._misses
                return
            os.sched_yield()  # other processes that want the processor, often the server, get it meanwhile

    def _fail(self, descriptor: int, error: Exception) -> None:
        """Stop watching a descriptor whose function has failed: the wall around a mistake of ours."""
        log.error("what was received could not be taken", exc_info=error)
        self.forget(descriptor)

    def close(self) -> None:
        """Call no function any more, and stop running."""
        self._running.cancel(reason="closed")
        for descriptor in list(self._apart):
            self.forget(descriptor)
        self._told.clear()


SWEEP_SECONDS = 0.1  # by which a deadline may be kept late


class Deadline:
    """A deadline `seconds` from now, less those `waited`; `at`: in trio's time.

    Progress renews it, up to `maximum` seconds in all. `now`: the time, if the caller has just read it.
    """

    __slots__ = ("_latest", "_maximum", "_scope", "at", "seconds")

    def __init__(self, seconds: float, waited: float, maximum: float, now: float | None = None) -> None:
        self.seconds = seconds
        self.at = (trio.current_time() if now is None else now) + seconds - waited
        self._maximum = maximum
        self._latest: float | None = None  # time to which progress may move it, once there was some
        self._scope: trio.CancelScope | None = None

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self.at - trio.current_time()

    @property
    def exhausted(self) -> bool:
        """Whether progress has used up all that it may."""
        return self._latest is not None and self.at >= self._latest

    def renew(self) -> None:
        """Note progress: move the deadline to `seconds` from now, as far as `maximum` allows."""
        if self._latest is None:
            self._latest = self.at + max(0.0, self._maximum - self.seconds)
        self.at = max(self.at, min(self._latest, trio.current_time() + self.seconds))
        if self._scope is not None:
            self._scope.deadline = self.at

    @contextmanager
    def limit(self) -> Iterator[None]:
        """Cancel the block at the deadline, also when that is renewed. May be nested. Raises Overdue."""
        if self._scope is not None:  # the outer block has a scope already, and raises
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
    """Limit a block by `deadline`, or not at all if that is None. Raises Overdue."""
    return nullcontext() if deadline is None else deadline.limit()


class Timed(Protocol):
    """An object that has a deadline."""

    @property
    def until(self) -> float:
        """The deadline, in trio's time."""

    def cut_off(self) -> None:
        """End the work whose deadline has passed. Called at each sweep until it is forgotten."""


class DeadlineSweeper:
    """The objects that have a deadline now: `watched`. `run` must run while there are any."""

    __slots__ = ("_rest", "_resting", "forget", "watched")

    def __init__(self) -> None:
        self.watched: set[Timed] = set()
        self.forget = self.watched.discard  # to be called for what is over, or has no deadline any more
        self._rest = trio.lowlevel.ParkingLot()
        self._resting = False

    def __repr__(self) -> str:
        return f"<DeadlineSweeper of {len(self.watched)}>"

    def watch(self, timed: Timed) -> None:
        """Cut `timed` off once its `until` has passed."""
        self.watched.add(timed)
        if self._resting:
            self._resting = False
            self._rest.unpark()

    async def run(self) -> None:
        """Sweep until cancelled."""
        # A cancel scope for each exchange would cost more than the exchange, so one task looks at the
        # deadlines of all. It sleeps while there are none.
        while True:
            if not self.watched:
                self._resting = True
                await self._rest.park()
            await trio.sleep(SWEEP_SECONDS)
            self._sweep()

    def _sweep(self) -> None:  # not in `run`, whose frame would keep the last object
        now = trio.current_time()
        # A list first: cutting one off may change the set.
        for timed in [timed for timed in self.watched if timed.until <= now]:
            timed.cut_off()
