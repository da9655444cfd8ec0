"""How many exchanges one upstream is given at a time, and in which order the others follow.

Promises: a free slot is taken without waiting; a slot is never lost, whoever is cancelled; who is refused
hears `Busy` at once. Refuses to know what an exchange is. The rules are in `mux/fair_queue`.

A client is its principal, if it has shown one; else its session or stream; else its connection.
"""

from __future__ import annotations

from collections.abc import Hashable

import trio

from mcpmux.mux.fair_queue import FairQueue
from mcpmux.protocol.call import Call
from mcpmux.protocol.codes import Busy
from mcpmux.transports.http.server_connection import CONNECTION


class Waiter:
    """One exchange that waits, until it is `called`. `refused`: it had to give way to another client's."""

    __slots__ = ("called", "refused")

    def __init__(self) -> None:
        self.called = trio.Event()
        self.refused = False


class Limiter(FairQueue[Waiter]):
    """In front of one upstream. `enter` or `wait`, then `leave` in any case: who has the slot is `called`."""

    __slots__ = ("_upstream",)

    def __init__(self, upstream: str, slots: int, room: int) -> None:
        super().__init__(slots, room)
        self._upstream = upstream

    async def wait(self, call: Call) -> bool:
        """Wait for a slot, after `enter` said that none is free; True, when it is there.

        Raises Busy. The caller owns the deadline.
        """
        client, waiter = client_of(call), Waiter()
        displaced = self.enqueue(client, waiter)
        if displaced is waiter:
            raise self.busy()
        if displaced is not None:
            displaced.refused = True
            displaced.called.set()
        try:
            await waiter.called.wait()
        except BaseException:
            has_none = self.withdraw(client, waiter) or waiter.refused
            if not has_none and (following := self.leave()) is not None:
                following.called.set()
            raise
        if waiter.refused:
            raise self.busy()
        return True

    def busy(self) -> Busy:
        """Why an exchange gets no slot."""
        sentence = f"upstream {self._upstream!r} works on {self.running} exchanges and {self.waiting} wait"
        return Busy(sentence, f"upstreams.{self._upstream}.max_waiting", upstream=self._upstream)


def client_of(call: Call) -> Hashable:
    """Whose call it is, as far as taking turns goes."""
    return call.principal.name or call.client or CONNECTION.get()
