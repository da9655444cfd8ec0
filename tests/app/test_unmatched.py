"""Names in the configuration that no server has, as the log tells them while mcpmux runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import structlog.testing
import trio
import trio.testing

from mcpmux.app.unmatched import kinds_named, watch_names
from mcpmux.config import Config
from mcpmux.config.model import ToolSelection
from mcpmux.config.views import Override, Parameter, Selector, View, ViewOverride
from tests.runtime.scripted import Json, ScriptedServer
from tests.runtime.world import World, open_world, upstream


def tool(name: str, **properties: Json) -> Json:
    return {"name": name, "inputSchema": {"type": "object", "properties": properties}}


def server(*tools: Json) -> ScriptedServer:
    return ScriptedServer("2025-11-25", tools=list(tools), capabilities={"tools": {"listChanged": True}})


@asynccontextmanager
async def watched(world: World) -> AsyncIterator[Callable[[], list[str]]]:
    """Gives what the log has told so far."""
    stopping = trio.Event()
    with structlog.testing.capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_names, world.mux, stopping)
            await settle()
            yield lambda: [each["problem"] for each in logs if "problem" in each]
            stopping.set()


async def settle() -> None:
    await trio.sleep(10)  # of virtual time
    await trio.testing.wait_all_tasks_blocked()


OVERRIDE = ViewOverride(upstream="docs", name="search", rename="find", parameters={"q": Parameter(value="x")})
VIEWS = {
    "coding": View(include=(Selector(upstream="docs", kind="tools", name="sea*"),), overrides=(OVERRIDE,))
}
Q = {"q": {"type": "string"}}


async def test_what_a_server_does_not_have_any_more_is_told_once(autojump_clock):
    docs = server(tool("search", **Q), tool("other"))
    async with open_world({"docs": docs, "gone": None}, views=VIEWS) as world, watched(world) as told:
        assert told() == []
        docs.lists["tools/list"] = ("tools", [tool("searching", **Q)])
        await docs.send({"method": "notifications/tools/list_changed"})
        await settle()
        assert told() == [
            "views.coding: an override of tools of docs: nothing is called search; did you mean `searching`?"
        ]
        await docs.send({"method": "notifications/tools/list_changed"})
        await settle()
        assert len(told()) == 1
        docs.lists["tools/list"] = ("tools", [tool("search", q={"type": "integer"})])
        await docs.send({"method": "notifications/tools/list_changed"})
        await settle()
        assert len(told()) == 2 and told()[1].startswith(
            "views.coding: an override of search of docs: `value` of q"
        )


async def test_a_server_that_comes_late_is_looked_into_when_it_is_there(autojump_clock):
    servers: dict[str, ScriptedServer | None] = {"docs": None}
    async with open_world(servers, views=VIEWS) as world, watched(world) as told:
        assert told() == []
        servers["docs"] = server(tool("look"))
        await trio.sleep(600)  # until it is tried again
        assert [each.partition(":")[0] for each in told()] == ["views.coding.include[0].name", "views.coding"]


async def test_a_new_configuration_is_looked_into(autojump_clock):
    docs = server(tool("search", **Q))
    async with open_world({"docs": docs}) as world, watched(world) as told:
        before = len(docs.seen)
        await docs.send({"method": "notifications/tools/list_changed"})
        await settle()
        assert told() == [] and len(docs.seen) == before  # nothing is named, so nothing is asked for
        views = {"coding": View(include=(Selector(name="serach"),))}
        world.mux.apply(attrs.evolve(world.mux.config, views=views))
        await settle()
        assert told() == ["views.coding.include[0].name: nothing is called so; did you mean `search`?"]


def test_only_what_is_named_is_asked_for():
    upstreams = (
        upstream("docs", overrides=(Override(kind="prompts", name="p", title="P"),)),
        upstream("host", tools=ToolSelection(excluded=("x",))),
        upstream("other"),
    )
    views = {
        "one": View(
            include=(Selector(upstream="o*", kind="resources", name="file:*"), Selector(readOnlyHint=True))
        ),
        "two": View(exclude=(Selector(upstream="docs", name="x"), Selector(kind="tools"))),
    }
    assert kinds_named(Config(upstreams=upstreams, views=views)) == {
        "docs": {"tools", "prompts", "resources", "templates"},
        "host": {"tools"},
        "other": {"resources", "templates"},
    }
