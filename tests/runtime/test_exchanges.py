"""Exchanges of a client on a stream: plain calls are sent on and answered without their own task."""

from __future__ import annotations

import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from mcpmux.channels.duplex_channel import DuplexChannel
from mcpmux.channels.opener import open_duplex_channel
from mcpmux.channels.pending import PendingRequest
from mcpmux.clients.stdio_client import serve_messages
from mcpmux.config import AccessRule
from mcpmux.errors import RpcError
from mcpmux.transports.inline import Inline
from mcpmux.transports.message_stream import open_line_stream
from mcpmux.upstreams.response_cache import DOUBTS, PASSED
from tests.peers.client import ScriptedClient
from tests.peers.pipe import PromptMemoryPipe, open_memory_pipes
from tests.peers.revision import LEGACY, MODERN, Json
from tests.peers.server import CACHE, RpcFailure, ScriptedServer
from tests.runtime.world import World, open_world

URI = "file:///a"
READ: tuple[str, Json] = ("resources/read", {"uri": f"x+{URI}"})
TOOL: tuple[str, Json] = ("tools/call", {"name": "x__add", "arguments": {"where": f"x+{URI}"}})
PROMPT = ("prompts/get", {"name": "x__greet"})
PLAIN = [READ, TOOL, PROMPT]
NO_SLOT_IS_HELD = (0, 0)


def shaped(server: ScriptedServer, result: Json, hints: Json | None = None) -> Json:
    """Return a result in the shape of the server's revision."""
    return result | ({"resultType": "complete"} | (hints or {}) if server.modern else {})


class Server(ScriptedServer):
    """Answers when `gate` is open; `before` are notifications that it sends first."""

    def __init__(self, revision: str = MODERN) -> None:
        super().__init__(
            revision, resources=[{"uri": URI, "name": "a"}], tools=[], prompts=[{"name": "greet"}]
        )
        self.gate = trio.Event()
        self.failure: RpcFailure | None = None
        self.notes = 0
        self.hints = CACHE
        self.handlers = {"resources/read": _read, "tools/call": _call, "prompts/get": _get}

    async def pass_gate(self, params: Json) -> None:
        token = params.get("_meta", {}).get("progressToken")
        for number in range(self.notes):
            progress = {"progressToken": token, "progress": number}
            await self.send({"method": "notifications/progress", "params": progress})
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure

    def asked(self, method: str) -> list[Json]:
        return [message["params"] for message in self.seen if message.get("method") == method]


async def _read(server: ScriptedServer, params: Json, _message: Json) -> Json:
    assert isinstance(server, Server)
    await server.pass_gate(params)
    return shaped(server, {"contents": [{"uri": params["uri"], "text": "text"}]}, server.hints)


async def _call(server: ScriptedServer, params: Json, _message: Json) -> Json:
    assert isinstance(server, Server)
    await server.pass_gate(params)
    link = {"type": "resource_link", "uri": params["arguments"]["where"], "name": "a"}
    return shaped(server, {"content": [link]})


async def _get(server: ScriptedServer, params: Json, _message: Json) -> Json:
    assert isinstance(server, Server)
    await server.pass_gate(params)
    content = {"type": "text", "text": params["name"]}
    return shaped(server, {"messages": [{"role": "user", "content": content}]})


@pytest.fixture(params=[MODERN, LEGACY])
def server(request) -> Server:
    return Server(request.param)


async def quiet() -> None:
    await trio.testing.wait_all_tasks_blocked()


def tasks() -> int:
    """Count the tasks, except those in which a scripted server answers."""
    task = trio.lowlevel.current_root_task()
    assert task is not None
    waiting, count = [task], 0
    while waiting:
        task = waiting.pop()
        count += not task.name.endswith(ScriptedServer._answer.__qualname__)
        waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return count


def held(world: World) -> tuple[int, int]:
    """Return how many exchanges and slots of the upstream are taken."""
    upstream = world.mux.upstreams["x"]
    return upstream.status.in_flight, upstream.limiter.running


@asynccontextmanager
async def ready(
    server: Server, era: str = MODERN, **settings: Any
) -> AsyncIterator[tuple[World, ScriptedClient]]:
    """Open a world with a server `x` that has answered once, and a client, modern or of a legacy revision."""
    async with open_world({"x": server, "y": ScriptedServer()}, settings={"x": settings}) as world:
        client = world.client()
        if era != MODERN:
            await client.initialize(era)
        server.gate.set()
        for call in [TOOL, *[READ] * DOUBTS]:  # from now on a read is not looked for in a memory first
            await client.request(*call)
        server.gate = trio.Event()
        yield world, client


@pytest.mark.parametrize("era", [MODERN, LEGACY, "2024-11-05"])
@pytest.mark.parametrize("call", PLAIN, ids=lambda call: call[0])
async def test_a_plain_call_is_answered_in_its_era_without_a_task(autojump_clock, server, call, era):
    async with ready(server, era) as (world, client):
        count = tasks()
        for _ in range(10):
            await client.start(*call)
        await quiet()
        assert len(server.asked(call[0])) >= 10
        assert tasks() == count
        server.gate.set()
        answers = [await client.receive() for _ in range(10)]
        assert sorted(answer["id"] for answer in answers) == list(range(client._ids - 9, client._ids + 1))
        assert held(world) == NO_SLOT_IS_HELD
    text = json.dumps([answer["result"] for answer in answers])
    assert text.count(f'x+{URI}"') == (10 if call is not PROMPT else 0)
    assert ("resultType" in text) is (era == MODERN)
    assert ("resource_link" in text) is (call is TOOL and era != "2024-11-05")
    assert all(f"x+{URI}" not in json.dumps(message) for message in server.asked(call[0]))


@pytest.mark.parametrize("call", PLAIN, ids=lambda call: call[0])
async def test_notifications_come_in_order_before_the_answer(autojump_clock, server, call):
    async with ready(server) as (_, client):
        server.notes = 5
        server.gate.set()
        first = await client.start(*call, progressToken="mine")
        second = await client.start(*call, progressToken=7)
        order: dict[Any, list[Any]] = {"mine": [], 7: []}
        for _ in range(12):
            message = await client.receive()
            if "id" in message:
                order["mine" if message["id"] == first else 7].append("answer")
                assert message["id"] in (first, second)
            else:
                order[message["params"]["progressToken"]].append(message["params"]["progress"])
    assert order == {key: [0, 1, 2, 3, 4, "answer"] for key in ("mine", 7)}


@pytest.mark.parametrize("call", PLAIN, ids=lambda call: call[0])
async def test_a_cancelled_call_is_not_answered_and_its_server_is_told_once(autojump_clock, server, call):
    async with ready(server) as (world, client):
        request_id = await client.start(*call)
        await quiet()
        for _ in range(2):
            await client.send({"method": "notifications/cancelled", "params": {"requestId": request_id}})
        await quiet()
        assert len(server.asked("notifications/cancelled")) == 1
        assert held(world) == NO_SLOT_IS_HELD
        server.gate.set()
        await client.request("server/discover")  # nothing else has come


async def test_an_error_is_told_in_the_clients_words(autojump_clock, server):
    async with ready(server) as (world, client):
        server.failure = RpcFailure(-32602, "no such thing", {"uri": URI})
        server.gate.set()
        with pytest.raises(RpcFailure, match="no such thing") as caught:
            await client.request(*TOOL)
        assert caught.value.error["data"] == {"uri": f"x+{URI}"}
        assert held(world) == NO_SLOT_IS_HELD


async def test_a_read_is_repeated_after_a_loss_and_a_tool_call_not(autojump_clock, server):
    async with ready(server) as (world, client):
        read, tool = await client.start(*READ), await client.start(*TOOL)
        await quiet()
        await world.kill("x")
        server.gate.set()
        answers = {answer["id"]: answer for answer in (await client.receive(), await client.receive())}
        assert "contents" in answers[read]["result"]
        assert "was lost" in answers[tool]["error"]["message"]
        assert held(world) == NO_SLOT_IS_HELD
    assert len(server.asked("resources/read")) == DOUBTS + 2


async def test_what_was_asked_before_the_stream_ended_is_still_answered(autojump_clock, server):
    async with ready(server) as (world, client):
        left, right = trio.testing.memory_stream_pair()
        async with open_line_stream(left, 10**6) as ours, open_line_stream(right, 10**6) as theirs:
            world.nursery.start_soon(partial(serve_messages, theirs, world.mux.service, linger=10))
            await ours.send(_message(client, *TOOL))
            await quiet()
            await ours.send_eof()
            await trio.sleep(5)
            server.gate.set()
            assert "result" in json.loads(await ours.receive())
        assert held(world) == NO_SLOT_IS_HELD


async def test_answers_wait_for_a_slow_client_without_loss(autojump_clock, server):
    async with ready(server) as (world, client):
        count = tasks()
        ids = [await client.start(*TOOL) for _ in range(100)]
        server.gate.set()
        await quiet()
        assert tasks() >= count + 80  # each waits with its answer: the pipe to the client holds a few
        answers = [await client.receive() for _ in ids]
        assert sorted(answer["id"] for answer in answers) == ids
        assert all("result" in answer for answer in answers)
        assert held(world) == NO_SLOT_IS_HELD


async def test_one_of_many_private_reads_looks_into_the_cache(autojump_clock):
    server = Server(MODERN)
    async with ready(server) as (world, client):
        memory = world.mux.upstreams["x"].memory
        assert memory is not None
        server.gate.set()
        for _ in range(PASSED):
            await client.request(*READ)
        server.gate = trio.Event()
        reads, looked_at = len(server.asked("resources/read")), memory.counts.misses
        for _ in range(10):
            await client.start(*READ)
        await quiet()
        assert len(server.asked("resources/read")) == reads + 10  # none waits for what the first brings
        assert memory.counts.misses == looked_at + 1
        server.gate.set()
        answers = [await client.receive() for _ in range(10)]
        assert all("result" in answer for answer in answers)


async def test_public_reads_are_served_from_the_cache_again(autojump_clock):
    server = Server(MODERN)
    async with ready(server) as (_, client):
        server.gate.set()
        server.hints = {"ttlMs": 600_000, "cacheScope": "public"}
        for _ in range(PASSED + 1):
            await client.request(*READ)
        count = len(server.asked("resources/read"))
        await client.request(*READ)
        assert len(server.asked("resources/read")) == count


async def test_a_read_that_is_served_from_the_cache_ends_the_doubts(autojump_clock):
    """A server with one public resource that everybody reads, and many that are private."""
    server, other = Server(MODERN), ("resources/read", {"uri": "x+file:///b"})
    async with ready(server) as (world, client):
        memory = world.mux.upstreams["x"].memory
        assert memory is not None
        server.gate.set()
        for _ in range(PASSED):
            await client.request(*READ)
        server.hints = {"ttlMs": 600_000, "cacheScope": "public"}
        await client.request(*READ)
        server.hints = CACHE
        for call in [*[other] * (DOUBTS - 1), READ, other]:
            await client.request(*call)
        looked_at = memory.counts.misses
        await client.request(*other)
        assert (memory.counts.hits, memory.counts.misses) == (1, looked_at + 1)


def on_the_way() -> list[Inline | PendingRequest]:
    """Return the objects of exchanges in flight that the collector knows."""
    return [item for item in gc.get_objects() if isinstance(item, Inline | PendingRequest)]


@pytest.mark.parametrize("era", [MODERN, LEGACY])
async def test_what_has_been_answered_is_gone_without_the_collector(autojump_clock, server, era):
    async with ready(server, era) as (_, client):
        server.gate.set()
        gc.collect()
        gc.disable()
        try:
            earlier = (
                on_the_way()
            )  # other tests' cycles that `gc.freeze` has put out of the collector's reach
            for call in PLAIN * 5:
                await client.request(*call)
            left = [held for held in on_the_way() if not any(held is other for other in earlier)]
            circles = gc.collect()  # objects that nothing else would have freed
        finally:
            gc.enable()
        assert len(left) <= 1  # the last one may be in a frame
        assert circles == 0


@pytest.mark.parametrize("era", [MODERN, LEGACY])
async def test_a_call_to_repeat_with_its_state_alone_continues(autojump_clock, era):
    async def twice(server: ScriptedServer, params: Json, _message: Json) -> Json:
        if "requestState" in params:
            return shaped(server, {"content": [{"type": "text", "text": params["requestState"]}]})
        return {"resultType": "input_required", "requestState": "s1"}

    server = Server(MODERN)
    async with ready(server, era) as (_, client):
        server.handlers["tools/call"] = twice
        result = await client.request(*TOOL)
        if era == MODERN:
            assert (result["resultType"], "requestState" in result) == ("input_required", True)
        else:
            assert result["content"] == [{"type": "text", "text": "s1"}]


@pytest.mark.parametrize(
    ("failure", "code"),
    [(RpcError(-32602, "no"), -32602), (RuntimeError("a mistake"), -32603)],
    ids=["refused", "broken"],
)
async def test_an_immediate_failure_is_answered_once_and_the_next_call_served(autojump_clock, failure, code):
    requests = []

    async def answer(request: object, _notify: object) -> Any:
        requests.append(request)
        raise failure

    ours, theirs = open_memory_pipes(kind=PromptMemoryPipe)
    async with open_duplex_channel(ours, lambda _: None, answer):
        count = tasks()
        for number in (1, 2):
            await theirs.send(json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call"}).encode())
            reply = json.loads(await theirs.receive())
            assert (reply["id"], reply["error"]["code"]) == (number, code)
            assert len(requests) == number
            assert tasks() == count


async def test_an_answer_that_waits_without_a_task_is_an_error(autojump_clock):
    """A mistake of ours, which `await in_task()` mends: no client waits in vain."""

    async def answer(_request: object, _notify: object) -> Any:
        with trio.move_on_after(5):
            await trio.sleep(1)
        raise AssertionError

    ours, theirs = open_memory_pipes(kind=PromptMemoryPipe)
    async with open_duplex_channel(ours, lambda _: None, answer) as link:
        await theirs.send(b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}')
        with trio.fail_after(5):
            assert json.loads(await theirs.receive())["error"]["code"] == -32603
        assert len(link._incoming) == 0


async def test_a_call_that_breaks_while_it_is_sent_holds_nothing(autojump_clock, server, monkeypatch):
    async with ready(server) as (world, client):
        link = world.channel("x")
        assert isinstance(link, DuplexChannel)
        offer = link._offer

        def break_down(_data: bytes) -> bool:
            raise RuntimeError("a mistake")

        monkeypatch.setattr(link, "_offer", break_down)
        await client.start(*TOOL)
        assert (await client.receive())["error"]["code"] == -32603
        assert held(world) == NO_SLOT_IS_HELD
        assert len(link.pending_requests) == 0
        monkeypatch.setattr(link, "_offer", offer)
        server.gate.set()
        assert "error" not in await client.request(*TOOL)


@pytest.mark.parametrize("call", [READ, TOOL], ids=lambda call: call[0])
async def test_a_call_in_flight_is_answered_after_a_reload(autojump_clock, server, call):
    """Judge the question by the old rules and give links of the answer the new prefix."""
    async with ready(server) as (world, client):
        count = tasks()
        await client.start(*call)
        await quiet()
        assert tasks() == count
        config = world.mux.config
        x, y = config.upstreams
        rule = AccessRule(effect="deny", upstreams=("x",))
        world.mux.apply(attrs.evolve(config, access=(rule,), upstreams=(attrs.evolve(x, prefix="z"), y)))
        server.gate.set()
        result = (await client.receive())["result"]
        assert f"z+{URI}" in json.dumps(result)
        assert held(world) == NO_SLOT_IS_HELD
        await client.start(*call)
        assert "error" in await client.receive()


def _message(client: ScriptedClient, method: str, params: Json) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": client.params(params)}).encode()
