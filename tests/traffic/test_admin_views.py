"""The configured views over the admin listener: what they select, and how much their clients see."""

from __future__ import annotations

import json

import pytest
import trio

from mcpmux.app import view_contents
from mcpmux.app.mux import shown_by
from mcpmux.config import AccessRule, Config
from mcpmux.config.listener import HttpListener, Listeners, TcpListener, UnixListener, WebSocketListener
from mcpmux.config.views import Selector, View, ViewOverride
from mcpmux.protocol.principal import ANYONE
from mcpmux.runtime.access_control import AccessControl
from mcpmux.traffic.admin.configured_views import describe_views, in_words
from tests.peers.server import ScriptedServer
from tests.runtime.world import upstream
from tests.traffic.admin_world import ask, get, listening

CODING = View(
    include=(Selector(upstream="docs", kind="tools"), Selector(kind="resources")),
    exclude=(Selector(name="delete*"),),
    principals=("alice",),
    overrides=(ViewOverride(upstream="docs", name="search", rename="find"),),
)
READING = View(include=(Selector(readOnlyHint=True),))
TOOLS = [
    {"name": "search", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
    {"name": "delete_all", "inputSchema": {"type": "object"}},
    {"name": "write", "inputSchema": {"type": "object"}},
]


@pytest.mark.parametrize(
    ("selector", "words"),
    [
        (Selector(upstream="docs"), "everything of docs"),
        (Selector(kind="resources"), "resources"),
        (Selector(upstream="docs*", kind="tools", name="a*"), "tools of docs* called a*"),
        (Selector(readOnlyHint=True), "tools that change nothing"),
        (
            Selector(upstream="docs", destructiveHint=False, openWorldHint=True),
            "tools of docs that destroy nothing and deal with the world outside",
        ),
    ],
)
def test_a_selector_is_put_in_words(selector: Selector, words: str):
    assert in_words(selector) == words


def test_a_view_names_every_place_that_leads_to_it():
    listeners = Listeners(
        stdio=True,
        stdio_view="coding",
        http=(HttpListener(port=1), HttpListener(port=2, path="/", sse_path="")),
        websocket=(WebSocketListener(port=3),),
        tcp=(TcpListener(port=4, view="coding"), TcpListener(port=5)),
        unix=(UnixListener(path="mux.sock", view="coding"),),
    )
    config = Config(upstreams=(upstream("docs"),), views={"coding": CODING}, listeners=listeners)
    everything, view = describe_views(config).views
    assert everything.places == ["/mcp", "/sse", "/", config.listeners.tcp[1].address]
    assert view.places == [
        "/mcp/coding",
        "/sse/coding",
        "/coding",
        config.listeners.tcp[0].address,
        "mux.sock",
        "stdio",
    ]


async def test_views_are_described():
    async with listening(views={"coding": CODING, "reading": READING}) as here:
        state = await get(here, "/api/views")
        assert state["has_access_rules"] is False
        everything, coding, reading = state["views"]
        assert (everything["name"], everything["include"], everything["exclude"]) == ("", [], [])
        assert (coding["name"], coding["principals"]) == ("coding", ["alice"])
        assert coding["include"] == ["tools of docs", "resources"]
        assert coding["exclude"] == ["everything called delete*"]
        assert coding["overrides"] == [
            {"upstream": "docs", "kind": "tools", "name": "search", "rename": "find"}
        ]
        assert (reading["principals"], reading["exclude"], reading["overrides"]) == ([], [], [])
    async with listening() as here:
        assert [view["name"] for view in (await get(here, "/api/views"))["views"]] == [""]


async def test_what_a_client_sees_is_counted_whatever_access_rules_say():
    """Count the same as `mcpmux view`: the rules that hold for one principal do not hold for another."""
    servers = {"docs": ScriptedServer(tools=TOOLS), "more": ScriptedServer(tools=TOOLS)}
    rules = (AccessRule(effect="allow", principals=("alice",), upstreams=("docs",)),)
    views = {"coding": CODING, "reading": READING}
    async with listening(servers=servers, views=views, access=rules) as here:
        assert (await get(here, "/api/views"))["has_access_rules"] is True
        counts = (await get(here, "/api/views/counts"))["counts"]
        assert {name: count["tools"] for name, count in counts.items()} == {
            "": 6, "coding": 2, "reading": 2,
        }  # fmt: skip
        shown = AccessControl(None, shown_by(view_contents.for_everybody(here.world.mux.config)))
        seen = await view_contents.look_as(ANYONE.within("coding"), shown, here.world.mux.upstreams)
        assert [(tool.name, tool.rule) for tool in seen] == [
            ("docs__find", "views.coding.include[0]"),
            ("docs__write", "views.coding.include[0]"),
        ]
        assert counts["coding"] == {
            "tools": 2, "prompts": 0, "resources": 0, "templates": 0,
            "tokens": sum(tool.tokens for tool in seen), "missing": {},
            "names": {"tools": ["docs__find", "docs__write"]},
        }  # fmt: skip


async def test_tools_that_are_searched_take_the_tokens_of_two():
    servers = {"docs": ScriptedServer(tools=TOOLS), "more": ScriptedServer(tools=TOOLS)}
    async with listening(servers=servers, views={"all": View(tools="search"), "reading": READING}) as here:
        assert [view["is_searched"] for view in (await get(here, "/api/views"))["views"]] == [
            *(False, True, False)
        ]
        (_, count, _) = (await get(here, "/api/views/counts"))["counts"].values()
        shown = AccessControl(None, shown_by(view_contents.for_everybody(here.world.mux.config)))
        two = view_contents.look_at_search(ANYONE.within("all"), shown)
        assert (count["tools"], count["tokens"]) == (2 + 2 * len(TOOLS), sum(tool.tokens for tool in two))


async def test_an_upstream_that_does_not_answer_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(view_contents, "COUNT_SECONDS", 0.5)

    async def never(*_: object) -> dict[str, object]:
        await trio.sleep_forever()
        raise AssertionError

    servers = {
        "docs": ScriptedServer(tools=TOOLS),
        "silent": ScriptedServer(tools=TOOLS, handlers={"tools/list": never}),
        "gone": None,
    }
    everything = View(exclude=(Selector(name="delete*"),))
    async with listening(servers=servers, views={"coding": CODING, "most": everything}) as here:
        counts = (await get(here, "/api/views/counts"))["counts"]
        assert (counts["coding"]["tools"], counts["most"]["tools"]) == (2, 2)
        assert set(counts["coding"]["missing"]) == {"gone"}  # which may have resources
        assert set(counts["most"]["missing"]) == {"gone", "silent"}
        assert counts["most"]["missing"]["silent"] == "does not answer within 0.5 seconds"
        assert "nobody there" in counts["most"]["missing"]["gone"]


async def test_exchanges_of_a_view_are_found_by_it_but_messages_are_not():
    async with listening() as here:
        here.traffic.exchange()
        here.traffic.exchange(view="coding")
        page = await get(here, "/api/exchanges?filter=view%3Dcoding")
        assert [(row["row"], row["view"]) for row in page["rows"]] == [(2, "coding")]
        assert (await get(here, "/api/exchanges/2"))["row"]["view"] == "coding"
        status, _, body = await ask(here, "/api/traffic/stream?filter=view%3Dcoding", token=here.token)
        assert status == 400
        assert "no such key" in json.loads(body)["error"]


async def test_the_view_of_a_real_client_reaches_the_inspector():
    servers = {"docs": ScriptedServer(tools=TOOLS)}
    async with listening(servers=servers, views={"reading": READING}, tap=True) as here:
        inside = here.world.enter(ANYONE, "reading", "tools=sea*")
        client = here.world.client(principal=inside)
        result = await client.request("tools/list", {})
        assert [tool["name"] for tool in result["tools"]] == ["docs__search"]
        (row,) = (await get(here, "/api/exchanges?filter=view%3Dreading"))["rows"]
        assert (row["method"], row["view"]) == ("tools/list", "reading?tools=sea*")
