"""Held exchanges at the admin listener: shown, changed, let go, refused, and selected by a filter."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mcpmux.app.held import BY
from mcpmux.config import Intercept
from tests.peers.client import ScriptedClient
from tests.runtime.test_interception import DELETE, REFUSED, SCHEMA, calls_at, disk
from tests.traffic.admin_world import WAIT_SECONDS, Json, Listening, get, listening, post


async def send(here: Listening, path: str, body: Any) -> tuple[int, Json]:
    status, _, answer = await post(here, path, json.dumps(body).encode())
    return status, json.loads(answer)


async def first_held(here: Listening) -> Json:
    """Wait until an exchange is held."""
    with trio.fail_after(WAIT_SECONDS):
        while not here.world.mux.interceptors.holding.held:
            await trio.testing.wait_all_tasks_blocked(0.01)
    held: Json = (await get(here, "/api/held"))["held"][0]
    return held


@asynccontextmanager
async def open_desk(**hold: Any) -> AsyncIterator[tuple[Listening, ScriptedClient, Any]]:
    """Yield an admin listener, a client, and the server behind them; the inspector holds tool calls."""
    server = disk()
    async with listening(servers={"x": server}) as here:
        await send(here, "/api/held", {"filter": "method=tools/call", **hold})
        yield here, here.world.client(), server


async def test_a_held_call_is_shown_with_its_schema_and_deadline():
    async with open_desk(seconds=60) as (here, client, server):
        await client.start("tools/call", DELETE)
        await client.start("resources/read", {"uri": "x+file:///a"})
        held = await first_held(here)
        assert 0 < held.pop("seconds") <= 60
        message = held.pop("message")
        assert (message["on"], message["params"], message["name"]) == ("request", DELETE, "delete")
        rest = {"row": None, "by": BY, "reason": "", "at_timeout": "pass", "schema": SCHEMA, "replica": None}
        assert held == {"key": "1", **rest}
        assert not calls_at(server)


VERDICTS: dict[str, tuple[Json, str]] = {
    "pass": ({"verdict": "pass"}, '{"path": "/tmp"}'),
    "change": (
        {"verdict": "change", "params": DELETE | {"arguments": {"path": "/b"}}},
        '{"path": "/b"}',
    ),
    "answer": ({"verdict": "change", "result": {"content": [{"type": "text", "text": "no"}]}}, "no"),
}


@pytest.mark.parametrize("verdict", VERDICTS)
async def test_a_person_lets_a_call_go_changes_or_answers_it(verdict):
    body, text = VERDICTS[verdict]
    async with open_desk() as (here, client, server):
        request_id = await client.start("tools/call", DELETE)
        held = await first_held(here)
        assert await send(here, f"/api/held/{held['key']}", body) == (200, {"held": held["key"]})
        answer = await client.answer(request_id)
        assert answer["result"]["content"][0]["text"] == text
        assert len(calls_at(server)) == (verdict != "answer")
        status, problem = await send(here, f"/api/held/{held['key']}", body)
        assert status == 404 and "not held any more" in problem["error"]


async def test_a_person_refuses_with_a_reason():
    async with open_desk() as (here, client, server):
        request_id = await client.start("tools/call", DELETE)
        held = await first_held(here)
        await send(here, f"/api/held/{held['key']}", {"verdict": "refuse", "reason": "not on Fridays"})
        error = (await client.answer(request_id))["error"]
        assert error == {"code": REFUSED, "message": f"Refused by {BY}: not on Fridays"}
        assert not calls_at(server)


@pytest.mark.parametrize(
    "verdict",
    [
        {"verdict": "change", "params": DELETE | {"arguments": {"path": 1}}},
        {"verdict": "change", "params": DELETE | {"name": "x__look"}},
        {"verdict": "hold"},
        {"verdict": "?"},
        [],
    ],
)
async def test_a_bad_verdict_is_explained_and_the_call_stays_held(verdict):
    async with open_desk() as (here, client, _):
        await client.start("tools/call", DELETE)
        held = await first_held(here)
        status, problem = await send(here, f"/api/held/{held['key']}", verdict)
        assert status == 422 and problem["error"]
        assert [exchange["key"] for exchange in (await get(here, "/api/held"))["held"]] == [held["key"]]


async def test_answers_are_held_if_they_are_wanted_and_can_be_changed():
    async with open_desk(on=["result"]) as (here, client, server):
        request_id = await client.start("tools/call", DELETE)
        held = await first_held(here)
        assert held["message"]["on"] == "result" and calls_at(server)
        result = held["message"]["result"] | {"content": []}
        await send(here, f"/api/held/{held['key']}", {"verdict": "change", "result": result})
        assert (await client.answer(request_id))["result"]["content"] == []


async def test_an_order_ends_with_an_empty_filter_and_mistakes_change_none():
    async with open_desk() as (here, client, _):
        for bad in ({"filter": "colour=red"}, {"filter": "x", "seconds": 0}, {"at_timeout": "?"}, {"a": 1}):
            assert (await send(here, "/api/held", bad))[0] == 400
        order = (await get(here, "/api/held"))["order"]
        assert (order["filter"], order["at_timeout"]) == ("method=tools/call", "pass")
        await send(here, "/api/held", {"filter": ""})
        assert "result" in await client.answer(await client.start("tools/call", DELETE))


@pytest.mark.parametrize("name", ["uri~delete", "name=delete*", "name=x__del*", "name!=look"])
async def test_a_filter_selects_by_name_upstream_and_text(name: str):
    chosen = f'method=tools/call {name} upstream=x text~"/tmp"'
    async with open_desk(filter=chosen) as (here, client, _):
        for params in (DELETE | {"name": "x__look"}, DELETE | {"arguments": {"path": "/else"}}):
            assert "result" in await client.answer(await client.start("tools/call", params))
        await client.start("tools/call", DELETE)
        assert (await first_held(here))["message"]["params"] == DELETE


async def test_configured_and_wanted_interceptors_hold_one_after_the_other():
    settings = (Intercept(builtin="hold", name="desk", methods=("tools/call",)),)
    async with listening(servers={"x": disk()}, intercept=settings) as here:
        await send(here, "/api/held", {"filter": "method=tools/call"})
        client = here.world.client()
        request_id = await client.start("tools/call", DELETE)
        for by, key in (("desk", "1"), (BY, "2")):
            with trio.fail_after(WAIT_SECONDS):
                while (held := await first_held(here))["key"] != key:
                    await trio.testing.wait_all_tasks_blocked(0.01)
            assert held["by"] == by
            await send(here, f"/api/held/{key}", {"verdict": "pass"})
        assert "result" in await client.answer(request_id)
