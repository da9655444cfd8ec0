"""Merge the upstreams' lists.

A merged list is combined from many upstreams' pages, fetched at the same time.

Each upstream has its own deadline for its part of one combined page. Upstreams that are left out are named,
with the reason, in the result's `_meta` (see below); a strict merger answers with an error that contains the
same. The pages are fetched side by side, without tasks unless an upstream has to be waited for.

A whole first page is cached for as long as all its parts are: for one principal, and for one host app where a
part is not for all. It is dropped as soon as a part is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from operator import and_
from typing import Final

import structlog
import trio

from mcpmux.channels.channel import ignore_event
from mcpmux.config import Merging
from mcpmux.errors import Overdue, RemoteProtocolError, RpcError
from mcpmux.mux.cache import MERGED, PLAIN, CacheKey, Freshness, like, size_of, ttl_of
from mcpmux.mux.item import ItemProblem, some_of
from mcpmux.mux.merge import PAGE_LIMIT, Walk
from mcpmux.mux.override import KIND_OF
from mcpmux.mux.report import ITEMS, LEFT_OUT, LeftOut
from mcpmux.mux.rewrite import NAMED_BY, expose_item
from mcpmux.mux.seal import CursorSeal, InvalidCursor, Position
from mcpmux.protocol.call import META, Call, Exchange, Notify
from mcpmux.protocol.codes import INVALID_PARAMS, UPSTREAM_UNAVAILABLE
from mcpmux.protocol.envelope import members_of, raw, text_of
from mcpmux.protocol.method import LISTS, PAGED, TASKS_LIST, TOOLS_LIST
from mcpmux.protocol.raw_json import Fields
from mcpmux.runtime.access_control import AccessControl
from mcpmux.transports.inline import in_task, together
from mcpmux.transports.waiting import Deadline, limited
from mcpmux.upstreams.lists import NAME_CHARACTERS, find_page, report, sifted
from mcpmux.upstreams.registry import UpstreamRegistry
from mcpmux.upstreams.relisting import OWED_PART
from mcpmux.upstreams.response_cache import CachedPage, CacheStore, aged
from mcpmux.upstreams.upstream import Upstream

log = structlog.get_logger()

TOLD_LIMIT: Final = 20  # problems of one upstream's items in one answer, which goes to a model's context
REMOVED: Final = "removed"  # the state of an upstream that is not configured any more
_COMPLETE: Final = raw("complete")

Reasons = Mapping[str, str]
"""A sentence for each missing upstream, by its name."""


def describe(registry: UpstreamRegistry, reasons: Reasons) -> dict[str, Mapping[str, str]]:
    """Return the states and reasons of the missing upstreams, in configuration order."""
    return {
        name: {"state": registry[name].state if name in registry else REMOVED, "reason": reasons[name]}
        for name in dict.fromkeys((*registry, *reasons))
        if name in reasons
    }


def mention(result: Fields, registry: UpstreamRegistry, reasons: Reasons) -> Fields:
    """Return the answer (changed in place), which names the missing upstreams in its `_meta`."""
    return _told(result, LEFT_OUT, describe(registry, reasons))


def _told(result: Fields, key: str, what: Mapping[str, object]) -> Fields:
    """Return the result (changed in place) with `what` under a key of its `_meta`, unless that is empty."""
    if what:
        result[META] = raw({**members_of(result.get(META)), key: what})
    return result


def incomplete(what: str, missing: LeftOut, **more: object) -> RpcError:
    """Return the error for an incomplete answer. `what`: the beginning of its message. `more`: its data."""
    sentences = "; ".join(entry["reason"] for entry in missing.values())
    return RpcError(UPSTREAM_UNAVAILABLE, f"{what}: {sentences}", {**more, LEFT_OUT: missing})


# Combined pages

Hides = Callable[[Upstream, Call, str | None], bool]
"""Return whether a task, by its own id, must be hidden from the client of the call."""


class Parts:
    """The parts of a combined page: when their fetch began, and how long and for whom they may be cached.

    `until`: trio's time up to which all parts are cached, None when one must not be. `personal`: whether a
    part is not for all clients. `left_out`: what upstreams have left out of their parts.
    """

    def __init__(self) -> None:
        self.began = trio.current_time()
        self.freshness = Freshness()
        self.until: float | None = math.inf
        self.personal = False
        self.problems: dict[str, list[ItemProblem]] = {}  # of items, by upstream
        self.left_out: dict[str, Mapping[str, str]] = {}

    def take(self, found: CachedPage, *, for_all: bool) -> None:
        """Add a part. `for_all`: it is from a session that all clients share, not a private one."""
        self.personal = self.personal or found.personal
        if found.until is None or not for_all:
            self.until = None
        elif self.until is not None:
            self.until = min(self.until, found.until)


class Merger:
    """Serves combined pages. No state of a walk is kept between pages: the cursor carries it."""

    def __init__(
        self,
        registry: UpstreamRegistry,
        seal: CursorSeal,
        merging: Merging,
        hides: Hides,
        access: AccessControl,
        store: CacheStore,
    ) -> None:
        """`hides`: whether a task is another client's. `access`: what else the principal does not see."""
        self._access = access
        self._store = store
        self._counts = self._store.count(MERGED)
        self._registry = registry
        self._hides = hides
        self.seal = seal
        self.merging = merging

    def forget(self) -> None:
        """Drop all cached pages, as other access rules are in force."""
        self._store.cache.drop(MERGED)

    async def page(self, call: Call, _notify: Notify) -> Fields:
        """Return one combined page of the list that `call` asks for. Raises RpcError for a bad cursor."""
        # Only a first page is shared, and only without members of `_meta` that could change it.
        plain = PLAIN.issuperset(call.meta) and not call.params
        if call.method not in LISTS or not plain or not self._store.config.enabled:
            return await self._merge(call, Parts())
        cache, counts = self._store.cache, self._counts
        who, key = call.principal, CacheKey(MERGED, call.method, None, call.legacy)
        now, generations = trio.current_time(), self._store.generations
        # Read before the fetch: a page that was dropped while it was fetched must not be kept.
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
        walk = Walk(self._start(call), self.merging.page_size)
        parts.began = trio.current_time()
        while not walk.done:
            fetches = []
            for position in walk.wanted:
                try:
                    upstream = self._registry.for_call(position.upstream, call)
                except RpcError as error:  # removed since the cursor was given out
                    walk.take_failure(position, error.message)
                else:
                    fetches.append(self._fetch(position, upstream, call, walk, parts))
            await together(fetches)
            walk.end_round()
        cursor = walk.cursor(lambda positions: self.seal.seal(call.method, positions, call.principal.key))
        missing = parts.left_out
        if walk.failures:
            missing = describe(self._registry, walk.failures) | missing
        if missing and self.merging.strict:
            raise incomplete("The list is not complete", missing)
        result = {"resultType": _COMPLETE, PAGED[call.method].items: walk.items()}
        if cursor is not None:
            result["nextCursor"] = raw(cursor)
        result["ttlMs"] = raw(0 if missing else parts.freshness.ttl_ms)
        # All pages of a list must have one scope ("Interaction with Pagination"), and the scope of a page to
        # come is not known yet. Besides, a cursor is for its principal only.
        is_whole = cursor is None and "cursor" not in call.params
        result["cacheScope"] = raw(parts.freshness.scope if is_whole else "private")
        if missing:
            parts.until = None  # an incomplete list must not be given again when the missing upstream is back
            result = _told(result, LEFT_OUT, missing)
        if parts.problems or walk.problems:
            result = _told(result, ITEMS, await self._problems(call, walk, parts))
        return self._access.confined(result)

    async def _problems(self, call: Call, walk: Walk, parts: Parts) -> dict[str, list[dict[str, object]]]:
        """Return the problems of a list that the client may know of, by upstream."""
        by_upstream: dict[str, list[dict[str, object]]] = {}
        method = call.method
        for name in self._registry if method in LISTS else ():
            upstream = self._registry[name]
            report(upstream, method, walk.problems.get(name, ()))
            problems = [*parts.problems.get(name, ()), *walk.problems.get(name, ())]
            shown = await self._access.shown(call, name, upstream.key, [problem.name for problem in problems])
            problems = [problem for problem, is_shown in zip(problems, shown, strict=True) if is_shown]
            if problems:
                by_upstream[name] = [
                    {
                        **self._shown_name(call, upstream, problem.name),
                        "problem": problem.text,
                        "leftOut": problem.left_out,
                    }
                    for problem in some_of(problems, TOLD_LIMIT)
                ]
        return by_upstream

    def _shown_name(self, call: Call, upstream: Upstream, own: str | None) -> dict[str, str]:
        """Return {"item": the client's name or URI of an item}; {} for None, a problem of the whole list."""
        if own is None:
            return {}
        key = NAMED_BY[call.method]
        if call.method in KIND_OF:
            own = self._access.of(call.principal).shown_name(call.method, upstream.name, own)
        exposed = expose_item(call.method, {key: raw(own)}, upstream.space)[key]
        return {"item": (text_of(exposed) or "")[:NAME_CHARACTERS]}

    def _start(self, call: Call) -> list[Position]:
        if "cursor" not in call.params or bytes(call.params["cursor"]) == b"null":
            return list(map(Position, self._access.of(call.principal).visible(call.method, self._registry)))
        cursor = text_of(call.params["cursor"])
        if cursor is None:
            raise RpcError(INVALID_PARAMS, 'Invalid params: "cursor" must be a string')
        try:
            positions = self.seal.open(call.method, cursor, call.principal.key)
        except InvalidCursor as error:
            raise RpcError(INVALID_PARAMS, f"Invalid cursor: {error}") from None
        # The rules may have changed since the cursor was given out.
        visible = set(
            self._access.of(call.principal).visible(
                call.method, [position.upstream for position in positions]
            )
        )
        return [position for position in positions if position.upstream in visible]

    async def _fetch(
        self, position: Position, upstream: Upstream, call: Call, walk: Walk, parts: Parts
    ) -> None:
        seconds = upstream.config.list_timeout
        if call.method in upstream.supervision.relisting.owed:
            seconds *= OWED_PART
        # For all rounds of one combined page together, so the time since the first counts.
        deadline = Deadline(seconds, trio.current_time() - parts.began, seconds)
        of_tasks = call.method == TASKS_LIST
        try:
            if upstream.status.connection is None:
                await in_task()
                with limited(deadline):
                    await upstream.supervision.appear()
            cached = await find_page(upstream, call, position.cursor, deadline, anew=of_tasks)
        except RpcError as error:
            _leave_out(upstream, call, walk, position, error)
        except Overdue:
            # The breaker counts it: later lists leave out a server that hangs at once.
            upstream.health.failed()
            late = upstream.status.late(call.method, upstream.config.list_timeout)
            _leave_out(upstream, call, walk, position, late)
        else:
            judge, shown = self._access.of(call.principal), None
            if not judge.is_open or of_tasks:
                if call.method in (TOOLS_LIST, TASKS_LIST):
                    try:
                        await self._access.learn_tools(upstream, call)
                    except RpcError as error:
                        _leave_out(upstream, call, walk, position, error)
                        return
                texts = cached.page.texts
                shown = await self._access.shown(call, upstream.name, upstream.key, texts)
                if of_tasks:
                    own = [not self._hides(upstream, call, task_id) for task_id in texts]
                    shown = list(map(and_, shown, own))
                judge = self._access.of(call.principal)  # other names may be in force by now
            page = sifted(walk, position, cached.page, shown)
            items = page.items
            if judge.overrides:
                _, items = judge.overridden(call.method, upstream.space, page.texts, items)
            # A page with items of a private session must not be kept for other clients.
            parts.take(cached, for_all=upstream.config.session == "shared")
            limit = upstream.config.max_list_items
            hidden = 0 if items is cached.page.items else len(cached.page.items) - len(items)
            walk.take_page(position, items, page.following, limit, names=page.texts, hidden=hidden)
            parts.freshness.take(page.result)
            parts.left_out |= page.left_out
            if page.problems:
                parts.problems.setdefault(upstream.name, []).extend(page.problems)


def _leave_out(upstream: Upstream, call: Call, walk: Walk, position: Position, error: RpcError) -> None:
    """Leave an upstream out of a list because of `error`, and see to it that clients get its part later."""
    walk.take_failure(position, error.message)
    if not upstream.status.breaker.blocks:  # its end is reported
        upstream.supervision.relisting.missed(call.method)


async def walk_pages(call: Call, exchange: Exchange, see: Callable[[Call, Fields], None]) -> None:
    """Fetch every page of a list, and call `see` with the call and result of each. Raises McpmuxError."""
    cursors: set[str] = set()
    while True:
        result = await exchange(call, ignore_event)
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
