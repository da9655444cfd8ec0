"""Whole flows through mcpmux: scripted clients and servers of both eras, memory pipes, virtual time."""

from __future__ import annotations

import secrets
from typing import Any

import attrs
import pytest
import structlog
import trio
import trio.testing

from mcpmux.config import Merging
from mcpmux.config.views import Override, Selector, View, ViewOverride
from mcpmux.mux.listing import KNOWN_SECONDS
from mcpmux.mux.merge import BEGINS_AGAIN
from mcpmux.protocol.principal import ANYONE
from mcpmux.transports.inline import BUNCH
from tests.peers.client import ScriptedClient
from tests.peers.revision import LEGACY, Json
from tests.peers.server import CACHE, RpcFailure, ScriptedServer
from tests.peers.subscribable import Subscribable
from tests.runtime.world import World, open_world

ERAS = [LEGACY, "2026-07-28"]


def resource(uri: str, **more: Any) -> Json:
    return {"uri": uri, "name": uri, **more}


async def read_back(server: ScriptedServer, params: Json, _message: Json) -> Json:
    uri = params["uri"]
    uris = [item["uri"] for item in server.items("resources/list")]
    if uri not in uris and not uri.startswith("t:"):
        raise RpcFailure(-32602 if server.modern else -32002, "Resource not found", {"uri": uri})
    result: Json = {"contents": [{"uri": uri, "text": f"text of {uri}"}, {"uri": uri + "#b", "blob": "AAE="}]}
    return result | ({"resultType": "complete", "ttlMs": 5, "cacheScope": "public"} if server.modern else {})


def docs(revision: str = "2026-07-28", **more: Any) -> ScriptedServer:
    return ScriptedServer(
        revision,
        resources=[resource("file:///a.md", size=3, x_unknown={"b": 1, "a": [1.0, 2]}), resource("memo:1")],
        templates=[{"uriTemplate": "t:{id}", "name": "t"}],
        handlers={"resources/read": read_back},
        **more,
    )


async def open_client(world: World, revision: str) -> Any:
    client = world.client()
    if revision != "2026-07-28":
        await client.initialize(revision)
    return client


async def test_a_raw_uri_reaches_its_only_owner(autojump_clock):
    other = ScriptedServer(resources=[resource("file:///a.md"), resource("only:here")])
    other.handlers["resources/read"] = read_back
    async with open_world({"docs": docs(), "other": other}) as world:
        client = world.client()
        listed = await client.request("resources/read", {"uri": "only:here"})
        assert listed["contents"][0]["uri"] == "other+only:here"
        templated = await client.request("resources/read", {"uri": "t:42"})
        assert templated["contents"][0]["uri"] == "docs+t:42"
        error = await client.refusal("resources/read", {"uri": "file:///a.md"})
        assert error["data"]["candidates"] == ["docs+file:///a.md", "other+file:///a.md"]
        assert "did you mean" not in error["message"]
        assert (await client.refusal("resources/read", {"uri": "nosuch+file:///a.md"}))["code"] == -32602


@pytest.mark.parametrize("template", ["t:{id}", "t:a{?q}", "t:a{#x}", "t:a{/x*}", "t:a{;x}", "t:{x,y:3}"])
@pytest.mark.parametrize("down", ERAS)
async def test_a_raw_template_is_completed_by_its_only_owner(template, down, autojump_clock):
    refs: list[str] = []

    async def complete(server: ScriptedServer, params: Json, _message: Json) -> Json:
        refs.append(params["ref"]["uri"])
        return {"resultType": "complete", "completion": {"values": []}}

    server = ScriptedServer(
        resources=[],
        templates=[{"uriTemplate": template, "name": "t"}],
        handlers={"completion/complete": complete},
        capabilities={"resources": {}, "completions": {}},
    )
    async with open_world({"docs": server, "other": ScriptedServer(resources=[])}) as world:
        client = await open_client(world, down)
        for uri in (template, f"docs+{template}"):
            ref = {"type": "ref/resource", "uri": uri}
            await client.request("completion/complete", {"ref": ref, "argument": {"name": "x", "value": ""}})
    assert refs == [template, template]


async def test_other_exchanges_go_on_while_a_uri_is_compared_with_many_templates():
    heavy = [f"a{'{+x}' * 62}{number}" for number in range(50)]
    templates = [{"uriTemplate": template, "name": "t"} for template in heavy]
    server, order, compared = ScriptedServer(resources=[], templates=templates), list[str](), trio.Event()

    async def answer(server: ScriptedServer, _params: Json, _message: Json) -> Json:
        compared.set()
        return {"resourceTemplates": templates, "resultType": "complete", **CACHE}

    async def read(client: ScriptedClient) -> None:
        await client.refusal("resources/read", {"uri": "a" + "x" * 500})
        order.append("read")

    server.handlers["resources/templates/list"] = answer
    async with open_world({"docs": server, "other": docs()}) as world, trio.open_nursery() as nursery:
        reader, other = world.client(), world.client()
        await other.request("resources/list")
        nursery.start_soon(read, reader)
        await compared.wait()
        for _ in range(3):
            await other.request("resources/read", {"uri": "other+memo:1"})
        order.append("others")
    assert order == ["others", "read"]


async def say_name(server: ScriptedServer, params: Json, message: Json) -> Json:
    """Return an answer that names the called item; of a completion, its reference."""
    name = params.get("name") or params["ref"]["name"]
    content = {"type": "text", "text": name}
    done: dict[str, Json] = {
        "tools/call": {"content": [content]},
        "prompts/get": {"messages": [{"role": "user", "content": content}]},
        "completion/complete": {"completion": {"values": [name]}},
    }
    return done[message["method"]] | ({"resultType": "complete"} if server.modern else {})


def named(revision: str, *names: str) -> ScriptedServer:
    """Return a server with a tool and a prompt of each name."""
    return ScriptedServer(
        revision,
        tools=[{"name": name, "inputSchema": {"type": "object"}} for name in names],
        prompts=[{"name": name} for name in names],
        handlers=dict.fromkeys(["tools/call", "prompts/get", "completion/complete"], say_name),
        capabilities={"tools": {}, "prompts": {}, "completions": {}},
    )


NAMING = {
    "tools/call": lambda name: {"name": name},
    "prompts/get": lambda name: {"name": name},
    "completion/complete": lambda name: {
        "ref": {"type": "ref/prompt", "name": name},
        "argument": {"name": "a", "value": ""},
    },
}


@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", ERAS)
@pytest.mark.parametrize("method", NAMING)
async def test_a_raw_name_reaches_its_only_owner(method, down, up, autojump_clock):
    servers = {"docs": named(up, "find", "both"), "other": named(up, "both", "only_here")}
    async with open_world(servers) as world:
        client = await open_client(world, down)
        await client.request(method, NAMING[method]("only_here"))
        calls = [message["params"] for message in servers["other"].seen if message["method"] == method]
        assert [(params.get("name") or params["ref"]["name"]) for params in calls] == ["only_here"]
        error = await client.refusal(method, NAMING[method]("both"))
        assert error["code"] == -32602
        assert error["data"] == {"name": "both", "candidates": ["docs__both", "other__both"]}
        assert error["message"].endswith("ask for docs__both or other__both")
        assert (await client.refusal(method, NAMING[method]("nosuch")))["code"] == -32602


@pytest.mark.parametrize("method", ["tools/call", "prompts/get"])
async def test_an_argument_that_is_an_exposed_uri_is_the_servers_own_there(method, autojump_clock):
    got: list[Json] = []

    async def take(server: ScriptedServer, params: Json, _message: Json) -> Json:
        got.append(params["arguments"])
        return {"resultType": "complete", "content": [], "messages": []}

    server = ScriptedServer(tools=[], prompts=[], handlers={method: take})
    async with open_world({"docs": server, "more": docs()}) as world:
        arguments = {"whole": "docs+file:///a", "other": "more+file:///a", "part": "see docs+file:///a"}
        await world.client().request(method, {"name": "docs__t", "arguments": arguments})
    assert got == [{**arguments, "whole": "file:///a"}]


@pytest.mark.parametrize("up", ERAS)
async def test_the_owner_of_a_tool_is_remembered_for_a_minute(up, autojump_clock):
    tool: Json = {"name": "search", "inputSchema": {"type": "object"}}
    servers = {"docs": Subscribable(up), "other": Subscribable(up)}
    servers["other"].lists["tools/list"] = "tools", [tool]
    for server in servers.values():
        server.handlers["tools/call"] = say_name
    async with open_world(servers) as world:
        client = await open_client(world, LEGACY)  # a session, which gets notifications of changes

        async def lists_of_two_calls() -> int:
            earlier = [server.pages.get(("tools/list", None), 0) for server in servers.values()]
            for _ in range(2):
                await client.request("tools/call", {"name": "search"})
            after = [server.pages.get(("tools/list", None), 0) for server in servers.values()]
            (count,) = {new - old for new, old in zip(after, earlier, strict=True)}
            return count

        assert await lists_of_two_calls() == 1
        assert await lists_of_two_calls() == 0
        await trio.sleep(KNOWN_SECONDS)
        assert await lists_of_two_calls() == 1
        servers["docs"].lists["tools/list"] = "tools", [tool]
        await servers["docs"].notify("notifications/tools/list_changed")
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(RpcFailure, match="docs__search or other__search"):
            await client.request("tools/call", {"name": "search"})


async def test_a_raw_name_has_no_owner_while_a_candidate_is_away(autojump_clock):
    async with open_world({"docs": named(LEGACY, "find"), "gone": None}) as world:
        client = world.client()
        failure = await client.request("tools/call", {"name": "find"})
        assert "gone" in failure["_meta"]["dev.mcpmux/upstreams"]
        with pytest.raises(RpcFailure, match="It is not known who owns nosuch"):
            await client.request("tools/call", {"name": "nosuch"})


@pytest.mark.parametrize("page_size", [1, 7, 1000])
async def test_walking_all_pages_sees_every_item_once_and_fetches_each_page_once(page_size, autojump_clock):
    servers = {
        "a": ScriptedServer(resources=[resource(f"a:{n}") for n in range(23)], page_size=5),
        "b": ScriptedServer(LEGACY, resources=[resource(f"b:{n}") for n in range(9)], page_size=2),
        "c": ScriptedServer(resources=[]),
    }
    async with open_world(servers, page_size=page_size) as world:
        client = world.client()
        uris = [item["uri"] for item in await client.walk("resources/list", "resources")]
        assert sorted(uris) == sorted([f"a+a:{n}" for n in range(23)] + [f"b+b:{n}" for n in range(9)])
        assert [uri for uri in uris if uri.startswith("a")] == [f"a+a:{n}" for n in range(23)]
        for server in servers.values():
            assert set(server.pages.values()) == {1}


@pytest.mark.parametrize("cursor", [2, ["x"], False])
async def test_a_cursor_that_is_no_text_ends_its_list_and_is_reported(cursor, autojump_clock):
    async def answer(*_: Any) -> Json:
        return {"resources": [resource("x:1")], "nextCursor": cursor, "resultType": "complete", **CACHE}

    odd = ScriptedServer(resources=[], handlers={"resources/list": answer})
    async with open_world({"odd": odd, "sane": docs()}) as world:
        page = await world.client().request("resources/list")
    assert [item["uri"] for item in page["resources"]] == ["odd+x:1", "sane+file:///a.md", "sane+memo:1"]
    problem = "`nextCursor` is no text: the list is cut there"
    assert page["_meta"][ITEMS] == {"odd": [{"problem": problem, "leftOut": False}]}
    assert "nextCursor" not in page


def tool(name: Any = "good", **more: Any) -> Json:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


ITEMS = "dev.mcpmux/items"
NO_SCHEMA = {"name": "bad"}
NULLS = tool("nulls", annotations=None, description=None)
STRING = tool("string", inputSchema={"type": "string"})


@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", ERAS)
async def test_bad_items_of_one_server_cost_no_client_its_list(up, down, autojump_clock):
    """The client checks each answer by the official schema of its revision."""
    odd = ScriptedServer(
        up,
        tools=[tool(), NO_SCHEMA, None, NULLS, STRING, tool(None), tool()],
        resources=[resource("a:1"), {"uri": "a:2"}, {"name": "a"}, resource("a")],
        templates=[{"name": "a"}, {"uriTemplate": "t:{x}"}],
        prompts=[{"name": "p", "arguments": None}, {"arguments": []}],
    )
    with structlog.testing.capture_logs() as logs:
        async with open_world({"odd": odd, "sane": ScriptedServer(up, tools=[tool()])}) as world:
            client = await open_client(world, down)
            for _ in range(2):
                listed = await client.request("tools/list")
                names = [tool["name"] for tool in listed["tools"]]
                assert names == ["odd__good", "odd__bad", "odd__nulls", "sane__good"]
                assert listed["_meta"][ITEMS] == {
                    "odd": [
                        {"item": "odd__bad", "problem": "`inputSchema` is missing", "leftOut": False},
                        {"problem": "the item is null", "leftOut": True},
                        {
                            "item": "odd__nulls",
                            "problem": "`description` is null; `annotations` is null",
                            "leftOut": False,
                        },
                        {
                            "item": "odd__string",
                            "problem": "`inputSchema.type`: Invalid enum value 'string'",
                            "leftOut": True,
                        },
                        {"problem": "`name` is null", "leftOut": True},
                        {
                            "item": "odd__good",
                            "problem": "the list has another of this name before it",
                            "leftOut": True,
                        },
                    ]
                }
            for method, key, member, expected in (
                ("resources/list", "resources", "uri", ["odd+a:1", "odd+a:2"]),
                ("resources/templates/list", "resourceTemplates", "uriTemplate", ["odd+t:{x}"]),
                ("prompts/list", "prompts", "name", ["odd__p"]),
            ):
                listed = await client.request(method)
                assert [item[member] for item in listed[key]] == expected
                assert listed["_meta"][ITEMS]["odd"]
    notes = [(log["method"], log["item"], log["problem"]) for log in logs if "problem" in log]
    assert len(notes) == len(set(notes))
    assert {item for method, item, _ in notes if method == "tools/list"} >= {"bad", "nulls", "string", "good"}


async def test_what_is_told_of_items_keeps_to_the_view_and_its_names(autojump_clock):
    odd = ScriptedServer(tools=[NO_SCHEMA, {"name": "secret"}])
    rename = ViewOverride(upstream="odd", kind="tools", name="bad", rename="better")
    views = {"some": View(exclude=(Selector(name="secret"),), overrides=(rename,))}
    async with open_world({"odd": odd, "docs": docs()}, views=views) as world:
        listed = await world.client(principal=ANYONE.within("some")).request("tools/list")
        assert [tool["name"] for tool in listed["tools"]] == ["odd__better"]
        assert [note["item"] for note in listed["_meta"][ITEMS]["odd"]] == ["odd__better"]


async def test_the_bad_items_of_a_single_server_pass_as_they_are(autojump_clock):
    page = {"tools": [NO_SCHEMA, None], "resultType": "complete", **CACHE}

    async def answer(*_: Any) -> Json:
        return page

    odd = ScriptedServer(tools=[], handlers={"tools/list": answer})
    async with open_world({"odd": odd}, settings={"odd": {"prefix": ""}}) as world:
        client = world.client()
        client._methods["x"] = "vendor/unchecked"
        await client.send({"id": "x", "method": "tools/list", "params": client.params()})
        assert (await client.receive())["result"] == page


LONG = "t" * 80


@pytest.mark.parametrize("cursor", ["", "again", None], ids=["empty", "same", "new"])
@pytest.mark.parametrize("page_size", [1, 1000])
@pytest.mark.parametrize("prefix", ["odd", ""])
async def test_a_list_that_begins_again_is_shown_once_and_its_tools_work(
    cursor, page_size, prefix, autojump_clock
):
    cursors = []

    async def answer(server: ScriptedServer, params: Json, _message: Json) -> Json:
        cursors.append(params.get("cursor"))
        following = cursor if cursor is not None else str(len(cursors))
        page = {"tools": [tool(LONG), tool("old")], "nextCursor": following}
        return page | ({"resultType": "complete"} | CACHE if server.modern else {})

    async def call(server: ScriptedServer, params: Json, _message: Json) -> Json:
        result: Json = {"content": [{"type": "text", "text": params["name"]}]}
        return result | ({"resultType": "complete"} if server.modern else {})

    odd = ScriptedServer(tools=[], handlers={"tools/list": answer, "tools/call": call})
    rename = Override(kind="tools", name="old", rename="new")
    settings = {"odd": {"prefix": prefix, "overrides": (rename,)}}
    servers = {"odd": odd, "docs": docs()}
    async with open_world(servers, settings=settings, page_size=page_size) as world:
        client = world.client()
        pages = [await client.request("tools/list")]
        while "nextCursor" in pages[-1]:
            pages.append(await client.request("tools/list", {"cursor": pages[-1]["nextCursor"]}))
        names = [tool["name"] for page in pages for tool in page["tools"]]
        assert len(names) == len(set(names)) == 2
        meta = pages[-1]["_meta"]
        assert meta[ITEMS]["odd"][-1] == {"problem": BEGINS_AGAIN.text, "leftOut": False}
        assert "dev.mcpmux/upstreams" not in meta
        assert len(cursors) <= 4
        called = [await client.request("tools/call", {"name": name, "arguments": {}}) for name in names]
        assert [result["content"][0]["text"] for result in called] == [LONG, "old"]


async def test_a_server_that_is_slow_to_start_holds_up_a_client_once(autojump_clock):
    """Some host apps give mcpmux ten seconds for all that they ask at first."""

    async def begin(_server: Any, _params: Json, _message: Json) -> Json:
        await trio.sleep(20)
        raise RpcFailure(-32601, "Method not found")

    slow = ScriptedServer(
        LEGACY, tools=[{"name": "t", "inputSchema": {"type": "object"}}], handlers={"initialize": begin}
    )
    async with open_world({"docs": docs(), "slow": slow}) as world:
        client = world.client()
        began = trio.current_time()
        await client.initialize(LEGACY)
        listed = [await client.request(f"{kind}/list") for kind in ("tools", "resources", "prompts")]
        assert trio.current_time() - began < 8
        assert all("not available yet" in str(page["_meta"]) for page in listed)


async def hang(_server: Any, _params: Json, _message: Json) -> Json:
    await trio.sleep_forever()
    raise AssertionError


async def test_hanging_servers_are_named_at_their_deadline(autojump_clock):
    async def answer_late(_server: Any, _params: Json, _message: Json) -> Json:
        await trio.sleep(2)
        return {"resources": [{"uri": "x:1", "name": "x"}]}

    slow = ScriptedServer(resources=[], handlers={"resources/list": hang})
    servers = {
        "slow": slow,
        "late": ScriptedServer(resources=[], handlers={"resources/list": answer_late}),
        "docs": docs(),
        "silent": ScriptedServer(handlers={"server/discover": hang, "initialize": hang}),
    }
    async with open_world(servers, settings={name: {"list_timeout": 3.0} for name in servers}) as world:
        began = trio.current_time()
        result = await world.client().request("resources/list")
        assert trio.current_time() - began == pytest.approx(3, abs=0.01)
        listed = [item["uri"] for item in result["resources"]]
        assert listed == ["late+x:1", "docs+file:///a.md", "docs+memo:1"]
        left_out = result["_meta"]["dev.mcpmux/upstreams"]
        assert set(left_out) == {"slow", "silent"}
        assert "within 3 s" in left_out["slow"]["reason"]
        assert [message.get("method") for message in slow.seen].count("notifications/cancelled") == 1


async def test_list_of_many_upstreams_lets_others_have_their_turn(autojump_clock):
    first, count = trio.Event(), 0

    async def answer(_server: Any, _params: Json, _message: Json) -> Json:
        nonlocal count
        count += 1
        first.set()
        return {"resources": [resource("x:1")], "resultType": "complete", **CACHE}

    async def watch(seen: list[int]) -> None:
        await first.wait()
        seen.append(count)

    many = 8 * BUNCH
    servers = {
        f"s{number}": ScriptedServer(resources=[], handlers={"resources/list": answer})
        for number in range(many)
    }
    async with open_world(servers) as world, trio.open_nursery() as nursery:
        seen: list[int] = []
        await world.mux.upstreams.settled(legacy=False)
        nursery.start_soon(watch, seen)
        result = await world.client().request("resources/list")
        assert [item["uri"] for item in result["resources"]] == [f"{name}+x:1" for name in servers]
        assert count == many
        assert seen[0] < many / 2


async def test_a_list_ends_where_its_cursor_does_not_fit_beside_the_others(autojump_clock):
    async def answer(_server: Any, params: Json, _message: Json) -> Json:
        page = {"resources": [resource(f"x:{len(params)}")], "resultType": "complete", **CACHE}
        return page if "cursor" in params else page | {"nextCursor": secrets.token_urlsafe(6_000)}

    servers = {
        f"s{number}": ScriptedServer(resources=[], handlers={"resources/list": answer})
        for number in range(40)
    }
    async with open_world(servers, page_size=1) as world:
        client = world.client()
        page = await client.request("resources/list")
        assert len(page["resources"]) == 40
        ended = page["_meta"]["dev.mcpmux/upstreams"]
        assert 0 < len(ended) < 40
        rest = await client.request("resources/list", {"cursor": page["nextCursor"]})
        assert len(rest["resources"]) == 40 - len(ended)
        world.mux.apply(attrs.evolve(world.mux.config, merging=Merging(page_size=1, strict=True)))
        error = await client.refusal("resources/list")
        assert error["data"]["dev.mcpmux/upstreams"].keys() == ended.keys()


async def test_a_single_unprefixed_upstream_is_transparent(autojump_clock):
    async def custom(_server: Any, params: Json, _message: Json) -> Json:
        return {"resultType": "complete", "echo": {k: v for k, v in params.items() if k != "_meta"}}

    server = docs(page_size=1)
    server.handlers["vendor/custom"] = custom
    async with open_world({"docs": server}, settings={"docs": {"prefix": ""}}) as world:
        client = world.client()
        page = await client.request("resources/list")
        assert page["resources"][0]["uri"] == "file:///a.md"
        assert page["nextCursor"] == "1"
        assert "_meta" not in page
        answer = await client.request("resources/read", {"uri": "memo:1"})
        assert answer["contents"][0]["uri"] == "memo:1"
        assert await client.request("vendor/custom", {"x": 1}) == {
            "resultType": "complete",
            "echo": {"x": 1},
        }


@pytest.mark.parametrize("down", ERAS)
async def test_capabilities_are_the_union_and_instructions_have_headings(down, autojump_clock):
    servers = {
        "a": docs(instructions="use a"),
        "b": ScriptedServer(LEGACY, tools=[], instructions="use b"),
    }
    async with open_world(servers) as world:
        client = world.client()
        result = await (client.initialize(down) if down == LEGACY else client.request("server/discover"))
        assert set(result["capabilities"]) >= {"resources", "tools"}
        assert "prompts" not in result["capabilities"]
        assert result["instructions"] == "## a\n\nuse a\n\n## b\n\nuse b"


@pytest.mark.parametrize("down", ERAS)
async def test_an_absent_server_counts_as_offering_all(down, autojump_clock):
    async with open_world({"docs": docs(instructions="use it"), "late": None}) as world:
        client = world.client()
        facts = await (client.initialize(down) if down == LEGACY else client.request("server/discover"))
        lists = {name: facts["capabilities"][name] for name in ("tools", "resources", "prompts")}
        assert all(capability["listChanged"] for capability in lists.values())
        assert lists["resources"]["subscribe"]
        assert facts["instructions"] == "## docs\n\nuse it"
        assert (await client.request("tools/list"))["tools"] == []
        if down == LEGACY:
            world.servers["late"] = ScriptedServer(tools=[{"name": "t", "inputSchema": {"type": "object"}}])
            while (notification := await client.receive())["method"] != "notifications/tools/list_changed":
                assert notification["method"].endswith("list_changed")
            assert [tool["name"] for tool in (await client.request("tools/list"))["tools"]] == ["late__t"]


@pytest.mark.parametrize(
    ("line", "code", "request_id"),
    [
        (b"{", -32700, None),
        (b'{"jsonrpc":"2.0","id":7}', -32600, 7),
        (b'{"jsonrpc":"1.0","id":7,"method":"ping"}', -32600, 7),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600, None),
        (b'[{"jsonrpc":"2.0","id":7,"method":"ping"}]', -32600, None),
        (b'{"jsonrpc":"2.0","id":7,"method":"resources/list"}', -32600, 7),
        (b'{"jsonrpc":"2.0","id":7,"method":"x","params":{"_meta":3}}', -32602, 7),
    ],
)
async def test_bad_lines_get_the_right_error_and_harm_nothing(line, code, request_id, autojump_clock):
    async with open_world({"docs": docs(), "more": docs()}) as world:
        client = world.client()
        await client.send_raw(line)
        with trio.fail_after(30):
            message = await client.receive_raw()
        assert message["error"]["code"] == code
        assert message.get("id") == request_id
        assert await client.request("resources/list")


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("no/such", {}, -32601),
        ("initialize", {}, -32602),
        ("ping", {}, -32601),
        ("resources/read", {}, -32602),
        ("resources/read", {"uri": 3}, -32602),
        ("tools/call", {"name": "nosuch"}, -32602),
        ("tools/call", {"name": "nosuch__x"}, -32602),
        ("completion/complete", {}, -32602),
        ("resources/list", {"cursor": "x"}, -32602),
        ("resources/list", {"cursor": 3}, -32602),
    ],
)
async def test_wrong_calls_get_the_right_code(method, params, code, autojump_clock):
    async with open_world({"docs": docs(), "more": docs()}) as world:
        client = world.client()
        if method == "initialize":
            await client.send({"id": 1, "method": method, "params": params})
            failure = (await client.receive())["error"]
        else:
            failure = await client.refusal(method, params)
        assert failure["code"] == code


async def test_a_cursor_of_another_list_is_rejected(autojump_clock):
    server = ScriptedServer(
        resources=[resource("a:1"), resource("a:2")],
        templates=[{"uriTemplate": "t:{x}", "name": "t"}],
        page_size=1,
    )
    async with open_world({"docs": server, "more": docs()}, page_size=1) as world:
        client = world.client()
        page = await client.request("resources/list")
        error = await client.refusal("resources/templates/list", {"cursor": page["nextCursor"]})
        assert error["code"] == -32602


@pytest.mark.parametrize("key", ["protocolVersion", "clientCapabilities"])
async def test_modern_requests_must_state_what_they_are(key, autojump_clock):
    async with open_world({"docs": docs(), "more": docs()}) as world:
        client = world.client()
        params = client.params()
        params["_meta"][f"io.modelcontextprotocol/{key}"] = "1999-01-01" if key == "protocolVersion" else 3
        await client.send({"id": 1, "method": "resources/list", "params": params})
        error = (await client.receive())["error"]
        if key == "protocolVersion":
            assert error["code"] == -32022
            assert error["data"]["requested"] == "1999-01-01"
        else:
            assert error["code"] == -32602


async def test_garbage_from_an_upstream_is_skipped(autojump_clock):
    class Noisy(ScriptedServer):
        async def handle(self, method: str, params: Json, message: Json) -> Json:
            await self._pipe.send(b"hello, I am a print statement")
            await self._pipe.send(b'{"jsonrpc":"2.0","id":999,"result":{}}')
            return await super().handle(method, params, message)

    server = Noisy(resources=[resource("a:1")])
    async with open_world({"docs": docs(), "noisy": server}) as world:
        result = await world.client().request("resources/list")
        assert len(result["resources"]) == 3


async def test_a_server_that_dies_of_the_probe_is_started_without_it(autojump_clock):
    class Fragile(ScriptedServer):
        async def handle(self, method: str, params: Json, message: Json) -> Json:
            if method == "server/discover":
                await self._pipe.aclose()
            return await super().handle(method, params, message)

    async with open_world(
        {"docs": docs(), "old": Fragile("2024-11-05", resources=[resource("a:1")])}
    ) as world:
        result = await world.client().request("resources/list")
        assert "old+a:1" in [item["uri"] for item in result["resources"]]


async def test_a_server_of_both_eras_that_hangs_stays_modern(autojump_clock):
    class Both(ScriptedServer):
        hangs = False

        async def handle(self, method: str, params: Json, message: Json) -> Json:
            if method == "server/discover" and self.hangs:
                await trio.sleep(20)
            if method == "initialize":
                return self._initialize() | {"protocolVersion": LEGACY}
            return await super().handle(method, params, message)

    server = Both(resources=[resource("a:1")])
    async with open_world({"docs": docs(), "both": server}) as world:
        await world.client().request("resources/list")
        server.hangs = True
        await server._pipe.aclose()
        await trio.sleep(60)
        upstream = world.mux.upstreams["both"]
        assert upstream.state == "ready"
        assert upstream.facts is not None and upstream.facts.revision == server.revision


async def test_a_silent_server_is_legacy_after_the_probe(autojump_clock):
    server = ScriptedServer(LEGACY, resources=[resource("a:1")], handlers={"server/discover": hang})
    async with open_world({"docs": docs(), "old": server}) as world:
        result = await world.client().request("resources/list")
        assert "old+a:1" in [item["uri"] for item in result["resources"]]
