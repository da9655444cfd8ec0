"""Keep answers of upstreams that may be given again: bounded, and dropped as soon as they may be wrong.

The call and the answer determine whether an answer may be used again, and for whom (`PLAIN`, `is_public`,
`ttl_of`, `Freshness`). A `Cache` holds entries, each under a key and an audience, and open fetches, whose
results may become entries. Clients that ask the same in the meantime may join a fetch.

    begin --> open --keep--> entry --expired, invalidated, or the least used when it is full--> gone
              open --invalidated--> spoiled (no client may join any more) --keep--> no entry
              open or spoiled --end--> gone, and the clients that joined are woken

Invalidation is by session: `update` (a resource), `change` (lists), `drop` (all). The session MERGED is not
an upstream's: its lists are made of all others', so invalidating a list of any session invalidates it too.

Requests of clients invalidate as well, in every process that serves together, by counters (`Generations`) in
memory that they share. An answer belongs to the generation of its upstream in which it was asked for.

Laws: no entry is found that was fetched before its last invalidation ended, nor after its time, nor in
another generation than the one in which its fetch began; an entry kept for one audience is found for that
audience only; bytes and entries never pass their limits.

Source: `server/utilities/caching` (freshness, notifications invalidate), 2026-07-28.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec

from mcpmux.errors import Refused, RpcError
from mcpmux.mux.subscriptions import is_at_or_above, parents
from mcpmux.protocol import method as m
from mcpmux.protocol.call import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    LOG_LEVEL,
    PROGRESS_TOKEN,
    VERSION,
    Call,
    is_complete,
)
from mcpmux.protocol.codes import URL_ELICITATION_REQUIRED
from mcpmux.protocol.envelope import UNREADABLE, text_of
from mcpmux.protocol.raw_json import Fields, Raw

MERGED: Final = ""
"""The session of lists that are merged from all upstreams. No upstream has this key or name."""

ENTRY_OVERHEAD: Final = 600  # bytes that an entry costs besides its value, approximately
LARGEST_SHARE: Final = 4  # an entry takes at most a quarter of the cache: it must not displace all others
URI_LIMIT: Final = 2048  # characters of a URI whose contents are kept
PARTS_LIMIT: Final = 32  # of such a URI: it is tagged with each, to be found when something above it changes

CHANGES: Final = {
    m.RESOURCES_CHANGED: (m.RESOURCES_LIST, m.TEMPLATES_LIST),
    m.TOOLS_CHANGED: (m.TOOLS_LIST,),
    m.PROMPTS_CHANGED: (m.PROMPTS_LIST,),
}
"""The lists that each notification is about."""

LONGEST_TTL_MS: Final = 24 * 3600 * 1000  # longer promises are cut: the server is asked again after a day
SHORT_BYTES: Final = 1024  # of a client's description of itself, whose digest is kept ready
_read: Final = msgspec.json.Decoder().decode
_PRIVATE: Final = b'"private"'  # the usual spelling

HEARD: Final = frozenset({LOG_LEVEL, PROGRESS_TOKEN})
"""Members of `_meta` that ask for messages during the call: a cached answer or joined fetch sends none."""

PLAIN: Final = HEARD | {VERSION, CLIENT_INFO, CLIENT_CAPABILITIES, "traceparent", "tracestate"}
"""Members of `_meta` that do not change an answer, except by who asks."""

SLOTS: Final = 256
ROW_BYTES: Final = 2 * SLOTS * 8

Audience = Hashable
"""The clients that an entry is for. None: all of them."""


# Whether an answer may be used again, and for whom


def like(call: Call) -> Hashable:
    """Return a value that is equal for calls whose clients a server cannot tell apart.

    They have the same principal, host app and additional headers.
    """
    info, offered = call.meta.get(CLIENT_INFO, b""), call.meta.get(CLIENT_CAPABILITIES, b"")
    identity = b"\0".join((info, offered))
    # Long values are hashed anew each time: the LRU cache would keep them as its keys.
    digest = _digest_again if len(identity) <= SHORT_BYTES else _digest
    return call.principal.name, call.headers, digest(identity)


def _digest(said: bytes) -> bytes:
    return hashlib.blake2b(said, digest_size=16).digest()


_digest_again = lru_cache(maxsize=128)(_digest)


def ttl_of(result: Fields, most: int | None = LONGEST_TTL_MS) -> int:
    """Return the milliseconds for which a result may be used: `most` at most; 0 without a valid `ttlMs`."""
    ttl_ms = result.get("ttlMs")
    try:
        ttl = 0 if ttl_ms is None else _read(ttl_ms)
    except UNREADABLE:
        return 0
    # bool is a subclass of int: `true` would be one millisecond.
    if not isinstance(ttl, int) or isinstance(ttl, bool) or ttl < 0:
        return 0
    return ttl if most is None else min(ttl, most)


def is_public(result: Fields) -> bool:
    """Return whether a result is complete, and the same for every client."""
    scope = result.get("cacheScope")
    # The cheap tests come first: most results have no hint, or the usual spelling of "private".
    if scope is None or bytes(scope) == _PRIVATE or text_of(scope) != "public" or "inputRequests" in result:
        return False
    return is_complete(result)


def size_of(parts: Iterable[Raw]) -> int:
    """Return the number of bytes of all parts."""
    return sum(len(memoryview(part)) for part in parts)


class Freshness:
    """The lifetime and scope of a value that is made of several results.

    The shortest time and the narrowest scope win; a part without caching hints is not fresh at all.
    """

    def __init__(self) -> None:
        self._ttl_ms: int | None = None
        self.scope = "public"

    def take(self, result: Fields) -> None:
        """Add one part. An empty result is no part: there was no server to ask."""
        if not result:
            return
        ttl = ttl_of(result, None)  # as the servers said it: this cache's own limit is not the client's
        self._ttl_ms = ttl if self._ttl_ms is None else min(self._ttl_ms, ttl)
        if self.scope == "public" and text_of(result.get("cacheScope")) != "public":
            self.scope = "private"

    @property
    def ttl_ms(self) -> int:
        """The lifetime in milliseconds; 0 without any part."""
        return self._ttl_ms or 0


# Entries


class CacheKey(NamedTuple):
    """A request. `target`: a URI, or a list's cursor; `legacy`: the era, if the answer depends on it."""

    session: str
    method: str
    target: str | None = None
    legacy: bool = False


class Entry(msgspec.Struct):
    """A kept value. `until`: the end of its use; `fresh_until`: the end of the time that `ttlMs` promised."""

    value: Any
    audience: Audience
    size: int
    until: float
    fresh_until: float
    tags: tuple[Hashable, ...]
    generation: int = 0


class Fetch:
    """An open fetch, see `Cache.begin`. `spoiled`: its result must not be kept.

    `generation`: that of its beginning; `audience`: the clients that may join it; `first`: the call that
    began it. `outcome`: the result for those that joined, perhaps an RpcError; None: one of them asks next.
    `joined`: functions to call at its end, one of each client that joined.
    """

    def __init__(self, key: CacheKey, generation: int, audience: Audience, first: Call | None) -> None:
        self.key, self.generation, self.audience, self.first = key, generation, audience, first
        self.spoiled = False
        self.outcome: Any = None
        self.joined: list[Callable[[], None]] = []

    def fail(self, error: RpcError) -> None:
        """Share an error with the clients that joined, if it is the server's own and the same for all."""
        # Errors that mcpmux makes (refusals, lost connections) carry our data and may concern the
        # first client only. A URL elicitation is for the user of the first client.
        ours = isinstance(error, Refused) or not (error.data is None or isinstance(error.data, Raw))
        if not ours and error.code != URL_ELICITATION_REQUIRED:
            self.outcome = error


class Cache:
    """The kept answers of all upstreams."""

    def __init__(self, max_bytes: int, max_entries: int) -> None:
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._entries: OrderedDict[tuple[CacheKey, Audience], Entry] = OrderedDict()
        self._tagged: dict[Hashable, set[tuple[CacheKey, Audience]]] = {}
        self._open: dict[str, set[Fetch]] = {}
        self.joinable: dict[tuple[CacheKey, int, Audience], list[Fetch]] = {}
        """Open, unspoiled fetches by key, generation and audience; a key without any is absent."""
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(
        self, key: CacheKey, audiences: Iterable[Audience], now: float, generation: int = 0
    ) -> Entry | None:
        """Return the entry under `key` for the first of these audiences that has a valid one, or None."""
        for audience in audiences:
            entry = self._entries.get((key, audience))
            if entry is None:
                continue
            if now < entry.until and generation == entry.generation:
                self._entries.move_to_end((key, audience))
                return entry
            # Generations only grow, so an entry that does not fit now never will.
            self._remove((key, audience))
        return None

    def knows(self, session: str) -> bool:
        """Return whether the cache has an entry or an open fetch of a session."""
        return ("all", session) in self._tagged or session in self._open

    # Fetches

    def begin(
        self, key: CacheKey, generation: int = 0, audience: Audience = None, first: Call | None = None
    ) -> Fetch:
        """Open a fetch of `key`. The caller must `end` it."""
        fetch = Fetch(key, generation, audience, first)
        self._open.setdefault(key.session, set()).add(fetch)
        self.joinable.setdefault((key, generation, audience), []).append(fetch)
        return fetch

    def end(self, fetch: Fetch) -> None:
        """Close a fetch, successful or not, and wake the clients that joined."""
        fetches = self._open.get(fetch.key.session, set())
        fetches.discard(fetch)
        if not fetches:
            self._open.pop(fetch.key.session, None)
        self._close(fetch)
        # Last: a client that wakes may begin the next fetch of the same key at once.
        for tell in fetch.joined:
            tell()

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
        """Keep the result of a fetch, which must not be changed afterwards. Return whether it was kept.

        A fetch that is spoiled or of another generation is not kept, nor a value that is too large.
        `size`: bytes, approximately; `generation`: the current one.
        """
        tags = None if fetch.spoiled or generation != fetch.generation else _tags(fetch.key)
        if tags is None:
            return False
        size += ENTRY_OVERHEAD + sum(len(str(tag)) for tag in tags) + len(repr(audience))
        if size * LARGEST_SHARE > self._max_bytes or self._max_entries < 1:
            return False
        name = (fetch.key, audience)
        # First, so that the bytes of an entry that is replaced are not counted twice.
        self._remove(name)
        self._entries[name] = Entry(value, audience, size, until, fresh_until, tags, generation)
        self.bytes += size
        for tag in tags:
            self._tagged.setdefault(tag, set()).add(name)
        self._shrink()
        return True

    # Invalidation

    def update(self, session: str, uri: str) -> None:
        """Drop the entries of a changed resource, of those above it, and of those below it."""
        if not self.knows(session):
            return
        self._remove_tagged(("below", session, uri))
        # Parents come shortest first, and a URI with more of them than PARTS_LIMIT is never kept.
        for above in (uri, *islice(parents(uri), PARTS_LIMIT)):
            self._remove_tagged(("at", session, above))
        self._spoil(
            fetch
            for fetch in self._open.get(session, ())
            if fetch.key.method == m.RESOURCES_READ
            and (is_at_or_above(target := fetch.key.target or "", uri) or is_at_or_above(uri, target))
        )

    def change(self, session: str, lists: Collection[str]) -> None:
        """Drop the entries of changed lists, given by their methods, of a session and of MERGED."""
        # A merged list contains the list of every session.
        for each in {session, MERGED}:
            for method in lists:
                self._remove_tagged(("list", each, method))
            self._spoil(fetch for fetch in self._open.get(each, ()) if fetch.key.method in lists)

    def drop(self, session: str) -> None:
        """Drop all entries of a session, and of MERGED."""
        for each in {session, MERGED}:
            self._remove_tagged(("all", each))
            self._spoil(self._open.get(each, ()))

    def clear(self) -> None:
        """Drop all entries, and spoil all open fetches."""
        self._entries.clear()
        self._tagged.clear()
        self.bytes = 0
        for fetches in self._open.values():
            self._spoil(fetches)

    def resize(self, max_bytes: int, max_entries: int) -> None:
        """Set new limits, and drop the entries beyond them."""
        self._max_bytes, self._max_entries = max_bytes, max_entries
        self._shrink()

    def _shrink(self) -> None:
        while self.bytes > self._max_bytes or len(self._entries) > self._max_entries:
            # `find` moves an entry to the end, so the first one is the least recently used.
            self._remove(next(iter(self._entries)))

    def _spoil(self, fetches: Iterable[Fetch]) -> None:
        for fetch in fetches:
            fetch.spoiled = True
            self._close(fetch)

    def _close(self, fetch: Fetch) -> None:
        """Let no more clients join a fetch."""
        place = (fetch.key, fetch.generation, fetch.audience)
        joinable = self.joinable.get(place, [])
        if fetch in joinable:
            joinable.remove(fetch)
            if not joinable:
                del self.joinable[place]

    def _remove_tagged(self, tag: Hashable) -> None:
        for name in list(self._tagged.get(tag, ())):
            self._remove(name)

    def _remove(self, name: tuple[CacheKey, Audience]) -> None:
        entry = self._entries.pop(name, None)
        if entry is None:
            return
        self.bytes -= entry.size
        for tag in entry.tags:
            names = self._tagged[tag]
            names.discard(name)
            if not names:
                del self._tagged[tag]


def _tags(key: CacheKey) -> tuple[Hashable, ...] | None:
    """Return the tags by which changes find an entry; None for a URI that is too long or too deep to keep."""
    session, method, target, _ = key
    if method != m.RESOURCES_READ:
        return ("all", session), ("list", session, method)
    uri = target or ""
    if len(uri) > URI_LIMIT:
        return None
    above = [uri, *islice(parents(uri), PARTS_LIMIT)]
    if len(above) > PARTS_LIMIT:
        return None
    return ("all", session), ("at", session, uri), *(("below", session, parent) for parent in above)


class Generations:
    """Counters of possible changes at each upstream, for all processes that serve together.

    An act of a client begins another generation twice: when the request is sent, and when it ends, in any
    way. So a client that asks after an act never gets an answer from before its end, in any process.

    Layout of the counters: a row for each process, which it alone writes, of 64-bit counters: SLOTS of
    acts, then SLOTS of changes that were announced to it. Upstreams share a slot when the hash of their names
    is the same, which only makes their entries expire too early. Slot 0 is for MERGED.
    """

    def __init__(
        self,
        counters: memoryview | None = None,
        process: int = 0,
        processes: int = 1,
        *,
        is_told: bool = False,
    ) -> None:
        """`counters`: ROW_BYTES for each process, all zero at first, in memory that they share.

        Without it, counters of this process alone. `process`: the index of this process's row. `is_told`:
        processes that share no memory send each other their counts.
        """
        data = memoryview(bytearray(ROW_BYTES)) if counters is None else counters
        self._counts = data.cast("B").cast("Q")
        self._row = process * 2 * SLOTS
        self.processes = processes
        self._is_heard = is_told or processes > 1
        self._elsewhere = [0] * SLOTS  # counts that processes without shared memory have sent
        self._losses = 0  # how often counts of other processes may have been lost

    def act(self, name: str) -> None:
        """Count a client's act at an upstream: another generation of it for every process."""
        counts, begin = self._counts, self._row
        counts[begin + _slot(name)] += 1
        # Slot 0: any act may change the merged lists.
        counts[begin] += 1

    def act_everywhere(self) -> None:
        """Count acts at all upstreams, for a process that ended and may have done anything."""
        begin = self._row
        for slot in range(begin, begin + SLOTS):
            self._counts[slot] += 1

    def hear(self, name: str) -> None:
        """Count an announced change, which this process has applied: another generation for all others."""
        if self._is_heard:
            counts, begin = self._counts, self._row + SLOTS
            counts[begin + _slot(name)] += 1
            counts[begin] += 1

    def lose_all(self) -> None:
        """Begin another generation of everything in this process: other processes may have done anything."""
        self._losses += 1

    def counted(self) -> int:
        """Return how often this process has counted so far."""
        counts, begin = self._counts, self._row
        return counts[begin] + counts[begin + SLOTS]

    def snapshot(self) -> list[int]:
        """Return how often this process has counted in each slot."""
        counts, begin = self._counts, self._row
        return [counts[begin + slot] + counts[begin + SLOTS + slot] for slot in range(SLOTS)]

    def count_elsewhere(self, slots: Iterable[int]) -> None:
        """Add counts of another process, which does not share the memory, in these slots."""
        for slot in slots:
            self._elsewhere[slot] += 1

    def of(self, name: str) -> int:
        """Return the generation of an upstream, or of MERGED, for this process."""
        counts, slot = self._counts, _slot(name)
        if self.processes == 1:
            return counts[slot] + self._elsewhere[slot] + self._losses
        # This process has applied the changes announced to it, so they do not make its own entries old.
        reported = sum(counts[SLOTS + slot :: 2 * SLOTS]) - counts[self._row + SLOTS + slot]
        return sum(counts[slot :: 2 * SLOTS]) + reported


@lru_cache(maxsize=4096)
def _slot(name: str) -> int:
    return crc32(name.encode()) % (SLOTS - 1) + 1 if name else 0
