"""How much of a message is kept: the user's rules, for both legs. State: whom exchanges have asked.

On the leg of an upstream a rule's `upstream` is that upstream. On a client's leg it is whichever the
exchange has asked so far, and for a request the one whose prefix its target bears; of several the least
level counts, so that what one rule leaves out does not come in by the other leg.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache

from mcpmux.config.traffic import LEVELS, Capture
from mcpmux.traffic.observer import Observation
from mcpmux.traffic.record import ANSWERS

REMEMBERED = 4096  # levels by upstream and method, and exchanges; a hostile peer may send new methods all day
OFF = "off"

_ORDER = {level: number for number, level in enumerate(LEVELS)}
_PREFIX = re.compile(r"(?:ui://)?([a-z][a-z0-9.-]{0,31})(?:\+|__|/)")


class Levels:
    """`prefixes`: prefix by name of each upstream."""

    def __init__(self, config: Capture, prefixes: Mapping[str, str]) -> None:
        self._default = config.level
        self._rules = config.rules
        self._by_upstream = any(rule.upstream is not None for rule in config.rules)
        self.adopt(prefixes)
        self._level_of = lru_cache(REMEMBERED)(self._find)
        self._asked: OrderedDict[int, tuple[str, ...]] = OrderedDict()

    def adopt(self, prefixes: Mapping[str, str]) -> None:
        """The set of upstreams has changed."""
        self._owners = {prefix: name for name, prefix in prefixes.items()}

    @property
    def only(self) -> str | None:
        """The level of all messages, when there are no rules."""
        return None if self._rules else self._default

    def level(self, observed: Observation) -> str:
        """The level for a message. To be called for every message, in order."""
        if not self._by_upstream:
            return self._level_of(None, observed.method)
        upstream = observed.leg.upstream
        if upstream is not None:
            asked = self._asked.get(observed.exchange, ())
            if observed.exchange and upstream not in asked:
                self._asked[observed.exchange] = (*asked, upstream)
                if len(self._asked) > REMEMBERED:
                    self._asked.popitem(last=False)
            return self._level_of(upstream, observed.method)
        names = self._upstreams_of(observed) or (None,)
        return min((self._level_of(name, observed.method) for name in names), key=_ORDER.__getitem__)

    def _upstreams_of(self, observed: Observation) -> tuple[str, ...]:
        """Which upstreams a message on a client's leg has to do with."""
        is_answer = observed.direction == "out" and observed.kind in ANSWERS
        asked = self._asked.get(observed.exchange, ())
        if is_answer:
            self._asked.pop(observed.exchange, None)
        if asked:
            return asked
        match = _PREFIX.match(observed.target) if observed.target is not None else None
        owner = self._owners.get(match[1]) if match is not None else None
        owner = owner or self._owners.get("")
        return (owner,) if owner is not None else ()

    def _find(self, upstream: str | None, method: str | None) -> str:
        for rule in self._rules:
            if _fits(rule.upstream, upstream) and _fits(rule.method, method):
                return rule.level
        return self._default


def _fits(glob: str | None, name: str | None) -> bool:
    return glob is None or (name is not None and fnmatchcase(name, glob))
