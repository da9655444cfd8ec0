"""Asking an upstream, unless its memory has the answer or somebody asks the same at this moment."""

from __future__ import annotations

from typing import Final

import trio

from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call, Notify
from mcpmux.protocol.envelope import text_of
from mcpmux.protocol.raw_json import Fields
from mcpmux.runtime.upstreams.memory import Memory, Page
from mcpmux.runtime.upstreams.upstream import Upstream
from mcpmux.transports.inline import in_task

REMEMBERED: Final = frozenset({*m.LISTS, m.RESOURCES_READ})
"""What `ask_or_remember` may answer without asking."""


async def ask_or_remember(upstream: Upstream, call: Call, notify: Notify) -> Fields:
    """An upstream's own answer to a read or a list, in its own words. Raises RpcError."""
    memory = upstream.memory
    if memory is None or (call.method == m.RESOURCES_READ and memory.passes()):
        return await upstream.exchange(call, notify)
    if call.method == m.RESOURCES_READ:

        async def ask(pass_on: Notify) -> Fields:
            return await upstream.exchange(call, pass_on)

        if upstream.watch is not None:
            upstream.watch.routed(upstream.name)
        return await memory.read(call, ask, notify, upstream)
    return await _list_or_remember(upstream, memory, call, notify)


async def _list_or_remember(upstream: Upstream, memory: Memory, call: Call, notify: Notify) -> Fields:
    cursor = text_of(call.params.get("cursor"))
    if len(call.params) > 1 or (call.params and cursor is None) or call.wants_progress:
        return await upstream.exchange(call, notify)
    if upstream.watch is not None:
        upstream.watch.routed(upstream.name)

    async def fetch() -> Page:
        return Page([], [], None, await upstream.exchange(call, notify))

    seconds = upstream.patience(call.method)
    await in_task()
    with trio.move_on_after(seconds):
        found = await memory.page(call, cursor, fetch)
        return dict(found.page.result)
    raise upstream.late(call.method, seconds)
