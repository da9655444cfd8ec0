"""Views whose tools are searched: two tools stand for all, and a call through one is as a direct call."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
import trio

from mcpmux.config import AccessRule
from mcpmux.config.views import Parameter, Selector, View, ViewOverride
from mcpmux.protocol.principal import ANYONE, Principal
from mcpmux.runtime.tool_search import INDEXES_KEPT
from tests.channels.test_tap import open_watched
from tests.peers.client import ScriptedClient
from tests.peers.revision import ERAS, LEGACY, MODERN, Json
from tests.peers.server import RpcFailure, ScriptedServer
from tests.peers.task_server import RELATED, TaskServer
from tests.runtime.test_access import CODING, REVISIONS, Store, client_of
from tests.runtime.test_asking import ASKED, CAPABILITIES, Curious, call_and_answer
from tests.runtime.world import World, open_world

SEARCHED = attrs.evolve(CODING, tools="search")
ALL = {"all": View(tools="search")}
VIEWS = {"coding": SEARCHED, "listed": CODING, **ALL}
SEARCHER, LISTED = ANYONE.within("coding"), ANYONE.within("listed")


async def find(client: ScriptedClient, query: str, **more: Any) -> Json:
    """Return the answer of `find_tools`, which is the same in both of its forms."""
    arguments = {"query": query, **more}
    result = await client.request("tools/call", {"name": "find_tools", "arguments": arguments})
    assert "isError" not in result, result
    text: Json = json.loads(result["content"][0]["text"])
    assert result.get("structuredContent", text) == text
    return text


async def find_names(client: ScriptedClient, query: str, **more: Any) -> list[str]:
    return [tool["name"] for tool in (await find(client, query, **more))["tools"]]


def through(params: Json) -> Json:
    """Return the parameters of a call by `call_tool` for those of a direct call."""
    own = {key: params[key] for key in ("name", "arguments") if key in params}
    return {**params, "name": "call_tool", "arguments": own}


@pytest.mark.parametrize("prefix", ["docs", ""])
@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", REVISIONS)
async def test_two_tools_stand_for_all(prefix, up, down, autojump_clock):
    server = Store(up)
    exposed = f"{prefix}__open-tool" if prefix else "open-tool"
    async with open_world({"docs": server}, views=VIEWS, settings={"docs": {"prefix": prefix}}) as world:
        searcher, lister = await client_of(world, SEARCHER, down), await client_of(world, LISTED, down)
        listed = await searcher.request("tools/list")
        assert [tool["name"] for tool in listed["tools"]] == ["find_tools", "call_tool"]
        assert "nextCursor" not in listed
        assert (await searcher.refusal("tools/list", {"cursor": "x"}))["code"] == -32602
        assert (await find(searcher, "an open one"))["tools"] == (await lister.request("tools/list"))["tools"]
        assert await find_names(searcher, "a secret tool") == []  # which is not in the view
        for params in ({"name": exposed}, through({"name": exposed, "arguments": {"a": 1}})):
            result = await searcher.request("tools/call", params)
            assert result["content"] == [{"type": "text", "text": "open-tool"}]
        assert server.seen[-1]["params"]["arguments"] == {"a": 1}
        hidden = exposed.replace("open", "secret")
        for params in ({"name": hidden}, through({"name": hidden})):
            error = await searcher.refusal("tools/call", params)
            assert error["message"].partition(";")[0] == f"Unknown tool: {hidden}"


async def test_an_app_only_tool_is_not_found_but_callable_by_the_app(autojump_clock):
    server = Store(MODERN)
    for tool in server.items("tools/list"):
        tool["_meta"] = {"ui": {"visibility": ["model"] if tool["name"] == "open-tool" else ["app"]}}
    async with open_world({"docs": server}, views=VIEWS) as world:
        client = world.client(principal=ANYONE.within("all"))
        assert await find_names(client, "open or secret tool") == ["docs__open-tool"]
        result = await client.request("tools/call", {"name": "secret-tool"})  # as its server calls it
        assert result["content"] == [{"type": "text", "text": "secret-tool"}]


@pytest.mark.parametrize("down", REVISIONS)
async def test_a_view_without_servers_has_its_two_tools(down, autojump_clock):
    async with open_world({"docs": None}, views=VIEWS) as world:
        client = await client_of(world, SEARCHER, down)
        assert len((await client.request("tools/list"))["tools"]) == 2
        tools_found = await find(client, "open")
        assert tools_found["tools"] == []
        assert tools_found["hint"].startswith("None of 0 tools")
        assert "docs" in tools_found["notSearched"]


async def test_what_could_not_be_searched_is_told_beside_what_was_found(autojump_clock):
    async with open_world({"docs": Store(MODERN), "vault": None}, views=VIEWS) as world:
        client = world.client(principal=ANYONE.within("all"))
        result = await client.request(
            "tools/call", {"name": "find_tools", "arguments": {"query": "open", "limit": 1}}
        )
        missing = result["structuredContent"]["notSearched"]
        assert list(missing) == ["vault"]
        assert result["_meta"]["dev.mcpmux/upstreams"] == missing
        assert [tool["name"] for tool in result["structuredContent"]["tools"]] == ["docs__open-tool"]


# As in a direct call


async def transcript(world: World, principal: Principal, revision: str, params: Json) -> list[Json]:
    """Return all messages to a client about a call whose questions it answers, without random parts."""
    client = await client_of(world, principal, revision)
    client.capabilities = CAPABILITIES
    messages = []
    request_id = await client.start("tools/call", params, progressToken="p")
    while True:
        message = await client.receive()
        messages.append(message)
        if "method" not in message:
            assert message["id"] == request_id
            return messages


class Talker(ScriptedServer):
    """Its tools say something on the way, then answer with links or fail in each way there is."""

    def __init__(self, revision: str) -> None:
        names = ("links", "failed", "error", "hang")
        super().__init__(
            revision,
            tools=[{"name": name, "inputSchema": {"type": "object"}} for name in names],
            capabilities={"tools": {}, "logging": {}},
        )
        self.is_cancelled = trio.Event()

    async def handle(self, method: str, params: Json, message: Json) -> Json:
        if method != "tools/call":
            return await super().handle(method, params, message)
        token = params["_meta"]["progressToken"]
        progress = {"progressToken": token, "progress": 1, "total": 2}
        await self.send({"method": "notifications/progress", "params": progress})
        if params["name"] == "hang":
            try:
                await trio.sleep_forever()
            finally:
                self.is_cancelled.set()
        if params["name"] == "error":
            raise RpcFailure(-32603, "no", {"of": "file:///x"})
        link = {"type": "resource_link", "uri": "file:///x", "name": "x"}
        result = {"content": [link], "isError": params["name"] == "failed"}
        return result | ({"resultType": "complete"} if self.modern else {})


@pytest.mark.parametrize("name", ["x__links", "x__failed", "x__error", "z__links"])
@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", REVISIONS)
async def test_a_call_by_search_is_observed_like_a_direct_one(name, up, down, autojump_clock):
    async with open_world({"x": Talker(up), "y": Store(MODERN)}, views=ALL) as world:
        principal, params = ANYONE.within("all"), {"name": name, "arguments": {}}
        direct = await transcript(world, ANYONE, down, params)
        assert await transcript(world, principal, down, through(params)) == direct
        assert len(direct) == (2 if name.startswith("x") else 1)


@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", ERAS)
async def test_cancelling_reaches_the_tool(up, down, autojump_clock):
    server = Talker(up)
    async with open_world({"x": server}, views=ALL) as world:
        client = await client_of(world, ANYONE.within("all"), down)
        request_id = await client.start("tools/call", through({"name": "x__hang"}), progressToken=1)
        await client.receive_method("notifications/progress")
        await client.send({"method": "notifications/cancelled", "params": {"requestId": request_id}})
        await server.is_cancelled.wait()


@pytest.mark.parametrize("method", ASKED)
@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", ERAS)
async def test_questions_of_the_tool_are_asked_and_answered(method, up, down, autojump_clock):
    async with open_world({"x": Curious(up, method, times=2), "y": Store(MODERN)}, views=ALL) as world:
        client = world.client(principal=ANYONE.within("all"))
        client.capabilities = CAPABILITIES
        if down != MODERN:
            await client.initialize(down)
            await client.drain()
        result = await call_and_answer(client, {"result": ASKED[method][1]}, through({"name": "x__t"}))
        assert json.loads(result["content"][0]["text"]) == [ASKED[method][1]] * 2


async def test_a_call_can_be_a_task(autojump_clock):
    server = TaskServer(LEGACY)
    async with open_world({"x": server, "y": Store(MODERN)}, views=ALL) as world:
        client = await client_of(world, ANYONE.within("all"), LEGACY)
        tools = (await client.request("tools/list"))["tools"]
        assert tools[1]["execution"] == {"taskSupport": "optional"}
        made = await client.request("tools/call", {**through({"name": "x__must"}), "task": {}})
        task_id = made["task"]["taskId"]
        server.set("t1", "completed", {"content": [{"type": "text", "text": "done"}]})
        result = await client.request("tasks/result", {"taskId": task_id})
        assert result["content"] == [{"type": "text", "text": "done"}]
        assert result["_meta"][RELATED]["taskId"] == task_id


@pytest.mark.parametrize("down", REVISIONS)
async def test_a_mistake_is_told_to_the_model(down, autojump_clock):
    async with open_world({"docs": Store(MODERN)}, views=VIEWS) as world:
        client = await client_of(world, SEARCHER, down)
        for params, sentence in (
            ({"name": "find_tools"}, "find_tools needs a `query`: what the tool is to do, in a few words"),
            ({"name": "call_tool", "arguments": {}}, "call_tool needs a `name`, as find_tools gives it"),
        ):
            result = await client.request("tools/call", params)
            assert result["isError"]
            assert result["content"][0]["text"] == sentence


# The view


async def test_access_rules_narrowing_and_overrides_hold_for_what_is_found(autojump_clock):
    override = ViewOverride(
        upstream="docs", name="open-tool", rename="ajar", parameters={"who": Parameter(value="me")}
    )
    rules = (
        AccessRule(effect="deny", principals=("alice",), targets=("secret-*",)),
        AccessRule(effect="allow", principals=("*",)),
    )
    views = {"all": View(tools="search", overrides=(override,))}
    server = Store(MODERN)
    schema = {"type": "object", "properties": {"who": {"type": "string"}, "open": {"type": "string"}}}
    server.items("tools/list")[0]["inputSchema"] = schema
    async with open_world({"docs": server, "vault": Store(MODERN)}, views=views, access=rules) as world:
        alice, bob = (Principal(name, view="all") for name in ("alice", "bob"))
        assert await find_names(world.client(principal=bob), "secret") == [
            "docs__secret-tool",
            "vault__secret-tool",
        ]
        client = world.client(principal=alice)
        assert await find_names(client, "secret") == []
        narrowed = world.enter(alice, "all", "upstreams=docs")
        assert await find_names(world.client(principal=narrowed), "open ajar") == ["docs__ajar"]
        tool = (await find(client, "ajar"))["tools"][0]
        assert tool["inputSchema"]["properties"] == {"open": {"type": "string"}}
        result = await client.request("tools/call", through({"name": "docs__ajar"}))
        assert result["content"][0]["text"] == "open-tool"
        assert server.seen[-1]["params"]["arguments"] == {"who": "me"}
        for arguments in ({"who": "you"}, {"open": 1}):
            params = through({"name": "docs__ajar", "arguments": arguments})
            assert (await client.refusal("tools/call", params))["code"] == -32602


async def test_a_tool_of_the_only_server_may_have_a_name_of_ours(autojump_clock):
    server = Store(MODERN)
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("find_tools", "call_tool")]
    server.lists["tools/list"] = ("tools", tools)
    async with open_world({"docs": server}, views=VIEWS, settings={"docs": {"prefix": ""}}) as world:
        client = world.client(principal=ANYONE.within("all"))
        for name in ("find_tools", "call_tool"):
            result = await client.request("tools/call", through({"name": name}))
            assert result["content"][0]["text"] == name


class RawTools(ScriptedServer):
    """Lists tools as the given bytes; calls answer with their arguments as text."""

    def __init__(self, tools: bytes, revision: str = MODERN) -> None:
        super().__init__(revision, tools=[], capabilities={"tools": {"listChanged": True}})
        self._tools = tools

    async def _answer(self, message: Json, scope: trio.CancelScope) -> None:
        if message["method"] == "tools/list":
            more = b',"resultType":"complete","ttlMs":0,"cacheScope":"private"' if self.modern else b""
            answer = b'{"jsonrpc":"2.0","id":%b,"result":{"tools":%b%b}}'
            await self._pipe.send(answer % (json.dumps(message["id"]).encode(), self._tools, more))
        else:
            await super()._answer(message, scope)

    async def handle(self, method: str, params: Json, message: Json) -> Json:
        if method != "tools/call":
            return await super().handle(method, params, message)
        result = {"content": [{"type": "text", "text": json.dumps(params.get("arguments"))}]}
        return result | ({"resultType": "complete"} if self.modern else {})


NO_VALUES = (b'{"maximum":1e400}', b'{"maximum":%b}' % (b"9" * 5000))


@pytest.mark.parametrize("schema", NO_VALUES, ids=["exponent", "digits"])
@pytest.mark.parametrize("prefix", ["x", ""])
async def test_a_tool_with_an_unreadable_schema_is_found_without_it(prefix, schema, autojump_clock):
    server = RawTools(b'[{"name":"open","inputSchema":%b},{"name":"other"}]' % schema)
    async with open_world({"x": server}, views=ALL, settings={"x": {"prefix": prefix}}) as world:
        client = world.client(principal=ANYONE.within("all"))
        name = f"{prefix}__open" if prefix else "open"
        assert (await find(client, "open"))["tools"] == [{"name": name}]


async def test_arguments_are_passed_as_they_are(autojump_clock):
    async with open_world({"x": RawTools(b"[]"), "y": Store(MODERN)}, views=ALL) as world:
        client = world.client(principal=ANYONE.within("all"))
        for arguments in ("{}", "null", '{"a": 1e400}', '{"a": {"a": [null, "\u00e9"]}}'):
            params = json.dumps(client.params(through({"name": "x__t", "arguments": "ARGUMENTS"})))
            message = f'{{"jsonrpc":"2.0","id":"1","method":"tools/call","params":{params}}}'
            client._methods["1"] = "tools/call"
            await client.send_raw(message.replace('"ARGUMENTS"', arguments).encode())
            (content,) = (await client.receive())["result"]["content"]
            assert content["text"] == json.dumps(json.loads(arguments))


async def test_a_list_that_begins_again_for_ever_is_searched_once(autojump_clock):
    async def answer(*_: Any) -> Json:
        page = {"resultType": "complete", "ttlMs": 0, "cacheScope": "public", "nextCursor": "again"}
        return page | {"tools": [{"name": "open", "inputSchema": {"type": "object"}}]}

    for prefix in ("x", ""):
        server = ScriptedServer(tools=[], handlers={"tools/list": answer})
        async with open_world({"x": server}, views=ALL, settings={"x": {"prefix": prefix}}) as world:
            tools_found = await find(world.client(principal=ANYONE.within("all")), "open")
            assert len(tools_found["tools"]) == 1
            assert "notSearched" not in tools_found


@pytest.mark.parametrize(
    "tools", [None, "text", [1, {"name": 2, "description": ["open"]}, {}], {"name": "open"}]
)
async def test_a_list_that_is_none_has_nothing_to_be_found(tools, autojump_clock):
    async def answer(*_: Any) -> Json:
        return {"resultType": "complete", "ttlMs": 0, "cacheScope": "public", "tools": tools}

    for prefix in ("docs", ""):
        server = ScriptedServer(tools=[], handlers={"tools/list": answer})
        async with open_world({"docs": server}, views=ALL, settings={"docs": {"prefix": prefix}}) as world:
            client = world.client(principal=ANYONE.within("all"))
            assert await find_names(client, "open") == []


async def test_what_is_new_is_found_and_changes_no_list(autojump_clock):
    server = Store(LEGACY)
    async with open_world({"docs": server, "vault": Store(MODERN)}, views=ALL) as world:
        searcher = await client_of(world, ANYONE.within("all"), LEGACY)
        lister = await client_of(world, ANYONE, LEGACY)
        assert await find_names(searcher, "new") == []
        server.items("tools/list").append({"name": "new-tool", "inputSchema": {"type": "object"}})
        await server.send({"method": "notifications/tools/list_changed"})
        assert [message["method"] for message in await lister.drain()] == ["notifications/tools/list_changed"]
        assert await searcher.drain() == []
        assert await find_names(searcher, "new") == ["docs__new-tool"]
        world.mux.apply(attrs.evolve(world.mux.config, views={"all": View(exclude=(Selector(name="x"),))}))
        assert "notifications/tools/list_changed" in [message["method"] for message in await searcher.drain()]
        assert len((await searcher.request("tools/list"))["tools"]) == 5


async def test_a_list_is_indexed_once_and_few_are_kept(autojump_clock):
    async with open_world({"docs": Store(MODERN)}, views=VIEWS) as world:
        client, search = world.client(principal=SEARCHER), world.mux.router.search
        for _ in range(3):
            await find_names(client, "open")
        assert len(search._indexes) == 1
        for number in range(INDEXES_KEPT + 1):
            narrowed = world.enter(ANYONE, "all", f"tools=open-*,{number}")
            await find_names(world.client(principal=narrowed), "open")
        assert len(search._indexes) <= INDEXES_KEPT


async def test_whoever_watches_is_told_which_tool_is_meant(autojump_clock):
    async with open_watched({"x": Talker(MODERN), "y": Store(MODERN)}) as (world, witness):
        world.mux.apply(attrs.evolve(world.mux.config, views=ALL))
        for revision in REVISIONS:
            client = await client_of(world, ANYONE.within("all"), revision)
            await client.request("tools/call", through({"name": "y__open-tool"}))
            await find_names(client, "open")
            with pytest.raises(RpcFailure):
                await client.request("tools/call", {"name": "call_tools"})
            await client.request("tools/call", {"name": "call_tool"})
            called = [ended.call for ended, _ in witness.ended_with if ended.call.method == "tools/call"]
            names = [call.text("name") for call in called[-4:]]
            assert names == ["y__open-tool", "find_tools", "call_tools", "call_tool"]
