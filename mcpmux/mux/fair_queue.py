"""Decide whose request goes next when clients ask more of one upstream than it is given at a time.

Rules
  * At most `slots` run. No item waits while a slot is free.
  * One of several queues in front of the same upstream has its part of the slots and of the room, rounded up,
    and one slot at least. When its part grows, waiting items get the new slots at once. When it shrinks,
    running items go on and waiting items stay, and a slot that is given back stays empty until fewer run.
  * A slot that becomes free goes to the next client in turn, and there to the item that has waited longest: a
    client with a thousand in the queue gets as many turns as a client with one.
  * At most `room` wait. When it is full a client that has its share of it, or more, is refused. One that has
    less replaces the newest item of the client that has most, unless that would only turn the tables.

A client is any hashable value, an item any hashable object. Only this file changes the state.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class FairQueue(Generic[T]):
    """The slots of one upstream, and the items that wait for them."""

    __slots__ = ("_ring", "_whole", "room", "running", "slots", "waiting")

    def __init__(self, slots: int, room: int) -> None:
        self._whole = slots, room
        self.slots = slots
        self.room = room
        self.running = 0
        self.waiting = 0
        self._ring: OrderedDict[Hashable, OrderedDict[T, None]] = OrderedDict()  # the next in turn first

    def enter(self) -> bool:
        """Take a free slot, which `leave` gives back. Return False when there is none."""
        if self.running < self.slots:
            self.running += 1
            return True
        return False

    def enqueue(self, client: Hashable, item: T) -> T | None:
        """Let `item` wait, after `enter` returned False.

        Return the item that had to give way, perhaps `item` itself; None when there was room.
        """
        displaced = None
        if self.waiting >= self.room:
            own = len(self._ring.get(client, ()))
            clients = len(self._ring) + (own == 0)
            # A client that has its share is refused at once, so that a flood costs the others no work.
            if not self._ring or own >= max(1, self.room // clients):
                return item
            greedy = max(self._ring, key=lambda each: len(self._ring[each]))
            # With a difference of one, the two clients would displace each other's items in turn.
            if len(self._ring[greedy]) <= own + 1:
                return item
            # The greedy client's own order stays: its newest item goes, not the one whose turn is near.
            displaced = next(reversed(self._ring[greedy]))
            self.withdraw(greedy, displaced)
        self._ring.setdefault(client, OrderedDict())[item] = None
        self.waiting += 1
        return displaced

    def leave(self) -> T | None:
        """Give a slot back. Return the item that has it now, or None."""
        if not self._ring or self.running > self.slots:
            self.running -= 1
            return None
        return self._next()

    def divide(self, parts: int) -> list[T]:
        """Become one of `parts` queues of the same upstream. Return the items that have a slot now."""
        slots, room = self._whole
        # -(-a // b) rounds up, so that no part is without a slot.
        self.slots, self.room = max(1, -(-slots // parts)), -(-room // parts)
        following = []
        while self._ring and self.running < self.slots:
            self.running += 1
            following.append(self._next())
        return following

    def _next(self) -> T:
        """Remove and return the item that is next in turn."""
        client, items = next(iter(self._ring.items()))
        item, _ = items.popitem(last=False)
        self.waiting -= 1
        if items:
            self._ring.move_to_end(client)
        else:
            del self._ring[client]
        return item

    def withdraw(self, client: Hashable, item: T) -> bool:
        """Remove a waiting `item`. Return False when it does not wait: then it may have a slot."""
        items = self._ring.get(client)
        if items is None or item not in items:
            return False
        del items[item]
        self.waiting -= 1
        if not items:
            del self._ring[client]
        return True
