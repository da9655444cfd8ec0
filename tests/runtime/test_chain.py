"""mcpmux in front of mcpmux: what one knows of its servers reaches the clients of the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mcpmux.clients.stdio_client import serve_messages
from tests.peers.revision import LEGACY, MODERN, Json
from tests.peers.server import ScriptedServer
from tests.runtime.world import World, open_world

LEGS = [(MODERN, MODERN), (LEGACY, MODERN), (MODERN, LEGACY), (LEGACY, LEGACY)]
"""The revisions of a client, and between the two mcpmux."""


class Inner(ScriptedServer):
    """A mcpmux in the place of a server."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    async def serve(self, pipe: Any) -> None:
        await serve_messages(pipe, self._world.mux.service)


@asynccontextmanager
async def open_chain(
    servers: Mapping[str, ScriptedServer | None], leg: str, **outer: Any
) -> AsyncIterator[tuple[World, World]]:
    """Open mcpmux in front of `inner`, which is mcpmux in front of `servers`. Yield both.

    `leg`: the revision between the two.
    """
    async with (
        open_world(servers) as inner,
        open_world({"inner": Inner(inner)}, settings={"inner": {"revision": leg}}, **outer) as world,
    ):
        yield world, inner


def tool(name: str) -> Json:
    return {"name": name, "inputSchema": {"type": "object"}}


async def hang(_server: Any, _params: Json, _message: Json) -> Json:
    await trio.sleep_forever()
    raise AssertionError


@pytest.mark.parametrize(("down", "leg"), LEGS)
async def test_a_server_that_never_lists_costs_the_others_no_more_than_one_list(down, leg, autojump_clock):
    """Both have the same time for a list, so a whole wait behind is too late in front."""
    silent = ScriptedServer(tools=[], handlers={"tools/list": hang})
    servers = {"docs": ScriptedServer(tools=[tool("find")]), "silent": silent}
    async with open_chain(servers, leg) as (world, _):
        client = await world.open_client(down)
        await client.request("tools/list")
        await trio.sleep(10)
        await client.drain()
        for _ in range(3):
            began = trio.current_time()
            request = await client.start("tools/list")
            while (answer := await client.receive()).get("id") != request:
                pass
            assert [item["name"] for item in answer["result"]["tools"]] == ["inner__docs__find"]
            assert trio.current_time() - began < 3
            await trio.sleep(100)
