"""Keep events that a client may ask for again: one session's streams, within bounds.

Rules
  * An event id is `stream-number`, unique in the session, increasing within a stream.
  * Kept are the newest events of all the session's streams together, up to a count, a size and an age;
    of a dropped event only "everything up to that number is gone" is remembered.
  * An event may have the same meaning at any time, as `resources/updated` has: an older event of its stream
    with the same data is not kept beside it, as the newer one replaces it for every reader.
  * `after(id)` returns the events of that very stream behind that one, or raises `Gone` when one of them was
    dropped, or when the id is not of this session.
  * Where processes take over from each other, each is an epoch: its numbers are higher than all earlier ones.

Time is an argument, in seconds of any clock that only goes forward.
Source: "Resumability and Redelivery", 2025-03-26 to 2025-11-25.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

import msgspec

from mcpmux.errors import McpmuxError


class Gone(McpmuxError):
    """The events behind that id are not kept (any more)."""


class Ahead(Gone):
    """The client has received more of a stream than is known here: event `number` of `stream`."""

    def __init__(self, stream: int, number: int) -> None:
        super().__init__(f"event {stream}-{number} was never sent in this session")
        self.stream, self.number = stream, number


SameEvent = tuple[int, bytes]
"""A stream, and the data of an event that has the same meaning at any time."""


class ReplayBounds(NamedTuple):
    """The bounds of what is kept for one session."""

    events: int = 1000
    bytes: int = 4 * 1024 * 1024
    seconds: float = 300.0


class KeptEvent(msgspec.Struct, frozen=True, gc=False):
    """One event that can be asked for again. `data` may be shared with other sessions."""

    stream: int
    number: int
    data: bytes
    at: float

    @property
    def event_id(self) -> str:
        """Its name in `Last-Event-ID`."""
        return f"{self.stream}-{self.number}"


EPOCH: Final = 2**32
"""The numbers of streams, and of events of one stream, that one process may use."""


class ReplayBuffer:
    """The kept events of one session. See the rules above."""

    def __init__(self, bounds: ReplayBounds) -> None:
        self._bounds = bounds
        # The key has the number of an event, or its data if a newer event with the same data replaces it.
        self._kept: OrderedDict[tuple[int, int | bytes], KeptEvent] = OrderedDict()
        self._bytes = 0
        self._last: dict[int, int] = {}
        self._gone: dict[int, int] = {}
        self._closed: set[int] = set()

    def __repr__(self) -> str:
        return f"<ReplayBuffer {len(self._kept)} events, {self._bytes} bytes, {len(self._last)} streams>"

    def open(self, stream: int) -> None:
        """Begin a stream, which can be resumed from its start, before event 1."""
        self._last.setdefault(stream, 0)

    def restore(self, stream: int, number: int, data: bytes, now: float) -> None:
        """Keep an event of an earlier process. Events come in order, and perhaps twice."""
        # The events before the first restored one of a stream are gone, unless the stream was opened.
        if stream not in self._last:
            self._gone[stream] = number - 1
        elif number <= self._last[stream]:  # kept twice: its writer could not know that it had arrived
            return
        self._last[stream] = number - 1
        self.add(stream, data, now)

    def skip_to(self, stream: int, number: int) -> None:
        """Continue a stream behind `number`; the skipped events were replaced by later ones."""
        self._last[stream] = max(self._last.get(stream, 0), number)

    def add(self, stream: int, data: bytes, now: float, said: SameEvent | None = None) -> KeptEvent:
        """Keep the next event of a stream. Return it with its number.

        `said`: the stream and the data, to drop an older event with the same data.
        """
        number = self._last.get(stream, 0) + 1
        self._last[stream] = number
        event, kept = KeptEvent(stream, number, data, now), self._kept
        # It costs least when `said` is the same object each time.
        key = said or (stream, number)
        if key in kept:
            kept[key] = event
            kept.move_to_end(key)  # where the newest is; the size stays
        else:
            kept[key] = event
            self._bytes += len(data)
            self.trim(now)
        return event

    def trim(self, now: float) -> None:
        """Drop events beyond the bounds; the newest event stays for its age, at any size."""
        bounds, kept = self._bounds, self._kept
        while kept:
            event = next(iter(kept.values()))
            too_many = len(kept) > 1 and (len(kept) > bounds.events or self._bytes > bounds.bytes)
            if not too_many and event.at >= now - bounds.seconds:
                return
            kept.popitem(last=False)
            self._bytes -= len(event.data)
            self._gone[event.stream] = event.number
            # A closed stream whose last event is gone can only be answered with `Gone`, known or not.
            if event.stream in self._closed and event.number == self._last[event.stream]:
                self._forget(event.stream)

    def after(self, event_id: str, now: float) -> tuple[int, list[KeptEvent]]:
        """Return (stream, its events behind `event_id`, oldest first). Raises Gone, Ahead."""
        self.trim(now)
        place, _, position = event_id.partition("-")
        if not (place.isdecimal() and position.isdecimal() and len(event_id) < 40):
            raise Gone(f"event {event_id[:40]!r} was never sent in this session")
        stream, number = int(place), int(position)
        if number > self._last.get(stream, -1):
            raise Ahead(stream, number)
        if number < self._gone.get(stream, 0):
            raise Gone(f"the events after {event_id} are not kept any more: read again what you need")
        return stream, [event for event in self.kept(stream) if event.number > number]

    def kept(self, stream: int) -> list[KeptEvent]:
        """Return the kept events of a stream, oldest first."""
        return [event for event in self._kept.values() if event.stream == stream]

    def close(self, stream: int) -> None:
        """End a stream; it is forgotten once its last event has been dropped."""
        self._closed.add(stream)
        if self._gone.get(stream, 0) == self._last.get(stream, 0):
            self._forget(stream)

    def _forget(self, stream: int) -> None:
        self._closed.discard(stream)
        self._last.pop(stream, None)
        self._gone.pop(stream, None)
