"""One client's changes on their way to it: put in by anybody without waiting, taken out by its one reader.

A reader that has nothing to do may lend an Outlet. While it waits and nothing else does, a change leaves
through that at once, from the task that puts it in, and nobody is woken; as soon as the client does not take
everything at once, changes are kept for the reader as they are without an outlet, in the same order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple

import trio

from mcpmux.mux.outbox import Outbox
from mcpmux.protocol.call import Event
from mcpmux.protocol.principal import ANYONE, Principal


class Outlet(NamedTuple):
    """How a client can be told something at once.

    `tell_nowait` takes an event and sends what goes without waiting; False when `flush` has to send the rest.
    """

    tell_nowait: Callable[[Event], bool]
    flush: Callable[[], Awaitable[None]]


@dataclass(slots=True, eq=False)
class ClientOutbox:
    """An outbox that can be waited for. `kinds`: the list changes (method names) that its client may hear.

    `client`: what it calls itself in its calls, if it can be asked things; `principal`: who it is.
    `is_granted`: what it hears of was acknowledged once, as in a listen; when less is allowed later, it has
    to end.
    """

    kinds: frozenset[str]
    principal: Principal = ANYONE
    _: KW_ONLY
    is_granted: bool = False
    client: object = field(default=None, repr=False)
    waiting: Outbox = field(default_factory=Outbox)
    _arrival: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)
    _closed: bool = False
    _outlet: Outlet | None = None  # while the reader waits, for nothing is kept then

    def put(self, event: Event, whole: Event | None = None, *, is_known: bool = True) -> None:
        """Tell the client of `event`, or keep it as `Outbox.put` does. Never waits."""
        outlet = self._outlet
        if outlet is None:
            if self.waiting.put(event, whole, is_known=is_known):
                self._arrival.unpark()
        elif not outlet.tell_nowait(event):
            self._outlet = None  # it has to be flushed first, by the reader
            self._arrival.unpark()

    def close(self) -> None:
        """Nothing more will come: `take` gives what waits, then None."""
        self._closed = True
        self._arrival.unpark_all()

    async def take(self, outlet: Outlet | None = None) -> Event | None:
        """The next event, waiting for one; None at the end.

        Meanwhile events may have gone through `outlet`. It is flushed when this returns, not when cancelled.
        """
        while (event := self.waiting.take()) is None and not self._closed:
            self._outlet = outlet
            try:
                await self._arrival.park()
            finally:
                if self._outlet is outlet:  # another reader may have come
                    self._outlet = None
            if outlet is not None:
                await outlet.flush()
        return event
