"""A server made of a capture: what is replayed to it is answered the same, and other clients are served."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mcpmux.clients.stdio_client import serve_messages
from mcpmux.traffic.replay.mock import CapturedAnswers, Mock, open_mock
from tests.peers.client import ScriptedClient
from tests.peers.pipe import open_memory_pipes
from tests.peers.server import RpcFailure
from tests.traffic.replay_world import (
    CAPABILITIES,
    ERAS,
    LEGACY,
    MODERN,
    ROOTS,
    Tape,
    Varied,
    call,
    client_of,
    listen,
    open_taped,
    replayed,
    taped,
    to_service,
)
from tests.traffic.test_replay import told

UPDATED = "notifications/resources/updated"


class Stage:
    """A mock and its clients."""

    def __init__(self, mock: Mock, nursery: trio.Nursery) -> None:
        self.mock = mock
        self._nursery = nursery

    async def client(self, revision: str, capabilities: Any = CAPABILITIES) -> ScriptedClient:
        ours, theirs = open_memory_pipes()
        self._nursery.start_soon(serve_messages, theirs, self.mock)
        client = ScriptedClient(ours)
        client.capabilities = capabilities
        if revision != MODERN:
            await client.initialize(revision)
        return client


@asynccontextmanager
async def open_stage(tape: Tape, name: str | None = None, cycle: bool = False, latency: bool = False) -> Any:
    dialogues = tape.dialogues("upstream" if name else "client", name)
    answers = CapturedAnswers(dialogues, cycle=cycle)
    async with open_mock(answers, latency=latency) as mock, trio.open_nursery() as nursery:
        yield Stage(mock, nursery)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("latency", [False, True])
@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", ERAS)
async def test_a_capture_replayed_to_its_own_mock_shows_no_difference(down, up, latency, autojump_clock):
    tape = await taped(down, up)
    async with open_stage(tape, latency=latency) as stage:
        report = await replayed(tape.dialogues(), to_service(stage.mock))
    assert told(report) == []
    assert len(report.outcomes) == sum(1 for d in tape.dialogues() for _ in d.requests())


@pytest.mark.parametrize("up", ERAS)
async def test_a_mock_of_an_upstream_stands_for_it(up, autojump_clock):
    tape = await taped(MODERN, up)
    async with open_stage(tape, "x") as stage:
        report = await replayed(tape.dialogues("upstream", "x"), to_service(stage.mock))
    assert told(report) == []


@pytest.mark.parametrize("now", [*ERAS, "2025-06-18", "2024-11-05"])
@pytest.mark.parametrize("then", ERAS)
async def test_clients_of_every_revision_are_served(then, now, autojump_clock):
    """The scripted client checks every message against the schema of its revision."""
    tape = await taped(then, then)
    async with open_stage(tape) as stage:
        client = await stage.client(now)
        if now == MODERN:
            assert MODERN in (await client.request("server/discover"))["supportedVersions"]
        resources = await client.walk("resources/list", "resources")
        assert {item["uri"] for item in resources} == {f"{s}+memo:{n}" for s in "xy" for n in range(1, 6)}
        assert len(resources) == 10
        read = await client.request("resources/read", {"uri": "x+memo:1"})
        assert read["contents"] == [{"uri": "x+memo:1", "text": "text of memo:1"}]
        with pytest.raises(RpcFailure) as failure:
            await client.request("resources/read", {"uri": "x+memo:9"})
        assert failure.value.error["code"] == (-32602 if now == MODERN else -32002)
        result, progress = await call(client, "x__count", progressToken=7)
        assert result["content"] == [{"type": "text", "text": "1"}]
        assert [message["params"]["progressToken"] for message in progress] == [7]
        result, _ = await call(client, "x__ask")
        assert str(ROOTS["roots"][0]["uri"]) in result["content"][0]["text"]


@pytest.mark.parametrize("capabilities", [{}, CAPABILITIES])
@pytest.mark.parametrize("then", ERAS)
async def test_a_client_is_asked_what_it_offers_and_not_awaited_for_ever(then, capabilities, autojump_clock):
    tape = await taped(then, then)
    async with open_stage(tape) as stage:
        client = await stage.client(LEGACY, capabilities)
        request_id = await client.start("tools/call", {"name": "x__ask"})
        questions = 0
        while (message := await client.receive()).get("id") != request_id or "method" in message:
            questions += "id" in message
    assert questions == len(capabilities)
    assert message["result"]["content"]


@pytest.mark.parametrize("now", ERAS)
@pytest.mark.parametrize("then", ERAS)
async def test_updates_come_again_in_their_order_to_who_subscribes(then, now, autojump_clock):
    tape = await taped(then, then)
    async with open_stage(tape) as stage:
        client = await stage.client(now)
        messages = await listen(client, "x+memo:1", "x+memo:2")
        messages += await client.drain()
    assert sorted(m["params"]["uri"] for m in messages if m["method"] == UPDATED) == ["x+memo:1", "x+memo:2"]
    if now == then == MODERN:
        assert [m["params"]["uri"] for m in messages if m["method"] == UPDATED] == ["x+memo:2", "x+memo:1"]
        assert messages[0]["method"] == "notifications/subscriptions/acknowledged"


async def test_who_has_not_subscribed_hears_nothing_and_unsubscribing_ends_it(autojump_clock):
    async with open_taped({"x": (server := Varied(LEGACY)), "y": Varied(LEGACY)}) as (world, tape):
        client = await client_of(world, LEGACY)
        await client.request("resources/subscribe", {"uri": "x+memo:1"})
        await trio.sleep(30)
        await server.update("memo:1")
        await client.drain()
        await client.request("resources/read", {"uri": "x+memo:1"})
    async with open_stage(tape, latency=True) as stage:
        client = await stage.client(LEGACY)
        await client.request("resources/read", {"uri": "x+memo:1"})
        assert not [message for message in await client.drain() if message["method"] == UPDATED]
        await client.request("resources/subscribe", {"uri": "x+memo:1"})
        await client.request("resources/unsubscribe", {"uri": "x+memo:1"})
        await trio.sleep(60)
        assert not [message for message in await client.drain() if message["method"] == UPDATED]


@pytest.mark.parametrize(("cycle", "answers"), [(False, "1222"), (True, "1212")])
@pytest.mark.parametrize("revision", ERAS)
async def test_answers_to_the_same_come_in_their_order(revision, cycle, answers, autojump_clock):
    tape = await taped(revision, MODERN)
    async with open_stage(tape, cycle=cycle) as stage:
        client = await stage.client(revision)
        texts = [(await call(client, "x__count"))[0]["content"][0]["text"] for _ in range(4)]
    assert "".join(texts) == answers


async def test_timing_is_kept_when_wanted(autojump_clock):
    tape = await taped(MODERN, MODERN)
    dialogues = tape.dialogues()
    for turn in dialogues[0].requests():
        if turn.method == "resources/read":
            turn.ms = 7000.0
    async with open_mock(CapturedAnswers(dialogues), latency=True) as mock, trio.open_nursery() as nursery:
        client = await Stage(mock, nursery).client(MODERN)
        began = trio.current_time()
        await client.request("resources/read", {"uri": "x+memo:1"})
        assert trio.current_time() - began == pytest.approx(7.0)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("revision", ERAS)
@pytest.mark.parametrize(
    ("method", "params", "words"),
    [
        ("resources/read", {"uri": "x+memo:11"}, "the nearest is x+memo:1"),
        ("tools/call", {"name": "x__coun"}, "the nearest is x__count"),
        ("resources/list", {"cursor": "made up"}, "no cursor of resources/list is in the capture"),
        ("resources/templates/list", {}, "is not in the capture; the nearest is resources/list"),
    ],
)
async def test_what_is_not_in_the_capture_is_refused_with_the_nearest(
    revision, method, params, words, autojump_clock
):
    tape = await taped(revision, MODERN)
    async with open_stage(tape) as stage:
        client = await stage.client(revision)
        with pytest.raises(RpcFailure, match=re.escape(words)):
            await client.request(method, params)


@pytest.mark.parametrize("now", ERAS)
async def test_without_a_captured_handshake_it_offers_what_was_asked_for(now, autojump_clock):
    tape = await taped(MODERN, MODERN)
    tape.records = [r for r in tape.records if r.method != "server/discover"]
    async with open_stage(tape) as stage:
        client = await stage.client(MODERN)
        if now == MODERN:
            capabilities = (await client.request("server/discover"))["capabilities"]
        else:
            capabilities = (await client.initialize(now))["capabilities"]
    assert set(capabilities) == {"completions", "prompts", "resources", "tools"}


async def test_closing_ends_listens_in_order(autojump_clock):
    tape = await taped(MODERN, MODERN)
    async with open_stage(tape) as stage:
        client = await stage.client(MODERN)
        await listen(client, "x+memo:1", "x+memo:2")
        stage.mock.close()
        assert (await client.receive())["result"]["resultType"] == "complete"
