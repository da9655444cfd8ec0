"""Merged lists: a combined page out of many upstreams' pages, fetched at the same time.

Each upstream has its own deadline for its part of one combined page. What is left out is named, with the
reason, in the result's `_meta` (see below); a strict merger answers with an error that says the same. The
pages are asked for together, in tasks only where an upstream has to be waited for otherwise.

A whole first page is kept as it is for as long as all its parts are: for one principal, and for one host app
where a part is not for all. Whatever touches a part ends it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import NamedTuple

import trio

from mcpmux.errors import Overdue, RemoteProtocolError, RpcError
from mcpmux.mux import rewrite
from mcpmux.mux.cache import MERGED, PLAIN, Freshness, Key, like, size_of, ttl_of
from mcpmux.mux.merge import PAGE_LIMIT, Item, Walk, expose_list
from mcpmux.mux.seal import CursorSeal, InvalidCursor, Position
from mcpmux.protocol.call import META, Call, Exchange, Notify
from mcpmux.protocol.codes import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, UPSTREAM_UNAVAILABLE
from mcpmux.protocol.envelope import decode_fields, decode_list, raw, text_of
from mcpmux.protocol.method import LISTS, PAGED, TASKS_LIST
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.runtime.access_control import AccessControl, confined
from mcpmux.runtime.calls import unheard
from mcpmux.runtime.upstreams.registry import UpstreamRegistry
from mcpmux.runtime.upstreams.response_cache import HINTS, CacheStore, Found, Page, aged
from mcpmux.runtime.upstreams.upstream import Upstream
from mcpmux.transports.inline import in_task, together
from mcpmux.transports.waiting import Deadline, limited

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


_COMPLETE = raw("complete")
_NO_ITEMS = raw([])
_NO_PAGE = RawPage(_NO_ITEMS, None, {})
_NOTHING = Page([], [], None, {})


async def fetch_page(
    upstream: Upstream, call: Call, cursor: str | None, deadline: Deadline | None = None
) -> RawPage:
    """One page of the list that `call` asks for; an empty one when the upstream has no such list.

    Raises RpcError, or Overdue when it takes longer than until `deadline`.
    """
    if upstream.connection is None:
        await _settle(upstream, deadline)
    if not offers(upstream, call.method):
        return _NO_PAGE
    return await _ask_page(upstream, call, cursor, deadline)


async def _ask_page(upstream: Upstream, call: Call, cursor: str | None, deadline: Deadline | None) -> RawPage:
    method = call.method
    kind = PAGED[method]
    params = {} if cursor is None else {"cursor": raw(cursor)}
    try:
        result = await upstream.exchange(call.with_params(params), unheard, deadline)
    except RpcError as error:
        if error.code == METHOD_NOT_FOUND:  # some servers offer resources and know no templates
            return _NO_PAGE
        raise
    items = result.get(kind.items)
    if items is None:
        raise not_a_list(upstream, method)
    following = result.get("nextCursor")
    return RawPage(items, None if following is None else text_of(following), result)


async def _settle(upstream: Upstream, deadline: Deadline | None) -> None:
    await in_task()
    with limited(deadline):
        await upstream.settled()


def offers(upstream: Upstream, method: str) -> bool:
    """Whether an upstream may have a list; True while nobody knows."""
    connection = upstream.connection
    return connection is None or connection.facts.offers(PAGED[method].capability)


def not_a_list(upstream: Upstream, method: str) -> RpcError:
    """A server's answer is none."""
    return upstream.error(UPSTREAM_UNAVAILABLE, f"answered {method} without a list")


def items_of(upstream: Upstream, call: Call, page: RawPage) -> list[Fields]:
    """The items of a page. Raises RpcError when they are none."""
    try:
        return decode_list(page.items)
    except ValueError:
        raise not_a_list(upstream, call.method) from None


async def find_page(
    upstream: Upstream,
    call: Call,
    cursor: str | None,
    deadline: Deadline | None = None,
    *,
    anew: bool = False,
) -> Found:
    """One page as clients see it: remembered, shared with whoever asks the same, or fetched.

    `anew`: fetched. Nothing in it may be changed. Raises RpcError, or Overdue when it takes longer than
    until `deadline`.
    """

    async def fetch() -> Page:
        page = await _ask_page(upstream, call, cursor, deadline)
        try:
            texts, items = expose_list(call.method, page.items, upstream.space)
        except ValueError:
            raise not_a_list(upstream, call.method) from None
        hints: Fields = {}
        for key in HINTS:
            if key in page.result:
                hints[key] = page.result[key]
        return Page(texts, items, page.following, hints, 2 * len(memoryview(page.items)))

    if upstream.connection is None:
        await _settle(upstream, deadline)
    offered, memory = offers(upstream, call.method), upstream.memory
    if memory is None or anew:  # without a memory nothing ends what is kept, should it offer more one day
        return Found(await fetch() if offered else _NOTHING, None, personal=True)
    if not offered:
        return Found(_NOTHING, math.inf, personal=False)
    return await memory.page(call, cursor, fetch, deadline)


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


async def walk_pages(call: Call, exchange: Exchange, see: Callable[[Call, Fields], None]) -> None:
    """Ask for every page of a list; `see` is given the call for each, and its result. Raises McpmuxError."""
    cursors: set[str] = set()
    while True:
        result = await exchange(call, unheard)
        see(call, result)
        cursor = text_of(result.get("nextCursor"))
        if cursor is None:
            return
        if cursor in cursors or len(cursors) >= PAGE_LIMIT:
            raise RemoteProtocolError(
                f"{call.method} never ends: there is a next page after {len(cursors)} pages"
            )
        cursors.add(cursor)
        call = call.with_params({"cursor": result["nextCursor"]})


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


Hides = Callable[[Upstream, Call, Fields], bool]
"""Whether an item of an upstream's list must not be shown to the client of the call."""


class Parts:
    """What a combined page is made of: when that began, until when all of it is kept, and for whom it is."""

    def __init__(self) -> None:
        self.began = trio.current_time()
        self.freshness = Freshness()
        self.until: float | None = math.inf
        self.personal = False

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
        self._counts = self._store.count(MERGED)
        self._registry = registry
        self._hides = hides
        self.seal = seal
        self.page_size = page_size

    def forget(self) -> None:
        """Other rules hold: no whole page of before may be used."""
        self._store.cache.drop(MERGED)

    async def page(self, call: Call, _notify: Notify) -> Fields:
        """One combined page of the list that `call` asks for. Raises RpcError for a bad cursor."""
        plain = PLAIN.issuperset(call.meta) and not call.params
        if call.method not in LISTS or not plain or not self._store.config.enabled:
            return await self._merge(call, Parts())
        cache, counts = self._store.cache, self._counts
        who, key = call.principal, Key(MERGED, call.method, None, call.legacy)
        now, generations = trio.current_time(), self._store.generations
        generation = generations.of(MERGED)
        entry = cache.find(key, (who, (who, like(call))), now, generation)
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
        parts.began = trio.current_time()
        while not walk.done:
            await self._round(call, walk, parts)
            walk.end_round()
        if walk.failures:
            parts.until = None
        result = self._result(call, walk, parts.freshness)
        return result if self._access.policy is None else confined(result)

    def _start(self, call: Call) -> list[Position]:
        if "cursor" not in call.params or bytes(call.params["cursor"]) == b"null":
            return list(map(Position, self._access.visible(call, self._registry)))
        cursor = text_of(call.params["cursor"])
        if cursor is None:
            raise RpcError(INVALID_PARAMS, 'Invalid params: "cursor" must be a string')
        try:
            positions = self.seal.open(call.method, cursor, call.principal.name)
        except InvalidCursor as error:
            raise RpcError(INVALID_PARAMS, f"Invalid cursor: {error}") from None
        visible = set(self._access.visible(call, [position.upstream for position in positions]))
        return [position for position in positions if position.upstream in visible]

    async def _round(self, call: Call, walk: Walk, parts: Parts) -> None:
        """The next page of every upstream that has one."""
        fetches = []
        for position in walk.wanted:
            try:
                upstream = self._registry.for_call(position.upstream, call)
            except RpcError as error:
                walk.take_failure(position, error.message)
            else:
                fetches.append(self._fetch(position, upstream, call, walk, parts))
        await together(fetches)

    async def _fetch(
        self, position: Position, upstream: Upstream, call: Call, walk: Walk, parts: Parts
    ) -> None:
        """Have `walk` take the page at `position`, or why it could not be had in what is left of its time."""
        seconds = upstream.config.list_timeout
        deadline = Deadline(seconds, trio.current_time() - parts.began, seconds)
        page: Page | RawPage
        items: Sequence[Item]
        try:
            if call.method == TASKS_LIST:
                page = await fetch_page(upstream, call, position.cursor, deadline)
                tasks = items_of(upstream, call, page)
                items, looked_at = self._shown_tasks(upstream, call, tasks), len(tasks)
            else:
                found = await find_page(upstream, call, position.cursor, deadline)
                page, items, looked_at = found.page, found.page.items, len(found.page.items)
                if self._access.policy is not None:
                    items = list(compress(items, self._access.shown(call, upstream.name, page.texts)))
                parts.take(found, for_all=upstream.config.session == "shared")
        except RpcError as error:
            walk.take_failure(position, error.message)
        except Overdue:
            upstream.failed()
            walk.take_failure(position, upstream.late(call.method, seconds).message)
        else:
            limit = upstream.config.max_list_items
            walk.take_page(position, items, page.following, limit, looked_at=looked_at)
            parts.freshness.take(page.result)

    def _shown_tasks(self, upstream: Upstream, call: Call, tasks: list[Fields]) -> list[Fields]:
        found = self._access.sift(call, upstream.name, upstream.key, tasks)
        shown = (task for task in found if not self._hides(upstream, call, task))
        return [rewrite.expose_item(call.method, task, upstream.space) for task in shown]

    def _result(self, call: Call, walk: Walk, freshness: Freshness) -> Fields:
        method = call.method
        if walk.failures and self.strict:
            raise incomplete("The list is not complete", self._registry, walk.failures)
        result = {"resultType": _COMPLETE, PAGED[method].items: walk.encoded_items()}
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
