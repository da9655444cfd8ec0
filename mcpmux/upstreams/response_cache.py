"""Cache the answers of sessions with upstreams: which may be kept, for whom, and for how long.

Kept are reads that the server marks `public` with a `ttlMs`, and pages of lists with a `ttlMs`, for that
long. A page that is not `public` is for the same principal with the same client only.

Promises: no answer is kept that asked for input, made a task, came after notifications, or whose call had
more than a URI or cursor; the subject of a notification, and everything of a session that ends, is dropped
before any client is notified; no client gets an answer that was fetched before the end of a call that may
have changed something at that upstream (see `mux/cache`). Refuses to know what is merged and who may use
what.

Source: `server/utilities/caching`, 2026-07-28.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import trio

from mcpmux.channels.tap import Watch
from mcpmux.config import Caching
from mcpmux.config import Upstream as UpstreamConfig
from mcpmux.errors import Overdue, RpcError
from mcpmux.mux.cache import (
    CHANGES,
    HEARD,
    PLAIN,
    Audience,
    Cache,
    CacheKey,
    Entry,
    Fetch,
    Generations,
    is_public,
    like,
    size_of,
    ttl_of,
)
from mcpmux.mux.item import ItemProblem
from mcpmux.mux.report import LeftOut
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call, Event, Notify
from mcpmux.protocol.envelope import Notification, members_of, raw, text_of
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.protocol.revisions import is_modern
from mcpmux.transports.inline import in_task
from mcpmux.transports.waiting import Deadline, limited
from mcpmux.upstreams.health import UpstreamStatus

# Reads in a row that could not be shared, after which a server's reads bypass the cache for a while. The way
# through the cache takes 6 us or more of the 53 of a whole exchange (interpreted).
DOUBTS: Final = 32
PASSED: Final = 256  # reads that bypass the cache then

ITEM_OVERHEAD: Final = 150  # bytes that an item costs besides its texts, about
HINTS: Final = ("ttlMs", "cacheScope")
"""Members of a result that limit how long it may be used, and for whom."""

EVERYBODY: Final[tuple[Audience]] = (None,)


class AskedUpstream(Protocol):
    """The upstream to ask. `patience`: seconds for an exchange."""

    name: str
    watch: Watch | None

    @property
    def status(self) -> UpstreamStatus: ...

    def patience(self, method: str) -> float: ...


AskServer = Callable[[Any, Call, Notify], Awaitable[Fields]]
"""Make the exchange with an upstream, and pass its notifications on. The upstream is an AskedUpstream."""


class Counts(msgspec.Struct):
    """The numbers of answers from the cache, of exchanges, and of answers of another call's exchange."""

    hits: int = 0
    misses: int = 0
    shared: int = 0


class Page(NamedTuple):
    """One page of a list as clients see it, and the upstream's cursor after it (None: the last).

    `texts`: the upstream's own names or URIs of the items, None for one that has none. `result`: at least the
    caching hints. `size`: bytes of items and texts, about. `problems`: what was mended or left out.
    `left_out`: the upstreams that the upstream, itself a mcpmux, has left out.
    """

    texts: Sequence[str | None]
    items: Sequence[Raw]
    following: str | None
    result: Fields
    size: int = 0
    problems: Sequence[ItemProblem] = ()
    left_out: LeftOut = MappingProxyType({})


class CachedPage(NamedTuple):
    """A page. `until`: trio's time until which it is kept, None if it is not. `personal`: whether it is only
    for clients like this one. `again`: whether it came from the cache.
    """

    page: Page
    until: float | None
    personal: bool
    again: bool = False


class _Read(NamedTuple):
    """The result of a read. `personal`: it is not for all clients, or notifications came before it."""

    result: Fields
    personal: bool


class CacheStore:
    """The cached answers of all sessions. `counts`: by upstream, and for MERGED lists."""

    def __init__(self, config: Caching | None = None, generations: Generations | None = None) -> None:
        self.config = config if config is not None else Caching()
        self.generations = generations if generations is not None else Generations()
        self.cache = Cache(self.config.max_bytes, self.config.max_entries)
        self.counts: dict[str, Counts] = {}

    def follow(self, config: Caching) -> None:
        """Put a changed configuration into force, and drop everything cached."""
        self.config = config
        self.cache.clear()
        self.cache.resize(config.max_bytes, config.max_entries)

    def cache_of(self, config: UpstreamConfig, key: str) -> ResponseCache | None:
        return ResponseCache(self, key, config) if self.config.enabled and config.caching else None

    def count(self, name: str) -> Counts:
        return self.counts.setdefault(name, Counts())


class ResponseCache:
    """One session's part of the store. `announced`: the lists whose changes are notified at the moment."""

    def __init__(self, store: CacheStore, key: str, config: UpstreamConfig) -> None:
        self._store = store
        self._cache = store.cache
        self.key = key
        self._name = config.name
        self._generations = store.generations
        self.counts = store.count(config.name)
        self.announced: frozenset[str] = frozenset()
        self.modern = True
        self._is_shared = config.session == "shared"
        self._doubts = 0
        self._passing = 0
        self._public: set[str] = set()  # lists that were the same for all clients when they were last fetched

    # Notifications of the session

    def hear(self, notification: Notification) -> None:
        """Drop the answers that a notification of the server makes invalid."""
        # Each drops what it is about here, and begins another generation for all other processes.
        method = notification.method
        if method in CHANGES:
            self._cache.change(self.key, CHANGES[method])
            self._generations.hear(self._name)
        elif method == m.TASK_STATUS:
            self._generations.act(self._name)  # the task may have ended, and changed something
        elif method == m.RESOURCE_UPDATED:
            is_kept = self._cache.knows(self.key)
            self.updated(text_of(members_of(notification.params).get("uri")) if is_kept else None)

    def updated(self, uri: str | None) -> None:
        """Drop a resource that may have changed; None: one of which no answer is kept."""
        self._generations.hear(self._name)
        if uri is not None:
            self._cache.update(self.key, uri)

    def follow(self, facts: ServerFacts, told: Collection[str], *, hearing: bool) -> None:
        """Take note of the server's era, and of the lists whose changes it notifies.

        `told`: the capabilities whose list changes a modern server has agreed to send. `hearing`: whether
        unsolicited notifications of a legacy server arrive.
        """
        self.modern = is_modern(facts.revision)
        if not self.modern:
            told = [name for name in facts.capabilities if hearing and facts.announces(name)]
        lists = frozenset(method for method, kind in m.LISTS.items() if kind.capability in told)
        changed, self.announced = lists ^ self.announced, lists
        # A list that was not announced before may have changed unnoticed, one that is no more may do so now.
        self._cache.change(self.key, changed)

    def drop(self) -> None:
        """Drop everything: the session has begun or ended, or gets no exchange any more."""
        self._cache.drop(self.key)
        self._public.clear()

    # Calls

    async def list(self, ask: AskServer, upstream: AskedUpstream, call: Call, notify: Notify) -> Fields:
        """Return a page of a list as the server sends it: from the cache, an exchange under way, or by `ask`.

        Raises RpcError.
        """
        cursor = text_of(call.params.get("cursor"))
        if len(call.params) > 1 or (call.params and cursor is None) or call.wants_progress:
            return await ask(upstream, call, notify)
        if upstream.watch is not None:
            upstream.watch.routed(upstream.name)

        async def fetch() -> Page:
            return Page([], [], None, await ask(upstream, call, notify))

        seconds = upstream.patience(call.method)
        try:
            cached = await self.page(call, cursor, fetch, Deadline(seconds, 0.0, seconds))
        except Overdue:
            raise upstream.status.late(call.method, seconds) from None
        return dict(cached.page.result)

    def read(
        self, ask: AskServer, upstream: AskedUpstream, call: Call, uri: str, notify: Notify
    ) -> Awaitable[Fields]:
        """Return a resource from the cache, from an exchange under way, or by `ask`. Raises RpcError.

        A call waits for another one's exchange for as long as its own may take. The result may be changed.
        """
        # Reads of a server that could not be shared so far bypass the cache; after PASSED one is tried again.
        if self._passing:
            self._passing -= 1
            return ask(upstream, call, notify)
        if self._doubts >= DOUBTS:
            self._passing = PASSED
        if not self.modern:  # older revisions have no `cacheScope`, so no answer is public
            return ask(upstream, call, notify)
        if upstream.watch is not None:
            upstream.watch.routed(upstream.name)
        # Anything else in the call may change the answer, so that it is not the answer to other calls.
        if len(call.params) != 1 or not PLAIN.issuperset(call.meta):
            return ask(upstream, call, notify)
        key = CacheKey(self.key, m.RESOURCES_READ, uri)
        generation = self._generations.of(self._name)
        entry = self._cache.find(key, EVERYBODY, trio.current_time(), generation)
        if entry is not None:
            self.counts.hits += 1
            self._doubts = self._passing = 0
            return _found(aged(entry))
        self.counts.misses += 1
        # A call that wants progress or log messages needs its own exchange to get them.
        if not HEARD.isdisjoint(call.meta):
            return ask(upstream, call, notify)
        if (key, generation, None) in self._cache.joinable:
            return self._join_read(key, ask, upstream, call, notify)
        return self._lead_read(key, generation, ask, upstream, call, notify)

    async def _join_read(
        self, key: CacheKey, ask: AskServer, upstream: AskedUpstream, call: Call, notify: Notify
    ) -> Fields:
        """Return the result of another call's exchange, or of an own one if that may not be shared."""
        seconds = upstream.patience(call.method)
        await in_task()
        with trio.move_on_after(seconds) as patience:
            read, answered = await self._join(key, self._generations.of(self._name), None, call)
            if read is not None:
                self.counts.misses -= 1
                self.counts.shared += 1
                self._doubts = self._passing = 0
                return dict(read.result)
            if answered:
                patience.deadline = math.inf  # the server answers, so the own exchange gets its full time
            generation = self._generations.of(self._name)
            return await self._lead_read(key, generation, ask, upstream, call, notify)
        raise upstream.status.late(call.method, seconds)

    async def _lead_read(
        self,
        key: CacheKey,
        generation: int,
        ask: AskServer,
        upstream: AskedUpstream,
        call: Call,
        notify: Notify,
    ) -> Fields:
        # A client that joins gets no notifications, so an answer that came after some is not for it.
        silent = True

        async def pass_on(event: Event) -> None:
            nonlocal silent
            silent = False
            await notify(event)

        # Later calls may join this one. An invalidation meanwhile keeps its result out of the cache.
        fetch = self._cache.begin(key, generation, None, call)
        try:
            result = await ask(upstream, call, pass_on)
            public = silent and is_public(result)
            fetch.outcome = _Read(result, not public)
            if public and (ttl := ttl_of(result)):
                until = trio.current_time() + ttl / 1000
                now = self._generations.of(self._name)
                self._cache.keep(fetch, None, result, size_of(result.values()), until, until, now)
        except RpcError as error:
            fetch.fail(error)
            raise
        finally:
            self._cache.end(fetch)
        if public:
            self._doubts = self._passing = 0
        elif self._doubts < DOUBTS:
            self._doubts += 1
            self._passing = PASSED if self._doubts == DOUBTS else 0
        return dict(result)

    async def _join(self, key: CacheKey, generation: int, audience: Audience, call: Call) -> tuple[Any, bool]:
        """Return (outcome of another call's fetch, True), or (None, whether the server has answered).

        None means that this call has to ask the server itself: there is no fetch to join, or its outcome may
        not be shared. A public outcome may be; a personal page, or an error, only with a client like this.
        When the fetch was cancelled, or failed without an answer of the server, the first call to wake asks
        next and the others join it. Raises RpcError if that is the outcome.
        """
        while (fetches := self._cache.joinable.get((key, generation, audience))) is not None:
            fetch = fetches[0]
            done = trio.Event()
            fetch.joined.append(done.set)
            await done.wait()
            outcome, leader = fetch.outcome, fetch.first
            if outcome is None or leader is None:
                continue  # the first of us to wake asks next
            is_error = isinstance(outcome, RpcError)
            if is_error or outcome.personal:
                alike = self._audience(leader) == self._audience(call)
                if not alike or isinstance(outcome, _Read):
                    return None, True
            if is_error:
                # A new one: a raised exception collects the frames of every call that raises it.
                raise RpcError(outcome.code, outcome.message, outcome.data)
            return outcome, True
        return None, False

    async def page(
        self,
        call: Call,
        cursor: str | None,
        ask: Callable[[], Awaitable[Page]],
        deadline: Deadline | None = None,
    ) -> CachedPage:
        """Return a page of the list that `call` asks for, from the cache, an exchange under way, or by `ask`.

        It must not be changed. Raises RpcError, or Overdue when another call's exchange is not over at
        `deadline`; `ask` has to observe the deadline itself.
        """
        method = call.method
        who = self._audience(call)
        # A shared legacy session sees one client, unless an interceptor has added headers for each.
        if not PLAIN.issuperset(call.meta) or (who is None and call.headers):
            return CachedPage(await ask(), None, True)
        key = CacheKey(self.key, method, cursor, call.legacy and method == m.TOOLS_LIST)
        generation = self._generations.of(self._name)
        cached: CachedPage | None
        # A public page first: it serves everyone, a personal one only clients like this.
        kept_for = EVERYBODY if who is None else (None, who)
        entry = self._cache.find(key, kept_for, trio.current_time(), generation)
        if entry is not None:
            self.counts.hits += 1
            page: Page = entry.value
            page = page._replace(result=aged(entry, page.result))
            return CachedPage(page, entry.until, entry.audience is not None, again=True)

        # The audience is known only afterwards. A list that was public is probably public again.
        audience = None if method in self._public else who
        if (key, generation, audience) in self._cache.joinable:
            await in_task()
            with limited(deadline):
                cached, _ = await self._join(key, generation, audience, call)
            if cached is not None:
                self.counts.shared += 1
                return cached
            generation = self._generations.of(self._name)  # it may have changed while this call waited
        # Clients that ask for the same page from now on wait for this one.
        fetch = self._cache.begin(key, generation, audience, call)
        try:
            fetch.outcome = cached = self._take_page(fetch, who, await ask())
        except RpcError as error:
            fetch.fail(error)
            if cursor is not None:  # the list may have changed, so that its cursors are not valid any more
                self._cache.change(self.key, (method,))
            raise
        finally:
            self._cache.end(fetch)
        self.counts.misses += 1
        return cached

    def _take_page(self, fetch: Fetch, who: Audience, page: Page) -> CachedPage:
        method, config = fetch.key.method, self._store.config
        ttl, public, now = ttl_of(page.result), is_public(page.result), trio.current_time()
        (self._public.add if public else self._public.discard)(method)
        personal = who is not None and not public
        if ttl:
            until = now + ttl / 1000
        # Where the operator trusts announcements, other pages are kept too, while the server announces
        # changes and its notifications arrive.
        elif page.result and config.trust_announcements and method in self.announced:
            until = now + config.max_list_age
        else:
            return CachedPage(page, None, personal)
        size = page.size + size_of(page.result.values()) + ITEM_OVERHEAD * len(page.items)
        audience, generation = who if personal else None, self._generations.of(self._name)
        fresh_until = until if ttl else 0.0
        kept = self._cache.keep(fetch, audience, page, size, until, fresh_until, generation)
        return CachedPage(page, until if kept else None, personal)

    def _audience(self, call: Call) -> Audience:
        """Return the audience of an answer that is not public; None: all, if the server sees one client."""
        # In a legacy session that all clients share, the server cannot tell them apart.
        if not self.modern and self._is_shared:
            return None
        return like(call)


async def _found(result: Fields) -> Fields:
    return result


def aged(entry: Entry, result: Fields | None = None) -> Fields:
    """Return a copy of a cached result with the rest of its time to live."""
    result = dict(entry.value if result is None else result)
    if entry.fresh_until:
        left = int((entry.fresh_until - trio.current_time()) * 1000)
        result["ttlMs"] = raw(max(0, left))
    return result
