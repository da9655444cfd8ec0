"""State that a worker gives to clients of 2026-07-28 names its worker."""

from __future__ import annotations

import json

import pytest

from mcpmux.config import Http
from mcpmux.mux.rewrite import Marks, owner_of
from tests.peers.revision import LEGACY, MODERN, Json
from tests.peers.server import RpcFailure, ScriptedServer
from tests.peers.task_server import EXTENSION, TaskServer
from tests.runtime.test_asking import ASKED, TOOL, Curious, client_of
from tests.runtime.world import open_world

ABLE: Json = {"elicitation": {"form": {}}, "extensions": {EXTENSION: {}}}
ANSWER = {"action": "accept", "content": {"x": "y"}}
METHOD = "elicitation/create"


@pytest.mark.parametrize("up", [LEGACY, MODERN])
async def test_a_state_is_the_workers_and_goes_on_with_its_call(up, autojump_clock):
    async with open_world({"x": Curious(up, METHOD, times=2)}, marks=Marks("2")) as world:
        client = await client_of(world, MODERN)
        first_result = await client.request("tools/call", {"name": "x__t"})
        assert owner_of(first_result["requestState"]) == "2"
        responses = dict.fromkeys(first_result["inputRequests"], ASKED[METHOD][1])
        again = {"name": "x__t", "inputResponses": responses}
        own = first_result["requestState"][2:]
        for foreign, code in (("1." + own, -31001), (own, -32602), ("2.", -32602)):
            if up == LEGACY or not foreign.startswith("2."):
                error = await client.refusal("tools/call", {**again, "requestState": foreign})
                assert error["code"] == code
        more = await client.request("tools/call", {**again, "requestState": first_result["requestState"]})
        assert owner_of(more["requestState"]) == "2"
        responses = dict.fromkeys(more["inputRequests"], ASKED[METHOD][1])
        last = {"name": "x__t", "inputResponses": responses, "requestState": more["requestState"]}
        result = await client.request("tools/call", last)
        assert len(json.loads(result["content"][0]["text"])) == 2


async def test_a_servers_state_comes_back_whatever_it_ends_with(autojump_clock):
    requests: list[Json] = []

    async def handle(_server: ScriptedServer, params: Json, _message: Json) -> Json:
        requests.append(params)
        if "requestState" in params:
            return {"resultType": "complete", "content": []}
        return {"resultType": "input_required", "inputRequests": {}, "requestState": "half.no-state"}

    server = ScriptedServer(MODERN, tools=[TOOL], handlers={"tools/call": handle})
    async with open_world({"x": server}, marks=Marks("2")) as world:
        client = await client_of(world, MODERN)
        state = (await client.request("tools/call", {"name": "x__t"}))["requestState"]
        assert state == "2.half.no-state"
        await client.request("tools/call", {"name": "x__t", "inputResponses": {}, "requestState": state})
    assert requests[-1]["requestState"] == "half.no-state"


@pytest.mark.parametrize("up", [LEGACY, MODERN])
async def test_a_task_is_the_workers(up, autojump_clock):
    server = TaskServer(up)
    async with open_world({"x": server}, marks=Marks("3")) as world:
        client = await client_of(world, MODERN, ABLE)
        task_id = (await client.request("tools/call", {"name": "x__must"}))["taskId"]
        assert task_id == "3.x+t1"
        server.set("t1", "input_required")
        asking = await client.request("tasks/get", {"taskId": task_id})
        assert asking["taskId"] == task_id
        responses = dict.fromkeys(asking["inputRequests"], ANSWER)
        await client.request("tasks/update", {"taskId": task_id, "inputResponses": responses})
        for foreign in ("x+t1", "1.x+t1", ".x+t1"):
            with pytest.raises(RpcFailure, match="Task not found") as refused:
                await client.request("tasks/get", {"taskId": foreign})
            assert refused.value.error["code"] == -32602
            assert ("has gone" in str(refused.value)) == foreign.startswith("1.")
        await client.request("tasks/cancel", {"taskId": task_id})
        assert (await client.request("tasks/get", {"taskId": task_id}))["taskId"] == task_id


@pytest.mark.parametrize("task_id", ["x+t1", "1.x+t1", "3.x+t1", ".x+t1", "anything"])
async def test_a_client_without_tasks_hears_what_it_lacks_first(task_id, autojump_clock):
    async with open_world({"x": TaskServer(MODERN)}, marks=Marks("3")) as world:
        client = await client_of(world, MODERN)
        error = await client.refusal("tasks/get", {"taskId": task_id})
    assert error["code"] == -32021


async def test_what_is_about_a_modern_server_that_all_reach_is_no_workers(autojump_clock):
    settings = {name: {"target": Http("http://unused.invalid")} for name in "xy"}
    servers = {"x": Curious(MODERN, METHOD), "y": TaskServer(MODERN)}
    async with open_world(servers, settings=settings, marks=Marks("2")) as world:
        client = await client_of(world, MODERN, ABLE)
        result = await client.request("tools/call", {"name": "x__t"})
        assert result["requestState"] == ".[]"
        task_id = (await client.request("tools/call", {"name": "y__must"}))["taskId"]
        assert task_id.startswith(".")
        assert owner_of(task_id) is None
        # Nor does it change.
        assert (await client.request("tasks/get", {"taskId": task_id}))["taskId"] == task_id


async def test_a_legacy_client_sees_no_mark(autojump_clock):
    async with open_world({"x": TaskServer()}, marks=Marks("3")) as world:
        client = await client_of(world, LEGACY, ABLE)
        made = await client.request("tools/call", {"name": "x__must", "task": {"ttl": 60000}})
        assert made["task"]["taskId"] == "x+t1"
