"""One client's changes on their way to it: put in by anybody without waiting, taken out by its one reader.

A reader that has nothing to do may lend an Outlet. While it waits and nothing else does, a change leaves
through that at once, from the task that puts it in, and nobody is woken; as soon as the client does not take
everything at once, changes are kept for the reader as they are without an outlet, in the same order.
"""

from __future__ import annotations

from typing import Protocol

import trio

from mcpmux.mux.outbox import Outbox
from mcpmux.protocol.call import Event
from mcpmux.protocol.principal import ANYONE, Principal


class Outlet(Protocol):
    """How a client can be told something at once."""

    def tell_nowait(self, event: Event) -> bool:
        """Take `event`, and send what goes without waiting; False when `flush` has to come next."""
        ...

    async def flush(self) -> None:
        """Send what `tell_nowait` has left."""
        ...


class ClientOutbox:
    """An outbox that can be waited for. `kinds`: the list changes (method names) that its client may hear.

    `client`: what it calls itself in its calls, if it can be asked things; `principal`: who it is.
    `is_granted`: what it hears of was acknowledged once, as in a listen; when less is allowed later, it has
    to end.
    """

    __slots__ = ("_arrival", "_closed", "_outbox", "_outlet", "client", "is_granted", "kinds", "principal")

    def __init__(
        self,
        kinds: frozenset[str],
        principal: Principal = ANYONE,
        *,
        is_granted: bool = False,
        client: object = None,
    ) -> None:
        self.client = client
        self.kinds = kinds
        self.principal = principal
        self.is_granted = is_granted
        self._outbox = Outbox()
        self._arrival = trio.lowlevel.ParkingLot()
        self._closed = False
        self._outlet: Outlet | None = None  # while the reader waits, for nothing is kept then

    def __repr__(self) -> str:
        return f"<ClientOutbox {self._outbox!r}>"

    @property
    def merged(self) -> int:
        """How many changes were told together with an earlier one, because the client read too slowly."""
        return self._outbox.merged

    def put(self, event: Event, whole: Event | None = None) -> None:
        """Tell the client of `event`, or keep it, or `whole` for it when too much waits. Never waits."""
        outlet = self._outlet
        if outlet is None:
            if self._outbox.put(event, whole):
                self._arrival.unpark()
        elif not outlet.tell_nowait(event):
            self._wake_to_flush()

    def keep(self, event: Event) -> None:
        """Tell or keep an event of a kind that is not known. Never waits."""
        outlet = self._outlet
        if outlet is None:
            if self._outbox.keep(event):
                self._arrival.unpark()
        elif not outlet.tell_nowait(event):
            self._wake_to_flush()

    def _wake_to_flush(self) -> None:
        self._outlet = None  # it has to be flushed first, by the reader
        self._arrival.unpark()

    def drop(self, method: str) -> bool:
        """What waits of that kind is not told any more; whether anything did."""
        return self._outbox.drop(method)

    def close(self) -> None:
        """Nothing more will come: `take` gives what waits, then None."""
        self._closed = True
        self._arrival.unpark_all()

    async def take(self, outlet: Outlet | None = None) -> Event | None:
        """The next event, waiting for one; None at the end.

        Meanwhile events may have gone through `outlet`. It is flushed when this returns, not when cancelled.
        """
        while (event := self._outbox.take()) is None and not self._closed:
            self._outlet = outlet
            try:
                await self._arrival.park()
            finally:
                if self._outlet is outlet:  # another reader may have come
                    self._outlet = None
            if outlet is not None:
                await outlet.flush()
        return event
