"""Asking an upstream, unless its memory has the answer or somebody asks the same at this moment."""

from __future__ import annotations

from typing import Final

import trio

from mcpmux.errors import RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call, Notify
from mcpmux.protocol.codes import UPSTREAM_TIMEOUT
from mcpmux.protocol.envelope import text_of
from mcpmux.protocol.raw_json import Fields
from mcpmux.runtime.tap import EXCHANGE
from mcpmux.runtime.upstreams.memory import Ask, Memory, Page
from mcpmux.runtime.upstreams.upstream import Upstream
from mcpmux.transports.inline import in_task

REMEMBERED: Final = frozenset({*m.LISTS, m.RESOURCES_READ})
"""What `ask_or_remember` may answer without asking."""


async def read_or_remember(
    upstream: Upstream, memory: Memory, call: Call, ask: Ask, notify: Notify
) -> Fields:
    """A resource of `upstream`, whose memory `memory` is; `ask` asks it. Raises RpcError.

    Whoever waits for another's exchange does so for as long as one of its own may take.
    """
    if upstream.watch is not None:
        upstream.watch.tap.routed(EXCHANGE.get(), upstream.name)
    seconds = _seconds(upstream, call)
    result = await memory.read(call, ask, notify, seconds)
    if result is None:
        raise _too_late(upstream, call, seconds)
    return result


async def ask_or_remember(upstream: Upstream, call: Call, notify: Notify) -> Fields:
    """An upstream's own answer to a read or a list, in its own words. Raises RpcError."""
    memory = upstream.memory
    if memory is None or (call.method == m.RESOURCES_READ and memory.passes()):
        return await upstream.exchange(call, notify)
    if call.method == m.RESOURCES_READ:

        async def ask(pass_on: Notify) -> Fields:
            return await upstream.exchange(call, pass_on)

        return await read_or_remember(upstream, memory, call, ask, notify)
    return await _list_or_remember(upstream, memory, call, notify)


async def _list_or_remember(upstream: Upstream, memory: Memory, call: Call, notify: Notify) -> Fields:
    cursor = text_of(call.params.get("cursor"))
    if len(call.params) > 1 or (call.params and cursor is None) or call.wants_progress:
        return await upstream.exchange(call, notify)
    if upstream.watch is not None:
        upstream.watch.tap.routed(EXCHANGE.get(), upstream.name)

    async def fetch() -> Page:
        return Page([], [], None, await upstream.exchange(call, notify))

    seconds = _seconds(upstream, call)
    await in_task()
    with trio.move_on_after(seconds):
        found = await memory.page(call, cursor, fetch)
        return dict(found.page.result)
    raise _too_late(upstream, call, seconds)


def _seconds(upstream: Upstream, call: Call) -> float:
    """How long one exchange may take."""
    return upstream.config.timeouts.get(call.method, upstream.config.request_timeout)


def _too_late(upstream: Upstream, call: Call, seconds: float) -> RpcError:
    return upstream.error(UPSTREAM_TIMEOUT, f"did not answer {call.method} within {seconds:g} s")
