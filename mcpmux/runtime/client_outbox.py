"""One client's changes on their way to it: put in by anybody without waiting, taken out by its one reader.

`resources/updated` and `list_changed` say "look again", so a second one while the first still waits adds
nothing: one is kept for each URI and each kind of list. A server may name any number of sub-resources of a
subscribed one; past DETAIL_LIMIT the subscribed one stands for them. So the size is bounded by what the
client subscribed to, however fast things change and however slowly it reads; nothing is lost. The status of a
task and its progress are kept in the same way, the latest for each task.

A reader that has nothing to do may lend an Outlet. While it waits and nothing else does, a change leaves
through that at once, from the task that puts it in, and nobody is woken; as soon as the client does not take
everything at once, changes are kept for the reader as they are without an outlet, in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field

import trio

from mcpmux.channels.tap import Leg
from mcpmux.protocol.call import Event
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.principal import ANYONE, Principal
from mcpmux.protocol.raw_json import Fields
from mcpmux.transports.http.server_connection import HttpReply

DETAIL_LIMIT = 256  # waiting changes after which sub-resources are not told one by one any more

_NAMED_BY = ("uri", "taskId", "elicitationId", "progressToken")


def _subject(params: Fields) -> str:
    """What a notification is about: a later one about the same takes the place of the one that waits."""
    return next((bytes(params[name]).decode() for name in _NAMED_BY if name in params), "")


@dataclass(slots=True, eq=False)
class Outlet:
    """A begun stream in which a client can be told something at once, and how that encodes an event."""

    reply: HttpReply
    encode: Callable[[Event], bytes]


@dataclass(slots=True, eq=False)
class ClientOutbox:
    """The changes that wait for one client. `kinds`: the list changes (method names) that it may hear.

    `client`: what it calls itself in its calls, if it can be asked things; `principal`: who it is.
    `is_granted`: what it hears of was acknowledged once, as in a listen; when less is allowed later, it has
    to end. `is_replica`: it stands for all clients of another replica, whose rights are judged there.
    `leg`: where it listens, if somebody watches the traffic.
    `since`: trio's time at which a listen began, or a replica relied on it. `waiting`: the oldest first;
    `merged`: events in whose place another one was, or is, told.
    """

    kinds: frozenset[str]
    principal: Principal = ANYONE
    _: KW_ONLY
    is_granted: bool = False
    is_replica: bool = False
    client: object = field(default=None, repr=False)
    leg: Leg | None = field(default=None, repr=False)
    since: float = -math.inf
    waiting: dict[tuple[str, str], Event] = field(default_factory=dict, repr=False)
    merged: int = 0
    _arrival: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)
    _closed: bool = False
    _outlet: Outlet | None = None  # while the reader waits, for nothing is kept then

    def put(self, event: Event, whole: Event | None = None, *, is_known: bool = True) -> bool:
        """Tell the client of `event`, or keep it. Never waits.

        False when one that says the same waits already, or it is dropped. `whole` says that of the subscribed
        resource, when `event` is about a part of it. No event of an unknown kind stands for another; it is
        dropped, and counted as merged, when DETAIL_LIMIT others wait.
        """
        outlet = self._outlet
        if outlet is not None:
            if not outlet.reply.write_nowait(outlet.encode(event)):
                self._outlet = None  # it has to be flushed first, by the reader
                self._arrival.unpark()
            return True
        is_full = len(self.waiting) >= DETAIL_LIMIT
        if whole is not None and is_full:
            event = whole
        key = (event.method, _subject(event.params) if is_known else bytes(raw(event.params)).decode())
        is_new = key not in self.waiting
        if is_new and is_full and not is_known:
            is_new = False
        else:
            self.waiting[key] = event
        if is_new:
            self._arrival.unpark()
        else:
            self.merged += 1
        return is_new

    def drop(self, method: str) -> bool:
        """Nothing of that kind is to be told any more; whether any waited."""
        dropped = [key for key in self.waiting if key[0] == method]
        for key in dropped:
            del self.waiting[key]
        return bool(dropped)

    @property
    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Nothing more will come: `take` gives what waits, then None."""
        self._closed = True
        self._arrival.unpark_all()

    def take_nowait(self) -> Event | None:
        """The event that has waited longest, None when there is none."""
        return self.waiting.pop(next(iter(self.waiting))) if self.waiting else None

    async def take(self, outlet: Outlet | None = None) -> Event | None:
        """The next event, waiting for one; None at the end.

        Meanwhile events may have gone through `outlet`. It is flushed when this returns, not when cancelled.
        """
        while (event := self.take_nowait()) is None and not self._closed:
            self._outlet = outlet
            try:
                await self._arrival.park()
            finally:
                if self._outlet is outlet:  # another reader may have come
                    self._outlet = None
            if outlet is not None:
                await outlet.reply.flush()
        return event
