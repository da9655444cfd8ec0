"""Messages of a server before its answer, and fields that its answer lacks."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.peers.client import ScriptedClient
from tests.peers.revision import LEGACY, MODERN, Json
from tests.peers.server import CACHE, RpcFailure, ScriptedServer
from tests.runtime.http_world import HttpWorld
from tests.runtime.world import World, open_world

ALONE: dict[str, dict[str, Any]] = {"docs": {"prefix": ""}}
SAID = "notifications/vendor/searchProgress"


def log_message(number: int) -> Json:
    params = {"level": "info", "data": number}
    return {"method": "notifications/message", "params": params}


async def search(server: ScriptedServer, _params: Json, message: Json) -> Json:
    """Send three messages before the answer; over HTTP on its own stream."""
    for number in range(3):
        params = {"number": number, "progressToken": message["id"]}
        await server.send({"method": SAID, "params": params})
    return {"resultType": "complete", "found": []}


async def chatter(server: ScriptedServer, _params: Json, message: Json) -> Json:
    """Log before the answer, though the request does not ask for it."""
    for number in range(2):
        notification = log_message(number)
        notification["params"]["progressToken"] = message["id"]
        await server.send(notification)
    return {"resultType": "complete", "content": []}


async def hear_all(client: ScriptedClient, method: str, params: Json) -> list[Any]:
    """Return the messages in order: numbers of notifications, then "result"."""
    request_id = await client.start(method, params)
    notes: list[Any] = []
    with trio.fail_after(60):
        while True:
            message = await client.receive_raw()
            if message.get("id") == request_id:
                assert "result" in message, message
                return [*notes, "result"]
            notes.append(message["params"].get("number", message["params"].get("data")))


@pytest.mark.parametrize("up", [LEGACY, MODERN])
@pytest.mark.parametrize("world_class", [World, HttpWorld])
async def test_what_nobody_knows_passes_before_the_result_of_its_request(world_class: type[World], up: str):
    server = ScriptedServer(up, tools=[], handlers={"vendor/search": search})
    async with open_world({"docs": server}, settings=ALONE, world_class=world_class) as world:
        other = world.client()
        await other.request("server/discover")
        assert await hear_all(world.client(), "vendor/search", {}) == [0, 1, 2, "result"]
        await other.start("server/discover")
        assert "result" in await other.receive(), "it belongs to the request of another client"


@pytest.mark.parametrize("world_class", [World, HttpWorld])
async def test_what_nobody_knows_stops_where_servers_are_merged(world_class: type[World]):
    async def call(server: ScriptedServer, params: Json, message: Json) -> Json:
        return await search(server, params, message) | {"content": []}

    server = ScriptedServer(tools=[], handlers={"tools/call": call})
    async with open_world({"docs": server}, world_class=world_class) as world:
        assert await hear_all(world.client(), "tools/call", {"name": "docs__t"}) == ["result"]


@pytest.mark.parametrize("world_class", [World, HttpWorld])
@pytest.mark.parametrize(("settings", "heard"), [(ALONE, [0, 1, "result"]), (None, ["result"])])
async def test_unasked_log_messages_are_counted_and_pass_before_one_server_only(
    settings: Any, heard: list[Any], world_class: type[World]
):
    server = ScriptedServer(tools=[], handlers={"tools/call": chatter})
    async with open_world({"docs": server}, settings=settings, world_class=world_class) as world:
        name = "t" if settings else "docs__t"
        assert await hear_all(world.client(), "tools/call", {"name": name}) == heard
        assert world.mux.upstreams["docs"].unasked_logs == 2


async def test_a_session_that_logs_does_not_make_a_modern_client_hear_it(autojump_clock):
    """A legacy server may log before any level is set; a modern client has to ask for it."""
    server = ScriptedServer(LEGACY, tools=[], handlers={"tools/call": chatter})
    async with open_world({"docs": server}, settings=ALONE) as world:
        assert await hear_all(world.client(), "tools/call", {"name": "t"}) == ["result"]
        assert world.mux.upstreams["docs"].unasked_logs == 0


BARE: dict[str, Json] = {
    "tools/call": {"content": []},
    "resources/read": {"contents": [{"uri": "memo:1", "text": "1"}]},
    "prompts/get": {"messages": []},
    "resources/list": {"resources": []},
}
"""Results of a modern server that leaves out what its revision requires."""


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("method", BARE)
async def test_what_a_server_left_out_of_its_result_is_filled_in(method: str, alone: bool, autojump_clock):
    async def bare(_server: ScriptedServer, _params: Json, _message: Json) -> Json:
        return dict(BARE[method])

    server = ScriptedServer(resources=[], tools=[], prompts=[], handlers={method: bare})
    async with open_world({"docs": server}, settings=ALONE if alone else None) as world:
        named = {"uri": "memo:1" if alone else "docs+memo:1"} if method == "resources/read" else {}
        if method in ("tools/call", "prompts/get"):
            named = {"name": "t" if alone else "docs__t"}
        result = await world.client().request(method, named)  # which compares it with the schema
        assert result["resultType"] == "complete"
        if method in ("resources/read", "resources/list"):
            assert {key: result[key] for key in CACHE} == CACHE


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("up", [LEGACY, MODERN])
@pytest.mark.parametrize(("down", "code"), [(MODERN, -32602), (LEGACY, -32002)])
async def test_a_code_that_means_nothing_is_said_in_the_clients_words(
    down: str, code: int, up: str, alone: bool, autojump_clock
):
    """Python's SDK 1.x answers with code 0 when a resource is not known."""

    async def refuse(_server: ScriptedServer, _params: Json, _message: Json) -> Json:
        raise RpcFailure(0, "Unknown resource: memo:1", {"why": 1})

    server = ScriptedServer(up, resources=[], handlers={"resources/read": refuse})
    async with open_world({"docs": server}, settings=ALONE if alone else None) as world:
        client = world.client()
        if down == LEGACY:
            await client.initialize(LEGACY)
            await client.drain()
        uri = "memo:1" if alone else "docs+memo:1"
        error = await client.refusal("resources/read", {"uri": uri})
    own = {"code": 0, "message": "Unknown resource: memo:1", "data": {"why": 1}}
    assert error["code"] == code
    assert error["data"] == {"uri": uri, "error": own}
    assert "Unknown resource" in error["message"]


async def test_a_code_that_is_reserved_stays(autojump_clock):
    async def refuse(_server: ScriptedServer, _params: Json, _message: Json) -> Json:
        raise RpcFailure(-31003, "Busy")

    server = ScriptedServer(resources=[], handlers={"resources/read": refuse})
    async with open_world({"docs": server}) as world:
        error = await world.client().refusal("resources/read", {"uri": "docs+memo:1"})
    assert error == {"code": -31003, "message": "Busy"}
