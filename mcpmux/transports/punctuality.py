"""Ends what takes too long: one task for all exchanges of a channel, in place of a cancel scope for each.

Promises: what is watched is cut off at most SWEEP_SECONDS after its time, and again until it is forgotten.
Nothing runs while nothing is watched. Refuses to know what is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import trio

from mcpmux.errors import Overdue

SWEEP_SECONDS = 0.1  # how late a deadline may be kept


class Timed(Protocol):
    """Something with an end in time."""

    @property
    def until(self) -> float:
        """In trio's time."""
        ...

    def cut_off(self) -> None:
        """It is over, for whoever waits for it."""


class Punctuality:
    """What has an end in time at the moment. `run` has to run while there is any."""

    __slots__ = ("_rest", "_resting", "_watched", "forget")

    def __init__(self) -> None:
        self._watched: set[Timed] = set()
        self.forget = self._watched.discard  # what is over, or takes as long as it takes
        self._rest = trio.lowlevel.ParkingLot()
        self._resting = False

    def __repr__(self) -> str:
        return f"<Punctuality of {len(self._watched)}>"

    @property
    def watched(self) -> list[Timed]:
        """What has an end in time."""
        return list(self._watched)

    def watch(self, timed: Timed) -> None:
        """From now on it is cut off when its `until` has passed."""
        self._watched.add(timed)
        if self._resting:
            self._rest.unpark()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if not self._watched:
                self._resting = True
                await self._rest.park()
                self._resting = False
            await trio.sleep(SWEEP_SECONDS)
            self._sweep()

    def _sweep(self) -> None:
        now = trio.current_time()
        for timed in [timed for timed in self._watched if timed.until <= now]:
            timed.cut_off()


@contextmanager
def limit(until: float) -> Iterator[None]:
    """Whatever waits in here is over by then. Raises Overdue."""
    with trio.CancelScope(deadline=until) as scope:
        yield
    if scope.cancelled_caught:
        raise Overdue("no connection in time")
