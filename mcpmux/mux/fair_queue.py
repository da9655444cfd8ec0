"""Whose turn it is, when more is asked of one upstream than it is given at a time.

Rules
  * At most `slots` run. Nobody waits while a slot is free.
  * One of several queues in front of the same upstream has its part of the slots and of the room, rounded up,
    and one slot at least. When its part grows, whoever waits gets the new slots at once. When it shrinks,
    what runs goes on and what waits stays, and a slot that is given back is nobody's until fewer run.
  * A slot that becomes free goes to the next client in turn, and there to what has waited longest: a client
    with a thousand in the queue gets as many turns as a client with one.
  * At most `room` wait. When it is full a client that has its share of it, or more, is refused. One that has
    less takes the place of the newest of whoever has most, unless that would only turn the tables.

A client is any hashable value, what waits any hashable object. Nothing outside this file changes the state.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class FairQueue(Generic[T]):
    """The slots of one upstream and who waits for them."""

    __slots__ = ("_ring", "_whole", "room", "running", "slots", "waiting")

    def __init__(self, slots: int, room: int) -> None:
        self._whole = slots, room
        self.slots = slots
        self.room = room
        self.running = 0
        self.waiting = 0
        self._ring: OrderedDict[Hashable, OrderedDict[T, None]] = OrderedDict()  # the next in turn first

    def enter(self) -> bool:
        """Take a free slot, which `leave` gives back. False when there is none."""
        if self.running < self.slots:
            self.running += 1
            return True
        return False

    def enqueue(self, client: Hashable, item: T) -> T | None:
        """`item` waits, after `enter` said no. What is returned, perhaps itself, had to give way."""
        displaced = None
        if self.waiting >= self.room:
            greedy = self._greedier_than(client)
            if greedy is None:
                return item
            displaced = next(reversed(self._ring[greedy]))
            self.withdraw(greedy, displaced)
        self._ring.setdefault(client, OrderedDict())[item] = None
        self.waiting += 1
        return displaced

    def _greedier_than(self, client: Hashable) -> Hashable | None:
        """Of a full queue the client that has most, when `client` has less than its share; else None."""
        own = len(self._ring.get(client, ()))
        clients = len(self._ring) + (own == 0)
        if not self._ring or own >= max(1, self.room // clients):  # a flood is refused at once
            return None
        greedy = max(self._ring, key=lambda each: len(self._ring[each]))
        return greedy if len(self._ring[greedy]) > own + 1 else None

    def leave(self) -> T | None:
        """Give a slot back; whoever is returned has it now."""
        if not self._ring or self.running > self.slots:
            self.running -= 1
            return None
        return self._next()

    def divide(self, parts: int) -> list[T]:
        """This is one of so many queues from now on. Whoever is returned has a slot now."""
        slots, room = self._whole
        self.slots, self.room = max(1, -(-slots // parts)), -(-room // parts)
        following = []
        while self._ring and self.running < self.slots:
            self.running += 1
            following.append(self._next())
        return following

    def _next(self) -> T:
        """Take out whoever is next in turn."""
        client, items = next(iter(self._ring.items()))
        item, _ = items.popitem(last=False)
        self.waiting -= 1
        if items:
            self._ring.move_to_end(client)
        else:
            del self._ring[client]
        return item

    def withdraw(self, client: Hashable, item: T) -> bool:
        """`item` does not want to wait any more. False when it does not wait: then it may have a slot."""
        items = self._ring.get(client)
        if items is None or item not in items:
            return False
        del items[item]
        self.waiting -= 1
        if not items:
            del self._ring[client]
        return True
