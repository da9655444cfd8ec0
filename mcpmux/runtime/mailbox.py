"""One client's changes on their way to it: put in by anybody without waiting, taken out by its one reader."""

from __future__ import annotations

import trio

from mcpmux.mux.outbox import Outbox
from mcpmux.protocol.call import Event
from mcpmux.protocol.principal import ANYONE, Principal


class Mailbox:
    """An outbox that can be waited for. `kinds`: the list changes (method names) that its client may hear.

    `principal`: who that client is. `is_granted`: what it hears of was acknowledged once, as in a listen;
    when less is allowed later, it has to end.
    """

    def __init__(
        self, kinds: frozenset[str], principal: Principal = ANYONE, *, is_granted: bool = False
    ) -> None:
        self.kinds = kinds
        self.principal = principal
        self.is_granted = is_granted
        self._outbox = Outbox()
        self._arrival = trio.lowlevel.ParkingLot()
        self._closed = False

    def __repr__(self) -> str:
        return f"<Mailbox {self._outbox!r}>"

    @property
    def merged(self) -> int:
        """How many changes were told together with an earlier one, because the client read too slowly."""
        return self._outbox.merged

    def put(self, event: Event, whole: Event | None = None) -> None:
        """Keep `event` for the client, or `whole` for it when too much waits. Never waits."""
        if self._outbox.put(event, whole):
            self._arrival.unpark()

    def keep(self, event: Event) -> None:
        """Keep an event of a kind that is not known. Never waits."""
        if self._outbox.keep(event):
            self._arrival.unpark()

    def drop(self, method: str) -> bool:
        """What waits of that kind is not told any more; whether anything did."""
        return self._outbox.drop(method)

    def close(self) -> None:
        """Nothing more will come: `take` gives what waits, then None."""
        self._closed = True
        self._arrival.unpark_all()

    async def take(self) -> Event | None:
        """The next event, waiting for one; None at the end."""
        while (event := self._outbox.take()) is None and not self._closed:
            await self._arrival.park()
        return event
