"""Limit how many exchanges begin in a time (`[[limits.rate]]`). Pure: times are seconds of any clock.

A limit is a bucket that holds `burst` tokens and gets `requests` of them in `per` seconds, evenly. An
exchange takes one out of each bucket that it counts for, or out of none.

Laws: in t seconds no more than burst + requests * t / per exchanges begin; a client that waits the given
seconds, and is alone, may begin; a refusal takes no token.

Source: RFC 6585 section 4 (429 Too Many Requests).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from mcpmux.config.model import RateLimit
from mcpmux.mux.naming import is_among
from mcpmux.mux.pattern import parse_glob
from mcpmux.mux.policy import ANY_OTHER
from mcpmux.protocol import method as m
from mcpmux.protocol.principal import Principal

BUCKETS_LIMIT: Final = 100_000  # that are not full, some 20 MB; beyond it only known clients may begin
SWEEP_FROM: Final = 1_000  # buckets; fewer take too little memory to search for full ones
RETRY_SECONDS: Final = 1.0  # between two searches for full buckets when there are too many


class Exceeded(NamedTuple):
    """Why an exchange may not begin. `setting`: the path of `limit`; `seconds`: the wait until one may."""

    setting: str
    limit: RateLimit
    seconds: float


class Counted(NamedTuple):
    """A bucket that an exchange takes a token out of. `key`: what distinguishes it among those of the limit.

    Seconds: `interval` for each token, `room` until a full bucket with one token less is full.
    """

    setting: str
    limit: RateLimit
    key: tuple[str, ...]
    interval: float
    room: float


class _Buckets:
    """The buckets of one limit."""

    def __init__(self, setting: str, limit: RateLimit) -> None:
        self.setting = setting
        self.limit = limit
        self._interval = limit.per / limit.requests
        self._room = (limit.burst - 1) * self._interval
        self._principals, self._upstreams, self._methods = (
            tuple(map(parse_glob, globs)) for globs in (limit.principals, limit.upstreams, limit.methods)
        )

    def find(self, principal: Principal, upstream: str, method: str) -> Counted | None:
        """Return the bucket for an exchange, or None when the limit is not about it."""
        is_about = (
            is_among(self._principals, principal.name)
            and is_among(self._upstreams, upstream)
            and is_among(self._methods, method)
        )
        if not is_about:
            return None
        # Clients can invent methods: they must not get a bucket for each.
        label = method if method in m.REQUESTS else ANY_OTHER
        named = {"principal": principal.name, "upstream": upstream, "method": label}
        key = tuple(named[part] for part in self.limit.each)
        return Counted(self.setting, self.limit, key, self._interval, self._room)


class Rates:
    """All limits. Those about upstreams count exchanges with each, the others requests of clients.

    `counts_requests`, `counts_exchanges`: whether there are any of either sort.
    """

    def __init__(self, limits: Sequence[RateLimit] = ()) -> None:
        self.become(limits)

    def become(self, limits: Sequence[RateLimit]) -> None:
        """Replace the limits. All buckets are full then."""
        buckets = [_Buckets(f"limits.rate[{number}]", limit) for number, limit in enumerate(limits)]
        self._requests = [bucket for bucket in buckets if not bucket.limit.is_about_upstreams]
        self._exchanges = [bucket for bucket in buckets if bucket.limit.is_about_upstreams]
        self.counts_requests, self.counts_exchanges = bool(self._requests), bool(self._exchanges)
        # Not tokens, but the times at which buckets will be full again (the generic cell rate algorithm): a
        # full bucket need not be kept, and only a full one is dropped.
        self._full: dict[tuple[str, ...], float] = {}
        self._sweep_at = SWEEP_FROM
        self._sweep_after = -math.inf

    def counted(self, principal: Principal, method: str, upstream: str = "") -> list[Counted]:
        """Return the buckets for a request of a client, or for an exchange with an upstream."""
        limits = self._exchanges if upstream else self._requests
        buckets = [limit.find(principal, upstream, method) for limit in limits]
        return [bucket for bucket in buckets if bucket is not None]

    def take(self, counted: Sequence[Counted], now: float) -> Exceeded | None:
        """Take a token out of each of these buckets, or out of none when one is empty."""
        # Check all before the first is changed: a refusal must take no token out of any bucket.
        waits = [self._full_at(bucket, now) - now - bucket.room for bucket in counted]
        longest = max(range(len(waits)), key=waits.__getitem__, default=0)
        if waits and waits[longest] > 0:
            return Exceeded(counted[longest].setting, counted[longest].limit, waits[longest])
        # Full buckets are dropped when their number has doubled since the last sweep.
        if len(self._full) >= self._sweep_at and now >= self._sweep_after:
            self._full = {key: full_at for key, full_at in self._full.items() if full_at > now}
            self._sweep_at = min(max(SWEEP_FROM, 2 * len(self._full)), BUCKETS_LIMIT)
            # With mostly unfull buckets each sweep would find little, so the next one has to wait.
            self._sweep_after = now + RETRY_SECONDS if len(self._full) * 2 > BUCKETS_LIMIT else now
        for bucket in counted:
            if len(self._full) >= BUCKETS_LIMIT and (bucket.setting, *bucket.key) not in self._full:
                return Exceeded(bucket.setting, bucket.limit, RETRY_SECONDS)
        for bucket in counted:
            self._full[bucket.setting, *bucket.key] = self._full_at(bucket, now) + bucket.interval
        return None

    def _full_at(self, counted: Counted, now: float) -> float:
        """Return the time at which a bucket is full, if no token is taken out of it."""
        return max(self._full.get((counted.setting, *counted.key), now), now)
