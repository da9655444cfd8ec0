"""Count requests and exchanges that begin, and refuse too many, by `[[limits.rate]]`."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence

import trio

from mcpmux.config.model import RateLimit
from mcpmux.mux.rate import Counted, Exceeded, Rates
from mcpmux.protocol.call import Call
from mcpmux.protocol.codes import Busy

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
