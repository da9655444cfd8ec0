"""mcpmux in front of scripted servers that are reached over HTTP, on real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import evolve

from mcpmux.channels.opener import ChannelOpener
from mcpmux.config import Http, Limits, Upstream
from mcpmux.transports.polling import open_readiness_poller
from mcpmux.transports.process import StopLadder
from tests.peers.http_server import HttpFace, open_http_face
from tests.peers.server import ScriptedServer
from tests.runtime.world import World

STOP = StopLadder(close_seconds=1, terminate_seconds=1)


class HttpWorld(World):
    """`kill` ends all connections to a server; it can be reached anew on another port.

    `faces`: what its servers have got over HTTP, by name.
    """

    def __init__(self, servers: Mapping[str, ScriptedServer | None]) -> None:
        super().__init__(servers)
        self.faces: dict[str, HttpFace] = {}

    @asynccontextmanager
    async def open_channel(self, upstream: Upstream, hear: Any, watch: Any = None) -> AsyncIterator[Any]:
        """Open a channel to the scripted server of that name, which has a port for as long as that lasts."""
        self.connects[upstream.name] = self.connects.get(upstream.name, 0) + 1
        server = self.servers[upstream.name]
        assert server is not None
        async with open_readiness_poller() as poller, trio.open_nursery() as nursery:
            face, scope = await nursery.start(_serve, server)
            self._pipes[upstream.name], self.faces[upstream.name] = scope, face
            opener = ChannelOpener(Limits(), STOP, poller=poller)
            async with opener.open(evolve(upstream, target=Http(face.url)), hear, watch) as channel:
                yield channel
            nursery.cancel_scope.cancel()

    async def kill(self, name: str) -> None:
        self._pipes[name].cancel()
        await trio.lowlevel.checkpoint()


async def _serve(server: Any, task_status: trio.TaskStatus[tuple[HttpFace, trio.CancelScope]]) -> None:
    with trio.CancelScope() as scope:
        async with open_http_face(server) as face:
            task_status.started((face, scope))
            await trio.sleep_forever()
