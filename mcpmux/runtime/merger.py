"""Merged lists: a combined page out of many upstreams' pages, fetched at the same time.

Each upstream has its own deadline for its part of one combined page. What is left out is named, with the
reason, in the result's `_meta` (see below); a strict merger answers with an error that says the same.

A whole first page is kept as it is for as long as all its parts are: for one principal, and for one host app
where a part is not for all. Whatever touches a part ends it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import NamedTuple

import trio

from mcpmux.errors import RpcError
from mcpmux.mux import rewrite
from mcpmux.mux.cache import MERGED, Freshness, Key, is_plain, like, size_of, ttl_of
from mcpmux.mux.exposed_list import expose_list
from mcpmux.mux.merge import PAGE_LIMIT, Walk
from mcpmux.mux.seal import CursorSeal, InvalidCursor, Position
from mcpmux.protocol.call import META, Call, Notify
from mcpmux.protocol.codes import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, UPSTREAM_UNAVAILABLE
from mcpmux.protocol.envelope import decode_fields, decode_list, raw, text_of
from mcpmux.protocol.method import LISTS, PAGED, TASKS_LIST
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.runtime.access_control import AccessControl, confined
from mcpmux.runtime.calls import unheard
from mcpmux.runtime.upstreams.registry import UpstreamRegistry
from mcpmux.runtime.upstreams.response_cache import HINTS, CacheStore, Found, Page, aged
from mcpmux.runtime.upstreams.upstream import Upstream
from mcpmux.transports.inline import in_task

# What is said of upstreams whose part of an answer is missing: in the answer, or in its place.
#
# `_meta` of the answer, or `data` of the error, has under `dev.mcpmux/upstreams` for each of them `{"name":
# {"state": …, "reason": …}}`, in configuration order; what was removed comes last.

LEFT_OUT = "dev.mcpmux/upstreams"
REMOVED = "removed"  # the state of an upstream that is not configured any more

Reasons = Mapping[str, str]
"""A sentence for each upstream that is missing."""


def describe(registry: UpstreamRegistry, reasons: Reasons) -> dict[str, dict[str, str]]:
    """The states and reasons of the missing, in order."""
    there = [name for name in registry if name in reasons]
    names = there + [name for name in reasons if name not in registry]
    return {
        name: {"state": registry[name].state if name in registry else REMOVED, "reason": reasons[name]}
        for name in names
    }


def mention(result: Fields, registry: UpstreamRegistry, reasons: Reasons) -> None:
    """Say in an answer what is missing."""
    try:
        meta = decode_fields(result.get(META))
    except ValueError:
        meta = {}
    result[META] = raw({**meta, LEFT_OUT: describe(registry, reasons)})


def incomplete(what: str, registry: UpstreamRegistry, reasons: Reasons, **more: object) -> RpcError:
    """The error in place of an answer; `what` begins its sentence, `more` is for its data."""
    missing = describe(registry, reasons)
    sentences = "; ".join(each["reason"] for each in missing.values())
    return RpcError(UPSTREAM_UNAVAILABLE, f"{what}: {sentences}", {**more, LEFT_OUT: missing})


# One upstream's lists, page by page.


class RawPage(NamedTuple):
    """One page: its items, the upstream's cursor after it (None: the last), and the whole result."""

    items: Raw
    following: str | None
    result: Fields


_NO_ITEMS = raw([])
_NO_PAGE = RawPage(_NO_ITEMS, None, {})
_NOTHING_THERE = Found(Page([], [], None, {}), math.inf, personal=False)
"""Of an upstream that has no such list, for as long as it is connected."""


async def fetch_page(upstream: Upstream, call: Call, cursor: str | None) -> RawPage:
    """One page of the list that `call` asks for; an empty one when the upstream has no such list.

    Raises RpcError. The caller owns the deadline.
    """
    method = call.method
    kind = PAGED[method]
    if upstream.connection is None:
        await upstream.settled()
    if not offers(upstream, method):
        return _NO_PAGE
    params = {} if cursor is None else {"cursor": raw(cursor)}
    try:
        result = await upstream.exchange(call.with_params(params), unheard)
    except RpcError as error:
        if error.code == METHOD_NOT_FOUND:  # some servers offer resources and know no templates
            return _NO_PAGE
        raise
    items = result.get(kind.items)
    if items is None:
        raise not_a_list(upstream, method)
    return RawPage(items, text_of(result.get("nextCursor")), result)


def offers(upstream: Upstream, method: str) -> bool:
    """Whether an upstream may have a list; True while nobody knows."""
    return upstream.facts is None or upstream.facts.offers(PAGED[method].capability)


def not_a_list(upstream: Upstream, method: str) -> RpcError:
    """A server's answer is none."""
    return upstream.error(UPSTREAM_UNAVAILABLE, f"answered {method} without a list")


def items_of(upstream: Upstream, call: Call, page: RawPage) -> list[Fields]:
    """The items of a page. Raises RpcError when they are none."""
    try:
        return decode_list(page.items)
    except ValueError:
        raise not_a_list(upstream, call.method) from None


async def find_page(upstream: Upstream, call: Call, cursor: str | None, *, anew: bool = False) -> Found:
    """One page as clients see it: remembered, shared with whoever asks the same, or fetched.

    `anew`: fetched. Nothing in it may be changed. Raises RpcError. The caller owns the deadline.
    """

    async def fetch() -> Page:
        page = await fetch_page(upstream, call, cursor)
        try:
            texts, items = expose_list(call.method, page.items, upstream.space)
        except ValueError:
            raise not_a_list(upstream, call.method) from None
        hints: Fields = {key: page.result[key] for key in HINTS if key in page.result}
        return Page(texts, items, page.following, hints, 2 * len(memoryview(page.items)))

    memory = upstream.memory
    if memory is None or anew:  # without a memory nothing ends what is kept, should it offer more one day
        return Found(await fetch(), None, personal=True)
    if not offers(upstream, call.method):
        return _NOTHING_THERE
    return await memory.page(call, cursor, fetch)


async def walk(upstream: Upstream, call: Call) -> list[Fields]:
    """Every item of the list that `call` asks for, as far as it may go.

    Raises RpcError, also for a list that never ends.
    """
    limit = upstream.config.max_list_items
    items: list[Fields] = []
    position = Position(upstream.name)
    for _ in range(PAGE_LIMIT):
        page = await fetch_page(upstream, call, position.cursor)
        items += items_of(upstream, call, page)
        if page.following is None or len(items) >= limit:
            return items[:limit]
        following = position.advance(page.following)
        if following is None:
            break
        position = following
    raise _never_ends(upstream, call)


class Texts(NamedTuple):
    """The upstream's own names or URIs of a list's items. `again`: some were remembered."""

    found: list[str]
    again: bool


async def walk_texts(upstream: Upstream, call: Call, *, anew: bool = False) -> Texts:
    """Those of all items of the list that `call` asks for; else as `walk`."""
    again = False
    limit = upstream.config.max_list_items
    texts: list[str | None] = []
    position = Position(upstream.name)
    for _ in range(PAGE_LIMIT):
        found = await find_page(upstream, call, position.cursor, anew=anew)
        page, again = found.page, again or found.again
        texts += page.texts
        if page.following is None or len(texts) >= limit:
            return Texts([text for text in texts[:limit] if text is not None], again)
        following = position.advance(page.following)
        if following is None:
            break
        position = following
    raise _never_ends(upstream, call)


def _never_ends(upstream: Upstream, call: Call) -> RpcError:
    return upstream.error(UPSTREAM_UNAVAILABLE, f"answers {call.method} with a list that never ends")


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
        registry: UpstreamRegistry,
        seal: CursorSeal,
        page_size: int,
        hides: Hides,
        access: AccessControl | None = None,
        store: CacheStore | None = None,
        *,
        strict: bool = False,
    ) -> None:
        """`hides`: which tasks are not the client's. `access`: what else its principal does not see.

        `strict`: a list that lacks something is an error.
        """
        self.strict = strict
        self._access = access if access is not None else AccessControl()
        self._store = store if store is not None else CacheStore()
        self._registry = registry
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
        generation = generations.of(MERGED)
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
                size, now = size_of(result.values()), generations.of(MERGED)
                cache.keep(fetch, audience, dict(result), size, parts.until, fresh_until, now)
            return result
        finally:
            cache.end(fetch)

    async def _merge(self, call: Call, parts: Parts) -> Fields:
        walk = Walk(self._start(call), self.page_size)
        await in_task()
        for position in walk.wanted:
            if position.upstream not in self._registry:
                walk.leave_out(position.upstream, f"Upstream {position.upstream!r} was removed")
        parts.began = trio.current_time()
        freshness = Freshness()
        while not walk.done:
            await self._round(walk, call, parts, freshness)
            walk.end_round()
        if walk.failures:
            parts.until = None
        result = self._result(call, walk, freshness)
        return result if self._access.policy is None else confined(result)

    def _start(self, call: Call) -> list[Position]:
        if "cursor" not in call.params or bytes(call.params["cursor"]) == b"null":
            return [Position(name) for name in self._access.visible(call, self._registry)]
        cursor = text_of(call.params["cursor"])
        if cursor is None:
            raise RpcError(INVALID_PARAMS, 'Invalid params: "cursor" must be a string')
        try:
            positions = self.seal.open(call.method, cursor, call.principal.name)
        except InvalidCursor as error:
            raise RpcError(INVALID_PARAMS, f"Invalid cursor: {error}") from None
        visible = set(self._access.visible(call, [position.upstream for position in positions]))
        return [position for position in positions if position.upstream in visible]

    async def _round(self, walk: Walk, call: Call, parts: Parts, freshness: Freshness) -> None:
        """The next page of every upstream that has one, each within what is left of its time."""
        asked: dict[float, list[tuple[Position, Upstream]]] = {}
        for position in walk.wanted:
            try:
                upstream = self._registry.for_call(position.upstream, call)
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
        if self._access.policy is not None:
            items = list(compress(items, self._access.shown(call, upstream.name, page.texts)))
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
        found = self._access.sift(call, upstream.name, upstream.key, tasks)
        found = [task for task in found if not self._hides(upstream, call, task)]
        items = [rewrite.expose_item(call.method, item, upstream.space) for item in found]
        limit = upstream.config.max_list_items
        walk.take_page(position, items, page.following, limit, looked_at=len(tasks))
        freshness.take(page.result)

    def _result(self, call: Call, walk: Walk, freshness: Freshness) -> Fields:
        method = call.method
        if walk.failures and self.strict:
            raise incomplete("The list is not complete", self._registry, walk.failures)
        result = {"resultType": raw("complete"), PAGED[method].items: walk.encoded_items()}
        if walk.wanted:
            try:
                result["nextCursor"] = raw(self.seal.seal(method, walk.wanted, call.principal.name))
            except InvalidCursor as error:
                raise RpcError(INTERNAL_ERROR, f"The list cannot go on: {error}") from None
        result["ttlMs"] = raw(0 if walk.failures else freshness.ttl_ms)
        result["cacheScope"] = raw(freshness.scope)
        if walk.failures:
            mention(result, self._registry, walk.failures)
        return result
