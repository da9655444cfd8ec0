"""Find what clients of views see of the upstreams' lists, and estimate its tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import compress
from typing import NamedTuple

import attrs
import trio

from mcpmux.app.mux import Mux, shown_by
from mcpmux.config import Config
from mcpmux.config.views import TOOLS
from mcpmux.errors import RpcError
from mcpmux.mux.rewrite import NAMED_BY
from mcpmux.mux.search import SHOWN
from mcpmux.mux.view import KIND_OF_LIST
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import decode_fields, decode_list, raw, text_of
from mcpmux.protocol.principal import ANYONE, Principal
from mcpmux.protocol.raw_json import Raw
from mcpmux.runtime.access_control import AccessControl
from mcpmux.traffic.admin.configured_views import SHOWN_NAMES, ViewCount, ViewsState, describe_views
from mcpmux.traffic.redaction.redactor import Redactor
from mcpmux.upstreams.lists import walk
from mcpmux.upstreams.upstream import Upstream

TOKEN_CHARACTERS = 4  # of JSON for each token: a simple estimate, near enough to compare views
COUNT_SECONDS = 5.0  # for an upstream to send its lists; a person waits for the numbers


class Seen(NamedTuple):
    """An item that a client sees. `rule`: the selector that selects it.

    `tokens`: of its entry in a list, 0 for a searched tool, which is in no list.
    """

    kind: str
    name: str
    upstream: str
    tokens: int
    rule: str


def for_everybody(config: Config) -> Config:
    """Return the configuration without access rules, and with all views for all principals."""
    views = {name: attrs.evolve(view, principals=()) for name, view in config.views.items()}
    return attrs.evolve(config, access=(), views=views)


async def look_as(client: Principal, access: AccessControl, upstreams: Mapping[str, Upstream]) -> list[Seen]:
    """Return all items that a client sees. Raises RpcError."""
    return [*look_at_search(client, access), *await look_at(client, access, upstreams)]


def look_at_search(client: Principal, access: AccessControl) -> list[Seen]:
    """Return the search tools, if the client's view has them instead of the listed tools."""
    if not access.of(client).is_searched:
        return []
    rule = f"views.{client.view_name}.tools"
    tools = map(raw, decode_list(SHOWN))
    return [Seen(TOOLS, item_name(item, m.TOOLS_LIST), "-", tokens_in(item), rule) for item in tools]


async def look_at(client: Principal, access: AccessControl, upstreams: Mapping[str, Upstream]) -> list[Seen]:
    """Return the items that a client sees of upstreams. Raises RpcError."""
    items: list[Seen] = []
    for method, listed in m.LISTS.items():
        call = Call(method, {}, {}, principal=client)
        for name in access.of(client).visible(call.method, upstreams):
            upstream = upstreams[name]
            if upstream.facts is not None and upstream.facts.offers(listed.capability):
                items += await items_of(access, upstream, call)
    return items


async def items_of(access: AccessControl, upstream: Upstream, call: Call) -> list[Seen]:
    """Return the items that a client sees of one upstream's list. Raises RpcError."""
    found, kind = [], KIND_OF_LIST[call.method]
    is_listed = kind != TOOLS or not access.of(call.principal).is_searched
    selection = access.views.get(call.principal.view_name)
    # Selectors by annotations need to know the tools before any of them is judged.
    await access.learn_tools(upstream, call)
    for page in (await walk(upstream, call)).pages:
        shown = await access.shown(call, upstream.name, upstream.key, page.texts)
        names, items = list(compress(page.texts, shown)), list(compress(page.items, shown))
        judge = access.of(call.principal)
        for own, item in zip(*judge.overridden(call.method, upstream.space, names, items), strict=True):
            exposed = item_name(item, call.method) or own or ""
            tokens = tokens_in(item) if is_listed else 0
            rule = selection.rule_for(upstream.name, kind, own or "") if selection is not None else ""
            found.append(Seen(kind, exposed, upstream.name, tokens, rule or "-"))
    return found


def item_name(item: Raw, list_method: str) -> str:
    """Return the name, URI or template of an item in a list, "" when it has none."""
    return text_of(decode_fields(item).get(NAMED_BY[list_method])) or ""


def tokens_in(item: Raw) -> int:
    """Return the approximate number of tokens of an item in a list."""
    return -(-len(bytes(item).decode(errors="replace")) // TOKEN_CHARACTERS)


@dataclass(eq=False)
class MuxViews:
    """The views of a running mux. See `Views`."""

    _mux: Mux
    _redactor: Redactor

    def read_views(self) -> ViewsState:
        return describe_views(self._mux.config)

    async def count_views(self) -> dict[str, ViewCount]:
        # The page is for an administrator, and shows each view as any of its principals has it.
        config = for_everybody(self._mux.config)
        access = AccessControl(None, shown_by(config))
        clients = [ANYONE, *map(ANYONE.within, config.views)]
        seen = {client.view: look_at_search(client, access) for client in clients}
        missing: dict[str, dict[str, str]] = {client.view: {} for client in clients}

        async def count(client: Principal, upstream: Upstream) -> None:
            reason = ""
            with trio.move_on_after(COUNT_SECONDS) as scope:
                try:
                    # Else a server that is about to be connected would be missing.
                    await upstream.supervision.settled()
                    seen[client.view].extend(await look_at(client, access, {upstream.name: upstream}))
                    if upstream.facts is None:
                        reason = upstream.status.trouble_in_full or upstream.state
                except RpcError as error:
                    reason = error.message
            if scope.cancelled_caught:
                reason = f"does not answer within {COUNT_SECONDS:g} seconds"
            if reason:
                missing[client.view][upstream.name] = self._redactor.clean(reason)

        async with trio.open_nursery() as nursery:
            for client in clients:
                for upstream in self._mux.upstreams.values():
                    if access.of(client).sees(upstream.name):
                        nursery.start_soon(count, client, upstream)
        counts = {}
        for view, items in seen.items():
            kinds, names = Counter(item.kind for item in items), dict[str, list[str]]()
            for kind in kinds:
                # Servers choose names, which may contain what the rules of redaction hide.
                cleaned = sorted(self._redactor.clean(item.name) for item in items if item.kind == kind)
                names[kind] = cleaned[:SHOWN_NAMES]
            tokens = sum(item.tokens for item in items)
            counts[view] = ViewCount(**kinds, tokens=tokens, missing=missing[view], names=names)
        return counts
