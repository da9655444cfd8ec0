"""What upstreams have answered and may be given again: bounded, and gone as soon as it may be wrong.

Whether an answer may be used again, and for whom, is told by the call and by the answer (`PLAIN`,
`is_public`, `ttl_of`, `Freshness`). What is kept is in a `Cache`: entries, each under a key and an
audience, and open fetches, whose results may become entries. Who asks the same meanwhile may join.

    begin --> open --keep--> entry --expired, invalidated, or the least used when it is full--> gone
              open --invalidated--> spoiled (nobody joins any more) --keep--> nothing is kept
              open or spoiled --end--> gone, and who has joined is woken

Invalidation is by session: `update` (a resource), `change` (lists), `drop` (all). The session MERGED is not
an upstream's: its lists are made of all others', so whatever touches a list of any session touches it too.

What clients do invalidates as well, in every process that serves together, by counters (`Generations`) in
memory that they share. An answer belongs to the generation of its upstream in which it was asked for.

Laws: nothing is found that was fetched before its last invalidation ended, nor after its time, nor in
another generation than the one in which its fetch began; what was kept for one audience is found for that
audience only; bytes and entries never pass their limits.

Source: `server/utilities/caching` (freshness, notifications invalidate), 2026-07-28.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec

from mcpmux.errors import Refused, RpcError
from mcpmux.mux.subscriptions import is_at_or_above, parents
from mcpmux.protocol import method as m
from mcpmux.protocol.call import CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL, PROGRESS_TOKEN, VERSION, Call
from mcpmux.protocol.codes import URL_ELICITATION_REQUIRED
from mcpmux.protocol.envelope import UNREADABLE, raw, text_of
from mcpmux.protocol.raw_json import Fields, Raw

MERGED: Final = ""
"""In place of an upstream: what is made of all of them. No upstream has this key or name."""

ENTRY_OVERHEAD: Final = 600  # bytes that an entry costs besides its value, about
LARGEST_SHARE: Final = 4  # the part of everything that one entry may take: it must not displace all others
URI_LIMIT: Final = 2048  # characters of a URI whose contents are kept
PARTS_LIMIT: Final = 32  # of such a URI: it is found by each of them when something above it changes

CHANGES: Final = {
    m.RESOURCES_CHANGED: (m.RESOURCES_LIST, m.TEMPLATES_LIST),
    m.TOOLS_CHANGED: (m.TOOLS_LIST,),
    m.PROMPTS_CHANGED: (m.PROMPTS_LIST,),
}
"""Which lists a notification is about."""

LONGEST_TTL_MS: Final = 24 * 3600 * 1000  # whatever a server promises, it is asked again after a day
SHORT_BYTES: Final = 1024  # of what a client says of itself, whose digest is kept ready
_COMPLETE: Final = raw("complete")
_read: Final = msgspec.json.Decoder().decode
_PRIVATE: Final = b'"private"'  # as it is mostly said

HEARD: Final = frozenset({LOG_LEVEL, PROGRESS_TOKEN})
"""What a client wants to hear while it waits: nobody else hears that, and an answer from here is silent."""

PLAIN: Final = HEARD | {VERSION, CLIENT_INFO, CLIENT_CAPABILITIES, "traceparent", "tracestate"}
"""Members of `_meta` that an answer does not depend on, but for who asks."""

SLOTS: Final = 256
ROW_BYTES: Final = 2 * SLOTS * 8

Audience = Hashable
"""Whom an entry is for. None: everybody."""


# Whether an answer may be used again, and for whom


def like(call: Call) -> Hashable:
    """What is the same for clients whom a server takes for the same one: the principal, and the host app."""
    info, offered = call.meta.get(CLIENT_INFO, b""), call.meta.get(CLIENT_CAPABILITIES, b"")
    said = b"\0".join((info, offered))
    return call.principal.name, (_digest_again if len(said) <= SHORT_BYTES else _digest)(said)


def _digest(said: bytes) -> bytes:
    return hashlib.blake2b(said, digest_size=16).digest()


_digest_again = lru_cache(maxsize=128)(_digest)


def ttl_of(result: Fields) -> int:
    """The milliseconds that a result may be used for, a day at most; 0 when it does not say so."""
    return min(_said_ttl(result), LONGEST_TTL_MS)


def _said_ttl(result: Fields) -> int:
    said = result.get("ttlMs")
    try:
        ttl = 0 if said is None else _read(said)
    except UNREADABLE:
        return 0
    return ttl if isinstance(ttl, int) and not isinstance(ttl, bool) and ttl > 0 else 0


def is_public(result: Fields) -> bool:
    """Whether a result is complete, and the same for everybody."""
    scope = result.get("cacheScope")
    if scope is None or bytes(scope) == _PRIVATE or text_of(scope) != "public" or "inputRequests" in result:
        return False
    return text_of(result.get("resultType", _COMPLETE)) == "complete"


def size_of(parts: Iterable[Raw]) -> int:
    return sum(len(memoryview(part)) for part in parts)


class Freshness:
    """How long, and for whom, something made of several results may be kept.

    The shortest time and the narrowest scope win; a part without caching hints is not fresh at all.
    """

    def __init__(self) -> None:
        self._ttl_ms: int | None = None
        self.scope = "public"

    def take(self, result: Fields) -> None:
        """One more part. An empty result is no part: there was nothing to ask."""
        if not result:
            return
        ttl = _said_ttl(result)
        self._ttl_ms = ttl if self._ttl_ms is None else min(self._ttl_ms, ttl)
        if self.scope == "public" and text_of(result.get("cacheScope")) != "public":
            self.scope = "private"

    @property
    def ttl_ms(self) -> int:
        """Milliseconds; 0 when nothing was taken."""
        return self._ttl_ms or 0


# What is kept


class CacheKey(NamedTuple):
    """What was asked. `target`: a URI, or a list's cursor; `legacy`: for which era, if it matters."""

    session: str
    method: str
    target: str | None = None
    legacy: bool = False


class Entry(msgspec.Struct):
    """A kept value. `until`: when it is not used any more; `fresh_until`: what its ttlMs has promised."""

    value: Any
    audience: Audience
    size: int
    until: float
    fresh_until: float
    tags: tuple[Hashable, ...]
    generation: int = 0


class Fetch:
    """An open fetch, see `Cache.begin`. `spoiled`: what it brings must not be kept.

    `generation`: in which it began; `audience`: who may join it; `first`: the call that it was begun for.
    `outcome`: what it brings to those who have joined, perhaps an RpcError; None: one of them asks next.
    `done`: an event, once one has joined.
    """

    spoiled = False
    outcome: Any = None
    done: Any = None

    key: CacheKey
    generation: int
    audience: Audience
    first: Call | None

    def fail(self, error: RpcError) -> None:
        """What the server itself has said, and to all, is for those who have joined; other trouble is not."""
        ours = isinstance(error, Refused) or not (error.data is None or isinstance(error.data, Raw))
        if not ours and error.code != URL_ELICITATION_REQUIRED:
            self.outcome = error


class Cache:
    """Everything that is kept of all upstreams."""

    def __init__(self, max_bytes: int, max_entries: int) -> None:
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._entries: OrderedDict[tuple[CacheKey, Audience], Entry] = OrderedDict()
        self._tagged: dict[Hashable, set[tuple[CacheKey, Audience]]] = {}
        self._open: dict[str, set[Fetch]] = {}
        self.joinable: dict[tuple[CacheKey, int, Audience], list[Fetch]] = {}
        """Open fetches that nothing has spoiled, if there are any: of what, since when, and for whom."""
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(
        self, key: CacheKey, audiences: Iterable[Audience], now: float, generation: int = 0
    ) -> Entry | None:
        """What is kept under `key`, and is still good, for the first of these audiences that has any."""
        for audience in audiences:
            entry = self._entries.get((key, audience))
            if entry is None:
                continue
            if now < entry.until and generation == entry.generation:
                self._entries.move_to_end((key, audience))
                return entry
            self._remove((key, audience))
        return None

    def knows(self, session: str) -> bool:
        """Whether anything of a session is kept, or being fetched."""
        return ("all", session) in self._tagged or session in self._open

    # Fetches

    def begin(
        self, key: CacheKey, generation: int = 0, audience: Audience = None, first: Call | None = None
    ) -> Fetch:
        """Somebody is about to ask for `key`. `end` must follow."""
        fetch = Fetch()
        fetch.key, fetch.generation, fetch.audience, fetch.first = key, generation, audience, first
        self._open.setdefault(key.session, set()).add(fetch)
        self.joinable.setdefault((key, generation, audience), []).append(fetch)
        return fetch

    def end(self, fetch: Fetch) -> None:
        """The fetch is over, whatever came of it."""
        fetches = self._open.get(fetch.key.session, set())
        fetches.discard(fetch)
        if not fetches:
            self._open.pop(fetch.key.session, None)
        self._close(fetch)
        if fetch.done is not None:
            fetch.done.set()

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
        """Keep what a fetch has brought, for nobody to change; False when that must not be, or does not fit.

        `size`: bytes, about; `generation`: that of now.
        """
        tags = None if fetch.spoiled or generation != fetch.generation else _tags(fetch.key)
        if tags is None:
            return False
        size += ENTRY_OVERHEAD + sum(len(str(tag)) for tag in tags) + len(repr(audience))
        if size * LARGEST_SHARE > self._max_bytes or self._max_entries < 1:
            return False
        name = (fetch.key, audience)
        self._remove(name)
        self._entries[name] = Entry(value, audience, size, until, fresh_until, tags, generation)
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
        self._remove_tagged(("below", session, uri))
        for above in (uri, *islice(parents(uri), PARTS_LIMIT)):  # nothing further down is kept
            self._remove_tagged(("at", session, above))
        self._spoil(
            fetch
            for fetch in self._open.get(session, ())
            if fetch.key.method == m.RESOURCES_READ
            and (is_at_or_above(target := fetch.key.target or "", uri) or is_at_or_above(uri, target))
        )

    def change(self, session: str, lists: Collection[str]) -> None:
        """Lists (their methods) of a session have changed."""
        for each in {session, MERGED}:
            for method in lists:
                self._remove_tagged(("list", each, method))
            self._spoil(fetch for fetch in self._open.get(each, ()) if fetch.key.method in lists)

    def drop(self, session: str) -> None:
        """Nothing that a session has said holds any more."""
        for each in {session, MERGED}:
            self._remove_tagged(("all", each))
            self._spoil(self._open.get(each, ()))

    def clear(self) -> None:
        self._entries.clear()
        self._tagged.clear()
        self.bytes = 0
        for fetches in self._open.values():
            self._spoil(fetches)

    def resize(self, max_bytes: int, max_entries: int) -> None:
        self._max_bytes, self._max_entries = max_bytes, max_entries
        self._shrink()

    def _shrink(self) -> None:
        while self.bytes > self._max_bytes or len(self._entries) > self._max_entries:
            self._remove(next(iter(self._entries)))

    def _spoil(self, fetches: Iterable[Fetch]) -> None:
        for fetch in fetches:
            fetch.spoiled = True
            self._close(fetch)

    def _close(self, fetch: Fetch) -> None:
        """Nobody joins it any more."""
        wanted = (fetch.key, fetch.generation, fetch.audience)
        joinable = self.joinable.get(wanted, [])
        if fetch in joinable:
            joinable.remove(fetch)
            if not joinable:
                del self.joinable[wanted]

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
    """By what an entry is found when something changes; None for a URI with too much to be found by."""
    session, method, target, _ = key
    if method != m.RESOURCES_READ:
        return ("all", session), ("list", session, method)
    uri = target or ""
    if len(uri) > URI_LIMIT:
        return None
    above = [uri, *islice(parents(uri), PARTS_LIMIT)]
    if len(above) > PARTS_LIMIT:
        return None
    return ("all", session), ("at", session, uri), *(("below", session, each) for each in above)


class Generations:
    """How often something may have changed at each upstream, counted for all processes that serve together.

    What a client does begins another generation twice: when it is sent, and when it is over, however it
    ends. So nobody who asks after an act gets what was asked for before its end, in any process.

    Layout of the counters: a row for each process, which it alone writes, of 64-bit counters: SLOTS of
    acts, then SLOTS of what was heard. Upstreams share a slot when the hash of their names is the same,
    which only makes what is remembered of them old too early. Slot 0 is for MERGED.
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

        Without it, those of one process that shares nothing. `process`: whose row is this one's. `is_told`:
        processes that share no memory tell each other what they count.
        """
        data = memoryview(bytearray(ROW_BYTES)) if counters is None else counters
        self._counts = data.cast("B").cast("Q")
        self._row = process * 2 * SLOTS
        self.processes = processes
        self._is_heard = is_told or processes > 1
        self._elsewhere = [0] * SLOTS  # what other processes have told
        self._losses = 0  # how often anything may have changed anywhere

    def act(self, name: str) -> None:
        """Something was done at an upstream, or is being done: another generation for every process."""
        counts, begin = self._counts, self._row
        counts[begin + _slot(name)] += 1
        counts[begin] += 1

    def act_everywhere(self) -> None:
        """This process has ended while it may have done anything: another generation of everything."""
        begin = self._row
        for slot in range(begin, begin + SLOTS):
            self._counts[slot] += 1

    def hear(self, name: str) -> None:
        """Something has changed, of which this process knows what: another generation for every other one."""
        if self._is_heard:
            counts, begin = self._counts, self._row + SLOTS
            counts[begin + _slot(name)] += 1
            counts[begin] += 1

    def lose_all(self) -> None:
        """Other processes may have done anything: another generation of everything, for this one."""
        self._losses += 1

    def counted(self) -> int:
        """How often this process has counted so far."""
        counts, begin = self._counts, self._row
        return counts[begin] + counts[begin + SLOTS]

    def snapshot(self) -> list[int]:
        """How often this process has counted in each slot."""
        counts, begin = self._counts, self._row
        return [counts[begin + slot] + counts[begin + SLOTS + slot] for slot in range(SLOTS)]

    def count_elsewhere(self, slots: Iterable[int]) -> None:
        """Another process, which does not share the memory, has counted in these slots."""
        for slot in slots:
            self._elsewhere[slot] += 1

    def of(self, name: str) -> int:
        """The generation of an upstream, or of MERGED, for this process."""
        counts, slot = self._counts, _slot(name)
        if self.processes == 1:
            return counts[slot] + self._elsewhere[slot] + self._losses
        heard = sum(counts[SLOTS + slot :: 2 * SLOTS]) - counts[self._row + SLOTS + slot]
        return sum(counts[slot :: 2 * SLOTS]) + heard


@lru_cache(maxsize=4096)
def _slot(name: str) -> int:
    return crc32(name.encode()) % (SLOTS - 1) + 1 if name else 0
