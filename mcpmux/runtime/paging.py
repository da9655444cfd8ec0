"""One upstream's lists, page by page."""

from __future__ import annotations

from typing import NamedTuple

from mcpmux.errors import RpcError
from mcpmux.mux.cursor import Position
from mcpmux.protocol.call import Call
from mcpmux.protocol.codes import METHOD_NOT_FOUND, UPSTREAM_UNAVAILABLE
from mcpmux.protocol.envelope import Fields, decode_list, raw, text_of
from mcpmux.protocol.method import PAGED
from mcpmux.runtime.upstreams.connection import unheard
from mcpmux.runtime.upstreams.upstream import Upstream

PAGE_LIMIT = 10_000  # pages of one upstream's list; a list that is longer is taken for one that never ends


class Page(NamedTuple):
    """One page: its items, the upstream's cursor after it (None: the last), and the whole result."""

    items: list[Fields]
    following: str | None
    result: Fields


async def fetch_page(upstream: Upstream, call: Call, cursor: str | None) -> Page:
    """One page of the list that `call` asks for; an empty one when the upstream has no such list.

    Raises RpcError. The caller owns the deadline.
    """
    method = call.method
    kind = PAGED[method]
    await upstream.settled()
    if upstream.facts is not None and not upstream.facts.offers(kind.capability):
        return Page([], None, {})
    params = {} if cursor is None else {"cursor": raw(cursor)}
    try:
        result = await upstream.exchange(call.with_params(params), unheard)
    except RpcError as error:
        if error.code == METHOD_NOT_FOUND:  # some servers offer resources and know no templates
            return Page([], None, {})
        raise
    try:
        items = decode_list(result[kind.items])
    except (KeyError, ValueError):
        raise upstream.error(UPSTREAM_UNAVAILABLE, f"answered {method} without a list") from None
    return Page(items, text_of(result.get("nextCursor")), result)


async def walk(upstream: Upstream, call: Call) -> list[Fields]:
    """Every item of the list that `call` asks for. Raises RpcError, also for a list that never ends."""
    items: list[Fields] = []
    position = Position(upstream.name)
    for _ in range(PAGE_LIMIT):
        page = await fetch_page(upstream, call, position.cursor)
        items += page.items
        if page.following is None:
            return items
        following = position.advance(page.following)
        if following is None:
            break
        position = following
    raise upstream.error(UPSTREAM_UNAVAILABLE, f"answers {call.method} with a list that never ends")
