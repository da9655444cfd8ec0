"""Unknown extensions pass: extensions by capability, their methods where one server is alone."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from mcpmux.runtime.client_outbox import DETAIL_LIMIT
from tests.peers.revision import CAPABILITIES, ERAS, LEGACY, MODERN, Json
from tests.peers.server import CACHE, RpcFailure, ScriptedServer
from tests.runtime.test_flows import docs
from tests.runtime.world import open_world

UI = "io.modelcontextprotocol/ui"
OFFERED: Json = {
    "tools": {},
    "extensions": {UI: {"mimeTypes": ["text/html"]}},
    "experimental": {"x": {"a": 1}},
}
ALONE = {"docs": {"prefix": ""}}


async def echo(_server: ScriptedServer, params: Json, _message: Json) -> Json:
    echoed: Json = {key: value for key, value in params.items() if key != "_meta"}
    return {"resultType": "complete", "said": echoed}


@pytest.mark.parametrize("down", [LEGACY, MODERN])
@pytest.mark.parametrize("up", [LEGACY, MODERN])
async def test_extensions_are_told_as_their_server_tells_them(down: str, up: str, autojump_clock):
    server = ScriptedServer(up, tools=[], capabilities=OFFERED)
    async with open_world({"x": server, "y": docs()}) as world:
        client = world.client()
        hello = await (client.initialize(down) if down == LEGACY else client.request("server/discover"))
        for kind in ("extensions", "experimental"):
            assert hello["capabilities"][kind] == OFFERED[kind]


async def test_a_server_hears_which_extensions_the_calling_client_has(autojump_clock):
    server = docs()
    async with open_world({"x": server}) as world:
        declarations: list[Json] = [{"extensions": {UI: {}}}, {"experimental": {"mine": {}}}, {}]
        for capabilities in declarations:
            client = world.client()
            client.capabilities = capabilities
            if capabilities:  # the last one is modern
                await client.initialize(LEGACY)
                await client.drain()
            await client.request("resources/list")
            (*_, request) = (message for message in server.seen if message["method"] == "resources/list")
            assert request["params"]["_meta"][CAPABILITIES] == capabilities


async def test_a_legacy_server_may_have_apps_for_whoever_shares_its_session(autojump_clock):
    server = docs(LEGACY)
    async with open_world({"x": server}) as world:
        await world.client().request("resources/list")
        (hello,) = (message for message in server.seen if message["method"] == "initialize")
        offered = hello["params"]["capabilities"]["extensions"]
        assert offered == {UI: {"mimeTypes": ["text/html;profile=mcp-app"]}}


@pytest.mark.parametrize("up", [LEGACY, MODERN])
@pytest.mark.parametrize("down", [LEGACY, MODERN])
async def test_unknown_methods_reach_the_only_server(up: str, down: str, autojump_clock):
    server = ScriptedServer(up, tools=[], handlers={"vendor/echo": echo})
    async with open_world({"docs": server}, settings=ALONE) as world:
        client = world.client()
        if down == LEGACY:
            await client.initialize(down)
            await client.drain()
        assert (await client.request("vendor/echo", {"a": 1.0}))["said"] == {"a": 1.0}


@pytest.mark.parametrize("up", [LEGACY, MODERN])
async def test_what_the_only_server_refuses_is_in_its_own_words(up: str, autojump_clock):
    async def refuse(_server: ScriptedServer, params: Json, _message: Json) -> Json:
        raise RpcFailure(-32602, f"Unknown tool: {params['name']}", {"uri": "memo:1", "x": [1.0]})

    tools = [{"name": "find", "inputSchema": {"type": "object"}}]
    server = ScriptedServer(up, tools=tools, handlers={"tools/call": refuse})
    async with open_world({"docs": server}, settings=ALONE) as world:
        error = await world.client().refusal("tools/call", {"name": "fine"})  # no hint either
        assert error["message"] == "Unknown tool: fine"
        assert error["data"] == {"uri": "memo:1", "x": [1.0]}
        assert server.pages == {}


CODES = [(LEGACY, MODERN, code) for code in (-32020, -32022, -32050, -32099)]
CODES += [(MODERN, down, code) for down in ERAS for code in (-32020, -32022)]


@pytest.mark.parametrize(("up", "down", "code"), CODES)
async def test_a_servers_code_does_not_pass_for_one_of_mcpmux(up: str, down: str, code: int, autojump_clock):
    """ "Error Codes", 2026-07-28: -32020 to -32099 are "defined exclusively by the MCP specification".

    A legacy server's mean something else, and a modern one's may be about mcpmux's own headers and version.
    """

    async def refuse(_server: ScriptedServer, _params: Json, _message: Json) -> Json:
        raise RpcFailure(code, "no", {"a": 1})

    server = ScriptedServer(up, tools=[], handlers={"tools/call": refuse})
    async with open_world({"docs": server}, settings=ALONE) as world:
        client = await world.open_client(down)
        error = await client.refusal("tools/call", {"name": "t"})
        own = {"code": code, "message": "no", "data": {"a": 1}}
        assert error == {"code": -32603, "message": "no", "data": {"error": own}}


@pytest.mark.parametrize("down", [LEGACY, MODERN])
async def test_a_result_of_an_unknown_type_is_for_modern_clients_only(down, autojump_clock):
    """ "A resultType of any value unrecognized by the client MUST be considered invalid." """
    tool = {"name": "t", "inputSchema": {"type": "object"}}

    async def answer(_server: ScriptedServer, _params: Json, _message: Json) -> Json:
        return {"resultType": "vendor/odd", "content": [], "tools": [tool], **CACHE}

    server = ScriptedServer(tools=[], handlers={"tools/call": answer, "tools/list": answer})
    async with open_world({"x": server, "y": docs()}) as world:
        client = await world.open_client(down)
        listed = await client.request("tools/list")
        assert listed["tools"] == []
        assert "vendor/odd" in listed["_meta"]["dev.mcpmux/upstreams"]["x"]["reason"]
        await client.start("tools/call", {"name": "x__t"})
        called = await client.receive_raw()
        if down == MODERN:
            assert called["result"]["resultType"] == "vendor/odd"
        else:
            assert (called["error"]["code"], "vendor/odd" in called["error"]["message"]) == (-32603, True)


async def test_unknown_methods_are_refused_where_it_is_unclear_whose_they_are(autojump_clock):
    servers: Any = {name: ScriptedServer(tools=[], handlers={"vendor/echo": echo}) for name in "xy"}
    async with open_world(servers) as world:
        assert (await world.client().refusal("vendor/echo"))["code"] == -32601


async def legacy_client(world: Any) -> Any:
    client = world.client()
    await client.initialize(LEGACY)
    await client.drain()
    return client


def unknown(number: int) -> Json:
    return {"method": "notifications/vendor/thing", "params": {"number": number}}


def logged(level: str) -> Json:
    return {"method": "notifications/message", "params": {"level": level, "data": "x"}}


async def heard(client: Any) -> list[Any]:
    """Receive notifications that the schema does not know, and log messages: their numbers and levels."""
    received = []
    with trio.move_on_after(20):
        while True:
            message = await client.receive_raw()
            assert message["method"] in ("notifications/vendor/thing", "notifications/message")
            received.append(message["params"].get("number", message["params"].get("level")))
    return received


async def test_unknown_notifications_pass_both_ways_and_none_stands_for_another(autojump_clock):
    server = ScriptedServer(LEGACY, tools=[])
    async with open_world({"docs": server}, settings=ALONE) as world:
        client = await legacy_client(world)
        for number in range(3):
            await client.send(unknown(number))
            await server.send(unknown(number))
        assert await heard(client) == [0, 1, 2]
        messages = [message for message in server.seen if message["method"] == "notifications/vendor/thing"]
        assert [message["params"]["number"] for message in messages] == [0, 1, 2]


async def test_what_comes_in_a_private_session_is_for_its_client(autojump_clock):
    server = ScriptedServer(LEGACY, tools=[])
    async with open_world(
        {"docs": server}, settings={"docs": {"prefix": "", "session": "per-client"}}
    ) as world:
        other, client = await legacy_client(world), await legacy_client(world)
        for private in (other, client):  # each opens a session, that of the last one is spoken to
            await private.request("tools/list")
        await server.send(unknown(1))
        await server.send(logged("error"))
        assert await heard(client) == [1, "error"]
        assert await heard(other) == []


@pytest.mark.parametrize("settings", [ALONE, {}])
async def test_log_messages_of_no_call_come_at_the_level_that_was_set(settings, autojump_clock):
    server = ScriptedServer(LEGACY, tools=[], capabilities={"tools": {}, "logging": {}})
    servers = {"docs": server} if settings else {"docs": server, "more": docs()}
    async with open_world(servers, settings=settings) as world:
        client = await legacy_client(world)
        await client.request("logging/setLevel", {"level": "warning"})
        for level in ("info", "warning", "error"):
            await server.send(logged(level))
        assert await heard(client) == ["warning", "error"]


async def test_a_log_message_among_calls_of_several_clients_reaches_none(autojump_clock):
    gate = trio.Event()

    async def wait(_server: ScriptedServer, _params: Json, _message: Json) -> Json:
        await gate.wait()
        return {"content": []}

    server = ScriptedServer(LEGACY, tools=[], handlers={"tools/call": wait})
    async with open_world({"docs": server}, settings=ALONE) as world:
        clients = [await legacy_client(world) for _ in range(2)]
        for client in clients:
            await client.start("tools/call", {"name": "t"})
        await trio.testing.wait_all_tasks_blocked()
        await server.send(logged("error"))
        assert [await heard(client) for client in clients] == [[], []]


async def test_unknown_notifications_stop_where_it_is_unclear_whose_they_are(autojump_clock):
    server = ScriptedServer(LEGACY, tools=[])
    async with open_world({"docs": server, "more": docs()}) as world:
        client = await legacy_client(world)
        await client.send(unknown(1))
        await server.send(unknown(1))
        assert await heard(client) == []
        assert not [message for message in server.seen if message["method"] == "notifications/vendor/thing"]


async def test_a_modern_client_hears_only_what_it_asked_for(autojump_clock):
    """ "subscriptions/listen": a server sends no notification that the client did not request."""
    server = ScriptedServer(LEGACY, tools=[])
    async with open_world({"docs": server}, settings=ALONE) as world:
        client = world.client()
        lists = dict.fromkeys(["toolsListChanged", "promptsListChanged", "resourcesListChanged"], True)
        await client.start("subscriptions/listen", {"notifications": lists})
        await client.receive_method("notifications/subscriptions/acknowledged")
        await client.drain()
        await server.send(unknown(1))
        assert await heard(client) == []


async def test_a_flood_of_unknown_notifications_is_bounded(autojump_clock):
    server = ScriptedServer(LEGACY, tools=[])
    async with open_world({"docs": server}, settings=ALONE) as world:
        client = await legacy_client(world)
        for number in range(2 * DETAIL_LIMIT):
            await server.send(unknown(number))
        assert len(await heard(client)) < 2 * DETAIL_LIMIT
        assert await client.request("ping") == {}
