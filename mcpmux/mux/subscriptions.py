"""Keep which listener follows which resource, and what each upstream must be subscribed to for that.

State: interest is a set of listeners per (upstream, uri). Nothing else is remembered: the subscriber of an
upstream knows its actual subscriptions, and compares them with `wanted` whenever either changes.

Laws: after any sequence of additions, removals and vanishings `wanted` is exactly the URIs with a
listener; the audience of an update contains only listeners of that URI or of one above it.

Source: `server/resources` (a sub-resource of a subscribed one may be named), 2024-11-05 to 2026-07-28.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterator, Mapping, Set
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from mcpmux.lru import weigh

PARENTS_LIMIT: Final = 64  # of a URI whose parents are looked up one by one: bounds the text that is copied

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})
_SEPARATOR: Final = re.compile("[/?#]")

ListenerT = TypeVar("ListenerT", bound=Hashable)


class Subscriptions(Generic[ListenerT]):
    """The interest of all listeners in resources of all upstreams."""

    def __init__(self) -> None:
        self.said_raw: set[tuple[ListenerT, str, str]] = set()
        """(listener, upstream, URI) where the listener uses the server's own URI, without a prefix."""
        self._interest: dict[str, dict[str, set[ListenerT]]] = {}
        self._of_listener: dict[ListenerT, set[tuple[str, str]]] = {}
        self._bytes: dict[ListenerT, int] = {}  # of the URIs of each
        self.all_bytes = 0

    def __repr__(self) -> str:
        counts = {upstream: len(uris) for upstream, uris in self._interest.items()}
        return f"<Subscriptions {counts} of {len(self._of_listener)} listeners>"

    def add(self, listener: ListenerT, upstream: str, uri: str, *, said_raw: bool = False) -> bool:
        """Add the interest of `listener` in `uri`. Return False when it was there before. See `said_raw`."""
        if said_raw:
            self.said_raw.add((listener, upstream, uri))
        held = self._of_listener.setdefault(listener, set())
        if (upstream, uri) in held:
            return False
        held.add((upstream, uri))
        self._interest.setdefault(upstream, {}).setdefault(uri, set()).add(listener)
        size = weigh(uri)
        self._bytes[listener] = self._bytes.get(listener, 0) + size
        self.all_bytes += size
        return True

    def remove(self, listener: ListenerT, upstream: str, uri: str) -> bool:
        """Remove the interest of `listener` in `uri`. Return True when it was the last one."""
        held = self._of_listener.get(listener, set())
        if (upstream, uri) not in held:
            return False
        held.discard((upstream, uri))
        self._bytes[listener] -= weigh(uri)
        self.all_bytes -= weigh(uri)
        self.said_raw.discard((listener, upstream, uri))
        if not held:
            del self._of_listener[listener], self._bytes[listener]
        uris = self._interest[upstream]
        uris[uri].discard(listener)
        if uris[uri]:
            return False
        del uris[uri]
        if not uris:
            del self._interest[upstream]
        return True

    def remove_all(self, listener: ListenerT) -> set[str]:
        """Remove a listener that has gone. Return the upstreams with a URI less."""
        held = list(self._of_listener.get(listener, ()))
        return {upstream for upstream, uri in held if self.remove(listener, upstream, uri)}

    def move(self, upstream: str, other: str) -> frozenset[str]:
        """Turn all interest in `upstream` into interest in `other`. Return the URIs."""
        moved = self._held(upstream)
        for listener, uri in moved:
            said_raw = (listener, upstream, uri) in self.said_raw
            self.remove(listener, upstream, uri)
            self.add(listener, other, uri, said_raw=said_raw)
        return frozenset(uri for _, uri in moved)

    def forget(self, upstream: str) -> set[ListenerT]:
        """Remove all interest in an upstream. Return the listeners that had some."""
        held = self._held(upstream)
        for listener, uri in held:
            self.remove(listener, upstream, uri)
        return {listener for listener, _ in held}

    def _held(self, upstream: str) -> list[tuple[ListenerT, str]]:
        interest = self._interest.get(upstream, {})
        return [(listener, uri) for uri, listeners in interest.items() for listener in listeners]

    def wanted(self, upstream: str) -> Set[str]:
        """Return the URIs of `upstream` that have a listener: not a copy, as there may be very many."""
        return self._interest.get(upstream, _NONE).keys()

    def listeners(self, upstream: str, uri: str) -> int:
        """Return the number of listeners of a URI."""
        return len(self._interest.get(upstream, {}).get(uri, ()))

    def held_by(self, listener: ListenerT) -> list[tuple[str, str]]:
        """Return every (upstream, URI) of `listener`, sorted."""
        return sorted(self._of_listener.get(listener, ()))

    def count(self, listener: ListenerT) -> int:
        """Return the number of URIs of `listener`."""
        return len(self._of_listener.get(listener, ()))

    def bytes_of(self, listener: ListenerT) -> int:
        """Return the bytes that the URIs of `listener` take."""
        return self._bytes.get(listener, 0)

    def audience(self, upstream: str, uri: str) -> dict[ListenerT, str]:
        """Return the listeners of `uri` or above it, each with the nearest URI it has subscribed to."""
        uris = self._interest.get(upstream)
        if not uris:
            return {}
        listeners: dict[ListenerT, str] = {}
        for subscribed in find_above(uris, uri):
            for listener in uris[subscribed]:
                # Nearest first, so the first entry of a listener stays.
                listeners.setdefault(listener, subscribed)
        return listeners


def is_at_or_above(above: str, uri: str) -> bool:
    """Return whether `uri` is `above` or a sub-resource of it.

    A URI is above another when the other goes on from it behind a `/`, `?` or `#`: `file:///a` and
    `file:///a/` are above `file:///a/b`; `file:///a` is not above `file:///ab`.
    """
    if not uri.startswith(above):
        return False
    end = len(above)
    return end == len(uri) or (end > 0 and (uri[end] in "/?#" or above[-1] == "/"))


def parents(uri: str) -> Iterator[str]:
    """Yield every URI that `uri` is a sub-resource of, the shortest first. There may be very many."""
    last = 0
    for separator in _SEPARATOR.finditer(uri):
        start = separator.start()
        for end in (start, start + 1) if separator[0] == "/" else (start,):
            if last < end < len(uri):
                last = end
                yield uri[:end]


def find_above(known: Collection[str], uri: str) -> list[str]:
    """Return those of the `known` URIs that are `uri` or above it, nearest first."""
    # An untrusted URI can have as many parents as characters, and more than URIs are known; then each of
    # these is compared with it.
    candidates = [*islice(parents(uri), PARENTS_LIMIT + 1), uri]
    if len(candidates) <= PARENTS_LIMIT + 1:
        return [above for above in reversed(candidates) if above in known]
    return sorted((above for above in known if is_at_or_above(above, uri)), key=len, reverse=True)
