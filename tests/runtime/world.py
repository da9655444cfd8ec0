"""mcpmux between scripted servers and clients, all in memory: for flows with a virtual clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

import trio

from mcpmux import app
from mcpmux.channels.channel import Channel
from mcpmux.channels.opener import open_duplex_channel
from mcpmux.channels.tap import tapped
from mcpmux.clients.stdio_client import serve_messages
from mcpmux.config import AccessRule, Caching, Config, Intercept, Limits, Merging, Stdio, Upstream
from mcpmux.config.views import View
from mcpmux.errors import ConnectFailed
from mcpmux.protocol.principal import Principal
from tests.peers.client import ScriptedClient
from tests.peers.pipe import PromptMemoryPipe, open_memory_pipes
from tests.peers.revision import MODERN, Json
from tests.peers.server import ScriptedServer


class World:
    """Running mcpmux. `servers` can be replaced; `kill` ends an upstream's stream."""

    def __init__(self, servers: Mapping[str, ScriptedServer | None]) -> None:
        self.servers = dict(servers)
        self.mux: app.Mux
        self.nursery: trio.Nursery
        self.connects: dict[str, int] = {}
        self._pipes: dict[str, Any] = {}

    @asynccontextmanager
    async def open_channel(self, upstream: Upstream, hear: Any, watch: Any = None) -> AsyncIterator[Any]:
        """Open a link to the scripted server of that name; None in its place refuses."""
        self.connects[upstream.name] = self.connects.get(upstream.name, 0) + 1
        server = self.servers[upstream.name]
        if server is None:
            raise ConnectFailed("nobody there")
        ours, theirs = open_memory_pipes(kind=PromptMemoryPipe)
        self._pipes[upstream.name] = theirs
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve, theirs)
            async with open_duplex_channel(tapped(ours, watch), hear) as link:
                yield link
            await ours.aclose()
            nursery.cancel_scope.cancel()

    def channel(self, name: str) -> Channel:
        """Return the channel to a server that is connected."""
        connection = self.mux.upstreams[name].status.connection
        assert connection is not None
        return connection.channel

    def enter(self, principal: Principal, view: str, query: str = "") -> Principal:
        """Return the principal in a view, narrowed by the query of its URL."""
        entered = self.mux.service.enter(principal, view, query)
        assert entered is not None
        return entered

    async def kill(self, name: str) -> None:
        await self._pipes[name].aclose()

    def client(self, **serving: Any) -> ScriptedClient:
        """Connect a new client by its own stream."""
        ours, theirs = open_memory_pipes(kind=PromptMemoryPipe)
        self.nursery.start_soon(partial(serve_messages, theirs, self.mux.service, **serving))
        return ScriptedClient(ours)

    async def open_client(
        self, revision: str, capabilities: Json | None = None, **serving: Any
    ) -> ScriptedClient:
        """Open a client of a revision; a legacy one is initialized, and has read what came with that."""
        client = self.client(**serving)
        if capabilities is not None:
            client.capabilities = capabilities
        if revision != MODERN:
            await client.initialize(revision)
            await client.drain()
        return client


def upstream(name: str, **settings: Any) -> Upstream:
    """Return a configured upstream; its target is not used, as the world opens the channels."""
    settings.setdefault("era", "newest")  # one session with each server, so that a test sees which it is
    settings.setdefault("target", Stdio("unused"))
    return Upstream(name=name, **settings)


@asynccontextmanager
async def open_world(
    servers: Mapping[str, ScriptedServer | None],
    *,
    page_size: int = 1000,
    settings: dict[str, dict[str, Any]] | None = None,
    world_class: type[World] = World,
    access: tuple[AccessRule, ...] = (),
    views: Mapping[str, View] = MappingProxyType({}),
    caching: Caching | None = None,
    limits: Limits | None = None,
    intercept: tuple[Intercept, ...] = (),
    **watching: Any,
) -> AsyncIterator[World]:
    """Open mcpmux in front of `servers`, in that order. `settings`: name → settings of its upstream.

    `watching`: `tap`, `trace` and `functions` of `open_mux`.
    """
    world = world_class(servers)
    config = Config(
        upstreams=tuple(upstream(name, **(settings or {}).get(name, {})) for name in servers),
        merging=Merging(page_size=page_size),
        access=access,
        views=views,
        caching=caching or Caching(),
        limits=limits or Limits(),
        intercept=intercept,
    )
    async with (
        app.open_mux(config, world.open_channel, **watching) as world.mux,
        trio.open_nursery() as world.nursery,
    ):
        yield world
        world.nursery.cancel_scope.cancel()
