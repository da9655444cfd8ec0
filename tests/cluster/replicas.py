"""Several replicas in one process: a store in memory, real ports on loopback, scripted upstreams."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

from mcpmux import app
from mcpmux.app.listeners import Serving, make_gate, serve_listener
from mcpmux.cluster.memory_store import MemoryStore
from mcpmux.cluster.replica import Replica as Node
from mcpmux.cluster.replica import open_replica
from mcpmux.cluster.store import Store, StoreAway
from mcpmux.config import Caching, Config, HttpListener, Limits, Merging, Secret
from mcpmux.config.auth import Auth
from mcpmux.config.cluster import Cluster
from mcpmux.config.model import RateLimit
from mcpmux.config.views import Selector, View
from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.http.route import HttpOrigin
from tests.runtime.scripted import Json, ScriptedServer
from tests.runtime.test_http_endpoint import HttpClient
from tests.runtime.world import World, upstream

LEASE = 0.6  # seconds: short, and long enough for a machine that does other things
PATIENCE = 20.0
KEY = "key of this cluster"


class Line:
    """The way of one replica to the store, which can be cut. `asked`: what has gone along it, by name."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_cut = False
        self.asked: Counter[str] = Counter()
        self.lag: float | None = None

    @property
    def commands(self) -> int:
        return self.asked.total()

    def __getattr__(self, name: str) -> Any:
        return partial(self._command, name, getattr(self._store, name))

    async def _command(self, name: str, command: Any, *arguments: Any, **named: Any) -> Any:
        self.asked[name] += 1
        await trio.lowlevel.checkpoint()
        if self.is_cut:
            raise StoreAway("the store is cut off")
        began = trio.current_time()
        answer = await command(*arguments, **named)
        self.lag = trio.current_time() - began
        return answer


@dataclass(eq=False)
class Replica:
    """One replica. `client` speaks to it alone."""

    name: str
    world: World
    line: Line
    node: Node
    mux: app.Mux
    scope: trio.CancelScope
    client: HttpClient
    ended: trio.Event = field(default_factory=trio.Event)

    async def kill(self) -> None:
        """End it without a word to anybody."""
        self.line.is_cut = True
        self.scope.cancel()
        await self.ended.wait()

    @property
    def server(self) -> Any:
        """The upstream that it is connected to."""
        return self.world.servers["docs"]


@dataclass(eq=False)
class Replicas:
    """All of them. `store` is what they share."""

    store: MemoryStore
    nursery: trio.Nursery
    all: dict[str, Replica] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Replica:
        return self.all[name]

    async def start(self, name: str, server: ScriptedServer, **settings: Any) -> Replica:
        """One more replica, with a connection of its own to an upstream."""
        replica: Replica = await self.nursery.start(partial(self._run, name, server, **settings))
        self.all[name] = replica
        return replica

    async def know_each_other(self) -> None:
        """Wait until each replica that runs knows all others, and remembers what upstreams answer."""
        running = [each for each in self.all.values() if not each.ended.is_set()]
        for replica in running:
            while len(replica.node.members.others) < len(running) - 1 or not replica.node.members.is_inside:
                await replica.node.members.changed(LEASE)

    async def _run(
        self,
        name: str,
        server: ScriptedServer,
        *,
        caching: Caching | None = None,
        key: str = KEY,
        rate: tuple[RateLimit, ...] = (),
        auth: Auth | None = None,
        idle: float = 30.0,
        most_sessions: int | None = None,
        replica_id: str | None = None,
        task_status: Any = trio.TASK_STATUS_IGNORED,
        **settings: Any,
    ) -> None:
        config = Config(
            upstreams=(upstream("docs", **settings),),
            merging=Merging(cursor_key=Secret(key)),
            caching=caching or Caching(),
            auth=auth or Auth(),
            limits=Limits(session_idle=idle, rate=rate, max_sessions_per_principal=most_sessions),
            views={"some": View(include=(Selector(upstream="docs"),))},
            cluster=Cluster(url=Secret("redis://unused"), replica=name, lease=LEASE),
        )
        world, line, urls = World({"docs": server}), Line(self.store), list[str]()
        replica: Replica | None = None
        stopping = trio.Event()
        try:
            async with AsyncExitStack() as stack:
                scope = stack.enter_context(trio.CancelScope())
                node = await stack.enter_async_context(open_replica(config, line))  # type: ignore[arg-type]
                if replica_id is not None:
                    node.members.marks.become(replica_id)
                marks, generations = node.members.marks, node.herald.generations
                shared = {"marks": marks, "generations": generations, "replicas": node.listens}
                opened = app.open_mux(config, world.open_channel, **shared)
                mux = world.mux = await stack.enter_async_context(opened)
                node.attach(mux.service, mux.hub, mux.rates)
                node.members.on_members = mux.share
                node.listens.attach(mux.hub, mux.upstreams)
                nursery = await stack.enter_async_context(trio.open_nursery())
                await node.join()
                gate = await make_gate(config)
                serving = Serving(
                    config.limits, mux.service, stopping, urls.append, gate, marks=marks, node=node
                )
                await nursery.start(serve_listener, HttpListener(port=0), serving)
                origin = HttpOrigin.from_url(urls[0])
                client = HttpClient(stack.enter_context(HttpPool(origin)), world)
                replica = Replica(name, world, line, node, mux, scope, client)
                task_status.started(replica)
                await trio.sleep_forever()
        finally:
            if replica is not None:
                replica.ended.set()


@asynccontextmanager
async def open_replicas(**servers: ScriptedServer) -> AsyncIterator[Replicas]:
    """A replica for each server, by name; they know each other."""
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            replicas = Replicas(MemoryStore(trio.current_time), nursery)
            for name, server in servers.items():
                await replicas.start(name, server)
            await replicas.know_each_other()
            yield replicas
            nursery.cancel_scope.cancel()


def text_in(result: Json) -> str:
    return str(json.loads(result["content"][0]["text"]))
