"""Merged lists: a combined page out of many upstreams' pages, fetched at the same time.

Each upstream has its own deadline for its part of one combined page. What is left out is named, with the
reason, in the result's `_meta` (see below); a strict merger answers with an error that says the same.

A whole first page is kept as it is for as long as all its parts are: for one principal, and for one host app
where a part is not for all. Whatever touches a part ends it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import compress

import trio

from mcpmux.errors import RpcError
from mcpmux.mux import rewrite
from mcpmux.mux.cache import MERGED, Key
from mcpmux.mux.caching_hints import Freshness, is_plain, like, size_of, ttl_of
from mcpmux.mux.cursor import CursorSeal, InvalidCursor, Position
from mcpmux.mux.generations import ALL
from mcpmux.mux.merge import Walk
from mcpmux.protocol.call import Call, Notify
from mcpmux.protocol.codes import INTERNAL_ERROR, INVALID_PARAMS
from mcpmux.protocol.envelope import raw, text_of
from mcpmux.protocol.method import LISTS, PAGED, TASKS_LIST
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.runtime.guard import Guard, confined
from mcpmux.runtime.missing import incomplete, mention
from mcpmux.runtime.paging import fetch_page, find_page, items_of
from mcpmux.runtime.upstreams.fleet import Fleet
from mcpmux.runtime.upstreams.memory import Found, Store, aged
from mcpmux.runtime.upstreams.upstream import Upstream

AT_ONCE = 32  # upstreams that are asked for a page before whatever else has come gets its turn

Hides = Callable[[Upstream, Call, Fields], bool]
"""Whether an item of an upstream's list must not be shown to the client of the call."""


class Parts:
    """What a combined page is made of: when that began, until when all of it is kept, and for whom it is."""

    def __init__(self) -> None:
        self.began = trio.current_time()
        self.until: float | None = math.inf
        self.personal = False

    def __repr__(self) -> str:
        return f"Parts(until={self.until}, personal={self.personal})"

    def take(self, found: Found, *, for_all: bool) -> None:
        """One more. `for_all`: every client is served by such a session, none by one of its own."""
        self.personal = self.personal or found.personal
        if found.until is None or not for_all:
            self.until = None
        elif self.until is not None:
            self.until = min(self.until, found.until)


class Merger:
    """Serves combined pages. A walk is remembered by nobody: the cursor carries it."""

    def __init__(
        self,
        fleet: Fleet,
        seal: CursorSeal,
        page_size: int,
        hides: Hides,
        guard: Guard | None = None,
        store: Store | None = None,
        *,
        strict: bool = False,
    ) -> None:
        """`hides`: which tasks are not the client's. `guard`: what else its principal does not see.

        `strict`: a list that lacks something is an error.
        """
        self.strict = strict
        self._guard = guard if guard is not None else Guard()
        self._store = store if store is not None else Store()
        self._fleet = fleet
        self._hides = hides
        self.seal = seal
        self.page_size = page_size

    def forget(self) -> None:
        """Other rules hold: no whole page of before may be used."""
        self._store.cache.drop(MERGED)

    async def page(self, call: Call, _notify: Notify) -> Fields:
        """One combined page of the list that `call` asks for. Raises RpcError for a bad cursor."""
        if call.params or call.method not in LISTS or not self._store.config.enabled or not is_plain(call):
            return await self._merge(call, Parts())
        cache, counts = self._store.cache, self._store.count(MERGED)
        who, key = call.principal, Key(MERGED, call.method, None, call.legacy)
        now, generations = trio.current_time(), self._store.generations
        generation = generations.of(ALL)
        entry = cache.find(key, who, now, generation)
        entry = entry or cache.find(key, (who, like(call)), now, generation)
        if entry is not None:
            counts.hits += 1
            return aged(entry)
        counts.misses += 1
        parts = Parts()
        fetch = cache.begin(key, generation)
        try:
            result = await self._merge(call, parts)
            if parts.until is not None:
                fresh_until = parts.began + ttl / 1000 if (ttl := ttl_of(result)) else 0.0
                audience = (who, like(call)) if parts.personal else who
                size, now = size_of(result.values()), generations.of(ALL)
                cache.keep(fetch, audience, dict(result), size, parts.until, fresh_until, now)
            return result
        finally:
            cache.end(fetch)

    async def _merge(self, call: Call, parts: Parts) -> Fields:
        walk = Walk(self._start(call), self.page_size)
        for position in walk.wanted:
            if position.upstream not in self._fleet:
                walk.leave_out(position.upstream, f"Upstream {position.upstream!r} was removed")
        parts.began = trio.current_time()
        freshness = Freshness()
        while not walk.done:
            await self._round(walk, call, parts, freshness)
            walk.end_round()
        if walk.failures:
            parts.until = None
        result = self._result(call, walk, freshness)
        return result if self._guard.policy is None else confined(result)

    def _start(self, call: Call) -> list[Position]:
        if "cursor" not in call.params or bytes(call.params["cursor"]) == b"null":
            return [Position(name) for name in self._guard.visible(call, self._fleet)]
        cursor = text_of(call.params["cursor"])
        if cursor is None:
            raise RpcError(INVALID_PARAMS, 'Invalid params: "cursor" must be a string')
        try:
            positions = self.seal.open(call.method, cursor, call.principal.name)
        except InvalidCursor as error:
            raise RpcError(INVALID_PARAMS, f"Invalid cursor: {error}") from None
        visible = set(self._guard.visible(call, [position.upstream for position in positions]))
        return [position for position in positions if position.upstream in visible]

    async def _round(self, walk: Walk, call: Call, parts: Parts, freshness: Freshness) -> None:
        """The next page of every upstream that has one, each within what is left of its time."""
        asked: dict[float, list[tuple[Position, Upstream]]] = {}
        for position in walk.wanted:
            try:
                upstream = self._fleet.for_call(position.upstream, call)
            except RpcError as error:
                walk.take_failure(position, error.message)
            else:
                asked.setdefault(upstream.config.list_timeout, []).append((position, upstream))
        if len(asked) == 1:  # as most are
            await self._fetch_within(*asked.popitem(), walk, call, parts, freshness)
            return
        async with trio.open_nursery() as nursery:
            for seconds, pages in asked.items():
                nursery.start_soon(self._fetch_within, seconds, pages, walk, call, parts, freshness)

    async def _fetch_within(
        self,
        seconds: float,
        pages: list[tuple[Position, Upstream]],
        walk: Walk,
        call: Call,
        parts: Parts,
        freshness: Freshness,
    ) -> None:
        """The next pages of upstreams that have as much time: one cancel scope and no task for the first."""
        waiting = {upstream.name: (position, upstream) for position, upstream in pages}

        async def fetch(position: Position, upstream: Upstream) -> None:
            take = self._take_tasks if call.method == TASKS_LIST else self._take_page
            try:
                await take(walk, position, upstream, call, parts, freshness)
            except RpcError as error:
                walk.take_failure(position, error.message)
            del waiting[upstream.name]

        async with trio.open_nursery() as nursery:
            nursery.cancel_scope.deadline = parts.began + seconds
            for number, (position, upstream) in enumerate(pages[1:], 1):
                if number % AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
                nursery.start_soon(fetch, position, upstream)
            await fetch(*pages[0])
        for position, upstream in waiting.values():
            upstream.failed()
            walk.take_failure(position, f"Upstream {upstream.name!r} did not answer within {seconds:g} s")

    async def _take_page(
        self,
        walk: Walk,
        position: Position,
        upstream: Upstream,
        call: Call,
        parts: Parts,
        freshness: Freshness,
    ) -> None:
        found = await find_page(upstream, call, position.cursor)
        page = found.page
        items: Sequence[Raw] = page.items
        if self._guard.policy is not None:
            items = list(compress(items, self._guard.shown(call, upstream.name, page.texts)))
        limit = upstream.config.max_list_items
        walk.take_page(position, items, page.following, limit, looked_at=len(page.items))
        freshness.take(page.result)
        parts.take(found, for_all=upstream.config.session == "shared")

    async def _take_tasks(
        self,
        walk: Walk,
        position: Position,
        upstream: Upstream,
        call: Call,
        _parts: Parts,
        freshness: Freshness,
    ) -> None:
        page = await fetch_page(upstream, call, position.cursor)
        tasks = items_of(upstream, call, page)
        found = self._guard.sift(call, upstream.name, upstream.key, tasks)
        found = [task for task in found if not self._hides(upstream, call, task)]
        items = [rewrite.expose_item(call.method, item, upstream.space) for item in found]
        limit = upstream.config.max_list_items
        walk.take_page(position, items, page.following, limit, looked_at=len(tasks))
        freshness.take(page.result)

    def _result(self, call: Call, walk: Walk, freshness: Freshness) -> Fields:
        method = call.method
        if walk.failures and self.strict:
            raise incomplete("The list is not complete", self._fleet, walk.failures)
        result = {"resultType": raw("complete"), PAGED[method].items: walk.encoded_items()}
        if walk.wanted:
            try:
                result["nextCursor"] = raw(self.seal.seal(method, walk.wanted, call.principal.name))
            except InvalidCursor as error:
                raise RpcError(INTERNAL_ERROR, f"The list cannot go on: {error}") from None
        result["ttlMs"] = raw(0 if walk.failures else freshness.ttl_ms)
        result["cacheScope"] = raw(freshness.scope)
        if walk.failures:
            mention(result, self._fleet, walk.failures)
        return result
