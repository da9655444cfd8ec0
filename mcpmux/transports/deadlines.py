"""Deadlines of exchanges: how long one may take, and one task that ends all that take too long.

A cancel scope for each exchange would cost more than the exchange. So a sweeper looks a few times a second at
everything that has a deadline, and cuts off what is late.

Promises: everything watched is cut off within SWEEP_SECONDS of its deadline, again and again until forgotten.
Nothing runs while nothing is watched. Refuses to know what is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import trio

from mcpmux.errors import Overdue

SWEEP_SECONDS = 0.1  # how late a deadline may be kept


class Deadline:
    """`seconds` from now, less those already `waited`. Progress renews it, up to `maximum` seconds in all.

    `at`: in trio's time.
    """

    __slots__ = ("_latest", "_maximum", "_scope", "at", "seconds")

    def __init__(self, seconds: float, waited: float, maximum: float) -> None:
        self.seconds = seconds
        self.at = trio.current_time() + seconds - waited
        self._maximum = maximum
        self._latest: float | None = None  # with all progress, once there was some
        self._scope: trio.CancelScope | None = None

    def __repr__(self) -> str:
        return f"<Deadline {self.left:.1f} s left of {self.seconds:g}>"

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
        ...

    def cut_off(self) -> None:
        """End it: the deadline has passed."""


class DeadlineSweeper:
    """Everything that has a deadline at the moment. `run` must run while there is any."""

    __slots__ = ("_rest", "_resting", "_watched", "forget")

    def __init__(self) -> None:
        self._watched: set[Timed] = set()
        self.forget = self._watched.discard  # called for what is over, or has no deadline any more
        self._rest = trio.lowlevel.ParkingLot()
        self._resting = False

    def __repr__(self) -> str:
        return f"<DeadlineSweeper of {len(self._watched)}>"

    @property
    def watched(self) -> list[Timed]:
        """What is watched now."""
        return list(self._watched)

    def watch(self, timed: Timed) -> None:
        """Cut it off once its `until` has passed."""
        self._watched.add(timed)
        if self._resting:
            self._rest.unpark()

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            if not self._watched:
                self._resting = True
                await self._rest.park()
                self._resting = False
            await trio.sleep(SWEEP_SECONDS)
            self._sweep()

    def _sweep(self) -> None:  # not in `run`, which would keep the last one
        now = trio.current_time()
        for timed in [timed for timed in self._watched if timed.until <= now]:
            timed.cut_off()
