"""Tool calls of legacy clients before they have a stream: answered, left, taken back, or too slow for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mcpmux.clients import http_session
from mcpmux.clients.http_session import ResumableCall
from mcpmux.clients.http_sessions import HttpSessions
from tests.peers.http_client import request
from tests.peers.revision import CLIENT, LEGACY, Json
from tests.peers.server import RpcFailure, ScriptedServer
from tests.runtime.http_front import open_endpoint
from tests.runtime.test_asking import ASKING, CAPABILITIES, Curious

TOOL = {"name": "t", "inputSchema": {"type": "object"}}
OLDER = "2025-06-18"  # its clients get no event id before there is an event, so a call waits without a stream
PATIENCE = 60
REVISIONS = pytest.mark.parametrize("revision", [OLDER, "2025-11-25"])


class Held:
    """A tool that answers when it is let go; `failure` instead, if there is one."""

    def __init__(self) -> None:
        self.started = trio.Event()
        self.gate = trio.Event()
        self.done = 0
        self.cancelled = trio.Event()
        self.failure: RpcFailure | None = None

    async def __call__(self, _server: ScriptedServer, _params: Json, _message: Json) -> Json:
        self.started.set()
        try:
            await self.gate.wait()
        except trio.Cancelled:
            self.cancelled.set()
            raise
        if self.failure is not None:
            raise self.failure
        self.done += 1
        return {"resultType": "complete", "content": [{"type": "text", "text": "done"}]}


def call(request_id: int = 1) -> Json:
    return request("tools/call", {"name": "x__t"}, request_id)


def served(held: Held) -> dict[str, Any]:
    return {"x": ScriptedServer("2025-11-25", tools=[TOOL], handlers={"tools/call": held})}


async def seen(event: trio.Event) -> None:
    with trio.fail_after(PATIENCE):
        await event.wait()


@pytest.fixture
def held():
    return Held()


@asynccontextmanager
async def in_session(held: Held, revision: str) -> AsyncIterator[tuple[Any, Json]]:
    """Yield a client and its session's headers. Its server is known, so that calls are sent on at once."""
    async with open_endpoint(served(held)) as client:
        session = await client.initialize(revision)
        held.gate.set()
        assert "result" in (await client.send(call(), session)).last
        held.started, held.gate, held.done = trio.Event(), trio.Event(), 0
        yield client, session


async def take_back(client: Any, session: Json, request_id: int) -> None:
    """Have the client cancel a request."""
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request_id}}
    assert (await client.send(cancel, session)).status == 202


@REVISIONS
@pytest.mark.interpreted
async def test_call_that_is_answered_soon_needs_no_stream_and_no_task(held, revision, monkeypatch):
    async def work(*_: object) -> None:
        raise AssertionError("it went on by itself")

    async with in_session(held, revision) as (client, session):
        held.gate.set()
        monkeypatch.setattr(ResumableCall, "_go_on", work)
        monkeypatch.setattr(http_session, "PRIMING_SECONDS", 1000)  # "soon", also on a busy machine
        for number in range(3):
            answer = await client.send(call(number), session)
            assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
            assert answer.last["result"]["content"][0]["text"] == "done"
    assert held.done == 3


@REVISIONS
async def test_error_is_told_as_json(held, revision, monkeypatch):
    monkeypatch.setattr(http_session, "PRIMING_SECONDS", 1000)  # the answer comes before
    async with in_session(held, revision) as (client, session):
        held.failure = RpcFailure(-32602, "no such thing")
        held.gate.set()
        answer = await client.send(call(), session)
        assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
        assert answer.last["error"]["message"] == "no such thing"
        held.failure = None
        assert "result" in (await client.send(call(), session)).last


async def test_call_that_takes_longer_gets_a_stream(held):
    async with in_session(held, "2025-11-25") as (client, session):
        async with client.stream("POST", call(), session) as stream:
            event_id, message = await stream.next()
            assert event_id.endswith("-0")
            assert message is None
            held.gate.set()
            assert (await stream.message())["result"]["content"][0]["text"] == "done"
        assert "result" in (await client.send(call(), session)).last  # its id can be used again


@REVISIONS
async def test_client_that_leaves_ends_nothing(held, revision, monkeypatch):
    monkeypatch.setattr(http_session, "PRIMING_SECONDS", 1000)
    async with in_session(held, revision) as (client, session):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, call(), session)
            await seen(held.started)
            nursery.cancel_scope.cancel()
        busy = await client.send(call(), session)
        while "result" not in busy.last:  # it is in flight until mcpmux has its answer
            assert "already in flight" in busy.last["error"]["message"]
            held.gate.set()
            busy = await client.send(call(), session)
        assert not held.cancelled.is_set()
        assert held.done == 2  # both were answered


@REVISIONS
async def test_call_that_is_taken_back_is_answered_with_nothing(held, revision, monkeypatch):
    monkeypatch.setattr(http_session, "PRIMING_SECONDS", 1000)
    answers = []
    async with in_session(held, revision) as (client, session):

        async def ask() -> None:
            answers.append(await client.send(call(7), session))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await seen(held.started)
            await take_back(client, session, 7)
            await seen(held.cancelled)
        assert answers[0].status == 202
        held.gate.set()
        assert "result" in (await client.send(call(7), session)).last


@REVISIONS
async def test_call_ends_with_everything_when_mcpmux_stops_at_once(held, revision, monkeypatch):
    monkeypatch.setattr(http_session, "PRIMING_SECONDS", 1000)
    with trio.CancelScope() as everything:
        async with in_session(held, revision) as (client, session), trio.open_nursery() as nursery:
            nursery.start_soon(client.send, call(), session)
            await seen(held.started)
            everything.cancel()
    assert held.cancelled.is_set()


@pytest.mark.interpreted
async def test_endpoint_that_ends_before_its_connections_leaves_no_slot_taken(held, monkeypatch):
    scopes, over = [], trio.Event()
    run = HttpSessions.run

    async def stoppable(self, task_status=trio.TASK_STATUS_IGNORED):
        with trio.CancelScope() as scope:
            scopes.append(scope)
            await run(self, task_status)
        over.set()

    monkeypatch.setattr(HttpSessions, "run", stoppable)
    async with in_session(held, OLDER) as (client, session):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, call(), session)
            await seen(held.started)
            scopes[0].cancel()
            await seen(over)
            await seen(held.cancelled)
            nursery.cancel_scope.cancel()
        upstream = client.world.mux.upstreams["x"]
        with trio.fail_after(PATIENCE):
            while (upstream.status.in_flight, upstream.limiter.running) != (0, 0):  # noqa: ASYNC110 - no event tells
                await trio.sleep(0.01)


async def test_answer_that_cannot_be_read_ends_the_question():
    params = {"protocolVersion": LEGACY, "capabilities": CAPABILITIES, "clientInfo": CLIENT}
    async with open_endpoint({"x": Curious(LEGACY, ASKING), "y": ScriptedServer()}) as client:
        opened = await client.send(request("initialize", params))
        session = {"Mcp-Session-Id": opened.headers["mcp-session-id"], "MCP-Protocol-Version": LEGACY}
        async with client.stream("POST", request("tools/call", {"name": "x__t"}), session) as stream:
            question = await stream.message()
            cut = b'{"jsonrpc":"2.0","id":%d,"result":{"role":' % question["id"]
            refused = await client.send(cut, session)
            assert (refused.status, "id" in refused.last) == (400, False)
            answer = await stream.message()
            assert "the answer cannot be read" in answer["result"]["content"][0]["text"]
