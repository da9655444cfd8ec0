"""Merge the upstreams' lists, and find the owner of a name or URI without a prefix.

A merged list is combined from many upstreams' pages, fetched at the same time.

Each upstream has its own deadline for its part of one combined page. Upstreams that are left out are named,
with the reason, in the result's `_meta` (see below); a strict merger answers with an error that contains the
same. The pages are fetched side by side, without tasks unless an upstream has to be waited for.

A whole first page is cached for as long as all its parts are: for one principal, and for one host app where a
part is not for all. It is dropped as soon as a part is.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import compress
from operator import and_
from typing import Final, NamedTuple

import structlog
import trio

from mcpmux.channels.channel import ignore_event
from mcpmux.config import Merging
from mcpmux.errors import Overdue, RemoteProtocolError, RpcError
from mcpmux.lru import Lru
from mcpmux.mux.cache import MERGED, PLAIN, CacheKey, Freshness, like, size_of, ttl_of
from mcpmux.mux.item import Problem, some_of
from mcpmux.mux.merge import PAGE_LIMIT, Walk, expose_list
from mcpmux.mux.override import KIND_OF
from mcpmux.mux.pattern import matches_template
from mcpmux.mux.rewrite import NAMED_BY, expose_item
from mcpmux.mux.seal import CursorSeal, InvalidCursor, Position
from mcpmux.mux.view import hints_of
from mcpmux.protocol.call import META, Call, Exchange, Notify
from mcpmux.protocol.codes import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    UPSTREAM_UNAVAILABLE,
)
from mcpmux.protocol.envelope import EMPTY_OBJECT, decode_fields, members_of, raw, text_of, value_of
from mcpmux.protocol.method import LISTS, PAGED, RESOURCES_LIST, TASKS_LIST, TEMPLATES_LIST, TOOLS_LIST
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.runtime.access_control import AccessControl
from mcpmux.transports.inline import in_task, together
from mcpmux.transports.waiting import Deadline, limited
from mcpmux.upstreams.registry import UpstreamRegistry
from mcpmux.upstreams.response_cache import HINTS, CachedPage, CacheStore, Page, aged
from mcpmux.upstreams.upstream import Upstream

log = structlog.get_logger()

# Reports of upstreams whose part is missing, in an answer or in the error instead of it.
#
# `_meta` of the answer, or `data` of the error, has under `dev.mcpmux/upstreams` for each of them `{"name":
# {"state": …, "reason": …}}`, in configuration order; removed upstreams come last.
#
# Problems of items, or of a whole list (without `item`), are under `dev.mcpmux/items`:
# `{"name": [{"item": …, "problem": …, "leftOut": …}]}`. Items have the names that clients know.

LEFT_OUT: Final = "dev.mcpmux/upstreams"
ITEMS: Final = "dev.mcpmux/items"
TOLD_LIMIT: Final = 20  # problems of one upstream's items in one answer, which goes to a model's context
REPORTED_LIMIT: Final = 1000  # problems of one upstream in the log
NAME_CHARACTERS: Final = 200  # of a name in a report; a server may list longer ones
REMOVED: Final = "removed"  # the state of an upstream that is not configured any more

Reasons = Mapping[str, str]
"""A sentence for each missing upstream, by its name."""


def describe(registry: UpstreamRegistry, reasons: Reasons) -> dict[str, dict[str, str]]:
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


def incomplete(what: str, registry: UpstreamRegistry, reasons: Reasons, **more: object) -> RpcError:
    """Return the error for an incomplete answer. `what`: the beginning of its message. `more`: its data."""
    missing = describe(registry, reasons)
    sentences = "; ".join(each["reason"] for each in missing.values())
    return RpcError(UPSTREAM_UNAVAILABLE, f"{what}: {sentences}", {**more, LEFT_OUT: missing})


# One upstream's lists, page by page.

_COMPLETE: Final = raw("complete")
_NOTHING: Final = Page([], [], None, {})


async def find_page(
    upstream: Upstream, call: Call, cursor: str | None, deadline: Deadline | None, *, anew: bool
) -> CachedPage:
    """Return one page of an upstream's list, as clients see it; an empty one if it has no such list.

    It comes from the cache, from a fetch of the same page that is under way, or from a new fetch; with `anew`
    always from a new one. It must not be changed. Raises RpcError, or Overdue at `deadline`.
    """
    method = call.method
    kind = PAGED[method]

    async def fetch() -> Page:
        params = {} if cursor is None else {"cursor": raw(cursor)}
        try:
            result = await upstream.exchange(call.with_params(params), ignore_event, deadline)
            listed = expose_list(method, result[kind.items], upstream.space)
        except RpcError as error:
            if error.code == METHOD_NOT_FOUND:  # some servers offer resources and know no templates
                return _NOTHING
            raise
        except (KeyError, ValueError):
            raise upstream.error(UPSTREAM_UNAVAILABLE, f"answered {method} without a list") from None
        hints: Fields = {}
        for key in HINTS:
            if key in result:
                hints[key] = result[key]
        report(upstream, method, listed.problems)
        size = 2 * len(memoryview(result[kind.items]))
        following = text_of(result.get("nextCursor"))
        return Page(listed.names, listed.items, following, hints, size, listed.problems)

    if upstream.connection is None:
        await in_task()
        with limited(deadline):
            await upstream.settled()
    connection, memory = upstream.connection, upstream.memory
    offered = connection is None or connection.facts.offers(kind.capability)  # unknown without a connection
    # Without a memory a combined page must not be cached (`until` None): nothing would drop it on a change.
    if memory is None or anew:
        return CachedPage(await fetch() if offered else _NOTHING, None, personal=True)
    if not offered:
        return CachedPage(_NOTHING, math.inf, personal=False)
    return await memory.page(call, cursor, fetch, deadline)


def report(upstream: Upstream, method: str, problems: Iterable[Problem]) -> None:
    """Log each problem of a list once."""
    for problem in problems:
        told = method, problem
        if told in upstream.reported or len(upstream.reported) >= REPORTED_LIMIT:
            continue
        upstream.reported.add(told)
        what = "item of a list left out" if problem.left_out else "list mended"
        if upstream.space.transparent:
            what = "list passed on with a mistake"
        log.warning(
            what,
            upstream=upstream.name,
            method=method,
            item=problem.name and problem.name[:NAME_CHARACTERS],
            problem=problem.text,
        )


def _sifted(walk: Walk, position: Position, page: Page) -> Page:
    """Return the page at `position` without items that were on earlier pages."""
    is_new = walk.sift(position, page.texts)
    if is_new is None:
        return page
    return page._replace(texts=list(compress(page.texts, is_new)), items=list(compress(page.items, is_new)))


class Walked(NamedTuple):
    """All pages of a list, within its limits. `again`: some pages were cached.

    `problems`: of items, or of the list. `cut`: why the list was cut, None if it was not.
    """

    pages: list[Page]
    again: bool
    problems: list[Problem]
    cut: str | None

    @property
    def texts(self) -> list[str]:
        """The upstream's own names or URIs of the items, without those that have none."""
        return [text for page in self.pages for text in page.texts if text is not None]


async def walk(upstream: Upstream, call: Call, *, anew: bool = False) -> Walked:
    """Return an upstream's whole list. `anew`: without the cache. Raises RpcError."""
    steps, limit = Walk([Position(upstream.name)], sys.maxsize), upstream.config.max_list_items
    pages: list[Page] = []
    problems: list[Problem] = []
    again = False
    while not steps.done:
        [position] = steps.wanted
        found = await find_page(upstream, call, position.cursor, None, anew=anew)
        again = again or found.again
        page = _sifted(steps, position, found.page)
        steps.take_page(position, page.items, page.following, limit)
        steps.end_round()
        room = limit - position.items
        if len(page.texts) > room:
            page = page._replace(texts=page.texts[:room], items=page.items[:room])
        pages.append(page)
        problems += page.problems
    problems += steps.problems.get(upstream.name, ())
    report(upstream, call.method, problems)
    return Walked(pages, again, some_of(problems), steps.failures.get(upstream.name))


# Tools that a view selects by their annotations, or whose arguments it checks.

TOOLS_KNOWN_SECONDS: Final = 60.0  # until tools are learned again: servers may not announce changes


async def learn_tools(access: AccessControl, upstream: Upstream, call: Call) -> None:
    """Learn an upstream's tools if the view of a call decides by their annotations. Raises RpcError."""
    if not access.has_to_learn(access.of(call.principal), upstream.name, trio.current_time):
        return
    hints: dict[str, dict[str, bool]] = {}
    schemas: dict[str, Raw] = {}
    before, seconds = access.forgotten, upstream.config.list_timeout
    await in_task()
    with trio.move_on_after(seconds):
        for page in (await walk(upstream, call.on_behalf(TOOLS_LIST, {}))).pages:
            for name, item in zip(page.texts, page.items, strict=True):
                if name is not None:
                    fields = decode_fields(item)
                    hints[name] = hints_of(value_of(fields.get("annotations")))
                    schemas[name] = fields.get("inputSchema", EMPTY_OBJECT)
        # A change reported while the list was fetched: what was learned may be outdated already.
        is_new = access.forgotten != before
        until = -math.inf if is_new else trio.current_time() + TOOLS_KNOWN_SECONDS
        access.learn(upstream.name, hints, schemas, until)
        return
    raise upstream.late(TOOLS_LIST, seconds)


# The owners of names and URIs, looked up in the upstreams' lists.

NAMES_KEPT: Final = 10_000  # shortened names whose own names are remembered
NAMES_BYTES: Final = 4 * 2**20  # of them


class Owners(NamedTuple):
    """The owners of a URI or a name. `missing`: the upstreams that could not be asked, with the reason.

    `all_meant`: no upstream was left out because of access rules.
    """

    names: list[str]
    missing: dict[str, str]
    all_meant: bool


OwnName = Callable[[str, str], str | None]
"""Return an upstream's own name (upstream, name for clients) of an item; None if it has no such item."""


def _as_it_is(_upstream: str, name: str) -> str | None:
    return name


class Catalog:
    """Looks items up in the upstreams' lists: first in cached ones, then in lists fetched anew."""

    def __init__(self, registry: UpstreamRegistry) -> None:
        self._registry = registry
        # Own names by upstream, view, shortened name.
        self._names: Lru[tuple[str, str, str], str] = Lru(NAMES_KEPT, NAMES_BYTES)

    def forget(self) -> None:
        """Forget all names, as other ones may be shown from now on."""
        self._names.clear()

    async def owners_of(
        self,
        text: str,
        call: Call,
        asked: Collection[str],
        list_method: str = RESOURCES_LIST,
        own_name: OwnName = _as_it_is,
    ) -> Owners:
        """Return those of `asked` that list a URI or name; if none does, those with a template for the URI.

        `own_name` translates the name for each upstream. An upstream that does not answer in time is
        `missing`, and no owner.
        """
        await in_task()
        owners, again = await self._search(text, call, asked, list_method, own_name, anew=False)
        if again and not owners.names:
            owners, _ = await self._search(text, call, asked, list_method, own_name, anew=True)
        return owners

    async def _search(
        self,
        text: str,
        call: Call,
        asked: Collection[str],
        list_method: str,
        own_name: OwnName,
        *,
        anew: bool,
    ) -> tuple[Owners, bool]:
        """Return the owners, and whether any of the lists was cached."""
        listed: set[str] = set()
        templated: set[str] = set()
        missing: dict[str, str] = {}
        again = False

        async def claim(upstream: Upstream) -> None:
            nonlocal again
            try:
                walked = await self._walk(upstream, list_method, call, anew=anew)
                again = again or walked.again
                if own_name(upstream.name, text) in walked.texts:
                    listed.add(upstream.name)
                elif list_method == RESOURCES_LIST:  # it may be one of a template
                    walked = await self._walk(upstream, TEMPLATES_LIST, call, anew=anew)
                    again = again or walked.again
                    if any(matches_template(template, text) for template in walked.texts):
                        templated.add(upstream.name)
            except RpcError as error:
                missing[upstream.name] = error.message

        async with trio.open_nursery() as nursery:
            for name in asked:
                nursery.start_soon(claim, self._registry.for_call(name, call))
        owners = listed or templated
        names = [name for name in asked if name in owners]
        return Owners(names, missing, len(asked) == len(self._registry)), again

    async def find_name(
        self, list_method: str, owner: str, name: str, call: Call, find: Callable[[list[str]], str | None]
    ) -> str | None:
        """Return what `find` finds for `name` among the names in one upstream's list of tools or prompts.

        Raises RpcError.
        """
        # A shortened name depends on the own name only, so it stays valid until overrides change, even if the
        # list changes.
        place = owner, call.principal.view, name
        known = self._names.get(place)
        if known is not None:
            return known
        await in_task()
        upstream = self._registry.for_call(owner, call)
        walked = await self._walk(upstream, list_method, call)
        found = find(walked.texts)
        if found is None and walked.again:
            found = find((await self._walk(upstream, list_method, call, anew=True)).texts)
        if found is not None:
            self._names[place] = found
        return found

    async def _walk(self, upstream: Upstream, list_method: str, call: Call, *, anew: bool = False) -> Walked:
        seconds = upstream.config.list_timeout
        with trio.move_on_after(seconds):
            return await walk(upstream, call.on_behalf(list_method, {}), anew=anew)
        upstream.failed()
        raise upstream.late(list_method, seconds)


# Combined pages

Hides = Callable[[Upstream, Call, str | None], bool]
"""Return whether a task, by its own id, must be hidden from the client of the call."""


class Parts:
    """The parts of a combined page: when their fetch began, and how long and for whom they may be cached.

    `until`: trio's time up to which all parts are cached, None when one must not be. `personal`: whether a
    part is not for all clients.
    """

    def __init__(self) -> None:
        self.began = trio.current_time()
        self.freshness = Freshness()
        self.until: float | None = math.inf
        self.personal = False
        self.problems: dict[str, list[Problem]] = {}  # of items, by upstream

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
                except RpcError as error:
                    walk.take_failure(position, error.message)
                else:
                    fetches.append(self._fetch(position, upstream, call, walk, parts))
            await together(fetches)
            walk.end_round()
        if walk.failures:
            parts.until = None
        result = self._result(call, walk, parts.freshness)
        problems = await self._problems(call, walk, parts)
        return self._access.confined(_told(result, ITEMS, problems) if problems else result)

    async def _problems(self, call: Call, walk: Walk, parts: Parts) -> dict[str, list[dict[str, object]]]:
        """Return the problems of a list that the client may know of, by upstream."""
        told: dict[str, list[dict[str, object]]] = {}
        method = call.method
        for name in self._registry if method in LISTS and (parts.problems or walk.problems) else ():
            upstream = self._registry[name]
            report(upstream, method, walk.problems.get(name, ()))
            found = [*parts.problems.get(name, ()), *walk.problems.get(name, ())]
            shown = await self._access.shown(call, name, upstream.key, [problem.name for problem in found])
            found = [problem for problem, is_shown in zip(found, shown, strict=True) if is_shown]
            if found:
                told[name] = [
                    {
                        **self._shown_name(call, upstream, problem.name),
                        "problem": problem.text,
                        "leftOut": problem.left_out,
                    }
                    for problem in some_of(found, TOLD_LIMIT)
                ]
        return told

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
        # For all rounds of one combined page together, so the time since the first counts.
        deadline = Deadline(seconds, trio.current_time() - parts.began, seconds)
        of_tasks = call.method == TASKS_LIST
        try:
            if upstream.connection is None:
                await in_task()
                with limited(deadline):
                    await upstream.appear()
            found = await find_page(upstream, call, position.cursor, deadline, anew=of_tasks)
        except RpcError as error:
            walk.take_failure(position, error.message)
        except Overdue:
            upstream.failed()
            walk.take_failure(position, upstream.late(call.method, seconds).message)
        else:
            page = _sifted(walk, position, found.page)
            items, names = page.items, page.texts
            if not self._access.of(call.principal).is_open or of_tasks:
                if call.method in (TOOLS_LIST, TASKS_LIST):
                    try:
                        await learn_tools(self._access, upstream, call)
                    except RpcError as error:
                        walk.take_failure(position, error.message)
                        return
                shown = await self._access.shown(call, upstream.name, upstream.key, page.texts)
                if of_tasks:
                    own = [not self._hides(upstream, call, task_id) for task_id in page.texts]
                    shown = list(map(and_, shown, own))
                items = list(compress(items, shown))
                names = list(compress(page.texts, shown))
            names, items = self._access.overridden(call, upstream.space, names, items)
            parts.take(found, for_all=upstream.config.session == "shared")
            limit = upstream.config.max_list_items
            looked_at = len(found.page.items)
            walk.take_page(position, items, page.following, limit, names=names, looked_at=looked_at)
            parts.freshness.take(page.result)
            if page.problems:
                parts.problems.setdefault(upstream.name, []).extend(page.problems)

    def _result(self, call: Call, walk: Walk, freshness: Freshness) -> Fields:
        method = call.method
        if walk.failures and self.merging.strict:
            raise incomplete("The list is not complete", self._registry, walk.failures)
        result = {"resultType": _COMPLETE, PAGED[method].items: walk.items()}
        if walk.wanted:
            try:
                result["nextCursor"] = raw(self.seal.seal(method, walk.resume(), call.principal.key))
            except InvalidCursor as error:
                raise RpcError(INTERNAL_ERROR, f"The list cannot go on: {error}") from None
        result["ttlMs"] = raw(0 if walk.failures else freshness.ttl_ms)
        result["cacheScope"] = raw(freshness.scope)
        return mention(result, self._registry, walk.failures) if walk.failures else result


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
