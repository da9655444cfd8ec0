"""Who owns a name or URI that does not say so: asked of the upstreams themselves."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

import trio

from mcpmux.errors import RpcError
from mcpmux.mux.pattern import matches_template
from mcpmux.protocol.call import Call
from mcpmux.protocol.codes import UPSTREAM_TIMEOUT
from mcpmux.protocol.method import RESOURCES_LIST, TEMPLATES_LIST
from mcpmux.runtime.merger import Walked, walk
from mcpmux.runtime.upstreams.registry import UpstreamRegistry
from mcpmux.runtime.upstreams.upstream import Upstream
from mcpmux.transports.inline import in_task

NAMES_KEPT: Final = 10_000  # shortened names whose own names are remembered


class Owners(NamedTuple):
    """Who owns a URI or a name; `missing`: who could not be asked, with a sentence why."""

    names: list[str]
    missing: dict[str, str]


class Catalog:
    """Looks into the upstreams' lists: as they are remembered, and anew for what is not found there."""

    def __init__(self, registry: UpstreamRegistry) -> None:
        self._registry = registry
        self._names: dict[tuple[str, str], str] = {}  # own names by (upstream, shortened name)

    async def owners_of(
        self, text: str, call: Call, asked: Collection[str], list_method: str = RESOURCES_LIST
    ) -> Owners:
        """Those of `asked` that list a URI or name, or else have a template that it matches; in that order.

        What does not answer in its time owns nothing, and is `missing`.
        """
        await in_task()
        owners, again = await self._search(text, call, asked, list_method, anew=False)
        if again and not owners.names:
            owners, _ = await self._search(text, call, asked, list_method, anew=True)
        return owners

    async def _search(
        self, text: str, call: Call, asked: Collection[str], list_method: str, *, anew: bool
    ) -> tuple[Owners, bool]:
        """The owners, and whether anybody was judged by what is remembered of it."""
        listed: set[str] = set()
        templated: set[str] = set()
        missing: dict[str, str] = {}
        again = False

        async def claim(upstream: Upstream) -> None:
            nonlocal again
            try:
                walked = await self._walk(upstream, list_method, call, anew=anew)
                again = again or walked.again
                if text in walked.texts:
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
        return Owners([name for name in asked if name in owners], missing), again

    async def find_name(
        self, list_method: str, owner: str, name: str, call: Call, find: Callable[[list[str]], str | None]
    ) -> str | None:
        """What `find` finds for `name` among the names in one upstream's list of tools or prompts.

        That is a matter of the two names, so it is remembered whatever the list says later. Raises RpcError.
        """
        known = self._names.get((owner, name))
        if known is not None:
            return known
        await in_task()
        upstream = self._registry.for_call(owner, call)
        walked = await self._walk(upstream, list_method, call)
        found = find(walked.texts)
        if found is None and walked.again:
            found = find((await self._walk(upstream, list_method, call, anew=True)).texts)
        if found is not None:
            if len(self._names) >= NAMES_KEPT:
                del self._names[next(iter(self._names))]
            self._names[owner, name] = found
        return found

    async def _walk(self, upstream: Upstream, list_method: str, call: Call, *, anew: bool = False) -> Walked:
        seconds = upstream.config.list_timeout
        with trio.move_on_after(seconds):
            return await walk(upstream, call.on_behalf(list_method, {}), anew=anew)
        upstream.failed()
        raise upstream.error(UPSTREAM_TIMEOUT, f"did not answer {list_method} within {seconds:g} s")
