"""Several replicas in one process: a store in memory, real ports on loopback, scripted upstreams."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import trio

from mcpmux import app
from mcpmux.app.listeners import Serving, make_gate, serve_listener
from mcpmux.cluster.replica import open_replica
from mcpmux.cluster.seal import ClusterSeal
from mcpmux.cluster.store import Store
from mcpmux.config import Config
from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.http.route import HttpOrigin
from tests.cluster.nodes import PATIENCE, Line, Member, Members
from tests.peers.http_client import HttpClient
from tests.peers.server import ScriptedServer
from tests.runtime.world import World


@dataclass(eq=False)
class Replicas(Members):
    """Each has its own line to the store. `ids`: of those, by name, that do not get one by chance."""

    ids: dict[str, str] = field(default_factory=dict)

    async def run(
        self, name: str, config: Config, world: World, *, task_status: Any = trio.TASK_STATUS_IGNORED
    ) -> None:
        line, urls, ended = Line(self.store), list[str](), trio.Event()
        try:
            async with AsyncExitStack() as stack:
                scope = stack.enter_context(trio.CancelScope())
                opened = open_replica(config, cast("Store", line), ClusterSeal.of(config))
                node = await stack.enter_async_context(opened)
                if name in self.ids:
                    node.members.marks.become(self.ids[name])
                marks, generations = node.members.marks, node.herald.generations
                muxed = app.open_mux(
                    config,
                    world.open_channel,
                    marks=marks,
                    generations=generations,
                    replicas=node.listens,
                )
                mux = world.mux = await stack.enter_async_context(muxed)
                node.attach(mux.service, mux.hub, mux.rates)
                node.members.on_members = mux.share
                node.listens.attach(mux.hub, mux.upstreams)
                nursery = world.nursery = await stack.enter_async_context(trio.open_nursery())
                await node.join()
                gate = await make_gate(config)
                stopping = trio.Event()
                serving = Serving(config.limits, mux.service, stopping, urls.append, gate, replica=node)
                await nursery.start(serve_listener, config.listeners.http[0], serving)
                client = HttpClient(stack.enter_context(HttpPool(HttpOrigin.from_url(urls[0]))), world)
                replica = Member(
                    name=name,
                    world=world,
                    line=line,
                    scope=scope,
                    client=client,
                    node=node,
                    mux=mux,
                    ended=ended,
                )
                task_status.started(replica)
                await trio.sleep_forever()
        finally:
            ended.set()


def move(node: Any, url: str) -> None:
    """Have a replica tell the others another address from its next lease on."""
    node.members.card = msgspec.structs.replace(node.members.card, url=url)


@asynccontextmanager
async def open_replicas(**servers: ScriptedServer) -> AsyncIterator[Replicas]:
    """Open a replica for each server, by name; they know each other."""
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            replicas = Replicas(nursery)
            for name, server in servers.items():
                await replicas.start(name, server)
            await replicas.know_each_other()
            yield replicas
            nursery.cancel_scope.cancel()
