"""The queue of one client's changes: any task puts them in without waiting, one reader takes them out.

`resources/updated` and `list_changed` mean "look again", so a second one while the first still waits is
needless: one is kept for each URI and each kind of list. A server may name any number of sub-resources of a
subscribed one; past DETAIL_LIMIT the subscribed one replaces them. So the size is bounded by the client's
subscriptions, however fast resources change and however slowly it reads; no change is lost. The status of a
task and its progress are kept in the same way, the latest for each task.

A waiting reader may lend an Outlet. While the queue is empty, the task that puts in a change writes it there
at once, without waking the reader; as soon as the client does not take everything at once, changes are queued
for the reader, in the same order, as without an outlet.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable
from dataclasses import KW_ONLY, dataclass, field
from typing import Protocol

import trio

from mcpmux.channels.tap import Leg
from mcpmux.protocol.call import Event
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.principal import ANYONE, Principal
from mcpmux.protocol.raw_json import Fields

DETAIL_LIMIT = 256  # waiting changes, after which sub-resources are no longer kept one by one

_NAMED_BY = ("uri", "taskId", "elicitationId", "progressToken")


def _subject(params: Fields) -> str:
    """Return the subject of a notification. A later one about the same subject replaces a waiting one."""
    return next((bytes(params[name]).decode() for name in _NAMED_BY if name in params), "")


class Outlet(Protocol):
    """A begun stream to a client that can be written at once."""

    def write_nowait(self, event: Event) -> bool:
        """Write an event. Return False if the client does not take it at once: then `flush` must follow."""

    def flush(self) -> Awaitable[None]:
        """Wait until the client has taken all that was written."""


@dataclass(slots=True, eq=False)
class ClientOutbox:
    """The changes that wait for one client. `kinds`: the list changes (method names) that it receives.

    `client`: the object that identifies it in its calls, if it accepts requests; `principal`: its own.
    `is_granted`: its subscriptions were acknowledged once, as in a listen, which must end when less is
    allowed later. `is_replica`: it serves all clients of another replica, which judges their rights.
    `leg`: the leg on which it listens, if the traffic is watched. `log_level`: of log messages that belong to
    no call: it gets those of this level and worse, or all.
    `since`: trio's time at which a listen began, or a replica relied on it. `waiting`: the oldest first.
    `merged`: the number of events that another one replaced.
    """

    kinds: frozenset[str]
    principal: Principal = ANYONE
    _: KW_ONLY
    is_granted: bool = False
    is_replica: bool = False
    client: object = field(default=None, repr=False)
    leg: Leg | None = field(default=None, repr=False)
    log_level: str | None = field(default=None, repr=False)
    since: float = -math.inf
    waiting: dict[tuple[str, str], Event] = field(default_factory=dict, repr=False)
    merged: int = 0
    _arrival: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)
    is_closed: bool = False
    _outlet: Outlet | None = None  # only while the reader waits: the queue is empty then

    def put(self, event: Event, whole: Event | None = None, *, is_known: bool = True) -> bool:
        """Write `event` to the client's outlet, or queue it. Never waits.

        `whole`: the event about the subscribed resource, when `event` is about a part of it. `is_known`:
        False for an event of an unknown kind, which replaces only an equal one, and is dropped and counted as
        merged when DETAIL_LIMIT others wait. Return False when it replaced a waiting event, or was dropped.
        """
        outlet = self._outlet
        if outlet is not None:  # the queue is empty and the reader waits, so the order is kept
            if not outlet.write_nowait(event):
                self._outlet = None  # the client was too slow: the reader has to flush the stream first
                self._arrival.unpark()
            return True
        is_full = len(self.waiting) >= DETAIL_LIMIT
        # A server may name any number of parts of a resource, and the client has to look at the whole anyway.
        if whole is not None and is_full:
            event = whole
        key = (event.method, _subject(event.params) if is_known else bytes(raw(event.params)).decode())
        is_new = key not in self.waiting
        # The number of kinds that a server may invent has no bound.
        if is_new and is_full and not is_known:
            is_new = False
        else:
            self.waiting[key] = event
        if is_new:
            self._arrival.unpark()
        else:
            # The event means "look again", so the reader has lost none.
            self.merged += 1
        return is_new

    def drop(self, method: str) -> bool:
        """Drop the waiting events of that method. Return whether there were any."""
        dropped = [key for key in self.waiting if key[0] == method]
        for key in dropped:
            del self.waiting[key]
        return bool(dropped)

    def close(self) -> None:
        """Close the queue: `take` returns the waiting events, then None."""
        self.is_closed = True
        self._arrival.unpark_all()

    def take_nowait(self) -> Event | None:
        """Remove and return the event that has waited longest, None when there is none."""
        return self.waiting.pop(next(iter(self.waiting))) if self.waiting else None

    async def take(self, outlet: Outlet | None = None) -> Event | None:
        """Wait for the next event and return it; None when the queue is closed and empty.

        Meanwhile events may be written to `outlet`. It is flushed when this returns, not when cancelled.
        """
        while (event := self.take_nowait()) is None and not self.is_closed:
            self._outlet = outlet
            try:
                await self._arrival.park()
            finally:
                if self._outlet is outlet:  # another reader may have come
                    self._outlet = None
            if outlet is not None:
                await outlet.flush()
        return event
