"""Who owns a name or URI that does not say so: asked of the upstreams themselves."""

from __future__ import annotations

import trio

from mcpmux.errors import RpcError
from mcpmux.mux.template import matches
from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import text_of
from mcpmux.protocol.method import RESOURCES_LIST, TEMPLATES_LIST
from mcpmux.runtime.paging import walk
from mcpmux.runtime.upstreams.fleet import Fleet
from mcpmux.runtime.upstreams.upstream import Upstream


class Catalog:
    """Looks into the upstreams' lists."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def owners_of(self, uri: str, call: Call) -> list[str]:
        """The upstreams that list `uri`, or else those with a template that it matches; configuration order.

        An upstream that does not answer in its time owns nothing.
        """
        listed: set[str] = set()
        templated: set[str] = set()
        async with trio.open_nursery() as nursery:
            for name in self._fleet:
                upstream = self._fleet.for_call(name, call)
                nursery.start_soon(self._claim, upstream, uri, call, listed, templated)
        owners = listed or templated
        return [name for name in self._fleet if name in owners]

    async def _claim(
        self, upstream: Upstream, uri: str, call: Call, listed: set[str], templated: set[str]
    ) -> None:
        with trio.move_on_after(upstream.config.list_timeout):
            if uri in await self._texts(upstream, RESOURCES_LIST, call, "uri"):
                listed.add(upstream.name)
                return
            templates = await self._texts(upstream, TEMPLATES_LIST, call, "uriTemplate")
            if any(matches(template, uri) for template in templates):
                templated.add(upstream.name)

    async def names(self, list_method: str, owner: str, call: Call) -> list[str]:
        """The names in one upstream's own list of tools or prompts."""
        upstream = self._fleet.for_call(owner, call)
        with trio.move_on_after(upstream.config.list_timeout):
            return await self._texts(upstream, list_method, call, "name")
        return []

    async def _texts(self, upstream: Upstream, list_method: str, call: Call, key: str) -> list[str]:
        try:
            items = await walk(upstream, call.on_behalf(list_method, {}))
        except RpcError:
            return []
        return [text for item in items if (text := text_of(item.get(key))) is not None]
