"""Tokens of rate limits that all replicas take out of the same buckets, in the store.

When the store is away each replica counts for itself, in buckets of its own: limits hold less exactly then,
and nobody is refused for that.
"""

from __future__ import annotations

from collections.abc import Sequence

from mcpmux.cluster.store import Bucket, Seal, Store, StoreAway
from mcpmux.mux.rate import Counted, Exceeded
from mcpmux.transports.inline import in_task
from mcpmux.upstreams.rate_counter import RateCounter


class StoredTokens:
    """`take` is for `RateCounter.take_together`."""

    def __init__(self, store: Store, seal: Seal, rates: RateCounter) -> None:
        self._store, self._seal, self._rates = store, seal, rates

    async def take(self, counted: Sequence[Counted]) -> Exceeded | None:
        """Take a token out of each bucket, unless one has none."""
        await in_task()
        buckets = [Bucket(self._name_of(each), each.interval, each.room) for each in counted]
        try:
            refused = await self._store.take(buckets)
        except StoreAway:
            return self._rates.take_here(counted)
        if refused is None:
            return None
        number, seconds = refused
        return Exceeded(counted[number].setting, counted[number].limit, seconds)

    def _name_of(self, counted: Counted) -> str:
        # With its numbers: after a change of the limit there are other buckets.
        limit = counted.limit
        numbers = f"{limit.requests} {limit.per:g} {limit.burst}"
        return self._seal.name("bucket", "\0".join((counted.setting, numbers, *counted.key)))
