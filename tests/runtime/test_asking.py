"""Questions of servers to clients: sampling, elicitation and roots, in every pair of eras."""

from __future__ import annotations

import json
from typing import Any

import pytest
import structlog
import trio
import trio.testing

from tests.peers.client import ScriptedClient
from tests.peers.revision import ERAS, LEGACY, MODERN, Json
from tests.peers.server import RpcFailure, ScriptedServer
from tests.runtime.http_world import HttpWorld
from tests.runtime.world import World, open_world

TOOL = {"name": "t", "inputSchema": {"type": "object"}}
CAPABILITIES: Json = {"sampling": {}, "elicitation": {"form": {}}, "roots": {"listChanged": True}}
ASKED: dict[str, tuple[Json, Json]] = {
    "elicitation/create": (
        {"mode": "form", "message": "name?", "requestedSchema": {"type": "object", "properties": {}}},
        {"action": "accept", "content": {"name": "x"}},
    ),
    "sampling/createMessage": (
        {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 5},
        {"role": "assistant", "content": {"type": "text", "text": "ho"}, "model": "m"},
    ),
    "roots/list": ({}, {"roots": [{"uri": "file:///home"}]}),
}


ASKING = "sampling/createMessage"


class Curious(ScriptedServer):
    """Its tool asks the client `method`, as the era does it, `times` times; then returns the answers."""

    def __init__(self, revision: str, method: str, times: int = 1) -> None:
        super().__init__(revision, tools=[TOOL])
        self._method = method
        self._times = times
        self._answers: dict[str, trio.MemorySendChannel[Json]] = {}
        self.heard: list[Json] = []

    async def handle(self, method: str, params: Json, message: Json) -> Json:
        if method != "tools/call":
            return await super().handle(method, params, message)
        if self.modern:
            return self._answer_modern(params)
        answers = [await self.ask(self._method) for _ in range(self._times)]
        return {"content": [{"type": "text", "text": json.dumps(answers)}]}

    def _answer_modern(self, params: Json) -> Json:
        answers = json.loads(params.get("requestState", "[]"))
        answers += list(params.get("inputResponses", {}).values())
        if len(answers) == self._times:
            return {"resultType": "complete", "content": [{"type": "text", "text": json.dumps(answers)}]}
        wish = {"method": self._method, "params": ASKED[self._method][0]}
        return {
            "resultType": "input_required",
            "inputRequests": {"it": wish},
            "requestState": json.dumps(answers),
        }

    async def ask(self, method: str) -> Json:
        request_id = f"ask-{len(self._answers)}"
        send, receive = trio.open_memory_channel[Json](1)
        self._answers[request_id] = send
        await self.send({"id": request_id, "method": method, "params": ASKED[method][0]})
        message = await receive.receive()
        return message.get("result") or {"error": message["error"]}

    def take_answer(self, message: Json) -> None:
        self.heard.append(message)
        self._answers[message["id"]].send_nowait(message)


async def client_of(world: World, revision: str, capabilities: Json = CAPABILITIES) -> ScriptedClient:
    return await world.open_client(revision, capabilities)


async def call_and_answer(
    client: ScriptedClient, answer: Json, params: Json | None = None, questions: list[Json] | None = None
) -> Json:
    """Call the tool and answer its questions, which are added to `questions`. Return the result."""
    params = params or {"name": "x__t"}
    questions = [] if questions is None else questions
    if client.revision != MODERN:
        request_id = await client.start("tools/call", params)
        while (message := await client.receive()).get("id") != request_id or "method" in message:
            questions.append({"method": message["method"], "params": message.get("params")})
            await client.send({"id": message["id"], **answer})
        assert "error" not in message, message
        return message["result"]
    result = await client.request("tools/call", params)
    while result["resultType"] == "input_required":
        questions += result["inputRequests"].values()
        responses = dict.fromkeys(result["inputRequests"], answer["result"])
        again = {**params, "inputResponses": responses, "requestState": result["requestState"]}
        result = await client.request("tools/call", again)
    return result


@pytest.mark.parametrize("method", ASKED)
@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", ERAS)
async def test_a_question_reaches_the_client_and_its_answer_the_server(up, down, method, autojump_clock):
    server = Curious(up, method, times=2)
    async with open_world({"x": server, "y": ScriptedServer()}) as world:
        client = await client_of(world, down)
        result = await call_and_answer(client, {"result": ASKED[method][1]})
        assert json.loads(result["content"][0]["text"]) == [ASKED[method][1]] * 2


@pytest.mark.parametrize("down", ERAS)
async def test_no_task_is_asked_of_a_client(down, autojump_clock, monkeypatch):
    params, answer = ASKED[ASKING]
    monkeypatch.setitem(ASKED, ASKING, ({**params, "task": {"ttl": 1000}}, answer))
    server = Curious(LEGACY, ASKING)
    able: Json = {"requests": {"sampling": {"createMessage": {}}}}
    async with open_world({"x": server}, settings={"x": {"session": "per-client"}}) as world:
        client = await client_of(world, down, {**CAPABILITIES, "tasks": able})
        questions: list[Json] = []
        await call_and_answer(client, {"result": answer}, questions=questions)
        assert questions == [{"method": ASKING, "params": params}]
    opened = [message["params"] for message in server.seen if message.get("method") == "initialize"]
    assert opened[-1]["capabilities"] == CAPABILITIES


async def test_no_other_server_withdraws_a_question(autojump_clock):
    server, other = Curious(MODERN, ASKING), ScriptedServer(LEGACY, tools=[])
    async with open_world({"x": server, "y": other}) as world:
        client = await client_of(world, LEGACY)
        await client.start("tools/call", {"name": "x__t"})
        question = await client.receive()
        await other.send({"method": "dev.mcpmux/withdrawn", "params": {"requestState": "[]"}})
        await trio.sleep(1)
        assert await client.drain() == []
        await client.send({"id": question["id"], "result": ASKED[ASKING][1]})
        assert json.loads((await client.receive())["result"]["content"][0]["text"]) == [ASKED[ASKING][1]]


async def test_a_clients_refusal_reaches_a_legacy_server_as_it_is(autojump_clock):
    server = Curious(LEGACY, "sampling/createMessage")
    async with open_world({"x": server, "y": ScriptedServer()}) as world:
        client = await client_of(world, LEGACY)
        refusal = {"code": -1, "message": "User rejected sampling request"}
        result = await call_and_answer(client, {"error": refusal})
        assert json.loads(result["content"][0]["text"]) == [{"error": refusal}]


async def test_a_clients_refusal_ends_the_call_to_a_modern_server(autojump_clock):
    server = Curious(MODERN, "sampling/createMessage")
    async with open_world({"x": server, "y": ScriptedServer()}) as world:
        client = await client_of(world, LEGACY)
        request_id = await client.start("tools/call", {"name": "x__t"})
        question = await client.receive()
        await client.send({"id": question["id"], "error": {"code": -1, "message": "no"}})
        answer = await client.receive()
        assert answer["id"] == request_id
        assert answer["error"] == {"code": -1, "message": "no"}


@pytest.mark.parametrize(
    ("asked", "calls", "words"), [({"requestState": "s"}, 1001, "does not end"), ({}, 1, "makes no sense")]
)
async def test_a_server_that_asks_nothing_again_and_again_is_given_up(asked, calls, words, autojump_clock):
    async def answer(_server: Any, _params: Json, _message: Json) -> Json:
        return {"resultType": "input_required", **asked}

    server = ScriptedServer(tools=[TOOL], handlers={"tools/call": answer})
    async with open_world({"x": server, "y": ScriptedServer()}) as world:
        client = await client_of(world, LEGACY)
        began = trio.current_time()
        await client.start("tools/call", {"name": "x__t"})
        assert words in (await client.receive_raw())["error"]["message"]
        assert trio.current_time() - began >= (calls - 1) * 0.5
        assert [message["method"] for message in server.seen].count("tools/call") == calls


async def test_an_answer_of_a_client_that_cannot_be_read_ends_the_question(autojump_clock):
    async with open_world({"x": Curious(LEGACY, ASKING), "y": ScriptedServer()}) as world:
        client = await client_of(world, LEGACY)
        request_id = await client.start("tools/call", {"name": "x__t"})
        question = await client.receive_method(ASKING)
        await client.send_raw(b'{"jsonrpc":"2.0","id":%d,"result":{"role":' % question["id"])
        answer = await client.receive()
        assert answer["id"] == request_id
        assert "the answer cannot be read" in answer["result"]["content"][0]["text"]


@pytest.mark.parametrize("down", ERAS)
async def test_a_client_is_not_asked_for_what_it_does_not_offer(down, autojump_clock):
    server = Curious(LEGACY, "sampling/createMessage")
    async with open_world({"x": server, "y": ScriptedServer()}) as world:
        client = await client_of(world, down, {"roots": {}})
        result = await call_and_answer(client, {"result": {}})
        answers = json.loads(result["content"][0]["text"])
        assert answers[0]["error"]["code"] == -32601
        assert "does not offer sampling" in answers[0]["error"]["message"]


async def test_an_ambiguous_question_is_refused_with_the_cure(autojump_clock):
    gate = trio.Event()

    class Late(Curious):
        async def ask(self, method: str) -> Json:
            await gate.wait()
            return await super().ask(method)

    server = Late(LEGACY, "elicitation/create")
    async with open_world({"x": server, "y": ScriptedServer()}) as world:
        first, second = await client_of(world, LEGACY), await client_of(world, MODERN)
        await first.start("tools/call", {"name": "x__t"})
        await second.start("tools/call", {"name": "x__t"})
        await trio.testing.wait_all_tasks_blocked()
        gate.set()
        for client in (first, second):
            answers = json.loads((await client.receive())["result"]["content"][0]["text"])
            if "error" in answers[0]:
                assert 'session = "per-client"' in answers[0]["error"]["message"]
                return
        pytest.fail("neither was refused")


async def test_a_state_is_good_for_its_own_request_only_and_only_once(autojump_clock):
    server = Curious(LEGACY, "elicitation/create")
    async with open_world({"x": server, "y": ScriptedServer(tools=[TOOL])}) as world:
        client = await client_of(world, MODERN)
        first = await client.request("tools/call", {"name": "x__t"})
        again = {
            "inputResponses": dict.fromkeys(first["inputRequests"], ASKED["elicitation/create"][1]),
            "requestState": first["requestState"],
        }
        for params in ({"name": "x__other", **again}, {"name": "x__t", **again, "requestState": "forged"}):
            assert (await client.refusal("tools/call", params))["code"] == -32602
        assert (await client.request("tools/call", {"name": "x__t", **again}))["content"]
        with pytest.raises(RpcFailure):
            await client.request("tools/call", {"name": "x__t", **again})


async def test_a_missing_response_is_asked_for_again(autojump_clock):
    server = Curious(LEGACY, "elicitation/create")
    async with open_world({"x": server, "y": ScriptedServer()}) as world:
        client = await client_of(world, MODERN)
        first = await client.request("tools/call", {"name": "x__t"})
        again = {"name": "x__t", "inputResponses": {}, "requestState": first["requestState"]}
        second = await client.request("tools/call", again)
        assert second["resultType"] == "input_required"
        assert second["inputRequests"] == first["inputRequests"]


async def test_a_parked_call_that_nobody_goes_on_with_is_given_up(autojump_clock):
    server = Curious(LEGACY, "elicitation/create")
    async with open_world({"x": server, "y": ScriptedServer()}) as world:
        client = await client_of(world, MODERN)
        await client.request("tools/call", {"name": "x__t"})
        await trio.sleep(700)
        assert "did not answer" in server.heard[0]["error"]["message"]
        assert not world.channel("x").questions.parked


@pytest.mark.parametrize("how", ["cancel", "vanish"])
async def test_a_legacy_client_that_goes_while_it_is_asked_leaves_nothing_behind(how, autojump_clock):
    server = Curious(LEGACY, "elicitation/create")
    async with open_world({"x": server, "y": ScriptedServer()}) as world:
        client = await client_of(world, LEGACY)
        request_id = await client.start("tools/call", {"name": "x__t"})
        await client.receive_method("elicitation/create")
        if how == "cancel":
            await client.send({"method": "notifications/cancelled", "params": {"requestId": request_id}})
        else:
            await client.vanish()
        await trio.sleep(30)
        if how == "cancel":
            called = [m["id"] for m in server.seen if m.get("method") == "tools/call"]
            last = [m for m in server.seen if m.get("method") == "notifications/cancelled"][-1]
            assert [last["params"]["requestId"]] == called
        else:
            assert "the client has gone" in server.heard[0]["error"]["message"]
        assert len(world.channel("x").pending_requests) == 0


async def test_changed_roots_are_passed_on_to_legacy_servers(autojump_clock):
    old, new = ScriptedServer(LEGACY, tools=[]), ScriptedServer(tools=[])
    async with open_world({"x": old, "y": new}) as world:
        client = await client_of(world, LEGACY)
        await client.send({"method": "notifications/roots/list_changed"})
        await trio.sleep(1)
        assert "notifications/roots/list_changed" in [m.get("method") for m in old.seen]
        assert "notifications/roots/list_changed" not in [m.get("method") for m in new.seen]


class Talkative(ScriptedServer):
    """Logs at every level while its tool runs, as far as the era and the level that was set allow."""

    def __init__(self, revision: str) -> None:
        super().__init__(revision, tools=[TOOL], capabilities={"tools": {}, "logging": {}})
        self.level: Any = None

    async def handle(self, method: str, params: Json, message: Json) -> Json:
        if method == "logging/setLevel":
            self.level = params["level"]
            return {}
        if method != "tools/call":
            return await super().handle(method, params, message)
        levels = ["debug", "info", "error"]
        threshold = (
            params.get("_meta", {}).get("io.modelcontextprotocol/logLevel") if self.modern else self.level
        )
        for level in levels[levels.index(threshold) :] if threshold else []:
            params = {"level": level, "logger": "db", "data": level}
            await self.send({"method": "notifications/message", "params": params})
        return {"content": []} | ({"resultType": "complete"} if self.modern else {})


@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", ERAS)
async def test_log_messages_come_at_the_level_that_each_client_asked_for(up, down, autojump_clock):
    async with open_world({"x": Talkative(up), "y": ScriptedServer()}) as world:
        first, second = await client_of(world, down), await client_of(world, down)
        for client, level, expected in [
            (first, "debug", ["debug", "info", "error"]),
            (second, "error", ["error"]),
        ]:
            meta = {}
            if down == LEGACY:
                await client.request("logging/setLevel", {"level": level})
            else:
                meta = {"io.modelcontextprotocol/logLevel": level}
            await client.start("tools/call", {"name": "x__t"}, **meta)
            messages = [await client.receive() for _ in range(len(expected) + 1)]
            assert [m["params"]["level"] for m in messages[:-1]] == expected
            assert {m["params"]["logger"] for m in messages[:-1]} == {"x/db"}
            assert "result" in messages[-1]


@pytest.mark.parametrize("down", ERAS)
async def test_a_server_that_takes_its_question_back_is_understood(down, autojump_clock):
    server = Curious(LEGACY, "elicitation/create")
    async with open_world({"x": server, "y": ScriptedServer()}) as world:
        client = await client_of(world, down)
        if down == MODERN:
            first_result = await client.request("tools/call", {"name": "x__t"})
            assert first_result["resultType"] == "input_required"
        else:
            await client.start("tools/call", {"name": "x__t"})
            question = await client.receive_method("elicitation/create")
        await server.send({"method": "notifications/cancelled", "params": {"requestId": "ask-0"}})
        await trio.sleep(1)
        server._answers["ask-0"].send_nowait({"result": {"action": "cancel"}})
        if down == MODERN:
            again = {"name": "x__t", "inputResponses": {}, "requestState": first_result["requestState"]}
            result = await client.request("tools/call", again)
        else:
            cancelled = await client.receive()
            assert cancelled["params"]["requestId"] == question["id"]
            result = (await client.receive())["result"]
        assert json.loads(result["content"][0]["text"]) == [{"action": "cancel"}]


async def test_a_client_that_does_not_read_is_closed(autojump_clock):
    server = Curious(MODERN, "roots/list")
    async with open_world({"x": server, "y": None}) as world:
        client = await client_of(world, LEGACY)
        for _ in range(100):
            world.servers["y"] = ScriptedServer(resources=[])
            await trio.sleep(31)
            world.servers["y"] = None
            await world.kill("y")
            await trio.sleep(1)
        await trio.sleep(100)
        assert not world.mux.hub._listeners
        assert client


@pytest.mark.parametrize("up", ["2024-11-05", "2025-06-18"])
@pytest.mark.parametrize("down", ERAS)
async def test_an_older_server_gets_an_answer_that_its_revision_has(up: str, down: str, autojump_clock):
    """A model may answer with several blocks since 2025-11-25."""
    server = Curious(up, "sampling/createMessage")
    blocks = [{"type": "text", "text": "ho"}]
    answer = {"role": "assistant", "content": blocks, "model": "m"}
    async with open_world({"x": server, "y": ScriptedServer()}) as world:
        client = await client_of(world, down)
        await call_and_answer(client, {"result": answer})
        (their_answer,) = server.heard
        assert their_answer["result"]["content"] == blocks[0]
        server.oracle.check_from_client(their_answer, "sampling/createMessage")


class Inquisitive(Curious):
    """Asks before it agrees to tell of a resource."""

    def __init__(self) -> None:
        super().__init__(LEGACY, "sampling/createMessage")
        self.capabilities = {"tools": {}, "resources": {"subscribe": True}}

    async def handle(self, method: str, params: Json, message: Json) -> Json:
        if method != "resources/subscribe":
            return await super().handle(method, params, message)
        answer = await self.ask(self._method)
        if "error" in answer:
            raise RpcFailure(-32603, answer["error"]["message"])
        return {}


async def answer_after(client: ScriptedClient, seconds: float, request_id: int) -> Json:
    """Answer what is asked on the way, each time so late; the response to the request."""
    while (message := await client.receive()).get("id") != request_id or "method" in message:
        await trio.sleep(seconds)
        await client.send({"id": message["id"], "result": ASKED[message["method"]][1]})
    assert "result" in message, message
    return message


@pytest.mark.parametrize("seconds", [0, 50])
async def test_a_question_in_a_subscription_is_for_the_client_that_subscribes(seconds, autojump_clock):
    server = Inquisitive()
    async with open_world({"x": server, "y": ScriptedServer()}) as world:
        bystander, client = await client_of(world, LEGACY), await client_of(world, LEGACY)
        subscribe = await client.start("resources/subscribe", {"uri": "x+memo:1"})
        assert (await answer_after(client, seconds, subscribe))["result"] == {}
        assert server.heard[0]["result"] == ASKED["sampling/createMessage"][1]
        assert await bystander.drain() == []
        await world.kill("x")  # mcpmux reconnects and subscribes again
        await trio.sleep(1)
        question = await client.receive_method("sampling/createMessage")
        await client.send({"id": question["id"], "result": ASKED["sampling/createMessage"][1]})
        await trio.sleep(1)
        assert world.mux.upstreams["x"].subscriber.asked == {"memo:1"}


async def test_a_question_in_an_http_subscription_is_for_the_subscriber():
    server = Inquisitive()
    async with open_world({"x": server}, world_class=HttpWorld) as world:
        clients = []
        for _ in range(2):
            client = world.client()
            client.capabilities = CAPABILITIES
            await client.initialize(LEGACY)
            clients.append(client)
        subscribe = await clients[1].start("resources/subscribe", {"uri": "x+memo:1"})
        assert (await answer_after(clients[1], 0, subscribe))["result"] == {}


class Separate(Curious):
    """Asks in the response to the call, so that the questions of many calls stay apart."""

    async def handle(self, method: str, params: Json, message: Json) -> Json:
        if method == "tools/call":
            self._call = message["id"]
        return await super().handle(method, params, message)

    async def send(self, message: Json) -> None:
        about = self._call if "method" in message else None
        await self._pipe.send(json.dumps({"jsonrpc": "2.0", **message}).encode(), about)


async def test_calls_that_wait_for_people_take_no_connection_from_others():
    server, calls = Separate(LEGACY, "sampling/createMessage"), 50
    settings = {"x": {"max_in_flight": 1}}
    async with open_world({"x": server}, world_class=HttpWorld, settings=settings) as world:
        client = await client_of(world, MODERN)
        with trio.fail_after(30):
            parked = [await client.request("tools/call", {"name": "x__t"}) for _ in range(calls)]
            for result in parked:
                responses = dict.fromkeys(result["inputRequests"], ASKED["sampling/createMessage"][1])
                again = {"inputResponses": responses, "requestState": result["requestState"]}
                answer = await client.request("tools/call", {"name": "x__t", **again})
                assert answer["resultType"] == "complete"
    assert len(server.heard) == calls


class Settling(Curious):
    """Asks for the client's roots as soon as it is initialized."""

    async def serve(self, pipe: Any) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._settle)
            await super().serve(pipe)
            nursery.cancel_scope.cancel()

    async def _settle(self) -> None:
        await self.initialized.wait()
        await self.ask("roots/list")


async def test_a_question_for_roots_at_the_start_waits_for_a_client(autojump_clock):
    server = Settling(LEGACY, "roots/list")
    async with open_world({"x": server, "y": ScriptedServer()}) as world:
        await trio.sleep(20)
        assert server.heard == []
        client = world.client()
        client.capabilities = CAPABILITIES
        await client.initialize(LEGACY)  # no message comes before its result
        question = await client.receive_method("roots/list")
        await client.send({"id": question["id"], "result": ASKED["roots/list"][1]})
        await trio.sleep(1)
        assert server.heard[0]["result"] == ASKED["roots/list"][1]


async def test_a_server_that_asks_for_roots_is_refused_quietly_when_nobody_comes(autojump_clock):
    server = Settling(LEGACY, "roots/list")
    with structlog.testing.capture_logs() as logs:
        async with open_world({"x": server, "y": ScriptedServer()}):
            await trio.sleep(60)
    assert server.heard[0]["error"]["code"] == -32600
    refusals = [log for log in logs if "refused" in log["event"] and log["log_level"] != "debug"]
    assert refusals == []


async def test_a_call_that_waits_for_its_client_blocks_no_other(autojump_clock):
    server = Curious(LEGACY, "elicitation/create")
    async with open_world({"x": server, "y": ScriptedServer()}) as world:
        gone, client = await client_of(world, MODERN), await client_of(world, LEGACY)
        first_result = await gone.request("tools/call", {"name": "x__t"})
        assert first_result["resultType"] == "input_required"  # and it never comes back
        await trio.sleep(5)
        answer = ASKED["elicitation/create"][1]
        result = await call_and_answer(client, {"result": answer})
        assert json.loads(result["content"][0]["text"]) == [answer]


# Other ends of a parked call than its client's answer


class Impatient(Curious):
    """Waits a moment for an answer, then goes on without it, as `ends` says."""

    def __init__(self, method: str, ends: str) -> None:
        super().__init__(LEGACY, method)
        self._ends = ends

    async def ask(self, method: str) -> Json:
        with trio.move_on_after(1 if self._ends != "late" else 700):
            return await super().ask(method)
        if self._ends == "error":
            raise RpcFailure(-32000, "nobody told me")
        return {"nobody": "told me"}


FAILURES = {
    "error": (-32000, "nobody told me"),
    "late": (
        -31002,
        'within the 8 s of tools/call; to allow more, raise `upstreams.x.timeouts."tools/call"`',
    ),
    "lost": (-31001, "was lost while its client was asked something"),
}


@pytest.mark.parametrize("ends", ["result", *FAILURES])
@pytest.mark.parametrize("method", ["elicitation/create", "roots/list"])
@pytest.mark.parametrize("down", ERAS)
async def test_a_client_that_never_answers_does_not_hold_up_its_call(down, method, ends, autojump_clock):
    server = Impatient(method, ends)
    settings = {"x": {"timeouts": {"tools/call": 8.0}}}
    async with open_world({"x": server, "y": ScriptedServer()}, settings=settings) as world:
        client = await client_of(world, down)
        began = trio.current_time()
        request_id = await client.start("tools/call", {"name": "x__t"})
        question = await client.receive()
        if ends == "lost":
            await world.kill("x")
        if down == LEGACY:
            taken_back = await client.receive()
            assert taken_back["method"] == "notifications/cancelled"
            assert taken_back["params"]["requestId"] == question["id"]
        else:
            await trio.sleep(20)
            again = {"name": "x__t", "requestState": question["result"]["requestState"]}
            request_id = await client.start("tools/call", again)
        answer = await client.receive()
        assert answer["id"] == request_id
        assert trio.current_time() - began < 25
        if ends == "result":
            assert json.loads(answer["result"]["content"][0]["text"]) == [{"nobody": "told me"}]
        elif ends == "lost" and down == MODERN:
            assert answer["error"]["code"] == -32602  # another connection does not know the state
        else:
            code, message = FAILURES[ends]
            assert answer["error"]["code"] == code
            assert message in answer["error"]["message"]
        await trio.sleep(1)
        if ends != "lost":
            assert "did not answer" in server.heard[0]["error"]["message"]
            ended = [m for m in server.seen if m.get("method") == "notifications/cancelled"]
            assert len(ended) == (1 if ends == "late" else 0)
        channel = world.channel("x")
        parked = len(channel.questions.parked)
        assert (parked, channel.deadlines.watched, len(channel.pending_requests)) == (0, set(), 0)


@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", ERAS)
async def test_what_a_program_answers_is_waited_for_for_seconds(up, down, autojump_clock):
    server = Curious(up, "roots/list")
    async with open_world({"x": server, "y": ScriptedServer()}) as world:
        client = await client_of(world, down)
        began = trio.current_time()
        await client.start("tools/call", {"name": "x__t"})
        await client.receive()
        if down == MODERN and up == MODERN:
            return  # the server keeps no state and waits for no client
        if down == LEGACY:
            assert (await client.receive())["method"] == "notifications/cancelled"
            answer = await client.receive()
            assert trio.current_time() - began < 12
            error = answer["error"] if up == MODERN else json.loads(answer["result"]["content"][0]["text"])[0]
        else:
            await trio.sleep(12)
            error = server.heard[0]
        assert "did not answer roots/list" in json.dumps(error)


async def test_a_question_outside_of_calls_that_is_taken_back_is_not_asked(autojump_clock):
    server = Settling(LEGACY, "roots/list")
    async with open_world({"x": server, "y": ScriptedServer()}) as world:
        client = world.client()
        client.capabilities = CAPABILITIES
        await client.initialize(LEGACY)
        question = await client.receive_method("roots/list")
        await server.send({"method": "notifications/cancelled", "params": {"requestId": "ask-0"}})
        assert (await client.receive())["params"]["requestId"] == question["id"]
        assert server.heard == []


async def test_equal_states_of_a_modern_server_do_not_mix_up_its_clients(autojump_clock):
    server = Curious(MODERN, "roots/list")
    async with open_world({"x": server, "y": ScriptedServer()}) as world:
        clients = [await client_of(world, LEGACY) for _ in range(2)]
        for client in clients:
            await client.start("tools/call", {"name": "x__t"})
        for client in clients:
            question = await client.receive_method("roots/list")
            await client.send({"id": question["id"], "result": ASKED["roots/list"][1]})
        for client in clients:
            assert "result" in await client.receive()


async def test_a_client_on_a_stream_that_has_gone_is_not_waited_for(autojump_clock):
    server = Curious(LEGACY, "elicitation/create")
    async with open_world({"x": server, "y": ScriptedServer()}) as world:
        client = await client_of(world, MODERN)
        await client.request("tools/call", {"name": "x__t"})
        await client.vanish()
        await trio.sleep(15)
        assert "did not answer" in server.heard[0]["error"]["message"]
        assert not world.channel("x").questions.parked
