"""Who owns a name or URI that does not say so: asked of the upstreams themselves."""

from __future__ import annotations

from collections.abc import Mapping

import trio

from mcpmux.errors import RpcError
from mcpmux.mux.template import matches
from mcpmux.protocol.envelope import text_of
from mcpmux.protocol.method import RESOURCES_LIST, TEMPLATES_LIST
from mcpmux.runtime.paging import walk
from mcpmux.runtime.upstream import Upstream


class Catalog:
    """Looks into the upstreams' lists."""

    def __init__(self, upstreams: Mapping[str, Upstream]) -> None:
        self._upstreams = upstreams

    async def owners_of(self, uri: str) -> list[str]:
        """The upstreams that list `uri`, or else those with a template that it matches; configuration order.

        An upstream that does not answer in its time owns nothing.
        """
        listed: set[str] = set()
        templated: set[str] = set()
        async with trio.open_nursery() as nursery:
            for upstream in self._upstreams.values():
                nursery.start_soon(self._claim, upstream, uri, listed, templated)
        owners = listed or templated
        return [name for name in self._upstreams if name in owners]

    async def _claim(self, upstream: Upstream, uri: str, listed: set[str], templated: set[str]) -> None:
        with trio.move_on_after(upstream.config.list_timeout):
            if uri in await self._texts(upstream, RESOURCES_LIST, "uri"):
                listed.add(upstream.name)
                return
            templates = await self._texts(upstream, TEMPLATES_LIST, "uriTemplate")
            if any(matches(template, uri) for template in templates):
                templated.add(upstream.name)

    async def names(self, list_method: str, owner: str) -> list[str]:
        """The names in one upstream's own list of tools or prompts."""
        upstream = self._upstreams[owner]
        with trio.move_on_after(upstream.config.list_timeout):
            return await self._texts(upstream, list_method, "name")
        return []

    async def _texts(self, upstream: Upstream, list_method: str, key: str) -> list[str]:
        try:
            items = await walk(upstream, list_method)
        except RpcError:
            return []
        return [text for item in items if (text := text_of(item.get(key))) is not None]
