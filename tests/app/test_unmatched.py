"""Names in the configuration that no server has, as the log tells them while mcpmux runs."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import pytest
import structlog.testing
import trio
import trio.testing

from mcpmux.app.unmatched import PAUSE_SECONDS, find_unmatched_names, kinds_named, watch_names
from mcpmux.config import AccessRule, Capture, CaptureRule, Config, Limits
from mcpmux.config.model import RateLimit, ToolSelection
from mcpmux.config.views import Override, Parameter, Selector, View, ViewOverride
from mcpmux.runtime.resolver import FEW_NAMES, search
from tests.peers.revision import Json
from tests.peers.server import ScriptedServer
from tests.runtime.test_tool_search import RawTools
from tests.runtime.world import World, open_world, upstream


def tool(name: str, **properties: Json) -> Json:
    return {"name": name, "inputSchema": {"type": "object", "properties": properties}}


def server(*tools: Json) -> ScriptedServer:
    return ScriptedServer("2025-11-25", tools=list(tools), capabilities={"tools": {"listChanged": True}})


@asynccontextmanager
async def watched(world: World) -> AsyncIterator[Callable[[], list[str]]]:
    """Capture the log. Yields a function that returns its problems so far."""
    with structlog.testing.capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_names, world.mux)
            await settle()
            yield lambda: [log["problem"] for log in logs if "the configuration" in log["event"]]
            nursery.cancel_scope.cancel()


async def settle() -> None:
    await trio.sleep(2 * PAUSE_SECONDS)  # of virtual time
    await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize(("count", "is_here"), [(FEW_NAMES, True), (FEW_NAMES + 1, False)])
async def test_many_names_are_searched_beside_the_event_loop(count, is_here):
    names = {"docs": {"tools": [str(number) for number in range(count)]}}
    assert (await search(threading.get_ident, names) == threading.get_ident()) is is_here


async def test_a_search_that_takes_long_is_left_behind():
    names, going_on = {"docs": {"tools": ["x"] * (FEW_NAMES + 1)}}, threading.Event()
    with trio.move_on_after(0.01) as scope:
        await search(going_on.wait, names)
    going_on.set()
    assert scope.cancelled_caught


OVERRIDE = ViewOverride(upstream="docs", name="search", rename="find", parameters={"q": Parameter(value="x")})
VIEWS = {
    "coding": View(include=(Selector(upstream="docs", kind="tools", name="sea*"),), overrides=(OVERRIDE,))
}
Q = {"q": {"type": "string"}}


async def test_what_a_server_does_not_have_any_more_is_told_once(autojump_clock):
    docs = server(tool("search", **Q), tool("other"))
    async with open_world({"docs": docs, "gone": None}, views=VIEWS) as world, watched(world) as problems:
        assert problems() == []
        docs.lists["tools/list"] = ("tools", [tool("searching", **Q)])
        await docs.send({"method": "notifications/tools/list_changed"})
        await settle()
        assert problems() == [
            "views.coding: an override of tools of docs: none is called search; did you mean `searching`?"
        ]
        await docs.send({"method": "notifications/tools/list_changed"})
        await settle()
        assert len(problems()) == 1
        docs.lists["tools/list"] = ("tools", [tool("search", q={"type": "integer"})])
        await docs.send({"method": "notifications/tools/list_changed"})
        await settle()
        assert len(problems()) == 2 and problems()[1].startswith(
            "views.coding: an override of search of docs: `value` of q"
        )


async def test_a_server_that_comes_late_is_looked_into_when_it_is_there(autojump_clock):
    async with open_world({"docs": None}, views=VIEWS) as world, watched(world) as problems:
        assert problems() == []
        world.servers["docs"] = server(tool("look"))
        await trio.sleep(600)  # until it is tried again
        assert [problem.partition(":")[0] for problem in problems()] == [
            "views.coding.include[0].name",
            "views.coding",
        ]


async def test_a_new_configuration_is_looked_into(autojump_clock):
    docs = server(tool("search", **Q))
    async with open_world({"docs": docs}) as world, watched(world) as problems:
        await docs.send({"method": "notifications/tools/list_changed"})
        await settle()
        assert problems() == [] and not docs.pages  # no tool is named, so no list is requested
        views = {"coding": View(include=(Selector(name="serach"),))}
        world.mux.apply(attrs.evolve(world.mux.config, views=views))
        await settle()
        (problem,) = problems()
        assert problem.startswith("views.coding.include[0].name: `serach` selects nothing")
        assert problem.endswith("; did you mean `search`?")


async def test_a_server_that_comes_and_goes_is_told_of_once(autojump_clock):
    async with open_world({"docs": server(tool("look"))}, views=VIEWS) as world, watched(world) as problems:
        for _ in range(3):
            await world.kill("docs")
            await trio.sleep(600)  # until it is back
        assert len(problems()) == len(set(problems())) == 2


async def test_a_server_whose_list_changes_when_read_is_not_read_forever(autojump_clock):
    docs = server()

    async def answer(*_: object) -> Json:
        await docs.send({"method": "notifications/tools/list_changed"})
        return {"tools": [tool("search", **Q)]}

    docs.handlers["tools/list"] = answer
    async with open_world({"docs": docs}, views=VIEWS) as world, watched(world):
        docs.seen.clear()
        await trio.sleep(100 * PAUSE_SECONDS)
        listed = [message for message in docs.seen if message.get("method") == "tools/list"]
        assert 50 < len(listed) <= 100


async def test_a_schema_that_cannot_be_read_ends_nothing(autojump_clock):
    docs = RawTools(b'[{"name":"search","inputSchema":{"maximum":1e400}},{"name":"other"}]')
    async with open_world({"docs": docs}, views=VIEWS) as world, watched(world) as problems:
        assert len(problems()) <= 1  # the parameter may be there, or not


def test_a_disabled_server_may_have_anything():
    upstreams = (upstream("docs"), upstream("off", enabled=False))
    views = {"one": View(include=(Selector(upstream="off", name="x"), Selector(upstream="docs")))}
    assert find_unmatched_names(Config(upstreams=upstreams, views=views), {"docs": {}}, {}) == []


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


LISTED = {"docs": {"tools": ["search", "add"], "resources": ["note:///a"], "templates": ["note:///t/{x}"]}}
SELECTS_NOTHING = "selects nothing of what servers have"


@pytest.mark.parametrize(
    ("target", "near"),
    [
        ("docs__serach", "docs__search"),
        ("serach", "search"),
        ("docs+note:///b", "docs+note:///a"),
        ("zzz", None),
    ],
)
@pytest.mark.parametrize("effect", ["allow", "deny"])
def test_a_target_that_is_nothing_is_told_with_the_nearest_name(effect, target, near):
    rules = (AccessRule(effect="allow"), AccessRule(effect=effect, targets=("docs__add", target)))
    config = Config(upstreams=(upstream("docs"), upstream("web")), access=rules)
    hint = f"; did you mean `{near}`?" if near else ""
    problems = find_unmatched_names(config, {**LISTED, "web": {}}, {})
    assert problems == [f"access[1].targets: `{target}` {SELECTS_NOTHING}{hint}"]


@pytest.mark.parametrize(("effect", "is_told"), [("allow", True), ("deny", False)])
def test_a_star_stands_for_part_of_a_prefix_in_denials_only(effect, is_told):
    rules = (AccessRule(effect="allow"), AccessRule(effect=effect, targets=("d*__search",)))
    problems = find_unmatched_names(Config(upstreams=(upstream("docs"),), access=rules), LISTED, {})
    assert bool(problems) is is_told


@pytest.mark.parametrize(
    "target",
    ["docs__search", "sea*", "docs__*", "docs+note:///t/1", "note:///t/1", "*", "web__x", "docs+note:///*"],
)
def test_a_matched_target_or_one_of_an_absent_server_is_fine(target):
    rules = (AccessRule(effect="allow"), AccessRule(effect="deny", targets=(target,)))
    config = Config(upstreams=(upstream("docs"), upstream("web")), access=rules)
    assert find_unmatched_names(config, LISTED, {}) == []
    assert set(kinds_named(config)) == {"docs", "web"}


def test_methods_that_are_misspelt_are_told_with_the_right_name():
    config = Config(
        upstreams=(upstream("docs"),),
        access=(AccessRule(effect="deny", methods=("call", "tool/call", "tools/*", "resources/write")),),
        capture=Capture(rules=(CaptureRule(level="off", method="notifications/resource/updated"),)),
        limits=Limits(rate=(RateLimit(requests=1, methods=("prompt/get", "x/own")),)),
    )
    assert find_unmatched_names(config, LISTED, {}) == [
        "access[0].methods: `tool/call` is no method; did you mean `tools/call`?",
        "limits.rate[0].methods: `prompt/get` is no method; did you mean `prompts/get`?",
        "capture.rules[0].method: `notifications/resource/updated` is no method; did you mean "
        "`notifications/resources/updated`?",
    ]


def test_globs_that_fit_no_upstream_are_told():
    config = Config(
        upstreams=(upstream("docs"),),
        access=(AccessRule(effect="allow"), AccessRule(effect="deny", upstreams=("web*", "d*"))),
        capture=Capture(rules=(CaptureRule(level="off", upstream="hr-*"),)),
    )
    assert find_unmatched_names(config, LISTED, {}) == [
        "access[1].upstreams: `web*` fits no upstream",
        "capture.rules[0].upstream: `hr-*` fits no upstream",
    ]
