"""What upstreams have answered and may be given again: bounded, and gone as soon as it may be wrong.

State: entries, each under a key and an audience; open fetches, whose results may become entries.

    begin --> open --keep--> entry --expired, invalidated, or the least used when it is full--> gone
              open --invalidated--> spoiled --keep--> nothing is kept
              open or spoiled --end--> gone

Invalidation is by session: `update` (a resource), `change` (lists), `drop` (all). The session MERGED is not
an upstream's: its lists are made of all others', so whatever touches a list of any session touches it too.

Laws: nothing is found that was fetched before its last invalidation ended, nor after its time, nor in
another generation than the one in which its fetch began; what was kept for one audience is found for that
audience only; bytes and entries never pass their limits.

The time comes in as a value (seconds). Values are never looked into.

Source: `server/utilities/caching` (freshness, notifications invalidate), 2026-07-28.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable
from typing import Any, Final, NamedTuple

import msgspec

from mcpmux.mux.subscriptions import at_or_above
from mcpmux.protocol import method as m

MERGED: Final = ""  # no upstream has this key
ENTRY_OVERHEAD: Final = 600  # bytes that an entry costs besides its value, about
# The part of everything that one entry may take: it must not displace all others.
LARGEST_SHARE: Final = 4
URI_LIMIT: Final = 2048  # characters of a URI whose contents are kept
PARTS_LIMIT: Final = 32  # of such a URI: it is found by each of them when something above it changes

CHANGES: Final = {
    m.RESOURCES_CHANGED: (m.RESOURCES_LIST, m.TEMPLATES_LIST),
    m.TOOLS_CHANGED: (m.TOOLS_LIST,),
    m.PROMPTS_CHANGED: (m.PROMPTS_LIST,),
}
"""Which lists a notification is about."""

Audience = Hashable
"""Whom an entry is for. None: everybody."""


class Key(NamedTuple):
    """What was asked. `target`: a URI, or a list's cursor; `legacy`: for which era, if it matters."""

    session: str
    method: str
    target: str | None = None
    legacy: bool = False


class Entry(msgspec.Struct, frozen=True):
    """A kept value. `until`: when it is not used any more; `fresh_until`: what its ttlMs has promised."""

    value: Any
    size: int
    until: float
    fresh_until: float
    tags: tuple[Hashable, ...]
    generation: int = 0


class Fetch:
    """An open fetch. `spoiled`: what it brings must not be kept; `generation`: in which it began."""

    __slots__ = ("generation", "key", "spoiled")

    def __init__(self, key: Key, generation: int) -> None:
        self.key = key
        self.generation = generation
        self.spoiled = False

    def __repr__(self) -> str:
        return f"<Fetch {self.key}{' spoiled' if self.spoiled else ''}>"


class Cache:
    """Everything that is kept of all upstreams."""

    def __init__(self, max_bytes: int, max_entries: int) -> None:
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._entries: OrderedDict[tuple[Key, Audience], Entry] = OrderedDict()
        self._tagged: dict[Hashable, set[tuple[Key, Audience]]] = {}
        self._open: dict[str, set[Fetch]] = {}
        self.bytes = 0

    def __repr__(self) -> str:
        return f"<Cache {len(self._entries)} entries, {self.bytes} bytes>"

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: Key, audience: Audience, now: float, generation: int = 0) -> Entry | None:
        """What is kept under `key` for exactly that audience, of that generation, and is still good."""
        entry = self._entries.get((key, audience))
        if entry is None:
            return None
        if now >= entry.until or generation != entry.generation:
            self._remove((key, audience))
            return None
        self._entries.move_to_end((key, audience))
        return entry

    def knows(self, session: str) -> bool:
        """Whether anything of a session is kept, or being fetched."""
        return ("all", session) in self._tagged or session in self._open

    # Fetches

    def begin(self, key: Key, generation: int = 0) -> Fetch:
        """Somebody is about to ask for `key`. `end` must follow."""
        fetch = Fetch(key, generation)
        self._open.setdefault(key.session, set()).add(fetch)
        return fetch

    def end(self, fetch: Fetch) -> None:
        """The fetch is over, whatever came of it."""
        fetches = self._open.get(fetch.key.session, set())
        fetches.discard(fetch)
        if not fetches:
            self._open.pop(fetch.key.session, None)

    def keep(
        self,
        fetch: Fetch,
        audience: Audience,
        value: Any,
        size: int,
        until: float,
        fresh_until: float = 0.0,
        generation: int = 0,
    ) -> bool:
        """Keep what a fetch has brought; False when that must not be, or does not fit.

        `size`: bytes, about; `generation`: that of now. A value that is found must not be changed by whoever
        finds it.
        """
        tags = None if fetch.spoiled or generation != fetch.generation else _tags(fetch.key)
        if tags is None:
            return False
        size += ENTRY_OVERHEAD + sum(len(str(tag)) for tag in tags) + len(repr(audience))
        if size * LARGEST_SHARE > self._max_bytes or self._max_entries < 1:
            return False
        name = (fetch.key, audience)
        self._remove(name)
        self._entries[name] = Entry(value, size, until, fresh_until, tags, generation)
        self.bytes += size
        for tag in tags:
            self._tagged.setdefault(tag, set()).add(name)
        self._shrink()
        return True

    # Invalidation

    def update(self, session: str, uri: str) -> None:
        """A resource has changed: it, what is above it, and what is below it."""
        if not self.knows(session):
            return
        above = at_or_above(uri)
        self._remove_tagged(("below", session, uri))
        for other in above:
            self._remove_tagged(("at", session, other))
        for fetch in self._open.get(session, ()):
            target = fetch.key.target
            if fetch.key.method == m.RESOURCES_READ and target is not None:
                fetch.spoiled = fetch.spoiled or target in above or uri in at_or_above(target)

    def change(self, session: str, lists: Collection[str]) -> None:
        """Lists (their methods) of a session have changed."""
        for each in {session, MERGED}:
            for method in lists:
                self._remove_tagged(("list", each, method))
            for fetch in self._open.get(each, ()):
                fetch.spoiled = fetch.spoiled or fetch.key.method in lists

    def drop(self, session: str) -> None:
        """Nothing that a session has said holds any more."""
        for each in {session, MERGED}:
            self._remove_tagged(("all", each))
            _spoil(self._open.get(each, ()))

    def clear(self) -> None:
        """Nothing holds any more."""
        self._entries.clear()
        self._tagged.clear()
        self.bytes = 0
        for fetches in self._open.values():
            _spoil(fetches)

    def resize(self, max_bytes: int, max_entries: int) -> None:
        """Other limits hold."""
        self._max_bytes, self._max_entries = max_bytes, max_entries
        self._shrink()

    def _shrink(self) -> None:
        while self.bytes > self._max_bytes or len(self._entries) > self._max_entries:
            self._remove(next(iter(self._entries)))

    def _remove_tagged(self, tag: Hashable) -> None:
        for name in list(self._tagged.get(tag, ())):
            self._remove(name)

    def _remove(self, name: tuple[Key, Audience]) -> None:
        entry = self._entries.pop(name, None)
        if entry is None:
            return
        self.bytes -= entry.size
        for tag in entry.tags:
            names = self._tagged[tag]
            names.discard(name)
            if not names:
                del self._tagged[tag]


def _spoil(fetches: Iterable[Fetch]) -> None:
    for fetch in fetches:
        fetch.spoiled = True


def _tags(key: Key) -> tuple[Hashable, ...] | None:
    """By what an entry is found when something changes; None for a URI with too much to be found by."""
    session, method, target, _ = key
    if method != m.RESOURCES_READ:
        return ("all", session), ("list", session, method)
    uri = target or ""
    if len(uri) > URI_LIMIT:
        return None
    above = at_or_above(uri)
    if len(above) > PARTS_LIMIT:
        return None
    return ("all", session), ("at", session, uri), *(("below", session, each) for each in above)
