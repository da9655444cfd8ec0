"""URLs that servers send users to, and sampling with tools: in every pair of eras."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from tests.peers.client import ScriptedClient
from tests.peers.revision import ERAS, LEGACY, MODERN, Json
from tests.peers.server import RpcFailure, ScriptedServer
from tests.runtime.test_asking import client_of
from tests.runtime.world import open_world

OLD = "2025-06-18"
TOOL = {"name": "t", "inputSchema": {"type": "object"}}
URL: Json = {"elicitation": {"url": {}}}
FORM: Json = {"elicitation": {"form": {}}}
VISIT: Json = {"mode": "url", "message": "sign in", "url": "https://server.example/in"}
TOOLS: Json = {
    "messages": [
        {"role": "user", "content": {"type": "text", "text": "hi"}},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "n", "input": {"a": [1]}}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "toolUseId": "1", "content": [{"type": "text", "text": "r"}], "x": 1}
            ],
        },
    ],
    "maxTokens": 5,
    "tools": [{"name": "n", "inputSchema": {"type": "object", "properties": {"a": {}}}}],
    "toolChoice": {"mode": "auto"},
}
USED: Json = {
    "role": "assistant",
    "model": "m",
    "stopReason": "toolUse",
    "content": [{"type": "tool_use", "id": "2", "name": "n", "input": {}}],
}


class Asking(ScriptedServer):
    """Its tool asks the client one question in the way of the era, and returns the answer."""

    def __init__(self, revision: str, method: str, params: Json) -> None:
        super().__init__(revision, tools=[TOOL])
        self._wish: Json = {"method": method, "params": params}
        self._told: trio.MemorySendChannel[Json] | None = None

    async def handle(self, method: str, params: Json, message: Json) -> Json:
        if method != "tools/call":
            return await super().handle(method, params, message)
        if not self.modern:
            send, receive = trio.open_memory_channel[Json](1)
            self._told = send
            await self.send({"id": "ask", **self._wish})
            answer = await receive.receive()
        elif "inputResponses" not in params:
            return {"resultType": "input_required", "inputRequests": {"it": self._wish}, "requestState": "s"}
        else:
            answer = params["inputResponses"]["it"]
        content = [{"type": "text", "text": json.dumps(answer)}]
        return {"content": content} | ({"resultType": "complete"} if self.modern else {})

    def take_answer(self, message: Json) -> None:
        assert self._told is not None
        self._told.send_nowait(message.get("result") or message["error"])


class Demanding(ScriptedServer):
    """A server of 2025-11-25 whose tool wants a URL visited before it works: error -32042.

    `visited`: whether the user has been there. `ids` has the ids of the visits that it has asked for.
    """

    def __init__(self) -> None:
        super().__init__(LEGACY, tools=[TOOL])
        self.visited = False
        self.ids: list[str] = []

    async def handle(self, method: str, params: Json, message: Json) -> Json:
        if method != "tools/call":
            return await super().handle(method, params, message)
        self.oracle.check_from_client(message)
        assert "inputResponses" not in params
        if self.visited:
            return {"content": []}
        self.ids.append(f"visit-{len(self.ids) + 1}")
        raise RpcFailure(-32042, "sign in", {"elicitations": [{**VISIT, "elicitationId": self.ids[-1]}]})

    async def complete(self, elicitation_id: str) -> None:
        params = {"elicitationId": elicitation_id}
        await self.send({"method": "notifications/elicitation/complete", "params": params})


async def ask_and_answer(client: ScriptedClient, answer: Json) -> tuple[Json | None, Any]:
    """Call the tool. Return the parameters of its question, and the answer that reached the server."""
    request_id = await client.start("tools/call", {"name": "x__t"})
    message = await client.receive()
    question = None
    if client.revision != MODERN and "method" in message:
        question = message["params"]
        await client.send({"id": message["id"], "result": answer})
        message = await client.receive()
    elif message.get("result", {}).get("resultType") == "input_required":
        [(key, wish)] = message["result"]["inputRequests"].items()
        question = wish["params"]
        again = {"inputResponses": {key: answer}, "requestState": message["result"]["requestState"]}
        await client.start("tools/call", {"name": "x__t", **again})
        message = await client.receive()
    else:
        assert message["id"] == request_id
    if "error" in message:
        return question, message["error"]
    return question, json.loads(message["result"]["content"][0]["text"])


def beside(server: ScriptedServer) -> dict[str, ScriptedServer]:
    return {"x": server, "y": ScriptedServer(tools=[])}


@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize(("down", "capabilities"), [(LEGACY, FORM), (OLD, {"elicitation": {}}), (LEGACY, {})])
async def test_no_url_is_shown_to_who_does_not_offer_it(up, down, capabilities, autojump_clock):
    params = VISIT | ({"elicitationId": "e"} if up == LEGACY else {})
    async with open_world(beside(Asking(up, "elicitation/create", params))) as world:
        client = await client_of(world, down, capabilities)
        question, answer = await ask_and_answer(client, {})
        assert question is None
        assert answer["code"] == -32601
        assert "does not offer elicitation/create" in answer["message"]


@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", ERAS)
async def test_sampling_with_tools_passes_unread(up, down, autojump_clock):
    async with open_world(beside(Asking(up, "sampling/createMessage", TOOLS))) as world:
        client = await client_of(world, down, {"sampling": {"tools": {}}})
        question, answer = await ask_and_answer(client, USED)
        assert question == TOOLS
        assert answer == USED


@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", [LEGACY, OLD])
async def test_sampling_with_tools_is_refused_for_who_does_not_offer_it(up, down, autojump_clock):
    async with open_world(beside(Asking(up, "sampling/createMessage", TOOLS))) as world:
        client = await client_of(world, down, {"sampling": {}})
        question, answer = await ask_and_answer(client, USED)
        assert question is None
        assert answer["code"] == -32601


# -32042


async def test_a_legacy_client_gets_the_demand_and_its_completion(autojump_clock):
    server = Demanding()
    async with open_world(beside(server)) as world:
        mine, yours = await client_of(world, LEGACY, URL), await client_of(world, LEGACY, URL)
        assert await mine.refusal("tools/call", {"name": "x__t"}) == {
            "code": -32042,
            "message": "sign in",
            "data": {"elicitations": [{**VISIT, "elicitationId": "visit-1"}]},
        }
        await server.complete("visit-1")
        message = await mine.receive()
        assert message["method"] == "notifications/elicitation/complete"
        assert message["params"] == {"elicitationId": "visit-1"}
        assert await yours.drain() == []


async def test_completion_of_a_url_that_was_asked_for_reaches_who_was_asked(autojump_clock):
    server = Asking(LEGACY, "elicitation/create", VISIT | {"elicitationId": "e"})
    async with open_world(beside(server)) as world:
        mine, yours = await client_of(world, LEGACY, URL), await client_of(world, LEGACY, URL)
        await ask_and_answer(mine, {"action": "accept"})
        await server.send({"method": "notifications/elicitation/complete", "params": {"elicitationId": "e"}})
        assert (await mine.receive())["params"] == {"elicitationId": "e"}
        assert await yours.drain() == []


async def demanded(client: ScriptedClient, **again: Any) -> Json:
    result = await client.request("tools/call", {"name": "x__t", **again})
    assert result["resultType"] == "input_required"
    return result["inputRequests"]


@pytest.mark.parametrize("prefix", ["x", ""])
async def test_a_modern_client_is_asked_to_visit_and_its_call_repeated(prefix, autojump_clock):
    server = Demanding()
    servers = {"x": server} if not prefix else beside(server)
    async with open_world(servers, settings={"x": {"prefix": prefix}}) as world:
        client = await client_of(world, MODERN, URL)
        name = "x__t" if prefix else "t"
        first = await client.request("tools/call", {"name": name})
        assert first["inputRequests"] == {"visit-1": {"method": "elicitation/create", "params": VISIT}}
        server.visited = True
        again = {"name": name, "inputResponses": {"visit-1": {"action": "accept"}}}
        assert (await client.request("tools/call", again))["content"] == []
        assert len(server.ids) == 1


async def test_the_call_waits_for_a_user_who_is_not_there_yet(autojump_clock):
    server = Demanding()
    async with open_world(beside(server)) as world:
        client = await client_of(world, MODERN, URL)
        await demanded(client)
        again = {"name": "x__t", "inputResponses": {"visit-1": {"action": "accept"}}}
        await client.start("tools/call", again)
        await trio.sleep(20)
        server.visited = True
        await server.complete("visit-1")
        assert (await client.receive())["result"]["content"] == []


async def test_a_user_who_does_not_come_is_asked_again(autojump_clock):
    server = Demanding()
    async with open_world(beside(server)) as world:
        client = await client_of(world, MODERN, URL)
        await demanded(client)
        assert list(await demanded(client, inputResponses={"visit-1": {"action": "accept"}})) == ["visit-2"]


async def test_a_completion_that_changes_nothing_does_not_repeat_the_call_for_ever(autojump_clock):
    server = Demanding()
    async with open_world(beside(server)) as world:
        client = await client_of(world, MODERN, URL)
        await demanded(client)
        await server.complete("visit-1")
        assert list(await demanded(client, inputResponses={"visit-1": {"action": "accept"}})) == ["visit-3"]


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_refused_visit_ends_the_call(action, autojump_clock):
    server = Demanding()
    async with open_world(beside(server)) as world:
        client = await client_of(world, MODERN, URL)
        await demanded(client)
        with pytest.raises(RpcFailure) as failure:
            await demanded(client, inputResponses={"visit-1": {"action": action}})
        assert "was not accepted" in failure.value.error["message"]
        assert len(server.ids) == 1


async def test_a_modern_client_without_url_elicitation_hears_what_it_lacks(autojump_clock):
    async with open_world(beside(Demanding())) as world:
        client = await client_of(world, MODERN, FORM)
        error = await client.refusal("tools/call", {"name": "x__t"})
        assert error["code"] == -32021
        assert error["data"] == {"requiredCapabilities": {"elicitation": {"url": {}}}}
