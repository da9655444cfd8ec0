"""Who has to leave when every place is taken: of the peer that has most, the guest that has rested longest.

Refuses to know what guests are, and looks at no clock: they say since when they rest.

Laws: who leaves rests; nobody of the same peer has rested longer; its peer has no fewer guests than the one
for whom room is made; no peer has more, of which one rested when all were looked at last. All of them are
looked at once in LOOK_SECONDS at most, however many come.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Final, Generic, Protocol, TypeVar

LOOK_SECONDS: Final = 0.1


class Guest(Protocol, Hashable):
    """Somebody who has a place."""

    @property
    def resting_since(self) -> float | None:
        """Since when it does nothing; None while it does something."""


Someone = TypeVar("Someone", bound=Guest)


class Room(Generic[Someone]):
    """The guests of all peers."""

    def __init__(self) -> None:
        self.taken = 0
        self._guests: dict[str, dict[Someone, None]] = {}
        # As they were looked at last: who rested since when, longest first; and peers by how many they have.
        self._resting: dict[str, deque[tuple[float, Someone]]] = {}
        self._most: list[tuple[int, str]] = []
        self._looked = -math.inf

    def come(self, peer: str, guest: Someone) -> None:
        """`guest` takes a place. `go` must follow."""
        self.taken += 1
        guests = self._guests.setdefault(peer, {})
        guests[guest] = None
        if peer in self._resting:
            heappush(self._most, (-len(guests), peer))

    def go(self, peer: str, guest: Someone) -> None:
        """`guest` gives back its place; nothing happens when it has done so."""
        guests = self._guests.get(peer, {})
        if guest in guests:
            self.taken -= 1
            del guests[guest]
            if not guests:
                del self._guests[peer]

    def make(self, peer: str, now: float) -> Someone | None:
        """Who has to leave for somebody of `peer`, and gives back its place; None when nobody can."""
        least = len(self._guests.get(peer, ()))
        found = self._find(least)
        if found is None and now - self._looked >= LOOK_SECONDS:
            self._look(now)
            found = self._find(least)
        if found is not None:
            self.go(*found)
        return found[1] if found is not None else None

    def _look(self, now: float) -> None:
        self._looked = now
        self._resting = {}
        for peer, guests in self._guests.items():
            resting = [(since, guest) for guest in guests if (since := guest.resting_since) is not None]
            if resting:
                self._resting[peer] = deque(sorted(resting, key=itemgetter(0)))
        self._most = [(-len(self._guests[peer]), peer) for peer in self._resting]
        heapify(self._most)

    def _find(self, least: int) -> tuple[str, Someone] | None:
        """The next who rests, and the peer, which has at least so many guests."""
        while self._most:
            number, peer = self._most[0]
            guests, resting = self._guests.get(peer, {}), self._resting.get(peer)
            if resting is None or -number != len(guests):
                heappop(self._most)
                if resting is not None and -number > len(guests):
                    heappush(self._most, (-len(guests), peer))
                continue
            if len(guests) < least:
                return None
            while resting:
                since, guest = resting[0]
                if guest in guests and guest.resting_since == since:
                    return peer, guest
                resting.popleft()
            del self._resting[peer]
        return None
