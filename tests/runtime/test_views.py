"""Views between clients of every revision and servers of both eras: what is not selected is not there."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

import attrs
import pytest
import trio
from hypothesis import assume, given
from hypothesis import strategies as st

from mcpmux.config import AccessRule
from mcpmux.config.model import ToolSelection
from mcpmux.config.views import ITEM, KINDS, Override, Parameter, Selector, View, ViewOverride
from mcpmux.mux.listing import KNOWN_SECONDS
from mcpmux.mux.rewrite import Namespace
from mcpmux.mux.view import (
    MOST_GLOBS,
    BadNarrowing,
    globs_in,
    read_narrowing,
    views_of,
)
from mcpmux.protocol.principal import ANYONE, NARROWED, Principal
from mcpmux.runtime.access_control import NARROWINGS_KEPT
from tests.http_request import requested
from tests.peers.http_client import request
from tests.peers.revision import CAPABILITIES, CLIENT, CLIENT_INFO, ERAS, LEGACY, MODERN, VERSION, Json
from tests.peers.server import RpcFailure
from tests.peers.task_server import TaskServer
from tests.runtime.http_front import open_endpoint
from tests.runtime.test_access import (
    ALL_LISTS,
    CODER,
    CODING,
    REVISIONS,
    VIEWS,
    Store,
    client_of,
    knows_nothing,
    stores,
    subscribe,
)
from tests.runtime.world import open_world

NOTHING = (Selector(name="nothing-is-called-this"),)


@pytest.mark.parametrize("down", REVISIONS)
async def test_clients_of_a_changed_view_hear_of_it_and_others_nothing(down, autojump_clock):
    views = VIEWS | {"other": CODING}
    both = ["docs+file:///open/0", "docs+file:///open/1"]
    async with open_world({"docs": Store(MODERN, count=2), "vault": Store(MODERN)}, views=views) as world:
        principals = CODER, ANYONE.within("other"), ANYONE
        coder, other, anyone = [await client_of(world, principal, down) for principal in principals]
        for client in (coder, other, anyone):
            assert (await subscribe(client, both, **ALL_LISTS))["resourceSubscriptions"] == both
            await client.drain()
        less = View(include=(Selector(upstream="docs", name="file:///open/0"),))
        plan = world.mux.apply(attrs.evolve(world.mux.config, views=views | {"coding": less}))
        assert plan.settings == ("views",)
        messages = await coder.drain()
        if down == MODERN:
            assert messages[-1]["result"]["resultType"] == "complete"  # so that it listens anew
            assert (await subscribe(coder, both))["resourceSubscriptions"] == both[:1]
        else:
            assert {message["method"] for message in messages} >= {
                f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources")
            }
        assert await other.drain() == await anyone.drain() == []
        assert (await coder.request("tools/list"))["tools"] == []
        assert (await other.request("tools/list"))["tools"]


@pytest.mark.parametrize("down", REVISIONS)
async def test_a_view_that_is_not_for_its_client_any_more_has_nothing(down, autojump_clock):
    views = {"own": View(include=(Selector(upstream="*"),), principals=("alice", "bob"))}
    async with open_world(stores(), views=views) as world:
        alice, bob = [await client_of(world, Principal(name, view="own"), down) for name in ("alice", "bob")]
        less = {"own": attrs.evolve(views["own"], principals=("bob",))}
        world.mux.apply(attrs.evolve(world.mux.config, views=less))
        for client, is_in in ((alice, False), (bob, True)):
            await client.drain()
            assert bool((await client.request("tools/list"))["tools"]) is is_in
        assert (await alice.refusal("tools/call", {"name": "docs__open-tool"}))["code"] == -32602
        await bob.request("tools/call", {"name": "docs__open-tool"})


@pytest.mark.parametrize("prefix", ["docs", ""])
async def test_a_view_that_has_gone_has_nothing(prefix, autojump_clock):
    settings = {"docs": {"prefix": prefix}}
    async with open_world({"docs": Store(MODERN)}, views=VIEWS, settings=settings) as world:
        coder = await client_of(world, CODER, MODERN)
        assert (await coder.request("tools/list"))["tools"]
        world.mux.apply(attrs.evolve(world.mux.config, views={}))
        assert (await coder.request("tools/list"))["tools"] == []
        for name in ("open-tool", "docs__open-tool"):
            await coder.refusal("tools/call", {"name": name})
        for uri in ("file:///open/0", "docs+file:///open/0"):
            await coder.refusal("resources/read", {"uri": uri})


async def test_a_task_exists_only_in_the_view_that_made_it(autojump_clock):
    views = VIEWS | {"other": View(include=(Selector(upstream="vault"),))}
    async with open_world({"docs": TaskServer(LEGACY), "vault": Store(MODERN)}, views=views) as world:
        coder = await client_of(world, CODER, LEGACY)
        made = await coder.request("tools/call", {"name": "docs__must", "task": {}})
        task = {"taskId": made["task"]["taskId"]}
        await coder.request("tasks/get", task)
        other = await client_of(world, ANYONE.within("other"), LEGACY)
        assert (await other.refusal("tasks/get", task))["message"] == "Task not found"


def test_what_is_bound_to_a_principal_is_bound_to_its_view():
    keys = {Principal(name, view=view).key for name in ("", "a", "b") for view in ("", "a", "b")}
    assert len(keys) == 9


# Selected by annotations

READING = {"reading": View(include=(Selector(readOnlyHint=True), Selector(kind="prompts")))}
READER = ANYONE.within("reading")


class Annotated(Store):
    """Has two tools with annotations, and one without."""

    def __init__(self, revision: str) -> None:
        super().__init__(revision)
        self.fails_at: str | None = None  # a parameter with which its list of tools fails
        self.annotate(look={"readOnlyHint": True}, wipe={"readOnlyHint": False}, odd=None)

    def annotate(self, **annotations: Any) -> None:
        tools = [
            {"name": name, "inputSchema": {"type": "object"}}
            | ({} if hints is None else {"annotations": hints})
            for name, hints in annotations.items()
        ]
        self.lists["tools/list"] = ("tools", tools)

    async def handle(self, method: str, params: Json, message: Json) -> Json:
        if method == "tools/list" and self.fails_at in ("", *params):
            raise RpcFailure(-32603, "no list today")
        return await super().handle(method, params, message)


@pytest.mark.parametrize("prefix", ["docs", ""])
@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", REVISIONS)
async def test_tools_that_only_read_are_listed_and_called(prefix, up, down, autojump_clock):
    server = Annotated(up)
    exposed = f"{prefix}__" if prefix else ""
    async with open_world({"docs": server}, views=READING, settings={"docs": {"prefix": prefix}}) as world:
        first, reader = [await client_of(world, READER, down) for _ in range(2)]
        await first.request("tools/call", {"name": f"{exposed}look"})  # before anybody has asked for the list
        tools = (await reader.request("tools/list"))["tools"]
        assert [tool["name"] for tool in tools] == [f"{exposed}look"]
        for name in ("wipe", "odd", "nothing"):
            error = await reader.refusal("tools/call", {"name": f"{exposed}{name}"})
            assert error["message"] == f"Unknown tool: {exposed}{name}"
        assert [call["params"]["name"] for call in server.asked("tools/call")] == ["look"]


async def test_a_tool_is_judged_by_what_is_said_of_it_now(autojump_clock):
    server = Annotated(MODERN)
    async with open_world({"docs": server}, views=READING) as world:
        reader = await client_of(world, READER, MODERN)
        await reader.request("tools/call", {"name": "docs__look"})
        server.annotate(look={"readOnlyHint": False}, wipe={"readOnlyHint": True})
        await server.notify("notifications/tools/list_changed")
        await trio.sleep(1)
        await reader.refusal("tools/call", {"name": "docs__look"})
        await reader.request("tools/call", {"name": "docs__wipe"})
        server.annotate(look={"readOnlyHint": True})  # without a notification
        await trio.sleep(KNOWN_SECONDS + 1)
        await reader.refusal("tools/call", {"name": "docs__wipe"})
        await reader.request("tools/call", {"name": "docs__look"})


async def test_one_list_serves_all_that_depends_on_the_tools_of_a_server(autojump_clock):
    server, long = TaskServer(LEGACY), "long" * 15
    tools: list[Json] = [
        *(server.lists["tools/list"][1] or []),
        {"name": long, "inputSchema": {"type": "object"}},
        {"name": "find", "inputSchema": SEARCH},
    ]
    server.lists["tools/list"] = "tools", [tool | {"annotations": {"readOnlyHint": True}} for tool in tools]
    settings = {"docs": {"overrides": (Override(name="find", parameters=PARAMETERS),)}}
    servers = {"docs": server, "vault": Annotated(MODERN)}
    async with open_world(servers, views=READING, settings=settings) as world:
        reader, anyone = await client_of(world, READER, MODERN), await client_of(world, ANYONE, MODERN)
        await reader.request("tools/call", {"name": "docs__may"})  # by its hints, and its support of tasks
        await reader.request("tools/call", {"name": "may"})  # by its owner
        await reader.request(
            "tools/call", {"name": Namespace({"docs": "docs"}).spaces["docs"].expose_name(long)}
        )
        await anyone.request("tools/call", {"name": "docs__find", "arguments": {"query": "x"}})
        error = await anyone.refusal("tools/call", {"name": "docs__find"})
        assert "'query' is a required property" in error["message"]
        error = await reader.refusal("tools/call", {"name": "docs__mai"})
        assert "did you mean `docs__may`" in error["message"]
        assert server.calls_of("tools/call")[2]["name"] == long
        assert server.pages == {("tools/list", None): 1}


async def test_a_tool_of_which_nothing_can_be_known_is_not_called(autojump_clock):
    server = Annotated(MODERN)
    server.fails_at = ""
    async with open_world({"docs": server, "vault": Annotated(MODERN)}, views=READING) as world:
        reader = await client_of(world, READER, MODERN)
        error = await reader.refusal("tools/call", {"name": "docs__look"})
        assert "no list today" in error["message"]
        assert not server.asked("tools/call")
        await reader.request("tools/call", {"name": "vault__look"})
        assert (await reader.refusal("tools/call", {"name": "odd"}))["code"] == -32602


async def test_an_incomplete_list_is_left_out_and_named(autojump_clock):
    server = Annotated(MODERN)
    server.page_size = 1
    async with open_world({"docs": server, "vault": Annotated(MODERN)}, views=READING) as world:
        reader = await client_of(world, READER, MODERN)
        server.fails_at = "cursor"
        page = await reader.request("tools/list")
        assert [tool["name"] for tool in page["tools"]] == ["vault__look"]
        assert "no list today" in page["_meta"]["dev.mcpmux/upstreams"]["docs"]["reason"]


# Overridden

LONG = "a-name-that-is-so-long-that-it-has-to-be-shortened-for-clients-x"
OVERRIDES = (
    ViewOverride(upstream="docs", name="open-tool", rename="find", title="Find", description="Finds"),
    ViewOverride(upstream="docs", kind="prompts", name="open-prompt", rename="ask"),
    ViewOverride(upstream="docs", name="secret-tool", rename=LONG),
)


@pytest.mark.parametrize("prefix", ["docs", ""])
@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", REVISIONS)
async def test_a_tool_or_prompt_is_known_by_its_new_name_only(prefix, up, down, autojump_clock):
    server = Store(up)
    exposed = f"{prefix}__" if prefix else ""
    views = {"coding": View(overrides=OVERRIDES)}
    async with open_world({"docs": server}, views=views, settings={"docs": {"prefix": prefix}}) as world:
        coder, anyone = await client_of(world, CODER, down), await client_of(world, ANYONE, down)
        tool, long = (await coder.request("tools/list"))["tools"]
        assert (tool["name"], tool["description"]) == (f"{exposed}find", "Finds")
        assert len(long["name"]) == (51 if prefix else len(LONG))
        prompts = (await coder.request("prompts/list"))["prompts"]
        assert [prompt["name"] for prompt in prompts] == [f"{exposed}ask", f"{exposed}secret-prompt"]
        for use, shown, own in (
            ("tools/call", tool["name"], "open-tool"),
            ("tools/call", long["name"], "secret-tool"),
            ("prompts/get", f"{exposed}ask", "open-prompt"),
            ("prompts/get", f"{exposed}secret-prompt", "secret-prompt"),
        ):
            await coder.request(use, {"name": shown})
            assert server.asked(use)[-1]["params"]["name"] == own
        error = await coder.refusal("tools/call", {"name": f"{exposed}open-tool"})
        assert error["message"] == f"Unknown tool: {exposed}open-tool"  # no hint has its old name
        error = await coder.refusal("prompts/get", {"name": f"{exposed}open-prompt"})
        assert error["message"].partition(";")[0] == f"Unknown prompt: {exposed}open-prompt"
        await anyone.request("tools/call", {"name": f"{exposed}open-tool"})
        tools = (await anyone.request("tools/list"))["tools"]
        assert [tool["name"] for tool in tools] == [f"{exposed}open-tool", f"{exposed}secret-tool"]


@pytest.mark.parametrize("prefix", ["docs", ""])
@pytest.mark.parametrize("down", REVISIONS)
async def test_arguments_of_a_renamed_prompt_are_completed(prefix, down, autojump_clock):
    server = Store(MODERN)
    exposed = f"{prefix}__" if prefix else ""
    views = {"coding": View(overrides=OVERRIDES)}
    async with open_world({"docs": server}, views=views, settings={"docs": {"prefix": prefix}}) as world:
        coder = await client_of(world, CODER, down)
        argument = {"name": "x", "value": "v"}
        ref = {"type": "ref/prompt", "name": f"{exposed}ask"}
        await coder.request("completion/complete", {"ref": ref, "argument": argument})
        assert server.asked("completion/complete")[-1]["params"]["ref"]["name"] == "open-prompt"
        ref["name"] = f"{exposed}open-prompt"
        assert (await coder.refusal("completion/complete", {"ref": ref, "argument": argument}))[
            "code"
        ] == -32602


async def test_a_new_name_is_found_without_a_prefix_too(autojump_clock):
    servers = stores()
    async with open_world(servers, views={"coding": View(overrides=OVERRIDES)}) as world:
        coder = await client_of(world, CODER, MODERN)
        result = await coder.request("tools/call", {"name": "find"})
        assert result["content"][0]["text"] == "open-tool"
        result = await coder.request("prompts/get", {"name": "ask"})
        assert result["messages"] == []
        await coder.request("tools/call", {"name": "open-tool"})  # that of the other upstream
        assert servers["vault"].asked("tools/call")


async def test_what_is_hidden_by_a_new_name_is_not_there(autojump_clock):
    override = ViewOverride(upstream="docs", name="open-tool", rename="secret-tool")
    async with open_world(stores(), views={"coding": View(overrides=(override,))}) as world:
        coder = await client_of(world, CODER, MODERN)
        names = [tool["name"] for tool in (await coder.request("tools/list"))["tools"]]
        assert names == ["docs__secret-tool", "vault__open-tool", "vault__secret-tool"]
        result = await coder.request("tools/call", {"name": "docs__secret-tool"})
        assert result["content"][0]["text"] == "open-tool"


async def test_overrides_selectors_and_rules_use_the_servers_names(autojump_clock):
    view = View(include=(Selector(name="open*"),), overrides=OVERRIDES)
    rules = (AccessRule(effect="allow", targets=("open*",)),)
    async with open_world(stores(), views={"coding": view}, access=rules) as world:
        coder = await client_of(world, CODER, MODERN)
        names = [tool["name"] for tool in (await coder.request("tools/list"))["tools"]]
        assert names == ["docs__find", "vault__open-tool"]
        await coder.request("tools/call", {"name": "docs__find"})


async def test_other_overrides_are_told_and_hold_at_once(autojump_clock):
    async with open_world(stores(), views={"coding": View(overrides=OVERRIDES)}) as world:
        coder, anyone = await client_of(world, CODER, LEGACY), await client_of(world, ANYONE, LEGACY)
        long = (await coder.request("tools/list"))["tools"][1]["name"]
        await coder.request("tools/call", {"name": long})
        overrides = (ViewOverride(upstream="docs", name="open-tool", rename="look"),)
        plan = world.mux.apply(attrs.evolve(world.mux.config, views={"coding": View(overrides=overrides)}))
        assert plan.settings == ("views",)
        assert "notifications/tools/list_changed" in [message["method"] for message in await coder.drain()]
        assert await anyone.drain() == []
        await coder.request("tools/call", {"name": "docs__look"})
        await coder.refusal("tools/call", {"name": "docs__open-tool"})
        await coder.refusal("tools/call", {"name": long})
        docs, vault = world.mux.config.upstreams
        docs = attrs.evolve(docs, overrides=(Override(name="open-tool", rename="everywhere"),))
        plan = world.mux.apply(attrs.evolve(world.mux.config, upstreams=(docs, vault)))
        assert plan.adjusted == ("docs",)
        assert "notifications/tools/list_changed" in [message["method"] for message in await anyone.drain()]
        await anyone.request("tools/call", {"name": "docs__everywhere"})


PARAMETERS = {
    "query": Parameter(description="Short words"),
    "limit": Parameter(default=5),
    "tenant": Parameter(value="acme"),
    "debug": Parameter(hidden=True),
}
SEARCH = {
    "type": "object",
    "properties": {
        "query": {"type": "string"},
        "limit": {"type": "integer"},
        "tenant": {"type": "string"},
        "debug": {"type": "boolean"},
    },
    "required": ["query", "limit", "tenant"],
}


@pytest.mark.parametrize("prefix", ["docs", ""])
@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", REVISIONS)
async def test_parameters_are_shown_checked_and_filled_in(prefix, up, down, autojump_clock):
    server = Store(up)
    server.lists["tools/list"] = ("tools", [{"name": "open-tool", "inputSchema": SEARCH}])
    override = ViewOverride(upstream="docs", name="open-tool", rename="find", parameters=PARAMETERS)
    views, find = {"coding": View(overrides=(override,))}, f"{prefix}__find" if prefix else "find"
    async with open_world({"docs": server}, views=views, settings={"docs": {"prefix": prefix}}) as world:
        coder = await client_of(world, CODER, down)

        async def call(arguments: Json | None) -> Json:
            params = {"name": find} if arguments is None else {"name": find, "arguments": arguments}
            await coder.request("tools/call", params)
            sent: Json = server.asked("tools/call")[-1]["params"]
            assert sent["name"] == "open-tool"
            return sent["arguments"]

        assert await call({"query": "x"}) == {"query": "x", "limit": 5, "tenant": "acme"}
        assert await call({"query": "x", "limit": 1}) == {"query": "x", "limit": 1, "tenant": "acme"}
        (tool,) = (await coder.request("tools/list"))["tools"]
        assert tool["inputSchema"] == {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "Short words"},
                "limit": {"type": "integer", "default": 5},
            },
            "required": ["query"],
        }
        count = len(server.asked("tools/call"))
        for arguments, sentence in (
            ({"query": 7}, "Invalid params: query: 7 is not of type 'string'"),
            ({}, "Invalid params: 'query' is a required property"),
            ({"query": "x", "tenant": "other"}, "Invalid params: there is no argument tenant"),
            ({"query": "x", "debug": True}, "Invalid params: there is no argument debug"),
            (
                {"query": "x", "Debug": 1},
                "Invalid params: there is no argument Debug, in any case of its letters",
            ),
            ([], 'Invalid params: "arguments" must be an object'),
        ):
            error = await coder.refusal("tools/call", {"name": find, "arguments": arguments})
            assert (error["code"], error["message"]) == (-32602, sentence)
        assert len(server.asked("tools/call")) == count


@pytest.mark.parametrize("prefix", ["docs", ""])
async def test_arguments_of_what_is_denied_are_not_looked_at(prefix, autojump_clock):
    server = Store(MODERN)
    server.lists["tools/list"] = ("tools", [{"name": "open-tool", "inputSchema": SEARCH}])
    settings = {"docs": {"prefix": prefix, "overrides": (Override(name="open-tool", parameters=PARAMETERS),)}}
    rules = (AccessRule(effect="allow"), AccessRule(effect="deny", targets=("open-tool",)))
    async with open_world({"docs": server}, settings=settings, access=rules) as world:
        anyone = await client_of(world, ANYONE, MODERN)
        name = f"{prefix}__open-tool" if prefix else "open-tool"
        error = await anyone.refusal("tools/call", {"name": name, "arguments": {"query": 7}})
        assert error["message"] == f"Unknown tool: {name}"


async def test_arguments_are_checked_against_the_schema_that_the_server_has_now(autojump_clock):
    server = Store(MODERN)
    server.lists["tools/list"] = ("tools", [{"name": "open-tool", "inputSchema": SEARCH}])
    override = Override(name="open-tool", parameters=PARAMETERS)
    settings = {"docs": {"overrides": (override,)}}
    async with open_world({"docs": server, "vault": Store(MODERN)}, settings=settings) as world:
        anyone = await client_of(world, ANYONE, MODERN)
        call = {"name": "docs__open-tool", "arguments": {"query": "x", "lang": "de"}}
        await anyone.request("tools/call", call)
        schema = SEARCH | {"additionalProperties": False}
        server.lists["tools/list"] = ("tools", [{"name": "open-tool", "inputSchema": schema}])
        await server.notify("notifications/tools/list_changed")
        await trio.sleep(1)
        assert "'lang' was unexpected" in (await anyone.refusal("tools/call", call))["message"]
        await anyone.request("tools/call", {"name": "vault__open-tool", "arguments": {"x": 1}})


# Selected in the file of a host app


@pytest.mark.parametrize("prefix", ["docs", ""])
@pytest.mark.parametrize("down", REVISIONS)
async def test_a_selection_of_a_host_app_holds_everywhere(prefix, down, autojump_clock):
    server = Store(MODERN)
    settings = {"docs": {"prefix": prefix, "tools": ToolSelection(("*-tool",), ("secret*",))}}
    exposed = f"{prefix}__" if prefix else ""
    async with open_world({"docs": server}, settings=settings, views={"all": View(exclude=NOTHING)}) as world:
        for principal in (ANYONE, ANYONE.within("all")):
            client = await client_of(world, principal, down)
            tools = (await client.request("tools/list"))["tools"]
            assert [tool["name"] for tool in tools] == [f"{exposed}open-tool"]
            assert len((await client.request("prompts/list"))["prompts"]) == 2
            await client.request("tools/call", {"name": f"{exposed}open-tool"})
            error = await client.refusal("tools/call", {"name": f"{exposed}secret-tool"})
            assert error["message"].partition(";")[0] == f"Unknown tool: {exposed}secret-tool"
            uri = f"{prefix}+file:///secret/0" if prefix else "file:///secret/0"
            await client.request("resources/read", {"uri": uri})
        assert [call["params"]["name"] for call in server.asked("tools/call")] == ["open-tool"] * 2


async def test_another_selection_of_a_host_app_is_told_and_restarts_nothing(autojump_clock):
    async with open_world(stores()) as world:
        client = await client_of(world, ANYONE, LEGACY)
        config = world.mux.config
        docs, vault = config.upstreams
        docs = attrs.evolve(docs, tools=ToolSelection((), ()))
        plan = world.mux.apply(attrs.evolve(config, upstreams=(docs, vault)))
        assert plan.adjusted == ("docs",) and not plan.restarted
        assert "notifications/tools/list_changed" in [message["method"] for message in await client.drain()]
        names = [tool["name"] for tool in (await client.request("tools/list"))["tools"]]
        assert names == ["vault__open-tool", "vault__secret-tool"]
        assert world.connects == {"docs": 1, "vault": 1}


# Narrowed by a client


@pytest.mark.parametrize("view", ["", "coding"])
async def test_a_query_narrows_and_never_widens(view):
    async with open_endpoint(stores(), views=VIEWS) as mux:
        path = f"/mcp/{view}" if view else "/mcp"

        async def names(query: str, method: str = "tools/list") -> list[str]:
            head = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method}
            status, text = await post(mux, f"{path}?{query}", modern_request(method), head)
            assert status == 200
            (items,) = (value for key, value in json.loads(text)["result"].items() if type(value) is list)
            return [item.get("name") for item in items]

        everything = await names("")
        assert await names("tools=open*") == [name for name in everything if "open" in name]
        assert await names("tools=docs__open*") == ["docs__open-tool"]
        assert await names("tools=docs__*,nothing") == [name for name in everything if "docs__" in name]
        assert await names("tools=docs__open*", "prompts/list") == await names("", "prompts/list")
        assert await names("upstreams=docs&tools=*-tool") == [name for name in everything if "docs" in name]
        assert await names("tools=open-tool", "prompts/list") == await names("", "prompts/list")
        assert await names("api_key=x") == everything
        assert set(await names("tools=*secret*,open*")) <= set(everything)
        assert await names("resources=file:///open/*", "resources/templates/list") == []
        # The + of a prefix is no space, also where it is not percent-encoded.
        for plus in "+", "%2B":
            assert await names(f"resources=docs{plus}file:///open/*", "resources/list") == ["x"]


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("tool=x", "The query has a part tool; did you mean tools?"),
        ("tools=", "The query's tools: expected a name"),
        ("tools=a,", "The query's tools: expected a name"),
        ("upstreams=dosc", "The query's upstreams: there is none called dosc here"),
        ("upstreams=vault", "The query's upstreams: there is none called vault here"),
        ("tools=%00", "The query's tools: expected a name"),
        ("tools=docs*", "none of 1 tools is `docs*`; did you mean `docs__*`?"),
        ("tools=vault__secret-tool", "none of 1 tools is `vault__secret-tool`"),
        ("tools=x&prompts=y", "The query selects nothing: none of 1 tools is `x`; none of 1 prompts is `y`"),
    ],
)
async def test_mistakes_in_a_query_are_told(query, sentence):
    async with open_endpoint(stores(), views=VIEWS) as mux:
        status, text = await post(mux, f"/mcp/coding?{query}", modern_request("tools/list"), {})
        assert status == 400
        assert sentence in text
        knows_nothing(text.replace("vault__secret-tool", ""), "secret")


async def test_a_session_belongs_to_its_narrowing():
    async with open_endpoint(stores(), views=VIEWS) as mux:
        params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": CLIENT}
        session: Json = {}
        await post(mux, "/mcp?tools=open*&upstreams=docs", request("initialize", params), {}, session)
        session["MCP-Protocol-Version"] = LEGACY
        for path, expected in (
            ("/mcp?upstreams=docs&tools=open%2A", 200),
            ("/mcp?tools=open*", 404),
            ("/mcp", 404),
        ):
            assert (await post(mux, path, request("tools/list"), session))[0] == expected, path


def test_a_narrowing_has_one_spelling():
    spellings = ["tools=b,a&upstreams=x", "upstreams=x&tools=a&tools=b", "x=1&upstreams=x&tools=%61,b,a"]
    assert {read_narrowing(spelling) for spelling in spellings} == {"upstreams=x&tools=a,b"}


@given(st.lists(st.text(min_size=1), min_size=1, max_size=MOST_GLOBS))
def test_what_a_query_names_is_read_as_it_was_written(names):
    names = [name for name in names if re.fullmatch(ITEM.pattern, name)]
    assume(names)
    query = "tools=" + ",".join(quote(name, safe="") for name in names)
    assert globs_in(read_narrowing(query)) == {"tools": sorted(set(names))}


async def test_a_narrowing_outlives_a_reload(autojump_clock):
    async with open_world(stores()) as world:
        somebody = world.enter(ANYONE, "", "tools=open*&upstreams=docs")
        client = await client_of(world, somebody, LEGACY)
        for _ in range(2):
            await client.request("tools/call", {"name": "docs__open-tool"})
            await client.refusal("tools/call", {"name": "docs__secret-tool"})
            await client.refusal("resources/read", {"uri": "vault+file:///open/0"})
            for access in ((AccessRule(effect="allow"),), ()):
                world.mux.apply(attrs.evolve(world.mux.config, access=access))
            await client.drain()


async def test_narrowings_are_forgotten_before_they_are_too_many(autojump_clock):
    async with open_world(stores(), views=VIEWS) as world:
        access = world.mux.router.access
        for number in range(3 * NARROWINGS_KEPT):
            somebody = world.enter(ANYONE, "coding", f"tools=t{number}")
            assert access.of(somebody).may("docs", "tools/call", f"t{number}")
            assert not access.of(somebody).may("docs", "tools/call", "open-tool")
        assert len(access._narrowings) <= NARROWINGS_KEPT


async def test_a_query_costs_as_much_as_it_names(autojump_clock):
    """Lists of upstreams and of items are held against things one by one, not multiplied."""
    async with open_world(stores(), views=VIEWS) as world:
        access = world.mux.router.access
        names = ",".join(f"t{number}*" for number in range(MOST_GLOBS - 2))
        somebody = world.enter(ANYONE, "", f"upstreams=docs,v*&tools={names}")
        for upstream, tool, is_in in (("docs", "t7x", True), ("vault", "t7x", True), ("docs", "x", False)):
            assert access.of(somebody).may(upstream, "tools/call", tool) is is_in
        views = list(views_of(somebody.view.partition(NARROWED)[2]))
        assert sum(len(view.include) for view in views) <= MOST_GLOBS + len(KINDS)
        for query in (f"tools=x,y,z&upstreams=docs&prompts={names}", "tools=" + "x," * MOST_GLOBS + "x"):
            with pytest.raises(BadNarrowing, match="more than 64"):
                world.enter(ANYONE, "", query)


# Over HTTP


async def test_each_view_has_a_path_and_what_is_elsewhere_is_not_there():
    async with open_endpoint(stores(), views=VIEWS) as mux:

        async def list_at(path: str) -> tuple[int, str]:
            head = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/list"}
            body = modern_request("tools/list")
            return await post(mux, path, body, head)

        assert "vault" in (await list_at("/mcp"))[1]
        status, text = await list_at("/mcp/coding")
        assert status == 200 and "docs__open-tool" in text
        knows_nothing(text)
        assert await list_at("/mcp/") == await list_at("/mcp")
        assert await list_at("/mcp/coding/") == (status, text)
        for path in ("/mcp/own", "/mcp/nothing", "/mcp//", "/mcp/coding//", "/mcp/coding/x", "/other/coding"):
            assert (await list_at(path))[0] == 404, path


@pytest.mark.parametrize("revision", REVISIONS[:-1])
async def test_a_session_belongs_to_its_view(revision):
    async with open_endpoint(stores(), views={**VIEWS, "other": CODING}) as mux:
        params = {
            "protocolVersion": revision,
            "capabilities": {},
            "clientInfo": CLIENT,
        }
        session: Json = {}
        status, text = await post(mux, "/mcp/coding", request("initialize", params), {}, session)
        assert status == 200 and "vault" not in text
        session["MCP-Protocol-Version"] = revision
        status, text = await post(mux, "/mcp/coding", request("tools/list"), session)
        assert status == 200 and "docs__open-tool" in text
        knows_nothing(text)
        for path in ("/mcp", "/mcp/other"):
            assert (await post(mux, path, request("tools/list"), session))[0] == 404


async def test_http_sse_has_views_too():
    async with (
        open_endpoint(stores(), views=VIEWS) as mux,
        requested(mux._pool, "GET", "/sse/coding", (), b"", idempotent=False) as stream,
    ):
        address = (await stream.receive_some()).split(b"data: ")[1].split()[0].decode()
        assert address.startswith("/sse/coding?")
        initialize = {
            "protocolVersion": "2024-11-05",
            "capabilities": {},
            "clientInfo": CLIENT,
        }
        assert (await post(mux, address, request("initialize", initialize), {}))[0] == 202
        assert (await post(mux, address.replace("/coding", ""), request("tools/list"), {}))[0] == 404
        assert (await post(mux, address, request("tools/list", request_id=2), {}))[0] == 202
        received = b""
        with trio.fail_after(60):
            while b"docs__open-tool" not in received:
                received += await stream.receive_some()
        knows_nothing(received.decode())


def modern_request(method: str) -> Json:
    return request(method, {"_meta": {VERSION: MODERN, CLIENT_INFO: CLIENT, CAPABILITIES: {}}})


async def post(
    mux: Any, path: str, body: Json, headers: Json, session: Json | None = None
) -> tuple[int, str]:
    """Post, and return status and text of the answer; its session id goes into `session`."""
    fields = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream", **headers}
    data = json.dumps(body).encode()
    with trio.fail_after(60):
        async with requested(
            mux._pool, "POST", path, tuple(fields.items()), data, idempotent=False
        ) as answer:
            if session is not None:
                session["Mcp-Session-Id"] = answer.headers["mcp-session-id"]
            return answer.status, (await answer.read()).decode()
