"""Requests that the inspector sends through the mux, and what becomes of them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from mcpmux.config import AccessRule
from mcpmux.config.expansion import Secret
from mcpmux.config.listener import Admin
from mcpmux.config.views import Selector, View
from mcpmux.traffic.admin import calls
from tests.library.servers import DONE, Worker
from tests.peers.revision import CLIENT_INFO, ERAS, VERSION, Json
from tests.peers.server import ScriptedServer
from tests.runtime.test_asking import ASKED, Curious
from tests.traffic.admin_world import Listening, Traffic, events, get, hear, listening, post

PATH = "/api/calls"
WORK = {"name": "docs__work", "arguments": {"n": 1}}
Heard = trio.MemoryReceiveChannel[tuple[str, Json]]


@asynccontextmanager
async def calling(here: Listening, method: str, params: Any, view: str = "") -> AsyncIterator[Heard]:
    """Send a request, and yield the channel of its events."""
    body = json.dumps({"method": method, "params": params, "view": view}).encode()
    async with events(here, PATH, method="POST", body=body, content_type="application/json") as receive:
        yield receive


async def call(here: Listening, method: str, params: Any, view: str = "") -> list[tuple[str, Json]]:
    """Make a request, and return all its events."""
    async with calling(here, method, params, view) as receive:
        with trio.fail_after(60):
            return [event async for event in receive]


def opened(worker: ScriptedServer | None = None, **settings: Any) -> Any:
    return listening(servers={"docs": worker or Worker(), "more": Worker()}, tap=True, **settings)


async def test_a_request_has_its_row_its_notifications_and_its_answer():
    worker = Worker()
    async with opened(worker) as here:
        meta = {"progressToken": 0, "io.modelcontextprotocol/logLevel": "info", CLIENT_INFO: {}, VERSION: "x"}
        stream = await call(here, "tools/call", {**WORK, "_meta": meta})
        assert [event for event, _ in stream] == ["begun", "notification", "notification", "answer"]
        (_, begun), (_, progress), (_, message), (_, answer) = stream
        assert progress["method"] == "notifications/progress" and progress["params"]["total"] == 2
        assert message["params"]["data"] == {"low": ["ink"]}
        assert {key: answer["result"][key] for key in DONE} == DONE
        assert answer["ms"] > 0
        shown = await get(here, f"/api/exchanges/{begun['row']}")
        assert (shown["row"]["method"], shown["row"]["client"]) == ("tools/call", "mcpmux-inspector")
        assert [message["record"]["leg"] for message in shown["messages"]][:2] == ["client", "upstream"]
    assert worker.seen[-1]["params"]["_meta"][CLIENT_INFO]["name"] == "mcpmux-inspector"


async def test_an_error_is_an_answer():
    async with opened() as here:
        stream = await call(here, "tools/call", {"name": "docs__fail"})
        error = {"code": -32050, "message": "out of paper", "data": {"tray": 2}}
        assert stream[-1][1]["error"] == error
        ((event, answer),) = await call(
            here, "tools/list", {"_meta": {"io.modelcontextprotocol/logLevel": 1}}
        )
        assert event == "answer" and answer["error"]["code"] == -32602


async def test_leaving_cancels_the_request_at_the_server():
    worker = Worker()
    async with opened(worker) as here:
        async with calling(here, "tools/call", {"name": "docs__hang"}) as receive:
            _, begun = await hear(receive)
            with trio.fail_after(60):
                await worker.hangs.wait()
        with trio.fail_after(60):
            await worker.cancelled.wait()
        row = here.traffic.ring.row(begun["row"])
        assert row is not None and row.status == "cancelled"


@pytest.mark.parametrize("method", ASKED)
@pytest.mark.parametrize("era", ERAS)
async def test_a_question_of_a_server_is_answered_by_the_same_request_again(era: str, method: str):
    async with opened(Curious(era, method)) as here:
        params: Json = {"name": "docs__t", "arguments": {}}
        result = (await call(here, "tools/call", params))[-1][1]["result"]
        ((key, question),) = result["inputRequests"].items()
        assert question["method"] == method
        params |= {"inputResponses": {key: ASKED[method][1]}, "requestState": result["requestState"]}
        result = (await call(here, "tools/call", params))[-1][1]["result"]
        assert json.loads(result["content"][0]["text"]) == [ASKED[method][1]]


async def test_access_rules_and_views_hold_for_the_inspector():
    rules = (
        AccessRule(effect="allow", principals=("alice",)),
        AccessRule(effect="allow", principals=("mcpmux:inspector",), upstreams=("docs",)),
    )
    views = {
        "few": View(include=(Selector(kind="tools", name="work"),)),
        "hers": View(include=(Selector(kind="tools"),), principals=("alice",)),
    }
    async with opened(access=rules, views=views) as here:

        async def tools(view: str) -> set[str]:
            result = (await call(here, "tools/list", {}, view))[-1][1]["result"]
            return {tool["name"] for tool in result["tools"]}

        assert await tools("few") == {"docs__work"}
        assert "docs__hang" in await tools("")
        for view in ("hers", "none"):
            status, _, body = await post(here, PATH, json.dumps({"method": "ping", "view": view}).encode())
            assert (status, view in json.loads(body)["error"]) == (404, True)
    assert len({row.first.leg.peer for row in here.traffic.ring.before(100) if row.view == "few"}) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"params": {}}',
        b'{"method": ""}',
        b'{"method": 1}',
        b'{"method": "ping", "params": []}',
        b'{"method": "ping", "params": {"_meta": 1}}',
        b'{"method": "ping", "view": null}',
        b'{"method": "ping", "principal": "alice"}',
    ],
)
async def test_what_is_no_request_is_refused(body: bytes):
    async with opened() as here:
        status, _, answer = await post(here, PATH, body)
        assert (status, json.loads(answer).keys()) == (400, {"error"})
        assert here.traffic.ring.last == 0


async def test_so_many_requests_run_at_once_and_no_more():
    async with opened() as here, AsyncExitStack() as stack:
        for _ in range(calls.CALLS_AT_ONCE):
            receive = await stack.enter_async_context(calling(here, "tools/call", {"name": "docs__hang"}))
            await hear(receive)
        status, _, body = await post(here, PATH, b'{"method": "tools/list"}')
        assert (status, "running already" in json.loads(body)["error"]) == (429, True)


async def test_a_request_that_takes_too_long_is_cancelled(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(calls, "CALL_SECONDS", 0.1)
    worker = Worker()
    async with opened(worker) as here:
        stream = await call(here, "tools/call", {"name": "docs__hang"})
        assert "more than 0.1 seconds" in stream[-1][1]["error"]["message"]
        with trio.fail_after(60):
            await worker.cancelled.wait()


async def test_it_can_be_turned_off_and_is_off_on_the_network():
    assert Admin(port=1).may_call
    assert not Admin(port=1, calls=False).may_call
    outside = partial(Admin, host="0.0.0.0", port=1, token=Secret("0123456789abcdef"))
    assert not outside().may_call
    assert outside(calls=True).may_call
    async with listening(traffic=Traffic()) as here:
        assert (await get(here, PATH))["problem"] == calls.OFF
        status, _, body = await post(here, PATH, b'{"method": "tools/list"}')
        assert (status, json.loads(body)["error"]) == (409, calls.OFF)
    async with opened() as here:
        assert (await get(here, PATH))["problem"] is None
