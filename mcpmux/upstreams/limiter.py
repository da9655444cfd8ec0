"""Limit exchanges: those with one upstream at a time, and those that begin in a time.

The rules are in `mux/fair_queue`, and in `mux/rate` for `[[limits.rate]]`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence

import trio

from mcpmux.config.model import RateLimit
from mcpmux.mux.fair_queue import FairQueue
from mcpmux.mux.rate import Counted, Exceeded, Rates
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

        The caller owns the deadline.
        """
        # Clients take turns: principals with a name, else sessions or streams, else connections.
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


TakeTokens = Callable[[Sequence[Counted]], Awaitable[Exceeded | None]]


class RateCounter:
    """The counts of this process. `counts_requests`, `counts_exchanges`: whether they are limited.

    `take_together` takes tokens that several processes share; None when this process counts alone.
    """

    def __init__(self, limits: Sequence[RateLimit] = ()) -> None:
        self._rates = Rates(limits)
        self.take_together: TakeTokens | None = None
        self._adopt()

    def become(self, limits: Sequence[RateLimit]) -> None:
        """Put changed limits into force."""
        self._rates.become(limits)
        self._adopt()

    def _adopt(self) -> None:
        self.counts_requests = self._rates.counts_requests
        self.counts_exchanges = self._rates.counts_exchanges

    async def begin(self, call: Call, upstream: str = "") -> None:
        """Count the beginning of a client's request, or of an exchange with an upstream. Raises Busy."""
        counted = self._rates.counted(call.principal, call.method, upstream)
        if not counted:
            return
        # Several processes share the buckets, so that their number does not multiply the limit.
        take = self.take_together
        exceeded = self.take_here(counted) if take is None else await take(counted)
        if exceeded is not None:
            limit = exceeded.limit
            what = f"exchanges with {upstream}" if upstream else "requests"
            sentence = f"no more than {limit.requests} {what} may begin in {limit.per:g} s"
            seconds = math.ceil(exceeded.seconds)
            raise Busy(sentence, exceeded.setting, own=True, upstream=upstream or None, seconds=seconds)

    def take_here(self, counted: Sequence[Counted]) -> Exceeded | None:
        """Take tokens out of the buckets of this process. Return the exceeded limit, or None."""
        return self._rates.take(counted, trio.current_time())
