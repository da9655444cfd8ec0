"""Batches of 2025-03-26, from clients and from servers, over streams and over HTTP."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mcpmux import app
from mcpmux.clients.stdio_client import serve_messages
from mcpmux.config import Config, Http, Upstream
from mcpmux.protocol.framing import BATCH_LIMIT
from mcpmux.transports.http.reply import HttpReply
from tests.oracle import SchemaOracle
from tests.peers.client import ScriptedClient
from tests.peers.http_server import EVENT_STREAM, JSON, HttpFace, open_http_face
from tests.peers.pipe import open_memory_pipes
from tests.peers.revision import Json
from tests.peers.server import Handler, ScriptedServer
from tests.runtime.http_front import open_endpoint
from tests.runtime.test_flows import docs
from tests.runtime.world import open_world

WITH_BATCHES = "2025-03-26"
WITHOUT = ["2024-11-05", "2025-06-18", "2025-11-25"]
METHODS = {1: "resources/read", 2: "tools/list", 3: "ping", 4: "initialize"}
READ = {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": "docs+memo:1"}}
LIST = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
PING = {"jsonrpc": "2.0", "id": 3, "method": "ping"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 4,
    "method": "initialize",
    "params": {
        "protocolVersion": WITH_BATCHES,
        "capabilities": {},
        "clientInfo": {"name": "batching", "version": "1"},
    },
}
NOTE = {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}
CANCEL = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
WAIT = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "docs__wait", "arguments": {}}}
COUNT = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "docs__count", "arguments": {}, "_meta": {"progressToken": 0}},
}


def by_id(answers: Any) -> dict[Any, Json]:
    """Return the answers in an array, each of them once and valid."""
    assert isinstance(answers, list)
    for answer in answers:
        if answer.get("id") in METHODS:
            SchemaOracle(WITH_BATCHES).check_from_server(answer, METHODS[answer["id"]])
    answers_by_id = {answer.get("id"): answer for answer in answers}
    assert len(answers_by_id) == len(answers)
    return answers_by_id


def reading_server() -> ScriptedServer:
    async def read(_server: ScriptedServer, params: Json, _message: Json) -> Json:
        return {"contents": [{"uri": params["uri"], "text": "one"}]}

    async def call(server: ScriptedServer, params: Json, _message: Json) -> Json:
        if params["name"] == "wait":
            await trio.sleep_forever()
        about = {"progressToken": params["_meta"]["progressToken"], "progress": 1}
        await server.send({"method": "notifications/progress", "params": about})
        return {"content": []}

    handlers: dict[str, Handler] = {"resources/read": read, "tools/call": call}
    return ScriptedServer("2025-11-25", resources=[], tools=[], handlers=handlers)


@asynccontextmanager
async def open_client(revision: str):
    async with open_world({"docs": reading_server(), "more": docs()}) as world:
        client = world.client()
        await client.initialize(revision)
        await client.drain()
        yield client


async def say(client: ScriptedClient, *members: Any) -> None:
    await client.send_raw(json.dumps(members).encode())


async def hear(client: ScriptedClient) -> Any:
    with trio.fail_after(60):
        return await client.receive_raw()


# From a client, on a stream


async def test_a_batch_is_answered_with_one_array(autojump_clock):
    async with open_client(WITH_BATCHES) as client:
        await say(client, READ, NOTE, LIST, PING)
        answers = by_id(await hear(client))
        assert answers.keys() == {1, 2, 3}
        assert answers[1]["result"]["contents"][0]["text"] == "one"
        assert answers[3]["result"] == {}


async def test_bad_members_are_answered_in_the_array(autojump_clock):
    async with open_client(WITH_BATCHES) as client:
        await say(client, PING, 1, PING)
        answers = await hear(client)
        assert [answer.get("id") for answer in answers if "error" in answer] == [None, None]
        assert [answer["id"] for answer in answers if "result" in answer] == [3]


async def test_a_batch_of_bad_members_alone_is_answered(autojump_clock):
    async with open_client(WITH_BATCHES) as client:
        await say(client, 1, 2)
        assert [answer["error"]["code"] for answer in await hear(client)] == [-32600, -32600]


async def test_initialize_in_a_batch_is_refused(autojump_clock):
    """ "The initialize request MUST NOT be part of a JSON-RPC batch" (Lifecycle, 2025-03-26)."""
    async with open_client(WITH_BATCHES) as client:
        await say(client, INITIALIZE, PING)
        answers = by_id(await hear(client))
        assert answers[4]["error"]["code"] == -32600
    async with open_world({"docs": docs()}) as world:
        client = world.client()
        await say(client, INITIALIZE)
        assert (await hear(client))["error"]["code"] == -32600


async def test_notifications_alone_are_not_answered(autojump_clock):
    async with open_client(WITH_BATCHES) as client:
        await say(client, NOTE, NOTE)
        assert await client.request("ping") == {}


async def test_an_empty_or_endless_batch_is_an_error(autojump_clock):
    async with open_client(WITH_BATCHES) as client:
        for members in ([], [PING] * (BATCH_LIMIT + 1)):
            await say(client, *members)
            assert (await hear(client))["error"]["code"] == -32600
        assert await client.request("ping") == {}


async def test_a_member_that_is_cancelled_is_left_out(autojump_clock):
    async with open_client(WITH_BATCHES) as client:
        await say(client, WAIT, PING)
        await trio.sleep(1)
        await client.send({key: value for key, value in CANCEL.items() if key != "jsonrpc"})
        assert by_id(await hear(client)).keys() == {3}
        await say(client, WAIT)
        await trio.sleep(1)
        await client.send({key: value for key, value in CANCEL.items() if key != "jsonrpc"})
        assert await client.request("ping") == {}  # a batch without any answer is not answered


@pytest.mark.parametrize("revision", WITHOUT)
async def test_other_revisions_have_no_batches(revision: str, autojump_clock):
    async with open_client(revision) as client:
        await say(client, PING)
        error = (await hear(client))["error"]
        assert error["code"] == -32600
        assert "2025-03-26" in error["message"]
        assert await client.request("ping") == {}


# From a client, over HTTP


@pytest.mark.parametrize("before", [b"", b" ", b"\r\n\t "], ids=repr)
async def test_over_http_a_batch_is_answered_with_one_array(before: bytes):
    async with open_endpoint({"docs": reading_server(), "more": docs()}) as client:
        session = await client.initialize(WITH_BATCHES)
        answer = await client.send(before + json.dumps([READ, NOTE, LIST, PING]).encode(), session)
        assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
        assert by_id(answer.messages[0]).keys() == {1, 2, 3}


async def test_over_http_progress_makes_the_answer_a_stream():
    async with open_endpoint({"docs": reading_server(), "more": docs()}) as client:
        session = await client.initialize(WITH_BATCHES)
        answer = await client.send(json.dumps([COUNT, PING]).encode(), session)
        assert answer.headers["content-type"] == "text/event-stream"
        progress, answers = answer.messages
        assert progress["method"] == "notifications/progress"
        assert sorted(answer["id"] for answer in answers) == [1, 3]


async def test_over_http_what_asks_nothing_is_accepted():
    """ "If the input consists solely of responses or notifications […] 202 Accepted with no body"."""
    async with open_endpoint() as client:
        session = await client.initialize(WITH_BATCHES)
        for members in ([NOTE, NOTE], [{"jsonrpc": "2.0", "id": 9, "result": {}}]):
            answer = await client.send(json.dumps(members).encode(), session)
            assert (answer.status, answer.messages) == (202, [])


async def test_over_http_bad_batches_are_refused():
    async with open_endpoint() as client:
        session = await client.initialize(WITH_BATCHES)
        for members in ([], [PING] * (BATCH_LIMIT + 1)):
            answer = await client.send(json.dumps(members).encode(), session)
            assert (answer.status, answer.last["error"]["code"]) == (400, -32600)
        answer = await client.send(json.dumps([INITIALIZE]).encode())
        assert (answer.status, answer.last["error"]["code"]) == (400, -32600)
        answer = await client.send(json.dumps([INITIALIZE, PING, PING]).encode(), session)
        assert sorted(answer_part["id"] for answer_part in answer.messages[0] if "error" in answer_part) == [
            3,
            4,
        ]


@pytest.mark.parametrize("revision", WITHOUT)
async def test_over_http_other_revisions_have_no_batches(revision: str):
    async with open_endpoint() as client:
        session = await client.initialize(revision)
        answer = await client.send(json.dumps([PING]).encode(), session)
        assert (answer.status, answer.last["error"]["code"]) == (400, -32600)
        assert "2025-03-26" in answer.last["error"]["message"]


# From a server


class Batching(ScriptedServer):
    """A server of 2025-03-26 that keeps what it has to say until it can say it together."""

    seen: list[Any]  # messages, and arrays of them

    def __init__(self, revision: str = WITH_BATCHES) -> None:
        super().__init__(revision, tools=[{"name": "count", "inputSchema": {"type": "object"}}])

    async def handle(self, method: str, params: Json, message: Json) -> Json:
        if method != "tools/call":
            return await super().handle(method, params, message)
        return {"content": [{"type": "text", "text": "counted"}]}

    async def send(self, message: Json) -> None:
        message = {"jsonrpc": "2.0", **message}
        if "content" not in message.get("result", {}):
            await self._pipe.send(json.dumps(message).encode())
            return
        token = self.seen[-1]["params"].get("_meta", {}).get("progressToken")
        progress = {"progressToken": token, "progress": 1}
        messages: list[Json] = [message]
        messages += (
            [{"jsonrpc": "2.0", "method": "notifications/progress", "params": progress}] if token else []
        )
        messages += [{"jsonrpc": "2.0", "id": "p", "method": "ping"}, 1]  # type: ignore[list-item]
        await self._pipe.send(json.dumps(messages).encode())


class Face(HttpFace):
    """Sends a batch as the JSON body, or as one event when it `streams`."""

    streams = False

    async def _handle(self, request: Any, reply: HttpReply) -> None:
        if request.body.startswith(b"["):  # the answer to the server's own batch
            self._server.seen.append(json.loads(request.body))
            await reply.send(202, ())
            return
        await super()._handle(request, reply)

    async def send(self, data: bytes, about: Any = None) -> None:
        if not data.startswith(b"["):
            await super().send(data, about)
            return
        answer = next(load for load in json.loads(data) if isinstance(load, dict) and "result" in load)
        reply = self._replies[answer["id"]]
        if self.streams:
            await reply.open(200, EVENT_STREAM, b"data: " + data + b"\n\n")
        else:
            await reply.send(200, JSON, data)


class StreamingFace(Face):
    streams = True


async def test_a_servers_batch_is_read_on_a_stream(autojump_clock):
    server = Batching()
    async with open_world({"x": server, "y": docs()}) as world:
        client = world.client()
        await client.initialize("2025-11-25")
        await client.drain()
        request_id = await client.start("tools/call", {"name": "x__count"}, progressToken="t")
        messages = await client.drain()
        assert [message.get("id", message.get("method")) for message in messages] == [
            "notifications/progress",
            request_id,
        ]
        (pong,) = [message for message in server.seen if isinstance(message, list)]
        assert pong == [{"jsonrpc": "2.0", "id": "p", "result": {}}]


@pytest.mark.parametrize("face", [Face, StreamingFace])
async def test_a_servers_batch_is_read_over_http(face: type[Face]):
    with trio.fail_after(60):
        async with open_http_face(Batching(), face) as place, trio.open_nursery() as nursery:
            config = Config(upstreams=(Upstream(name="x", target=Http(place.url)),))
            async with app.open_mux(config) as mux:
                ours, theirs = open_memory_pipes()
                nursery.start_soon(serve_messages, theirs, mux.service)
                client = ScriptedClient(ours)
                await client.initialize("2025-11-25")
                params = client.params({"name": "x__count"}, progressToken="t")
                await client.send({"id": 7, "method": "tools/call", "params": params})
                messages = [await hear(client)]
                while messages[-1].get("id") != 7:
                    messages.append(await hear(client))
                assert "result" in messages[-1]
                assert "notifications/progress" in [message.get("method") for message in messages]
                nursery.cancel_scope.cancel()


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-11-25"])
async def test_a_batch_of_another_servers_revision_is_an_error_that_names_it(revision: str, autojump_clock):
    async with open_world(
        {"x": Batching(revision), "y": docs()}, settings={"x": {"timeouts": {"tools/call": 2}}}
    ) as world:
        client = world.client()
        await client.initialize("2025-11-25")
        await client.drain()
        await client.start("tools/call", {"name": "x__count"})
        (answer,) = await client.drain()
        assert "x" in answer["error"]["message"]
