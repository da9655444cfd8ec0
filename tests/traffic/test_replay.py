"""Captured sessions sent again: to the same servers, to changed ones, to ones that do not answer."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from mcpmux.cli.traffic.replay import at_view
from mcpmux.config import Http, Stdio
from mcpmux.config.traffic import parse_path
from mcpmux.config.views import Selector, View
from mcpmux.errors import ConnectFailed
from mcpmux.traffic.replay.report import Report, show_path
from tests.peers.revision import Json
from tests.peers.server import RpcFailure, ScriptedServer
from tests.traffic.replay_world import (
    ERAS,
    LEGACY,
    MODERN,
    ROOTS,
    WISH,
    Tape,
    Varied,
    client_of,
    listen,
    live,
    open_taped,
    replayed,
    taped,
    to_server,
    to_service,
)

FORM: Json = {
    "method": "elicitation/create",
    "params": {"mode": "form", "message": "Who?", "requestedSchema": {"type": "object", "properties": {}}},
}


def told(report: Report) -> list[tuple[str, str, str | None]]:
    """List the outcomes that are not the same, for the message of a failed test."""
    return [
        (o.captured.method, o.status, o.reason or ", ".join(show_path(d.path) for d in o.differences))
        for o in report.outcomes
        if o.status != "same"
    ]


def paths(report: Report) -> dict[str, list[str]]:
    """Map method and target to the paths at which answers differ."""
    return {
        f"{o.captured.method} {o.captured.target or ''}".strip(): [show_path(d.path) for d in o.differences]
        for o in report.having("different")
    }


@pytest.mark.parametrize("view", ["few", "few?tools=x__co*", "?upstreams=y"])
@pytest.mark.parametrize("down", ERAS)
async def test_a_client_of_a_view_is_replayed_in_its_view(down, view, autojump_clock):
    views = {"few": View(include=(Selector(upstream="x"),))}
    async with open_taped({"x": Varied(MODERN), "y": Varied(MODERN)}, views) as (world, tape):
        for name in (view, ""):
            client = await client_of(world, down, name)
            await client.walk("tools/list", "tools")
            await client.walk("resources/list", "resources")
        await trio.testing.wait_all_tasks_blocked()
    dialogues = tape.dialogues()
    assert {dialogue.view.partition("?")[0] for dialogue in dialogues} == {view.partition("?")[0], ""}
    async with open_taped({"x": Varied(MODERN), "y": Varied(MODERN)}, views) as (world, _):
        report = await replayed(dialogues, to_service(world.mux.service))
    assert told(report) == []


@pytest.mark.parametrize(
    ("url", "view", "expected"),
    [
        ("http://h/mcp", "", "http://h/mcp"),
        ("http://h/mcp", "few", "http://h/mcp/few"),
        ("http://h/mcp/", "few?tools=a", "http://h/mcp/few?tools=a"),
        ("http://h/mcp/few", "few", "http://h/mcp/few"),
        ("http://h/mcp?x=1", "?tools=a", "http://h/mcp?x=1&tools=a"),
    ],
)
def test_a_view_is_at_its_path_below_the_url(url, view, expected):
    target = at_view(Http(url), view)
    assert isinstance(target, Http) and target.url == expected
    assert at_view(Stdio("x"), view) == Stdio("x")


@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", ERAS)
async def test_another_server_of_that_kind_answers_a_session_the_same(down, up, autojump_clock):
    tape = await taped(down, up)
    async with open_taped({"x": Varied(up), "y": Varied(up)}) as (world, _):
        report = await replayed(tape.dialogues(), to_service(world.mux.service))
    assert told(report) == []
    methods = report.by_method()
    assert methods["resources/list"]["same"] > 2  # pages, whose cursors are those of this run
    assert methods["tools/call"]["same"] == (4 if down == MODERN else 3)
    assert ("subscriptions/listen" if down == MODERN else "resources/subscribe") in methods


@pytest.mark.parametrize("up", ERAS)
async def test_what_mcpmux_asked_an_upstream_is_answered_the_same(up, autojump_clock):
    tape = await taped(MODERN, up)
    server = Varied(up)
    report = await replayed(tape.dialogues("upstream", "x"), to_server(server))
    assert told(report) == []
    assert server.calls == 2
    assert report.by_method()["resources/list"]["same"] == 3


@pytest.mark.parametrize("down", ERAS)
async def test_a_changed_server_shows_exactly_what_has_changed(down, autojump_clock):
    async with open_taped({"x": Varied(MODERN)}) as (world, tape):
        client = await client_of(world, down)
        await client.request("tools/list")
        await client.request("resources/read", {"uri": "memo:1"})
        await client.request("resources/read", {"uri": "memo:2"})
    changed = Varied(MODERN)
    changed.texts["memo:2"] = "something else"
    changed.tools.insert(0, {"name": "new", "inputSchema": {"type": "object"}})
    changed.tools[1]["description"] = "counts"
    changed.page_size = 3
    dialogues = tape.dialogues()
    async with open_taped({"x": changed}) as (world, _):
        report = await replayed(dialogues, to_service(world.mux.service))
        ignoring = await replayed(
            dialogues,
            to_service(world.mux.service),
            ignore=[parse_path("result.tools"), parse_path("..text")],
        )
    assert paths(report) == {
        "tools/list": ["result.tools[0].description", "result.tools[0]"],
        "resources/read memo:2": ["result.contents[0].text"],
    }
    assert [d.kind for o in report.having("different") for d in o.differences] == [
        "added",
        "added",
        "changed",
    ]
    assert told(ignoring) == []


async def test_a_secret_that_the_server_tells_now_is_not_shown(autojump_clock):
    async with open_taped({"x": Varied(MODERN)}) as (world, tape):
        client = await client_of(world, MODERN)
        await client.request("resources/read", {"uri": "memo:1"})
    changed = Varied(MODERN)
    changed.texts["memo:1"] = "Authorization: Bearer planted-abcdefghijklmnop0123456789"
    async with open_taped({"x": changed}) as (world, _):
        report = await replayed(tape.dialogues(), to_service(world.mux.service))
    assert report.counts()["different"] == 1
    assert "planted" not in json.dumps(report.as_json())
    assert "[redacted: " in json.dumps(report.as_json())


async def test_tools_are_not_called_unless_it_is_wanted(autojump_clock):
    tape = await taped(MODERN, LEGACY)
    server = Varied(LEGACY)
    async with open_taped({"x": server, "y": Varied(LEGACY)}) as (world, _):
        report = await replayed(tape.dialogues(), to_service(world.mux.service), with_tools=False)
    assert server.calls == 0
    assert report.counts()["skipped"] == 4
    assert report.reasons("skipped") == {"it calls a tool; --with-tools sends it": 4}
    assert report.clean


async def test_a_list_that_ends_sooner_leaves_the_pages_behind_out(autojump_clock):
    tape = await taped(MODERN, MODERN)
    short = ScriptedServer(MODERN, resources=[{"uri": "memo:1", "name": "memo:1"}])
    async with open_taped({"x": short, "y": ScriptedServer(MODERN)}) as (world, _):
        report = await replayed(tape.dialogues(), to_service(world.mux.service), with_tools=False)
    assert "result.nextCursor" in paths(report)["resources/list"]
    reasons = report.reasons("skipped")
    assert reasons["the server gave no cursor of resources/list this time"] >= 1
    assert not any("from before the capture" in reason for reason in reasons)


async def test_a_capture_that_begins_in_a_session_is_replayed_in_its_revision(autojump_clock):
    tape = await taped(LEGACY, LEGACY)
    first = next(r.seq for r in tape.records if r.method == "resources/read" and r.leg == "client")
    tape.records = [record for record in tape.records if record.seq >= first]
    server = Varied(LEGACY)
    async with open_taped({"x": server, "y": Varied(LEGACY)}) as (world, again):
        report = await replayed(tape.dialogues(), to_service(world.mux.service))
    assert told(report) == []
    request = next(r for r in again.records if r.leg == "client" and r.method == "initialize")
    assert b'"protocolVersion":"2025-11-25"' in bytes(request.message or b"")


async def test_two_sessions_with_one_server_stay_two(autojump_clock):
    servers = {"x": Varied(LEGACY), "y": Varied(LEGACY)}
    async with open_taped(servers) as (world, tape):
        client = await client_of(world, MODERN)
        await client.request("resources/read", {"uri": "x+memo:1"})
        await world.kill("x")
        await trio.sleep(60)
        await client.request("resources/read", {"uri": "x+memo:1"})
    dialogues = tape.dialogues("upstream", "x")
    assert [sum(t.method == "resources/read" for t in d.requests()) for d in dialogues] == [1, 1]
    assert told(await replayed(dialogues, to_server(Varied(LEGACY)), sessions=1)) == []


class Slow(ScriptedServer):
    """Reads take as long as the number in their URI; `began` has when they were asked."""

    def __init__(self) -> None:
        super().__init__(MODERN, resources=[], capabilities={"resources": {}})
        self.began: list[tuple[str, float]] = []
        self.faster = 1.0

    async def handle(self, method: str, params: Json, message: Json) -> Json:
        if method != "resources/read":
            return await super().handle(method, params, message)
        self.began.append((params["uri"], trio.current_time()))
        await trio.sleep(int(params["uri"].partition(":")[2]) * self.faster)
        return {"contents": [], "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


async def slow_tape() -> Any:
    """1 and 5 at the same time; 2 as soon as 1 is there; 3 a minute later."""
    async with open_taped({"x": Slow()}) as (world, tape):
        client = await client_of(world, MODERN)
        await client.start("resources/read", {"uri": "x+s:1"})
        await client.start("resources/read", {"uri": "x+s:5"})
        await client.receive()
        await client.start("resources/read", {"uri": "x+s:2"})
        await client.drain()
        await trio.sleep(60)
        await client.request("resources/read", {"uri": "x+s:3"})
    return tape


@pytest.mark.parametrize(("speed", "gap"), [(1.0, 80), (10.0, 8), (math.inf, 5)])
async def test_time_is_kept_or_scaled_and_order_follows_the_answers(speed, gap, autojump_clock):
    tape, server = await slow_tape(), Slow()
    report = await replayed(tape.dialogues("upstream", "x"), to_server(server), speed=speed)
    assert report.clean, told(report)
    at = dict(server.began)
    assert [uri for uri, _ in server.began] == ["s:1", "s:5", "s:2", "s:3"]
    assert at["s:5"] - at["s:1"] < 1
    assert at["s:2"] - at["s:1"] >= 1  # it was sent after the answer to the first
    assert at["s:3"] - at["s:1"] == pytest.approx(gap, rel=0.3)


async def test_a_server_that_is_slower_now_is_waited_for(autojump_clock):
    tape, server = await slow_tape(), Slow()
    server.faster = 3.0
    report = await replayed(tape.dialogues("upstream", "x"), to_server(server), speed=1000.0)
    assert report.clean
    at = dict(server.began)
    assert at["s:2"] - at["s:1"] >= 3
    then, now = report.latency()["resources/read"]
    assert now.most == pytest.approx(15, rel=0.01)
    assert then.most == pytest.approx(5, rel=0.01)


async def test_no_answer_and_no_connection_fail_in_bounded_time(autojump_clock) -> None:
    tape = await slow_tape()
    deaf = Slow()
    deaf.faster = math.inf
    report = await replayed(tape.dialogues("upstream", "x"), to_server(deaf), timeout=7.0)
    assert report.by_method()["resources/read"]["failed"] == 4
    assert report.reasons("failed") == {"no answer within 7 s": 4}

    @asynccontextmanager
    async def nobody(_hear: Any, _view: str) -> AsyncIterator[Any]:
        raise ConnectFailed("nobody there")
        yield

    report = await replayed(tape.dialogues("upstream", "x"), nobody)
    assert report.by_method()["resources/read"]["failed"] == 4
    assert set(report.reasons("failed")) == {"nobody there"}
    assert not report.clean


async def test_replay_does_not_wait_a_sessions_length_for_a_missing_server(
    autojump_clock,
) -> None:
    async with open_taped({"x": Slow()}) as (world, tape):
        for _ in range(2):
            client = await client_of(world, MODERN)
            await client.request("resources/read", {"uri": "x+s:1"})
            await trio.sleep(3600)
    tries = 0

    @asynccontextmanager
    async def nobody(_hear: Any, _view: str) -> AsyncIterator[Any]:
        nonlocal tries
        tries += 1
        raise ConnectFailed("nobody there")
        yield

    began = trio.current_time()
    report = await replayed(tape.dialogues(), nobody, speed=1.0)
    assert trio.current_time() - began < 60
    assert tries == 1
    assert set(report.reasons("failed")) == {"nobody there"}
    assert report.counts()["failed"] == 4


async def test_a_server_that_cannot_be_asked_ends_a_long_session_at_once(autojump_clock) -> None:
    """Over HTTP a connection is made for the first request, when the session is open already."""
    tape = await slow_tape()

    class Dead:
        questions = SimpleNamespace()

        async def exchange(self, _call: Any, _hear: Any) -> Any:
            raise ConnectFailed("nobody there")

    @asynccontextmanager
    async def dead(_hear: Any, _view: str) -> AsyncIterator[Any]:
        yield Dead()

    began = trio.current_time()
    report = await replayed(tape.dialogues(), dead, speed=1.0)
    assert trio.current_time() - began < 30
    assert set(report.reasons("failed")) == {"nobody there"}


async def test_a_cancelled_request_is_not_sent_even_if_it_was_answered(autojump_clock):
    async with open_taped({"x": Slow()}) as (world, tape):
        client = await client_of(world, MODERN)
        await client.request("resources/read", {"uri": "x+s:1"})
    [dialogue] = tape.dialogues("upstream", "x")
    [read] = [turn for turn in dialogue.requests() if turn.method == "resources/read"]
    read.cancelled = True
    report = await replayed([dialogue], to_server(Slow()))
    assert report.reasons("skipped") == {"the client took it back": 1}


async def test_a_refused_session_is_told_with_its_reason(autojump_clock):
    tape = await taped(LEGACY, LEGACY)

    async def refuse(_server: Any, _params: Json, _message: Json) -> Json:
        raise RpcFailure(-32600, "not today")

    report = await replayed(
        tape.dialogues(), to_server(ScriptedServer(LEGACY, handlers={"initialize": refuse}))
    )
    assert set(report.reasons("failed")) == {"not today"}


async def test_what_the_server_asks_without_an_answer_in_the_capture_is_refused(autojump_clock):
    tape = await taped(MODERN, LEGACY)
    dialogues = tape.dialogues("upstream", "x")
    assert [question.method for d in dialogues for question in d.questions] == ["roots/list"]
    dialogues[0].questions.clear()
    report = await replayed(dialogues, to_server(Varied(LEGACY)))
    assert paths(report) == {"tools/call ask": ["result.content[0].text"]}
    [difference] = report.having("different")[0].differences
    assert "the capture has no answer to roots/list" in difference.now
    assert report.questions == {("new", "roots/list"): 1}


async def tape_of_silence() -> Tape:
    """Record the upstream leg of a session with a server that sent no requests."""
    server = Hasty(MODERN, times=0)
    async with open_taped({"x": server}) as (world, tape):
        await live(await client_of(world, MODERN), server)
        await trio.testing.wait_all_tasks_blocked()
    return tape


@pytest.mark.parametrize(("wish", "answer"), [(WISH, {"roots": []}), (FORM, {"action": "cancel"})])
async def test_a_new_question_of_a_modern_server_gets_no_answer(wish, answer, autojump_clock):
    tape, server = await tape_of_silence(), Hasty(MODERN, wish=wish)
    report = await replayed(tape.dialogues("upstream", "x"), to_server(server))
    assert server.roots == answer
    assert paths(report) == {"tools/call ask": ["result.content[0].text"]}  # which tells what it was given
    assert report.questions == {("new", wish["method"]): 1}


async def test_a_new_sampling_request_of_a_modern_server_is_a_difference(autojump_clock):
    wish = {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}}
    tape = await tape_of_silence()
    report = await replayed(tape.dialogues("upstream", "x"), to_server(Hasty(MODERN, wish=wish)))
    assert "result.resultType" in paths(report)["resources/list"]
    assert report.questions == {("new", "sampling/createMessage"): 1}


async def test_a_modern_server_may_ask_something_else_before_what_it_asked_then(autojump_clock):
    tape, server = await taped(MODERN, MODERN), Curious(MODERN)
    report = await replayed(tape.dialogues("upstream", "x"), to_server(server))
    assert server.form == {"action": "cancel"}
    assert told(report) == []
    assert report.questions == {("new", "elicitation/create"): 1}


@pytest.mark.parametrize("up", ERAS)
async def test_a_question_that_came_before_another_request_is_answered_and_told(up, autojump_clock):
    """Once in the tool that asks; in the replay before it, while a list is fetched."""
    tape = await taped(MODERN, up)
    dialogues = tape.dialogues("upstream", "x")
    report = await replayed(dialogues, to_server(Hasty(up)))
    assert told(report) == [] if up == LEGACY else [("tools/call", "unasked", "")]
    assert report.clean
    assert report.questions == {("elsewhere", "roots/list"): 1}


@pytest.mark.parametrize("up", ERAS)
async def test_a_question_that_comes_more_often_gets_the_last_answer_again(up, autojump_clock):
    tape = await taped(MODERN, up)
    report = await replayed(tape.dialogues("upstream", "x"), to_server(Hasty(up, times=3)))
    assert report.clean, told(report)
    assert report.questions == {("elsewhere", "roots/list"): 1, ("again", "roots/list"): 2}


@pytest.mark.parametrize("up", ERAS)
async def test_a_question_that_does_not_come_is_told_and_is_no_difference(up, autojump_clock):
    tape = await taped(MODERN, up)
    report = await replayed(tape.dialogues("upstream", "x"), to_server(Hasty(up, times=0)))
    assert report.clean, told(report)
    assert report.questions == {("missing", "roots/list"): 1}
    assert report.as_json()["questions"] == [{"method": "roots/list", "kind": "missing", "count": 1}]


async def test_the_final_answer_is_compared_when_the_question_does_not_come(autojump_clock):
    tape = await taped(MODERN, MODERN)
    changed = Hasty(MODERN, times=0)
    changed.roots = {"roots": []}
    report = await replayed(tape.dialogues("upstream", "x"), to_server(changed))
    assert paths(report) == {"tools/call ask": ["result.content[0].text"]}


class Hasty(Varied):
    """Asks for roots `times` times while its first resources are listed; its tool `ask` knows them then.

    `wish`: what a modern one asks for in their place.
    """

    def __init__(self, revision: str, times: int = 1, wish: Json = WISH) -> None:
        super().__init__(revision)
        self.roots: Json = ROOTS
        self._times = times
        self._wish = wish

    async def handle(self, method: str, params: Json, message: Json) -> Json:
        if method == "resources/list" and self._times:
            self._times -= 1
            if not self.modern:
                self.roots = await self.ask_client()
            else:
                if "inputResponses" in params:
                    self.roots = params["inputResponses"]["early"]
                return {
                    "resultType": "input_required",
                    "inputRequests": {"early": self._wish},
                    "requestState": "early",
                }
        elif "inputResponses" in params:
            self.roots = params["inputResponses"]["early"]
        params = {
            key: value for key, value in params.items() if key not in ("inputResponses", "requestState")
        }
        return await super().handle(method, params, message)

    async def _ask(self, _params: Json) -> Json:
        return {"content": [{"type": "text", "text": json.dumps(self.roots)}]}


class Curious(Varied):
    """Has a form filled in before its tool `ask` asks for roots."""

    def __init__(self, revision: str) -> None:
        super().__init__(revision)
        self.form: Json | None = None

    async def _ask(self, params: Json) -> Json:
        if params.get("requestState") == "form":
            self.form = params["inputResponses"]["form"]
            params = {"name": params["name"]}
        if self.form is None:
            questions = {"form": FORM}
            return {"resultType": "input_required", "inputRequests": questions, "requestState": "form"}
        return await super()._ask(params)


@pytest.mark.parametrize("down", ERAS)
async def test_a_subscription_that_is_not_granted_any_more_is_a_difference(down, autojump_clock):
    async with open_taped({"x": Varied(MODERN), "y": Varied(MODERN)}) as (world, tape):
        client = await client_of(world, down)
        await listen(client, "x+memo:1")
    poor = Varied(MODERN)
    poor.honours = set()
    async with open_taped({"x": poor, "y": Varied(MODERN)}) as (world, _):
        report = await replayed(tape.dialogues(), to_service(world.mux.service))
    assert len(report.outcomes) == 2
    assert all(outcome.status in ("same", "different") for outcome in report.outcomes), told(report)
