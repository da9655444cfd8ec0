"""How many exchanges may begin in a time (`[[limits.rate]]`). Pure: times are seconds of any clock.

A limit is a bucket that holds `burst` tokens and gets `requests` of them in `per` seconds, evenly. An
exchange takes one out of each bucket that it counts for, or out of none. Instead of tokens the time is kept
at which a bucket will be full again (the generic cell rate algorithm): a full bucket need not be kept.

Laws: in t seconds no more than burst + requests * t / per exchanges begin; who comes back when it is told to,
and is alone, may begin; what is refused costs nothing.

Source: RFC 6585 section 4 (429 Too Many Requests).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from mcpmux.config.model import RateLimit
from mcpmux.mux.pattern import Glob, matches, parse_glob
from mcpmux.protocol.principal import Principal

BUCKETS_KEPT: Final = 10_000  # the last ones that were used


class Exceeded(NamedTuple):
    """Why an exchange may not begin. `setting`: the place of `limit`; `seconds`: until one may."""

    setting: str
    limit: RateLimit
    seconds: float


class Counted(NamedTuple):
    """A bucket that an exchange takes a token out of. `key`: what the bucket is for.

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
        """The bucket for an exchange, None when the limit is not about it."""
        is_about = (
            _fits(self._principals, principal.name)
            and _fits(self._upstreams, upstream)
            and _fits(self._methods, method)
        )
        if not is_about:
            return None
        named = {"principal": principal.name, "upstream": upstream, "method": method}
        key = tuple(named[each] for each in self.limit.each)
        return Counted(self.setting, self.limit, key, self._interval, self._room)


def _fits(globs: tuple[Glob, ...], text: str) -> bool:
    return not globs or any(matches(glob, text) for glob in globs)


class Rates:
    """All limits. Those about upstreams count exchanges with each, the others requests of clients.

    `counts_requests`, `counts_exchanges`: whether there are any of either sort.
    """

    def __init__(self, limits: Sequence[RateLimit] = ()) -> None:
        self.become(limits)

    def become(self, limits: Sequence[RateLimit]) -> None:
        """These are the limits from now on, with full buckets."""
        buckets = [_Buckets(f"limits.rate[{number}]", limit) for number, limit in enumerate(limits)]
        self._requests = [each for each in buckets if not each.limit.is_about_upstreams]
        self._exchanges = [each for each in buckets if each.limit.is_about_upstreams]
        self.counts_requests, self.counts_exchanges = bool(self._requests), bool(self._exchanges)
        self._full: dict[tuple[str, ...], float] = {}

    def counted(self, principal: Principal, method: str, upstream: str = "") -> list[Counted]:
        """The buckets for a request of a client, or for an exchange with an upstream."""
        limits = self._exchanges if upstream else self._requests
        found = [each.find(principal, upstream, method) for each in limits]
        return [each for each in found if each is not None]

    def take(self, counted: Sequence[Counted], now: float) -> Exceeded | None:
        """Take a token out of each of these buckets, unless one has none."""
        waits = [self._full_at(each, now) - now - each.room for each in counted]
        longest = max(range(len(waits)), key=waits.__getitem__, default=0)
        if waits and waits[longest] > 0:
            return Exceeded(counted[longest].setting, counted[longest].limit, waits[longest])
        for each in counted:
            self._take(each, now)
        return None

    def _full_at(self, counted: Counted, now: float) -> float:
        """When a bucket is full, if nobody takes anything."""
        return max(self._full.get((counted.setting, *counted.key), now), now)

    def _take(self, counted: Counted, now: float) -> None:
        full_at = self._full_at(counted, now) + counted.interval
        self._full.pop((counted.setting, *counted.key), None)
        if len(self._full) >= BUCKETS_KEPT:
            del self._full[next(iter(self._full))]
        self._full[counted.setting, *counted.key] = full_at
