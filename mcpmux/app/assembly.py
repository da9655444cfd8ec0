"""Everything between clients and upstreams, made and connected.

Promises: nothing runs outside the context; leaving it ends sessions and stops child processes, each step
bounded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import trio

from mcpmux.app.mux import Mux, implementation, seal_of, state_seal_of
from mcpmux.app.sessions import Sessions
from mcpmux.config import Config
from mcpmux.mux.generations import Generations
from mcpmux.mux.policy import policy_of
from mcpmux.runtime.downstreams.front import Front
from mcpmux.runtime.guard import Guard
from mcpmux.runtime.merger import Merger
from mcpmux.runtime.relay import Relay
from mcpmux.runtime.router import Router
from mcpmux.runtime.tap import Tap, Trace
from mcpmux.runtime.tasks.tasks import Tasks
from mcpmux.runtime.upstreams.channels import ChannelOpener
from mcpmux.runtime.upstreams.memory import Store
from mcpmux.runtime.upstreams.upstream import OpenChannel
from mcpmux.transports.process import StopLadder
from mcpmux.transports.receiving import open_reception
from mcpmux.transports.reception import Reception, available
from mcpmux.transports.tls.context import TlsContexts

STOP_LADDER = StopLadder(close_seconds=2.0, terminate_seconds=2.0)


@asynccontextmanager
async def open_mux(
    config: Config,
    open_channel: OpenChannel | None = None,
    tap: Tap | None = None,
    trace: Trace | None = None,
    mark: str = "",
    generations: Generations | None = None,
) -> AsyncIterator[Mux]:
    """Connect the upstreams (in the background) and put the router in front of them.

    `open_channel` replaces the real transports, for embedding mcpmux where servers are not reached by them.
    `tap` sees every message on both legs; `trace`, which needs a tap, every call of an upstream. `mark`
    stands in front of what clients are given to come back with, when other processes serve them, too;
    `generations` is what these share then.

    Leaving ends sessions and stops child processes, each step bounded.
    """
    async with AsyncExitStack() as stack:
        reception = await stack.enter_async_context(open_reception()) if available else None
        store = Store(config.caching, generations)
        opened = _open_mux(config, reception, open_channel, tap, trace, mark, store)
        yield await stack.enter_async_context(opened)


@asynccontextmanager
async def _open_mux(
    config: Config,
    reception: Reception | None,
    open_channel: OpenChannel | None,
    tap: Tap | None,
    trace: Trace | None,
    mark: str,
    store: Store,
) -> AsyncIterator[Mux]:
    limits, certificates = config.limits, TlsContexts()
    opener = ChannelOpener(
        limits.max_message_bytes,
        limits.max_head_bytes,
        STOP_LADDER,
        head_fields=limits.max_header_fields,
        reception=reception,
        certificates=certificates,
    )
    server_info = implementation(config.identity)
    guard = Guard(policy_of(config.access))
    sessions = Sessions(config, server_info, open_channel or opener.open, tap, trace, guard, store)
    fleet = sessions.fleet
    relay = sessions.relay = Relay(fleet.space, config.merging.change_window, sessions.on_wanted, guard)
    relay.passes_all = sessions.namespace.transparent is not None
    fleet.become({name: sessions.make_shared(name) for name in sessions.settings})
    tasks = Tasks(relay.personal, fleet.client, guard)
    merging = config.merging
    merger = Merger(
        fleet, seal_of(config), merging.page_size, tasks.hides, guard, store, strict=merging.strict
    )
    router = Router(
        fleet, sessions.namespace, merger, relay, tasks, server_info, config.identity.instructions, guard
    )
    front = Front(router, relay, server_info, tap, state_seal_of(config), mark)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relay.run, name="relay")
        await nursery.start(tasks.waits.run)
        await nursery.start(fleet.run, name="fleet")
        yield Mux(
            config,
            router,
            front,
            relay,
            fleet,
            merger,
            sessions,
            reception,
            certificates=certificates,
        )
        nursery.cancel_scope.cancel()
