"""One upstream's lists, page by page."""

from __future__ import annotations

import math
from typing import NamedTuple

from mcpmux.errors import RpcError
from mcpmux.mux.cursor import Position
from mcpmux.mux.exposed_list import expose_list
from mcpmux.mux.merge import PAGE_LIMIT
from mcpmux.protocol.call import Call
from mcpmux.protocol.codes import METHOD_NOT_FOUND, UPSTREAM_UNAVAILABLE
from mcpmux.protocol.envelope import decode_list, raw, text_of
from mcpmux.protocol.method import PAGED
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.runtime.upstreams.connection import unheard
from mcpmux.runtime.upstreams.memory import HINTS, Found, Page
from mcpmux.runtime.upstreams.upstream import Upstream


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
