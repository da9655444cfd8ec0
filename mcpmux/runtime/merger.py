"""Merged lists: a combined page out of many upstreams' pages, fetched at the same time.

Each upstream has its own deadline for its part of one combined page. What is left out is named, with the
reason, in the result's `_meta` under `dev.mcpmux/upstreams`: `{"name": {"state": …, "reason": …}}`.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from mcpmux.errors import RpcError
from mcpmux.mux import rewrite
from mcpmux.mux.cursor import CursorSeal, InvalidCursor, Position
from mcpmux.mux.freshness import Freshness
from mcpmux.mux.merge import Walk
from mcpmux.protocol.call import META, Call, Notify
from mcpmux.protocol.codes import INTERNAL_ERROR, INVALID_PARAMS
from mcpmux.protocol.envelope import Fields, raw, text_of
from mcpmux.protocol.method import PAGED, TASKS_LIST
from mcpmux.runtime.paging import fetch_page
from mcpmux.runtime.upstreams.fleet import Fleet
from mcpmux.runtime.upstreams.upstream import Upstream

Hides = Callable[[Upstream, Call, Fields], bool]
"""Whether an item of an upstream's list must not be shown to the client of the call."""

LEFT_OUT = "dev.mcpmux/upstreams"


class Merger:
    """Serves combined pages. Remembers nothing between them: the cursor carries the walk."""

    def __init__(self, fleet: Fleet, seal: CursorSeal, page_size: int, hides: Hides) -> None:
        """`hides`: which tasks are not the client's."""
        self._fleet = fleet
        self._hides = hides
        self._seal = seal
        self._page_size = page_size

    async def page(self, call: Call, _notify: Notify) -> Fields:
        """One combined page of the list that `call` asks for. Raises RpcError for a bad cursor."""
        walk = Walk(self._start(call), self._page_size)
        began = trio.current_time()
        freshness = Freshness()
        while not walk.done:
            async with trio.open_nursery() as nursery:
                for position in walk.wanted:
                    nursery.start_soon(self._fetch, walk, position, call, began, freshness)
            walk.end_round()
        return self._result(call.method, walk, freshness)

    def _start(self, call: Call) -> list[Position]:
        if "cursor" not in call.params or bytes(call.params["cursor"]) == b"null":
            return [Position(name) for name in self._fleet]
        cursor = text_of(call.params["cursor"])
        if cursor is None:
            raise RpcError(INVALID_PARAMS, 'Invalid params: "cursor" must be a string')
        try:
            return self._seal.open(call.method, cursor, self._fleet.keys())
        except InvalidCursor as error:
            raise RpcError(INVALID_PARAMS, f"Invalid cursor: {error}") from None

    async def _fetch(
        self, walk: Walk, position: Position, call: Call, began: float, freshness: Freshness
    ) -> None:
        """One upstream's next page, within what is left of its time; a failure is its own."""
        upstream = self._fleet.for_call(position.upstream, call)
        seconds = upstream.config.list_timeout
        with trio.move_on_at(began + seconds):
            try:
                page = await fetch_page(upstream, call, position.cursor)
            except RpcError as error:
                walk.take_failure(position, error.message)
                return
            space = upstream.space
            found = page.items
            if call.method == TASKS_LIST:
                found = [task for task in found if not self._hides(upstream, call, task)]
            items = [rewrite.expose_item(call.method, item, space) for item in found]
            walk.take_page(position, items, page.following)
            freshness.take(page.result)
            return
        walk.take_failure(position, f"Upstream {upstream.name!r} did not answer within {seconds:g} s")

    def _result(self, method: str, walk: Walk, freshness: Freshness) -> Fields:
        result = {"resultType": raw("complete"), PAGED[method].items: raw(walk.items)}
        if walk.wanted:
            try:
                result["nextCursor"] = raw(self._seal.seal(method, walk.wanted))
            except InvalidCursor as error:
                raise RpcError(INTERNAL_ERROR, f"The list cannot go on: {error}") from None
        result["ttlMs"] = raw(0 if walk.failures else freshness.ttl_ms)
        result["cacheScope"] = raw(freshness.scope)
        if walk.failures:
            left_out = {
                name: {"state": self._fleet[name].state, "reason": reason}
                for name in self._fleet
                if (reason := walk.failures.get(name)) is not None
            }
            result[META] = raw({LEFT_OUT: left_out})
        return result
