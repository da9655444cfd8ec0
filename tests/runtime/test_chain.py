"""mcpmux in front of mcpmux: what one knows of its servers reaches the clients of the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.lowlevel
from attrs import evolve

from mcpmux import app
from mcpmux.clients.stdio_client import serve_messages
from mcpmux.config import Config, Http, Merging, Upstream
from mcpmux.mux.breaker import FAILURES
from tests.peers.client import ScriptedClient
from tests.peers.pipe import open_memory_pipes
from tests.peers.revision import LEGACY, MODERN, Json
from tests.peers.server import ScriptedServer
from tests.runtime.http_front import start_endpoint
from tests.runtime.world import World, open_world, upstream

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
    servers: Mapping[str, ScriptedServer | None], leg: str
) -> AsyncIterator[tuple[World, World]]:
    """Open mcpmux in front of `inner`, which is mcpmux in front of `servers`. Yield both.

    `leg`: the revision between the two.
    """
    async with (
        open_world(servers) as inner,
        open_world({"inner": Inner(inner)}, settings={"inner": {"revision": leg}}) as world,
    ):
        yield world, inner


RESOURCE = {"uri": "memo:1", "name": "one"}


def tool(name: str) -> Json:
    return {"name": name, "inputSchema": {"type": "object"}}


async def hang(_server: Any, _params: Json, _message: Json) -> Json:
    await trio.sleep_forever()
    raise AssertionError


@pytest.mark.parametrize(("down", "leg"), LEGS)
async def test_a_server_that_never_lists_delays_one_list_only(down, leg, autojump_clock):
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


@pytest.mark.parametrize(("down", "leg"), LEGS)
async def test_what_is_missing_behind_is_reported_in_front(down, leg, autojump_clock):
    bad = {"name": "bad", "inputSchema": 1, "description": "x"}
    servers = {"docs": ScriptedServer(tools=[tool("find"), {"name": 1}, bad]), "gone": None}
    async with open_chain(servers, leg) as (world, inner):
        result = await (await world.open_client(down)).request("tools/list")
        result_behind = await (await inner.open_client(down)).request("tools/list")
    [(name, entry)] = result["_meta"]["dev.mcpmux/upstreams"].items()
    assert (name, entry["state"]) == ("inner/gone", "down")
    assert entry["reason"].startswith("Upstream 'inner/gone' is not available: ")
    [of_docs] = result_behind["_meta"]["dev.mcpmux/items"].values()
    assert len(of_docs) == 2
    assert result["_meta"]["dev.mcpmux/items"] == {
        "inner": [
            problem | {"item": f"inner__{problem['item']}"}
            if "item" in problem
            else problem | {"problem": f"docs: {problem['problem']}"}
            for problem in of_docs
        ]
    }
    async with open_chain({"gone": None}, leg) as (world, _):
        world.mux.merger.merging = Merging(strict=True)
        error = await (await world.open_client(down)).refusal("tools/list")
        assert error["code"] == -31001
        assert list(error["data"]["dev.mcpmux/upstreams"]) == ["inner/gone"]


@pytest.mark.parametrize(("down", "leg"), LEGS)
async def test_errors_behind_have_the_names_of_the_clients_in_front(down, leg, autojump_clock):
    async with open_chain({"docs": ScriptedServer(tools=[tool("find")]), "gone": None}, leg) as (world, _):
        client = await world.open_client(down)
        error = await client.refusal("tools/call", {"name": "inner__gone__x"})
        assert error["message"].startswith("Upstream 'inner/gone' is not available: ")
        assert error["data"]["upstream"] == "inner/gone"
        error = await client.refusal("tools/call", {"name": "inner__x"})
        assert error["message"].startswith("It is not known who owns inner__x: Upstream 'inner/gone' is not ")
        assert error["data"]["name"] == "inner__x"
        assert list(error["data"]["dev.mcpmux/upstreams"]) == ["inner/gone"]

    twins = {name: ScriptedServer(tools=[tool("find")], resources=[RESOURCE]) for name in ("docs", "web")}
    async with open_chain(twins, leg) as (world, _):
        client = await world.open_client(down)
        error = await client.refusal("tools/call", {"name": "inner__find"})
        assert error["data"]["candidates"] == ["inner__docs__find", "inner__web__find"]
        assert error["message"].endswith("ask for inner__docs__find or inner__web__find")
        error = await client.refusal("resources/read", {"uri": "inner+memo:1"})
        assert error["data"]["candidates"] == ["inner+docs+memo:1", "inner+web+memo:1"]
        error = await client.refusal("tools/call", {"name": "inner__docs_find"})
        assert error["message"].endswith("; did you mean `inner__docs__find`?")


async def test_busy_behind_is_busy_in_front_over_http():
    """The request was not begun. As -31001, it may have been carried out, and the server is not well."""
    began = trio.Event()

    async def wait(_server: Any, _params: Json, _message: Json) -> Json:
        began.set()
        await trio.sleep_forever()
        raise AssertionError

    server = ScriptedServer(tools=[tool("wait")], handlers={"tools/call": wait})
    limits = {"docs": {"max_in_flight": 1, "max_waiting": 0}}
    with trio.fail_after(30):
        async with open_world({"docs": server}, settings=limits) as inner, trio.open_nursery() as nursery:
            _, port = await start_endpoint(nursery, inner.mux.service)
            target = Http(f"http://127.0.0.1:{port}/mcp")
            config = Config(upstreams=(Upstream(name="inner", target=target, era="newest"),))
            async with app.open_mux(config) as mux:
                ours, theirs = open_memory_pipes()
                nursery.start_soon(serve_messages, theirs, mux.service)
                client = ScriptedClient(ours)
                await client.start("tools/call", {"name": "inner__docs__wait"})
                while not inner.mux.upstreams["docs"].status.in_flight:
                    await trio.lowlevel.checkpoint()
                for _ in range(FAILURES):
                    error = await client.refusal("tools/call", {"name": "inner__docs__wait"})
                    assert error["code"] == -31003
                    assert error["data"]["retryAfterSeconds"] == 1
                assert not mux.upstreams["inner"].status.breaker.doubtful
                nursery.cancel_scope.cancel()


@pytest.mark.parametrize("leg", [MODERN, LEGACY])
async def test_a_mcpmux_that_is_its_own_upstream_refuses_itself(leg, autojump_clock):
    docs = ScriptedServer(tools=[tool("find")])
    settings = {"itself": {"revision": leg}}
    async with open_world({"itself": None, "docs": docs}, settings=settings) as world:
        world.servers["itself"] = Inner(world)
        client = await world.open_client(leg)
        await trio.sleep(10)
        await client.drain()
        for _ in range(3):
            result = await client.request("tools/list")
            assert [item["name"] for item in result["tools"]] == ["docs__find"]
            reason = result["_meta"]["dev.mcpmux/upstreams"]["itself"]["reason"]
            assert "it is this mcpmux itself, or another one that leads back here" in reason
        await trio.sleep(100)
        assert await client.drain() == []


async def test_a_mcpmux_that_is_behind_others_is_refused(autojump_clock):
    async with (
        open_world({"first": None}) as third,
        open_world({"third": Inner(third)}) as second,
        open_world({"second": Inner(second), "docs": ScriptedServer(tools=[tool("find")])}) as first,
    ):
        await trio.sleep(10)
        third.servers["first"] = Inner(first)
        await trio.sleep(100)
        assert "leads back here" in third.mux.upstreams["first"].status.trouble
        assert first.mux.upstreams["second"].state == second.mux.upstreams["third"].state == "ready"


@pytest.mark.parametrize("down", [MODERN, LEGACY])
async def test_what_a_legacy_session_announces_is_listed(down, autojump_clock):
    """mcpmux behind has got its first server with prompts, after the session was opened."""
    async with open_chain({"docs": ScriptedServer(tools=[tool("find")])}, LEGACY) as (world, inner):
        client = await world.open_client(down)
        assert (await client.request("prompts/list"))["prompts"] == []
        inner.servers["new"] = ScriptedServer(prompts=[{"name": "greet"}])
        config = inner.mux.config
        inner.mux.apply(evolve(config, upstreams=(*config.upstreams, upstream("new"))))
        await trio.sleep(10)
        await client.drain()
        prompts = (await client.request("prompts/list"))["prompts"]
        assert [prompt["name"] for prompt in prompts] == ["inner__new__greet"]
