"""Scripted servers behind a mux that a program has opened, all in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from mcpmux.config import Config
from mcpmux.library import Client, LocalMux, open_mux
from tests.peers.revision import Json
from tests.peers.server import RpcFailure, ScriptedServer
from tests.runtime.world import World, upstream

DONE = {"content": [{"type": "text", "text": "done"}], "resultType": "complete"}
TOOL = {"inputSchema": {"type": "object"}}


class Worker(ScriptedServer):
    """A server whose tools say something, fail, or wait until they are cancelled."""

    def __init__(self) -> None:
        tools = [{"name": name, **TOOL} for name in ("work", "fail", "hang")]
        super().__init__(tools=tools, page_size=2, handlers={"tools/call": type(self).call})
        self.hangs = trio.Event()
        self.cancelled = trio.Event()

    async def call(self, params: Json, _message: Json) -> Json:
        meta = params["_meta"]
        if params["name"] == "fail":
            raise RpcFailure(-32050, "out of paper", {"tray": 2})
        if params["name"] == "hang":
            self.hangs.set()
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                self.cancelled.set()
                raise
        if "progressToken" in meta:
            progress = {"progressToken": meta["progressToken"], "progress": 1, "total": 2}
            await self.send({"method": "notifications/progress", "params": progress})
        if "io.modelcontextprotocol/logLevel" in meta:
            log = {"level": "warning", "data": {"low": ["ink"]}}
            await self.send({"method": "notifications/message", "params": log})
        return DONE


def config_of(names: Mapping[str, Any], **settings: Any) -> Config:
    return Config(upstreams=tuple(upstream(name) for name in names), **settings)


@asynccontextmanager
async def open_local(
    servers: Mapping[str, ScriptedServer | None], **settings: Any
) -> AsyncIterator[tuple[LocalMux, Client]]:
    """Open a mux with one anonymous client. `settings`: of the configuration."""
    world = World(servers)
    config = config_of(servers, **settings)
    async with open_mux(config, open_channel=world.open_channel) as mux, mux.client() as client:
        yield mux, client
