"""Tasks in every pair of eras: made, asked about, answered, cancelled, and nobody else's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from tests.peers.client import ScriptedClient
from tests.peers.revision import LEGACY, MODERN, Json
from tests.peers.server import RpcFailure, ScriptedServer
from tests.peers.task_server import CAPABILITIES, EXTENSION, RELATED, RESULT, WISH, TaskServer
from tests.runtime.world import World, open_world

FORM: Json = {"elicitation": {"form": {}}}
ABLE: Json = {**FORM, "extensions": {EXTENSION: {}}}
ANSWER: Json = {"action": "accept", "content": {"x": "y"}}
LINK = {"type": "resource_link", "name": "r", "uri": "x+file:///r"}
OLD = "2025-06-18"


async def client_of(world: World, revision: str, capabilities: Json = FORM) -> ScriptedClient:
    return await world.open_client(revision, capabilities)


def beside(server: TaskServer) -> dict[str, ScriptedServer]:
    return {"x": server, "y": ScriptedServer(tools=[])}


@asynccontextmanager
async def open_tasks(
    down: str, capabilities: Json = FORM, *, up: str = LEGACY
) -> AsyncIterator[tuple[TaskServer, ScriptedClient]]:
    """Open a mux before a server with tasks, with one client."""
    server = TaskServer(up)
    async with open_world(beside(server)) as world:
        yield server, await client_of(world, down, capabilities)


async def make(client: ScriptedClient, tool: str = "x__must") -> Json:
    """Make a task as a legacy client: the task."""
    return (await client.request("tools/call", {"name": tool, "task": {"ttl": 60000}}))["task"]


# Capabilities


@pytest.mark.parametrize(
    ("up", "down", "told"),
    [
        (LEGACY, LEGACY, CAPABILITIES[LEGACY]["tasks"]),
        (LEGACY, OLD, None),
        (MODERN, LEGACY, None),
        (None, LEGACY, None),
    ],
)
async def test_a_legacy_client_hears_of_tasks_that_work_for_it(up, down, told, autojump_clock):
    server = TaskServer(up) if up else ScriptedServer(LEGACY, tools=[])
    async with open_world({"x": server, "y": ScriptedServer(tools=[])}) as world:
        client = world.client()
        client.capabilities = FORM
        assert (await client.initialize(down))["capabilities"].get("tasks") == told


@pytest.mark.parametrize(("up", "told"), [(LEGACY, True), (MODERN, True), (None, False)])
async def test_a_modern_client_hears_of_the_extension_when_a_server_has_tasks(up, told, autojump_clock):
    server = TaskServer(up) if up else ScriptedServer(tools=[])
    async with open_world({"x": server, "y": ScriptedServer(tools=[])}) as world:
        capabilities = (await world.client().request("server/discover"))["capabilities"]
        assert (EXTENSION in capabilities.get("extensions", {})) is told
        assert "tasks" not in capabilities


@pytest.mark.parametrize("down", [LEGACY, MODERN])
async def test_tools_of_a_modern_server_promise_a_legacy_client_no_tasks(down, autojump_clock):
    server = TaskServer(MODERN)
    for tool in server.items("tools/list"):
        tool["execution"] = {"taskSupport": "optional"}
    async with open_world({"x": server, "z": TaskServer()}) as world:
        client = await client_of(world, down)
        listed = (await client.request("tools/list"))["tools"]
        promised = {tool["name"]: tool.get("execution") for tool in listed}
        assert promised["x__may"] == (None if down == LEGACY else {"taskSupport": "optional"})
        assert promised["z__must"] == {"taskSupport": "required"}


# Legacy to legacy: passed on unchanged


async def test_a_legacy_client_makes_a_task_and_fetches_its_result(autojump_clock):
    async with open_tasks(LEGACY) as (server, client):
        call = {"name": "x__must", "task": {"ttl": 60000}}
        made = await client.request("tools/call", call)
        assert made["task"] == {**server.tasks["t1"], "taskId": "x+t1"}
        assert made["_meta"]["io.modelcontextprotocol/model-immediate-response"] == "ok"
        assert server.calls_of("tools/call")[0]["task"] == {"ttl": 60000}
        assert (await client.request("tasks/get", {"taskId": "x+t1"}))["status"] == "working"
        waiting = await client.start("tasks/result", {"taskId": "x+t1"})
        await trio.sleep(600)  # far longer than any deadline for an answer
        server.set("t1", "completed", RESULT)
        message = await client.receive()
        assert message["id"] == waiting
        assert message["result"]["content"] == [LINK]
        assert message["result"]["_meta"][RELATED] == {"taskId": "x+t1"}


async def test_the_only_unprefixed_server_is_passed_through(autojump_clock):
    server = TaskServer()
    async with open_world({"x": server}, settings={"x": {"prefix": ""}}) as world:
        client = await client_of(world, LEGACY)
        assert await make(client, "must") == server.tasks["t1"]
        assert (await client.request("tasks/list"))["tasks"] == [server.tasks["t1"]]
        server.set("t1", "completed", RESULT)
        result = await client.request("tasks/result", {"taskId": "t1"})
        assert result["content"] == RESULT["content"]
        assert (await client.refusal("tools/call", {"name": "must"}))["message"] == "a task only"


async def test_a_failed_task_answers_the_error_of_its_call(autojump_clock):
    async with open_tasks(LEGACY) as (server, client):
        await make(client)
        server.set("t1", "failed", RpcFailure(-32000, "broken"))
        error = await client.refusal("tasks/result", {"taskId": "x+t1"})
        assert error == {"code": -32000, "message": "broken"}


async def test_a_legacy_client_cancels_a_task(autojump_clock):
    async with open_tasks(LEGACY) as (_server, client):
        await make(client)
        cancelled = await client.request("tasks/cancel", {"taskId": "x+t1"})
        assert (cancelled["taskId"], cancelled["status"]) == ("x+t1", "cancelled")


async def test_a_task_asks_its_question_while_its_result_is_awaited(autojump_clock):
    async with open_tasks(LEGACY) as (server, client):
        await make(client)
        server.set("t1", "input_required")
        await client.start("tasks/result", {"taskId": "x+t1"})
        question = await client.receive_method("elicitation/create")
        assert question["params"]["_meta"] == {RELATED: {"taskId": "x+t1"}}
        await client.send(
            {"id": question["id"], "result": {**ANSWER, "_meta": {RELATED: {"taskId": "x+t1"}}}}
        )
        assert (await client.receive())["result"]["content"] == [LINK]
        assert server.answers == [{**ANSWER, "_meta": {RELATED: {"taskId": "t1"}}}]


async def test_a_question_finds_its_task_among_those_of_many_clients(autojump_clock):
    server = TaskServer()
    async with open_world(beside(server)) as world:
        clients = [await client_of(world, LEGACY) for _ in range(3)]
        for number, client in enumerate(clients, 1):
            await make(client)
            await client.start("tasks/result", {"taskId": f"x+t{number}"})
        server.set("t2", "input_required")
        question = await clients[1].receive_method("elicitation/create")
        assert question["params"]["_meta"] == {RELATED: {"taskId": "x+t2"}}


async def test_a_task_asks_its_maker_also_while_nobody_waits_for_its_result(autojump_clock):
    server = TaskServer()
    async with open_world(beside(server)) as world:
        mine, yours = await client_of(world, LEGACY), await client_of(world, LEGACY)
        await make(mine)
        await make(yours)
        await yours.start("tasks/result", {"taskId": "x+t2"})
        params = {**WISH["params"], "_meta": {RELATED: {"taskId": "t1"}}}
        await server.send({"id": "ask-t1", "method": "elicitation/create", "params": params})
        question = await mine.receive_method("elicitation/create")
        assert question["params"]["_meta"] == {RELATED: {"taskId": "x+t1"}}
        await mine.send({"id": question["id"], "result": {**ANSWER, "_meta": {RELATED: {"taskId": "x+t1"}}}})
        await trio.sleep(1)
        assert server.answers == [{**ANSWER, "_meta": {RELATED: {"taskId": "t1"}}}]
        assert await yours.drain() == []


async def test_the_list_of_tasks_is_the_clients_own(autojump_clock):
    first, other = TaskServer(), TaskServer()
    async with open_world({"x": first, "z": other, "y": TaskServer(MODERN)}) as world:
        mine, yours = await client_of(world, LEGACY), await client_of(world, LEGACY)
        for client, tool in [(mine, "x__must"), (yours, "x__must"), (mine, "z__must"), (mine, "x__may")]:
            await make(client, tool)
        assert [task["taskId"] for task in await mine.walk("tasks/list", "tasks")] == ["x+t1", "x+t3", "z+t1"]
        assert [task["taskId"] for task in await yours.walk("tasks/list", "tasks")] == ["x+t2"]


@pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/cancel"])
async def test_a_task_is_nobody_elses(method, autojump_clock):
    server = TaskServer()
    async with open_world(beside(server)) as world:
        mine, yours = await client_of(world, LEGACY), await client_of(world, LEGACY)
        await make(mine)
        error = await yours.refusal(method, {"taskId": "x+t1"})
        assert error == {"code": -32602, "message": "Task not found"}
        assert server.tasks["t1"]["status"] == "working"


async def test_a_task_outlives_its_client(autojump_clock):
    server = TaskServer()
    async with open_world(beside(server)) as world:
        first = await client_of(world, LEGACY)
        await make(first)
        await first.vanish()
        await trio.sleep(20)
        again = await client_of(world, LEGACY)
        assert (await again.request("tasks/get", {"taskId": "x+t1"}))["taskId"] == "x+t1"
        assert len(world.mux.hub.personal.tasks) == 0


@pytest.mark.parametrize("task_id", ["x+none", "nobody+t1", "t1"])
async def test_an_unknown_task_is_not_found(task_id, autojump_clock):
    async with open_world(beside(TaskServer())) as world:
        client = await client_of(world, LEGACY)
        assert (await client.refusal("tasks/get", {"taskId": task_id}))["code"] == -32602


async def test_status_reaches_the_maker_alone_the_latest_for_each_task(autojump_clock):
    server = TaskServer()
    async with open_world(beside(server)) as world:
        mine, yours = await client_of(world, LEGACY), await client_of(world, LEGACY)
        await make(mine)
        server.set("t1", "completed", RESULT)
        await server.tell("t1")
        notification = await mine.receive()
        assert notification["method"] == "notifications/tasks/status"
        assert notification["params"] == {**server.tasks["t1"], "taskId": "x+t1"}
        assert await yours.drain() == []


async def test_status_that_comes_before_the_task_is_known_is_not_lost(autojump_clock):
    class Hasty(TaskServer):
        async def handle(self, method: str, params: Json, message: Json) -> Json:
            result = await super().handle(method, params, message)
            if method == "tools/call":
                self.set("t1", "completed", RESULT)
                await self.tell("t1")
            return result

    async with open_world(beside(Hasty())) as world:
        client = await client_of(world, LEGACY)
        await client.start("tools/call", {"name": "x__must", "task": {}})
        messages = await client.drain()
        assert sorted(m.get("method", "answer") for m in messages) == ["answer", "notifications/tasks/status"]


async def test_progress_goes_on_under_the_token_of_the_call(autojump_clock):
    server = TaskServer()
    async with open_world(beside(server)) as world:
        mine, yours = await client_of(world, LEGACY), await client_of(world, LEGACY)
        await mine.request("tools/call", {"name": "x__must", "task": {}}, progressToken="mine")
        params = {"progressToken": server.tokens["t1"], "progress": 1, "_meta": {RELATED: {"taskId": "t1"}}}
        await server.send({"method": "notifications/progress", "params": params})
        params = (await mine.receive_method("notifications/progress"))["params"]
        assert params == {"progressToken": "mine", "progress": 1, "_meta": {RELATED: {"taskId": "x+t1"}}}
        assert await yours.drain() == []


# Modern clients


async def test_a_modern_client_has_the_tasks_of_a_modern_server(autojump_clock):
    async with open_tasks(MODERN, ABLE, up=MODERN) as (server, client):
        made = await client.request("tools/call", {"name": "x__must"})
        assert (made["resultType"], made["taskId"]) == ("task", "x+t1")
        server.set("t1", "input_required")
        asking = await client.request("tasks/get", {"taskId": "x+t1"})
        assert asking["inputRequests"]["q"]["method"] == "elicitation/create"
        await client.request("tasks/update", {"taskId": "x+t1", "inputResponses": {"q": ANSWER}})
        assert server.answers == [ANSWER]
        done = await client.request("tasks/get", {"taskId": "x+t1"})
        assert (done["taskId"], done["result"]["content"]) == ("x+t1", [LINK])


async def test_a_modern_client_gets_a_task_that_a_legacy_tool_requires(autojump_clock):
    async with open_tasks(MODERN, ABLE) as (server, client):
        made = await client.request("tools/call", {"name": "x__must"})
        assert (made["resultType"], made["taskId"], made["ttlMs"]) == ("task", "x+t1", 60000)
        assert made["pollIntervalMs"] == 500
        assert (await client.request("tasks/get", {"taskId": "x+t1"}))["status"] == "working"
        server.set("t1", "input_required")
        first = await client.request("tasks/get", {"taskId": "x+t1"})
        assert await client.request("tasks/get", {"taskId": "x+t1"}) == first
        (key, wish), *more = first["inputRequests"].items()
        assert not more
        assert wish["method"] == "elicitation/create"
        await client.request("tasks/update", {"taskId": "x+t1", "inputResponses": {"other": ANSWER}})
        assert server.answers == []
        await client.request("tasks/update", {"taskId": "x+t1", "inputResponses": {key: ANSWER}})
        await trio.sleep(1)
        assert server.answers == [ANSWER]
        done = await client.request("tasks/get", {"taskId": "x+t1"})
        assert done["status"] == "completed"
        assert done["result"] == {**RESULT, "content": [LINK]}


async def test_the_error_of_a_legacy_servers_task_is_in_the_task(autojump_clock):
    async with open_tasks(MODERN, ABLE) as (server, client):
        await client.request("tools/call", {"name": "x__must"})
        server.set("t1", "failed", RpcFailure(-32000, "broken"))
        task = await client.request("tasks/get", {"taskId": "x+t1"})
        assert (task["status"], task["error"]) == ("failed", {"code": -32000, "message": "broken"})


async def test_a_modern_client_cancels_a_legacy_servers_task(autojump_clock):
    async with open_tasks(MODERN, ABLE) as (_server, client):
        await client.request("tools/call", {"name": "x__must"})
        await client.request("tasks/cancel", {"taskId": "x+t1"})
        assert (await client.request("tasks/get", {"taskId": "x+t1"}))["status"] == "cancelled"


@pytest.mark.parametrize("up", [LEGACY, MODERN])
async def test_who_knows_no_tasks_cannot_ask_about_them(up, autojump_clock):
    async with open_world(beside(TaskServer(up))) as world:
        client = await client_of(world, MODERN)
        assert (await client.refusal("tasks/get", {"taskId": "x+t1"}))["code"] == -32021
        listen = {"notifications": {"taskIds": ["x+t1"]}}
        assert (await client.refusal("subscriptions/listen", listen))["code"] == -32021
        for method in ("tasks/list", "tasks/result"):
            assert (await client.refusal(method, {"taskId": "x+t1"}))["code"] == -32601


@pytest.mark.parametrize("name", ["may", "never"])
@pytest.mark.parametrize("down", [LEGACY, MODERN])
async def test_a_tool_that_requires_no_task_is_called_plainly(name, down, autojump_clock):
    async with open_tasks(down, ABLE) as (server, client):
        assert (await client.request("tools/call", {"name": f"x__{name}"}))["content"] == [LINK]
        assert not server.tasks


# Waited for

UNAWARE = [(LEGACY, MODERN), (LEGACY, OLD), (MODERN, LEGACY), (MODERN, OLD)]


@pytest.mark.parametrize(("up", "down"), UNAWARE)
async def test_who_knows_no_tasks_gets_the_result_when_it_is_there(up, down, autojump_clock):
    async with open_tasks(down, up=up) as (server, client):
        await client.start("tools/call", {"name": "x__must"})
        await trio.sleep(600)
        server.set("t1", "completed", RESULT)
        result = (await client.receive())["result"]
        assert result["content"] == [LINK]
        assert RELATED not in result.get("_meta", {})


@pytest.mark.parametrize(("up", "down"), UNAWARE)
async def test_who_knows_no_tasks_is_asked_what_the_task_asks(up, down, autojump_clock):
    async with open_tasks(down, up=up) as (server, client):
        await client.start("tools/call", {"name": "x__must"})
        await trio.sleep(5)
        server.set("t1", "input_required")
        message = await client.receive()
        if down == MODERN:
            first_result = message["result"]
            responses = dict.fromkeys(first_result["inputRequests"], ANSWER)
            again = {
                "name": "x__must",
                "inputResponses": responses,
                "requestState": first_result["requestState"],
            }
            result = await client.request("tools/call", again)
        else:
            assert message["method"] == "elicitation/create"
            await client.send({"id": message["id"], "result": ANSWER})
            result = (await client.receive())["result"]
        assert result["content"] == [LINK]
        assert server.answers == [ANSWER]


@pytest.mark.parametrize(("up", "down"), UNAWARE)
async def test_a_task_that_goes_on_without_an_answer_answers_its_call(up, down, autojump_clock):
    server = TaskServer(up)
    async with open_world(beside(server)) as world:
        client = await client_of(world, down)
        await client.start("tools/call", {"name": "x__must"})
        await trio.sleep(5)
        server.set("t1", "input_required")
        question = await client.receive()
        await trio.sleep(5)
        server.set("t1", "completed", RESULT)
        if down == MODERN:
            await trio.sleep(5)
            again = {"name": "x__must", "requestState": question["result"]["requestState"]}
            result = await client.request("tools/call", again)
        else:
            assert (await client.receive())["params"]["requestId"] == question["id"]
            result = (await client.receive())["result"]
        assert result["content"] == [LINK]
        assert not world.mux.router._tasks._parked


@pytest.mark.parametrize(("up", "down"), UNAWARE)
@pytest.mark.parametrize("asked", [False, True])
async def test_a_task_is_cancelled_when_nobody_waits_for_it_any_more(up, down, asked, autojump_clock):
    server = TaskServer(up)
    async with open_world(beside(server)) as world:
        client = await client_of(world, down)
        request_id = await client.start("tools/call", {"name": "x__must"})
        await trio.sleep(5)
        if asked:
            server.set("t1", "input_required")
            await client.receive()
        await client.send({"method": "notifications/cancelled", "params": {"requestId": request_id}})
        await trio.sleep(700)  # a modern client that was asked just does not come back
        assert server.tasks["t1"]["status"] == "cancelled"
        assert not world.mux.router._tasks._parked


async def test_the_state_of_a_wait_is_good_for_its_own_call_only(autojump_clock):
    server = TaskServer()
    async with open_world(beside(server)) as world:
        mine, yours = await client_of(world, MODERN), await client_of(world, MODERN)
        await mine.start("tools/call", {"name": "x__must"})
        await trio.sleep(5)
        server.set("t1", "input_required")
        state = (await mine.receive())["result"]["requestState"]
        again = {"inputResponses": {}, "requestState": state}
        for client, name in [(yours, "x__must"), (mine, "x__may")]:
            assert (await client.refusal("tools/call", {"name": name, **again}))["code"] == -32602


async def test_a_legacy_client_makes_no_task_of_a_modern_servers_tool(autojump_clock):
    async with open_world({"x": TaskServer(MODERN), "y": TaskServer()}) as world:
        client = await client_of(world, LEGACY)
        assert (await client.refusal("tools/call", {"name": "x__may", "task": {}}))["code"] == -32601
        assert (await client.refusal("tasks/get", {"taskId": "x+t1"}))["code"] == -32602


async def test_a_failed_task_that_was_waited_for_is_an_error(autojump_clock):
    async with open_tasks(LEGACY, up=MODERN) as (server, client):
        await client.start("tools/call", {"name": "x__must"})
        await trio.sleep(5)
        server.set("t1", "failed", RpcFailure(-32000, "broken"))
        assert (await client.receive())["error"] == {"code": -32000, "message": "broken"}
