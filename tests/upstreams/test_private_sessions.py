"""Upstreams with `session = "per-client"`: one session for each client, opened lazily, closed with it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mcpmux.config import Upstream
from tests.peers.revision import LEGACY, Json
from tests.peers.server import ScriptedServer
from tests.runtime.test_asking import CAPABILITIES, TOOL, Curious, client_of
from tests.runtime.world import World, open_world

PRIVATE = {"x": {"session": "per-client"}}


class Numbered(ScriptedServer):
    """Every connection is its own server, which says its number and what its client declared."""

    def __init__(self, number: int) -> None:
        super().__init__(LEGACY, tools=[TOOL], resources=[{"uri": f"memo:{number}", "name": "own"}])
        self._number = number

    async def handle(self, method: str, params: Json, message: Json) -> Json:
        if method == "initialize":
            self.declared = params["capabilities"]
        if method == "tools/call":
            text = json.dumps({"number": self._number, "declared": self.declared})
            return {"content": [{"type": "text", "text": text}]}
        return await super().handle(method, params, message)


class PrivateWorld(World):
    """Opens a new server for every connection to `x`."""

    open_now = 0

    @asynccontextmanager
    async def open_channel(self, upstream: Upstream, hear: Any, watch: Any = None) -> AsyncIterator[Any]:
        if upstream.name == "x":
            self.servers["x"] = Numbered(self.connects.get("x", 0))
            self.open_now += 1
        try:
            async with super().open_channel(upstream, hear, watch) as channel:
                yield channel
        finally:
            if upstream.name == "x":
                self.open_now -= 1


async def told(client: Any) -> Json:
    result = await client.request("tools/call", {"name": "x__t"})
    return json.loads(result["content"][0]["text"])


def open_private_world() -> Any:
    servers = {"x": ScriptedServer(), "y": ScriptedServer()}
    return open_world(servers, settings=PRIVATE, world_class=PrivateWorld)


async def test_each_client_has_a_session_with_its_own_capabilities(autojump_clock):
    async with open_private_world() as world:
        first_client, two = await client_of(world, LEGACY, CAPABILITIES), await client_of(world, LEGACY, {})
        assert world.open_now == 1
        first, second = await told(first_client), await told(two)
        assert first["number"] != second["number"]
        assert (first["declared"], second["declared"]) == (CAPABILITIES, {})
        assert await told(first_client) == first
        assert world.open_now == 3
        listed = await first_client.request("resources/list")
        assert [item["uri"] for item in listed["resources"]] == [f"x+memo:{first['number']}"]


@pytest.mark.parametrize("revision", [LEGACY, "2026-07-28"])
async def test_a_session_is_closed_with_its_client(revision, autojump_clock):
    async with open_private_world() as world:
        client = await client_of(world, revision)
        await told(client)
        assert world.open_now == 2
        await client.vanish()
        await trio.sleep(30)
        assert world.open_now == 1
        assert set(world.mux.upstreams._by_key) == {"x", "y"}


async def test_questions_of_private_sessions_are_never_ambiguous(autojump_clock: MockClock) -> None:
    class Asking(World):
        @asynccontextmanager
        async def open_channel(self, upstream: Upstream, hear: Any, watch: Any = None) -> AsyncIterator[Any]:
            if upstream.name == "x":
                self.servers["x"] = Curious(LEGACY, "roots/list")
            async with super().open_channel(upstream, hear, watch) as channel:
                yield channel

    servers = {"x": ScriptedServer(), "y": ScriptedServer()}
    async with open_world(servers, settings=PRIVATE, world_class=Asking) as world:
        clients = [await client_of(world, LEGACY) for _ in range(3)]
        calls = [await client.start("tools/call", {"name": "x__t"}) for client in clients]
        questions = [await client.receive_method("roots/list") for client in clients]
        for number, (client, question) in enumerate(zip(clients, questions, strict=True)):
            roots = {"roots": [{"uri": f"file:///{number}"}]}
            await client.send({"id": question["id"], "result": roots})
        for number, (client, call) in enumerate(zip(clients, calls, strict=True)):
            answer = await client.receive()
            assert answer["id"] == call
            roots_seen = json.loads(answer["result"]["content"][0]["text"])
            assert roots_seen == [{"roots": [{"uri": f"file:///{number}"}]}]


class Rooted(ScriptedServer):
    """Wants to know the client's roots as soon as it is initialized, as some servers do."""

    def __init__(self) -> None:
        super().__init__(LEGACY, tools=[TOOL])
        self.roots: Any = None

    async def serve(self, pipe: Any) -> None:
        self.asked = False
        await super().serve(pipe)

    async def handle(self, method: str, params: Json, message: Json) -> Json:
        result = await super().handle(method, params, message)
        if method == "tools/list" and not self.asked:
            self.asked = True
            await self.send({"id": "r", "method": "roots/list"})
        return result

    def take_answer(self, message: Json) -> None:
        self.roots = message


async def test_a_question_outside_calls_reaches_the_only_client(autojump_clock):
    server = Rooted()
    async with open_world({"x": server, "y": ScriptedServer()}) as world:
        client = await client_of(world, LEGACY)
        listed = await client.start("tools/list")
        messages = [await client.receive() for _ in range(2)]
        (question,) = [m for m in messages if m.get("method") == "roots/list"]
        assert listed in [m.get("id") for m in messages]
        await client.send({"id": question["id"], "result": {"roots": [{"uri": "file:///r"}]}})
        await trio.sleep(1)
        assert server.roots["result"] == {"roots": [{"uri": "file:///r"}]}


async def test_a_question_outside_calls_is_refused_with_several_clients(autojump_clock):
    server = Rooted()
    async with open_world({"x": server, "y": ScriptedServer()}) as world:
        client, _two = await client_of(world, LEGACY), await client_of(world, LEGACY)
        await client.request("tools/list")
        await trio.sleep(1)
        assert 'session = "per-client"' in server.roots["error"]["message"]
