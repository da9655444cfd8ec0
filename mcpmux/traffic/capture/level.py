"""How much of a message is kept: the user's rules, for both legs. State: whom exchanges have asked.

On the leg of an upstream a rule's `upstream` is that upstream. On a client's leg it is whichever the exchange
has asked so far, and for a request the one whose prefix its target bears; of several the least level counts,
so that what one rule leaves out does not come in by the other leg.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from fnmatch import translate

from mcpmux.config.traffic import LEVELS, Capture
from mcpmux.traffic.seen import Seen

REMEMBERED = 4096  # levels by upstream and method, and exchanges; a hostile peer may send new methods all day
OFF = "off"

_ORDER = {level: number for number, level in enumerate(LEVELS)}
_PREFIX = re.compile(r"(?:ui://)?([a-z][a-z0-9.-]{0,31})(?:\+|__|/)")


class Levels:
    """`prefixes`: prefix by name of each upstream."""

    def __init__(self, config: Capture, prefixes: Mapping[str, str]) -> None:
        self._default = config.level
        self._rules = [(_pattern(rule.upstream), _pattern(rule.method), rule.level) for rule in config.rules]
        self._by_upstream = any(rule.upstream is not None for rule in config.rules)
        self.adopt(prefixes)
        self._known: dict[tuple[str | None, str | None], str] = {}
        self._asked: OrderedDict[int, tuple[str, ...]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Levels {self._default}, {len(self._rules)} rules, {len(self._asked)} exchanges>"

    def adopt(self, prefixes: Mapping[str, str]) -> None:
        """The set of upstreams has changed."""
        self._owners = {prefix: name for name, prefix in prefixes.items()}

    @property
    def only(self) -> str | None:
        """The level of all messages, when there are no rules."""
        return None if self._rules else self._default

    def level(self, seen: Seen) -> str:
        """The level for a message. Must be told of every message, in order."""
        if not self._rules:
            return self._default
        if not self._by_upstream:
            return self._level_of(None, seen.method)
        upstream = seen.leg.upstream
        if upstream is not None:
            if seen.exchange:
                self._remember(seen.exchange, upstream)
            return self._level_of(upstream, seen.method)
        names = self._upstreams_of(seen)
        if not names:
            return self._level_of(None, seen.method)
        return min((self._level_of(name, seen.method) for name in names), key=_ORDER.__getitem__)

    def _upstreams_of(self, seen: Seen) -> tuple[str, ...]:
        """Which upstreams a message on a client's leg has to do with."""
        is_answer = seen.direction == "out" and seen.kind in ("result", "error")
        asked = self._asked.pop(seen.exchange, ()) if is_answer else self._asked.get(seen.exchange, ())
        return asked or self._owner_of(seen.target)

    def _owner_of(self, target: str | None) -> tuple[str, ...]:
        match = _PREFIX.match(target) if target is not None else None
        owner = self._owners.get(match[1]) if match is not None else None
        owner = owner or self._owners.get("")
        return (owner,) if owner is not None else ()

    def _remember(self, exchange: int, upstream: str) -> None:
        asked = self._asked.get(exchange, ())
        if upstream not in asked:
            self._asked[exchange] = (*asked, upstream)
            if len(self._asked) > REMEMBERED:
                self._asked.popitem(last=False)

    def _level_of(self, upstream: str | None, method: str | None) -> str:
        key = (upstream, method)
        level = self._known.get(key)
        if level is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            level = self._known[key] = self._find(upstream, method)
        return level

    def _find(self, upstream: str | None, method: str | None) -> str:
        for upstreams, methods, level in self._rules:
            if _fits(upstreams, upstream) and _fits(methods, method):
                return level
        return self._default


def _pattern(glob: str | None) -> re.Pattern[str] | None:
    return re.compile(translate(glob)) if glob is not None else None


def _fits(pattern: re.Pattern[str] | None, name: str | None) -> bool:
    return pattern is None or (name is not None and pattern.match(name) is not None)
