"""Limit the exchanges with one upstream at a time; the rules are in `mux/fair_queue`."""

from __future__ import annotations

import trio

from mcpmux.mux.fair_queue import FairQueue
from mcpmux.protocol.call import Call
from mcpmux.protocol.codes import Busy
from mcpmux.transports.http.server_connection import CONNECTION


class Limiter(FairQueue[trio.Event]):
    """The slots for exchanges with one upstream. Call `enter` or `wait`, then `leave`, and set its event.

    A free slot is taken without waiting. No slot is lost by cancelling. An exchange that is refused gets Busy
    at once.
    """

    __slots__ = ("_refused", "_upstream")

    def __init__(self, upstream: str, slots: int, room: int) -> None:
        super().__init__(slots, room)
        self._upstream = upstream
        self._refused: set[trio.Event] = set()  # of exchanges that gave way to another client's

    async def wait(self, call: Call) -> bool:
        """Wait for a slot, after `enter` returned that none is free. Return True. Raises Busy.

        Clients take turns: a client is a principal with a name, else a session or stream, else a connection.
        The caller owns the deadline.
        """
        client, turn = call.principal.name or call.client or CONNECTION.get(), trio.Event()
        displaced = self.enqueue(client, turn)
        if displaced is not None:
            self._refused.add(displaced)
            displaced.set()
        try:
            await turn.wait()
            if turn in self._refused:
                raise self.busy()
        except BaseException:
            # Cancelled after it got its slot, but before it could run: the next one gets the slot.
            has_none = self.withdraw(client, turn) or turn in self._refused
            if not has_none and (following := self.leave()) is not None:
                following.set()
            raise
        finally:
            self._refused.discard(turn)
        return True

    def become_one_of(self, replicas: int) -> None:
        """Divide the limits of this upstream equally among so many replicas."""
        for following in self.divide(replicas):
            following.set()

    def busy(self) -> Busy:
        sentence = f"upstream {self._upstream!r} works on {self.running} exchanges and {self.waiting} wait"
        return Busy(sentence, f"upstreams.{self._upstream}.max_waiting", upstream=self._upstream)
