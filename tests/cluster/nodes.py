"""Several mcpmux that serve the same clients, in one process: what is the same for each engine."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

from mcpmux import app
from mcpmux.cluster.replica import Replica
from mcpmux.cluster.store import MemoryStore, Store, StoreAway
from mcpmux.config import Caching, Config, HttpListener, Limits, Listeners, Merging, Secret
from mcpmux.config.auth import AccessRule, Auth
from mcpmux.config.cluster import Cluster
from mcpmux.config.model import RateLimit
from mcpmux.config.views import Selector, View
from tests.peers.http_client import HttpClient
from tests.peers.revision import Json
from tests.peers.server import ScriptedServer
from tests.runtime.world import World, upstream

LEASE = 1.0  # seconds: short, and long enough for a machine that does other things
PATIENCE = 60.0
KEY = "key of this cluster"


class Line:
    """The way to a store, which can be cut. `asked`: what has gone along it, by name."""

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


def configured(
    name: str,
    *,
    caching: Caching | None = None,
    key: str = KEY,
    rate: tuple[RateLimit, ...] = (),
    auth: Auth | None = None,
    idle: float = 30.0,
    most_sessions: int | None = None,
    access: tuple[AccessRule, ...] = (),
    **settings: Any,
) -> Config:
    """Return the configuration of one mcpmux. `settings`: of its upstream."""
    return Config(
        upstreams=(upstream("docs", **settings),),
        listeners=Listeners(http=(HttpListener(port=0, sse_path="/sse"),)),
        merging=Merging(cursor_key=Secret(key)),
        caching=caching or Caching(),
        auth=auth or Auth(),
        access=access,
        limits=Limits(session_idle=idle, rate=rate, max_sessions_per_principal=most_sessions),
        views={"some": View(include=(Selector(upstream="docs"),))},
        cluster=Cluster(url=Secret("redis://unused"), replica=name, lease=LEASE),
    )


@dataclass(eq=False, kw_only=True)
class Member:
    """One of them, with its own connection to an upstream. `client` speaks to it alone."""

    name: str
    world: World
    line: Line
    scope: trio.CancelScope
    client: HttpClient
    node: Any  # a Replica
    mux: app.Mux
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
class Members:
    """All of them. `store` is what they share."""

    nursery: trio.Nursery
    store: MemoryStore = field(default_factory=lambda: MemoryStore(trio.current_time))
    all: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.all[name]

    @property
    def running(self) -> list[Any]:
        """Return the replicas that have not ended."""
        return [replica for replica in self.all.values() if not replica.ended.is_set()]

    def having(self, session: Json) -> Any:
        """Return the replica that has a session. `session`: the fields that name it."""
        session_id = session["Mcp-Session-Id"]
        (holder,) = [replica for replica in self.running if session_id in replica.node._sessions[0]._here]
        return holder

    async def start(self, name: str, server: ScriptedServer, **settings: Any) -> Any:
        """Start one more, or one instead of another that has ended. `settings`: see `configured`."""
        config = configured(name, **settings)
        self.all[name] = await self.nursery.start(self.run, name, config, World({"docs": server}))
        return self.all[name]

    async def run(self, name: str, config: Config, world: World, *, task_status: Any) -> None:
        """Run one. Started with it."""
        raise NotImplementedError

    async def know_each_other(self) -> None:
        """Wait until each that runs knows all others. From now on they have run for long."""
        running = self.running
        for replica in running:
            members = replica.node.members
            while len(members.others) < len(running) - 1 or not members.is_inside:
                members.renew_soon()
                await members.changed(LEASE)
            replica.mux.hub._returning_until = -math.inf

    def asked(self) -> int:
        """Count the commands to the store so far, except those that renew leases."""
        lines = {id(replica.line): replica.line for replica in self.all.values()}.values()
        return sum(line.commands - line.asked["renew"] for line in lines)


def sessions_at(member: Any) -> int:
    node: Replica = member.node
    return sum(map(len, node._sessions))
