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

BUCKETS_KEPT: Final = 10_000  # of one limit: the last ones that were used


class Exceeded(NamedTuple):
    """Why an exchange may not begin. `setting`: the place of `limit`; `seconds`: until one may."""

    setting: str
    limit: RateLimit
    seconds: float


class _Buckets:
    """The buckets of one limit, by what each is for."""

    def __init__(self, setting: str, limit: RateLimit) -> None:
        self.setting = setting
        self.limit = limit
        self.interval = limit.per / limit.requests
        self._room = (limit.burst - 1) * self.interval
        self._full_at: dict[tuple[str, ...], float] = {}
        self._principals, self._upstreams, self._methods = (
            tuple(map(parse_glob, globs)) for globs in (limit.principals, limit.upstreams, limit.methods)
        )

    def is_about(self, principal: Principal, upstream: str, method: str) -> bool:
        return (
            _fits(self._principals, principal.name)
            and _fits(self._upstreams, upstream)
            and _fits(self._methods, method)
        )

    def key_of(self, principal: Principal, upstream: str, method: str) -> tuple[str, ...]:
        named = {"principal": principal.name, "upstream": upstream, "method": method}
        return tuple(named[each] for each in self.limit.each)

    def wait(self, key: tuple[str, ...], now: float) -> float:
        """Seconds until there is a token, 0 if there is one."""
        return max(0.0, self._full_at.get(key, now) - now - self._room)

    def take(self, key: tuple[str, ...], now: float) -> None:
        full_at = max(self._full_at.pop(key, now), now) + self.interval
        if len(self._full_at) >= BUCKETS_KEPT:
            del self._full_at[next(iter(self._full_at))]
        self._full_at[key] = full_at


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

    def begin(self, principal: Principal, method: str, now: float, upstream: str = "") -> Exceeded | None:
        """A request of a client begins, or an exchange with an upstream, unless a limit is exceeded."""
        counting = [
            (each, each.key_of(principal, upstream, method))
            for each in (self._exchanges if upstream else self._requests)
            if each.is_about(principal, upstream, method)
        ]
        waits = [(each.wait(key, now), each) for each, key in counting]
        seconds, longest = max(waits, key=lambda found: found[0], default=(0.0, None))
        if longest is not None and seconds > 0:
            return Exceeded(longest.setting, longest.limit, seconds)
        for each, key in counting:
            each.take(key, now)
        return None
