"""Views of clients over WebSocket, TCP and Unix sockets, on real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mcpmux.app.listeners import Serving, serve_listener
from mcpmux.config import Limits, TcpListener, UnixListener, WebSocketListener
from mcpmux.mux.view import selections_of
from mcpmux.runtime.access_control import Shown
from tests.clients.test_stream_auth import open_socket, shake_hands
from tests.peers.client import ScriptedClient
from tests.peers.socket_pipe import Lines, Messages
from tests.runtime.test_access import VIEWS, knows_nothing, stores
from tests.runtime.world import World, open_world


@asynccontextmanager
async def open_listener(listener: Any) -> AsyncIterator[tuple[str, World]]:
    """Open a listener of mcpmux, and yield its URL."""
    async with open_world(stores(), views=VIEWS) as world:
        announced: list[str] = []
        serving = Serving(Limits(), world.mux.service, trio.Event(), announced.append)
        await world.nursery.start(serve_listener, listener, serving)
        with trio.fail_after(60):
            yield announced[0], world


async def test_the_path_of_a_websocket_names_the_view():
    async with open_listener(WebSocketListener(port=0)) as (url, _):
        async with open_socket(f"{url}/coding", "") as socket:
            page = await ScriptedClient(Messages(socket)).request("tools/list")
            assert "docs__open-tool" in repr(page)
            knows_nothing(page)
        async with open_socket(f"{url}/coding?tools=docs__*,x", "") as socket:
            page = await ScriptedClient(Messages(socket)).request("tools/list")
            assert [tool["name"] for tool in page["tools"]] == ["docs__open-tool"]
        status, answer = await shake_hands(url, "/mcp/coding?tools=x")
        assert status == 400 and "selects nothing" in answer
        async with open_socket(url, "") as socket:
            assert "vault" in repr(await ScriptedClient(Messages(socket)).request("tools/list"))
        assert (await shake_hands(url, "/mcp/"))[0] == 101
        for path in ("/mcp/own", "/mcp/nothing", "/mcp//", "/mcp/coding/x", "/coding"):
            assert (await shake_hands(url, path))[0] == 404, path
        status, answer = await shake_hands(url, "/mcp?upstream=docs")
        assert status == 400 and "did you mean upstreams?" in answer


@pytest.mark.parametrize("kind", ["tcp", "unix"])
async def test_a_listener_without_paths_has_one_view(kind, tmp_path):
    path = str(tmp_path / "mux.sock")
    listener = TcpListener(port=0, view="coding") if kind == "tcp" else UnixListener(path=path, view="coding")
    async with open_listener(listener) as (url, world):

        async def connect() -> Any:
            if kind == "unix":
                return await trio.open_unix_socket(path)
            return await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2]))

        async with await connect() as stream:
            page = await ScriptedClient(Lines(stream)).request("tools/list")
            assert "docs__open-tool" in repr(page)
            knows_nothing(page)
        world.mux.router.adopt(None, Shown(selections_of({"own": VIEWS["own"]})))
        async with await connect() as stream:
            assert b"there is nothing for you here" in await stream.receive_some()
