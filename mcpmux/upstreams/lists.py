"""Fetch what one upstream lists: a page, a whole list, or the names of its tools and prompts.

Pages are as clients see them, and come from the cache where they may. An upstream's names are
remembered beside that, for as long as a `Listing` is known: access rules, views, overrides, tasks and names
without a prefix all ask there, so that one list serves them all.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable
from itertools import compress, starmap
from operator import and_
from typing import Final, NamedTuple

import structlog
import trio

from mcpmux.channels.channel import ignore_event
from mcpmux.errors import RpcError
from mcpmux.mux.item import ItemProblem, some_of
from mcpmux.mux.listing import Listing
from mcpmux.mux.merge import Walk, expose_list
from mcpmux.mux.report import LeftOut, left_out_in, problems_in, reports_in
from mcpmux.mux.seal import Position
from mcpmux.protocol.call import META, Call, check_complete
from mcpmux.protocol.codes import METHOD_NOT_FOUND, UPSTREAM_UNAVAILABLE
from mcpmux.protocol.envelope import decode_fields, raw, text_of
from mcpmux.protocol.method import PAGED
from mcpmux.protocol.raw_json import Fields
from mcpmux.transports.inline import in_task
from mcpmux.transports.waiting import Deadline, limited
from mcpmux.upstreams.response_cache import HINTS, CachedPage, Page
from mcpmux.upstreams.upstream import Upstream

log = structlog.get_logger()

REPORTED_LIMIT: Final = 1000  # problems of one upstream in the log
NAME_CHARACTERS: Final = 200  # of a name in a report; a server may list longer ones

_NOTHING: Final = Page([], [], None, {})
_BAD_CURSOR: Final = ItemProblem(None, "`nextCursor` is no text: the list is cut there", left_out=False)


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
        list_call = call.with_params(params) if params or call.params else call
        try:
            result = await upstream.exchange(list_call, ignore_event, deadline)
            check_complete(result)
            listed = expose_list(method, result[kind.items], upstream.space)
        except RpcError as error:
            if error.code == METHOD_NOT_FOUND:  # some servers offer resources and know no templates
                return _NOTHING
            raise
        except (KeyError, ValueError):
            raise upstream.status.error(UPSTREAM_UNAVAILABLE, f"answered {method} without a list") from None
        hints: Fields = {}
        for key in HINTS:
            if key in result:
                hints[key] = result[key]
        following, problems = text_of(result.get("nextCursor")), listed.problems
        if following is None and bytes(result.get("nextCursor", b"null")) != b"null":
            problems = [*problems, _BAD_CURSOR]
        left_out: LeftOut = {}
        if META in result and (reports := reports_in(result[META])):
            left_out = left_out_in(reports, upstream.name)
            problems = [*problems, *starmap(ItemProblem, problems_in(reports))]
        if problems:
            report(upstream, method, problems)
        size = 2 * len(memoryview(result[kind.items]))
        return Page(listed.names, listed.items, following, hints, size, problems, left_out)

    if upstream.status.connection is None:
        await in_task()
        with limited(deadline):
            await upstream.supervision.settled()
    connection, memory = upstream.status.connection, upstream.memory
    offered = connection is None or connection.facts.offers(kind.capability)  # unknown without a connection
    # Without a memory a combined page must not be cached (`until` None): no change would drop it.
    if memory is None or anew:
        return CachedPage(await fetch() if offered else _NOTHING, None, personal=True)
    if not offered:
        return CachedPage(_NOTHING, math.inf, personal=False)
    return await memory.page(call, cursor, fetch, deadline)


def report(upstream: Upstream, method: str, problems: Iterable[ItemProblem]) -> None:
    """Log each problem of a list once."""
    for problem in problems:
        entry = method, problem
        if entry in upstream.reported or len(upstream.reported) >= REPORTED_LIMIT:
            continue
        upstream.reported.add(entry)
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


def sifted(walk: Walk, position: Position, page: Page, shown: list[bool] | None = None) -> Page:
    """Return the page at `position` without items that were on earlier pages, or that are not `shown`."""
    is_new = walk.sift(position, page.texts, shown)
    kept = shown if is_new is None else is_new if shown is None else list(map(and_, is_new, shown))
    if kept is None:
        return page
    return page._replace(texts=list(compress(page.texts, kept)), items=list(compress(page.items, kept)))


class Walked(NamedTuple):
    """All pages of a list, within its limits. `again`: some pages were cached.

    `problems`: of items, or of the list. `cut`: why the list was cut, None if it was not.
    """

    pages: list[Page]
    again: bool
    problems: list[ItemProblem]
    cut: str | None

    @property
    def texts(self) -> list[str]:
        """The upstream's own names or URIs of the items, without those that have none."""
        return [text for page in self.pages for text in page.texts if text is not None]


async def walk(upstream: Upstream, call: Call, *, anew: bool = False) -> Walked:
    """Return an upstream's whole list. `anew`: without the cache. Raises RpcError."""
    steps, limit = Walk([Position(upstream.name)], sys.maxsize), upstream.config.max_list_items
    pages: list[Page] = []
    problems: list[ItemProblem] = []
    again = False
    while not steps.done:
        [position] = steps.wanted
        cached = await find_page(upstream, call, position.cursor, None, anew=anew)
        again = again or cached.again
        page = sifted(steps, position, cached.page)
        steps.take_page(position, page.items, page.following, limit)
        steps.end_round()
        # `Walk` has cut the items that it holds itself; the page is cut here.
        room = limit - position.items
        if len(page.texts) > room:
            page = page._replace(texts=page.texts[:room], items=page.items[:room])
        pages.append(page)
        problems += page.problems
    problems += steps.problems.get(upstream.name, ())
    report(upstream, call.method, problems)
    return Walked(pages, again, some_of(problems), steps.failures.get(upstream.name))


async def walk_in_time(upstream: Upstream, list_method: str, call: Call, *, anew: bool = False) -> Walked:
    """Return the whole list on behalf of the client of a call, within `list_timeout`. Raises RpcError."""
    seconds = upstream.config.list_timeout
    with trio.move_on_after(seconds):
        return await walk(upstream, call.on_behalf(list_method, {}), anew=anew)
    upstream.health.failed()
    raise upstream.status.late(list_method, seconds)


def known_listing(upstream: Upstream, list_method: str) -> Listing | None:
    """Return what an upstream lists under names if that need not be asked for; None for other lists."""
    listing = upstream.listings.get(list_method)
    return listing if listing is not None and listing.is_known(trio.current_time()) else None


async def learn_listing(
    upstream: Upstream, list_method: str, call: Call, *, anew: bool = False
) -> tuple[Listing, bool]:
    """Fetch what an upstream lists under names. Return it, and whether pages were cached. Raises RpcError."""
    await in_task()
    listing = upstream.listings[list_method]
    # Counted before the fetch: what is reported meanwhile may be missing in the fetched list.
    changes = listing.changes
    walked = await walk_in_time(upstream, list_method, call, anew=anew)
    texts = (text for page in walked.pages for text in page.texts)
    items = (decode_fields(item) for page in walked.pages for item in page.items)
    named = {name: item for name, item in zip(texts, items, strict=True) if name is not None}
    listing.learn(named, trio.current_time(), changes)
    return listing, walked.again


async def names_of(
    upstream: Upstream, list_method: str, call: Call, *, anew: bool = False
) -> tuple[Collection[str], bool]:
    """Return the own names, URIs or templates in an upstream's list, and whether some were remembered.

    `anew`: they must not be. Raises RpcError.
    """
    if list_method not in upstream.listings:
        await in_task()
        walked = await walk_in_time(upstream, list_method, call, anew=anew)
        return walked.texts, walked.again
    if not anew and (known := known_listing(upstream, list_method)) is not None:
        return known.items, True
    listing, again = await learn_listing(upstream, list_method, call, anew=anew)
    return listing.items, again
