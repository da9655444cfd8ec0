"""Which subscriber has heard of which change, and when. Pure.

Rules
- A change of a resource is open until the next change of the same resource: what a subscriber hears
  meanwhile is about it. The first time is its delivery, every further time a duplicate.
- What is heard of a resource before its first change is about something else, and not counted.
"""

from __future__ import annotations

from mcpmux.bench.histogram import Histogram
from mcpmux.bench.results import FanOut


class Deliveries:
    """Of `subscribers` who are told of `resources`; numbers from 0."""

    def __init__(self, subscribers: int, resources: int) -> None:
        self._subscribers = subscribers
        self._resources = resources
        self._changes = 0
        self._deliveries = 0
        self._duplicates = 0
        self._delay = Histogram()
        self._changed: dict[str, float] = {}
        self._heard: dict[str, set[int]] = {}

    def __repr__(self) -> str:
        return f"<Deliveries {self._deliveries} of {self._changes} changes>"

    def change(self, uri: str, now: float) -> None:
        """A resource is about to be changed."""
        self._changes += 1
        self._changed[uri] = now
        self._heard[uri] = set()

    def withdraw(self, uri: str) -> None:
        """The change did not happen: nobody has to hear of it."""
        self._changes -= 1
        del self._changed[uri], self._heard[uri]

    def hear(self, subscriber: int, uri: str, now: float) -> None:
        """A subscriber is told of a resource."""
        if uri not in self._changed:
            return
        if subscriber in self._heard[uri]:
            self._duplicates += 1
            return
        self._heard[uri].add(subscriber)
        self._deliveries += 1
        self._delay.record(now - self._changed[uri])

    def complete(self, uri: str) -> bool:
        """Whether everybody has heard of the last change of a resource."""
        return len(self._heard.get(uri, ())) >= self._subscribers

    def results(self) -> FanOut:
        """What came of it."""
        return FanOut(
            subscribers=self._subscribers,
            resources=self._resources,
            changes=self._changes,
            expected=self._changes * self._subscribers,
            deliveries=self._deliveries,
            duplicates=self._duplicates,
            delay=self._delay.freeze(),
        )
