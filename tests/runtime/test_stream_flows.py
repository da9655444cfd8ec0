"""Whole flows over WebSocket, TCP and Unix sockets on both sides: every pair of eras, and what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from mcpmux.config import Limits
from mcpmux.errors import TransportClosed
from tests.peers.client import ScriptedClient
from tests.peers.revision import ERAS, LEGACY, MODERN, Json
from tests.peers.server import RpcFailure
from tests.runtime.stream_world import KINDS, SAMPLED, SAMPLING, Server, StreamWorld, open_stream_world
from tests.runtime.test_subscriptions import expect_update, subscribe

PAIRS = [(down, up) for down in ERAS for up in ERAS]
INITIALIZE = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}


async def call(client: ScriptedClient, name: str, **arguments: Any) -> Json:
    return await client.request("tools/call", {"name": f"x__{name}", "arguments": arguments})


async def ready(world: StreamWorld) -> None:
    """Wait until the upstream is there."""
    await world.mux.upstreams["x"].supervision.settled()
    assert world.mux.upstreams["x"].state == "ready", world.mux.upstreams["x"].status.trouble


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("down", "up"), PAIRS)
async def test_everything_passes_in_every_pair_of_eras(kind: str, down: str, up: str, tmp_path: Path):
    server = Server(up)
    async with open_stream_world(kind, server, tmp_path) as world:
        await ready(world)
        client = await world.client(down, {"sampling": {}})
        uris = [item["uri"] for item in await client.walk("resources/list", "resources")]
        assert uris[0] == "x+memo:1"
        result = await client.request("resources/read", {"uri": uris[0]})
        assert result["contents"] == [{"uri": "x+memo:1", "text": "of memo:1"}]

        working = await client.start("tools/call", {"name": "x__work", "arguments": {}}, progressToken="p")
        for step in (1, 2):
            message = await client.receive_method("notifications/progress")
            assert message["params"] == {"progressToken": "p", "progress": step}
        done = await client.receive()
        assert (done["id"], done["result"]["content"][0]["text"]) == (working, "done")

        assert json.loads((await answer_question(client))["content"][0]["text"]) == SAMPLED

        listen = await subscribe(client, [uris[0]])
        await server.listening.wait()
        assert server.subscribed == {"memo:1"}
        await server.update("memo:1")
        await expect_update(client, "x+memo:1", listen)

        hanging = await client.start("tools/call", {"name": "x__hang", "arguments": {}})
        await server.hanging.wait()
        await client.send({"method": "notifications/cancelled", "params": {"requestId": hanging}})
        await server.cancelled.wait()
        assert (await call(client, "who", me="me"))["content"][0]["text"] == "me"


async def answer_question(client: ScriptedClient) -> Json:
    """Call the tool that asks, and answer."""
    if client.revision == MODERN:
        result = await call(client, "ask")
        ((key, wish),) = result["inputRequests"].items()
        assert wish == {"method": "sampling/createMessage", "params": SAMPLING}
        again = {"inputResponses": {key: SAMPLED}, "requestState": result["requestState"]}
        return await client.request("tools/call", {"name": "x__ask", "arguments": {}, **again})
    request_id = await client.start("tools/call", {"name": "x__ask", "arguments": {}})
    question = await client.receive_method("sampling/createMessage")
    await client.send({"id": question["id"], "result": SAMPLED})
    answer = await client.receive()
    assert answer["id"] == request_id
    return answer["result"]


@pytest.mark.parametrize("up", ERAS)
async def test_a_websocket_client_that_vanishes_takes_its_call_with_it(up: str, tmp_path: Path):
    server = Server(up)
    async with open_stream_world("ws", server, tmp_path) as world:
        await ready(world)
        client, other = await world.client(), await world.client(LEGACY)
        await client.start("tools/call", {"name": "x__hang", "arguments": {}})
        await server.hanging.wait()
        await client.vanish()
        with trio.fail_after(5):  # less than a client gets that only closes its sending side
            await server.cancelled.wait()
        assert (await call(other, "who", me="still here"))["content"][0]["text"] == "still here"


@pytest.mark.parametrize("kind", ["tcp", "unix"])
async def test_a_client_that_only_says_no_more_still_hears_its_answer(kind: str, tmp_path: Path):
    async with open_stream_world(kind, Server(MODERN), tmp_path) as world:
        await ready(world)
        client = await world.client()
        request_id = await client.start("tools/call", {"name": "x__who", "arguments": {"me": "one"}})
        await client._pipe._stream.send_eof()
        assert (await client.receive())["id"] == request_id


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("before", "after"), [(LEGACY, LEGACY), (MODERN, LEGACY), (LEGACY, MODERN)])
async def test_an_upstream_that_restarts_is_found_again_in_whatever_era(
    kind: str, before: str, after: str, tmp_path: Path
):
    old, new = Server(before), Server(after)
    async with open_stream_world(kind, old, tmp_path) as world:
        await ready(world)
        client = await world.client()
        listen = await subscribe(client, ["x+memo:1"])
        await old.listening.wait()
        assert old.subscribed == {"memo:1"}
        await client.start("tools/call", {"name": "x__hang", "arguments": {}})
        await old.hanging.wait()
        await world.stop()
        lost = await client.receive()
        assert "was lost" in lost["error"]["message"], lost
        await world.start(new)
        await expect_update(client, "x+memo:1", listen)  # the one that catches up
        await new.listening.wait()
        assert new.subscribed == {"memo:1"}
        facts = world.mux.upstreams["x"].facts
        assert facts is not None
        assert facts.revision == after
        assert (await call(client, "who", me="back"))["content"][0]["text"] == "back"


@pytest.mark.parametrize("kind", KINDS)
async def test_stopping_answers_what_was_asked_and_refuses_the_rest(kind: str, tmp_path: Path):
    server = Server(MODERN)
    gate = trio.Event()

    async def answer_late(_server, _params, _message) -> Json:
        server.hanging.set()
        await gate.wait()
        return server._say("late")

    async with open_stream_world(kind, server, tmp_path) as world:
        await ready(world)
        idle, client = await world.client(), await world.client()
        listen = await subscribe(idle, ["x+memo:1"])
        handle = server.handle

        async def late(method: str, params: Json, message: Json) -> Json:
            if method == "tools/call":
                return await answer_late(server, params, message)
            return await handle(method, params, message)

        server.handle = late  # type: ignore[method-assign]
        call = await client.start("tools/call", {"name": "x__who", "arguments": {"me": "x"}})
        await server.hanging.wait()
        world.stop_serving()
        assert (await idle.receive())["id"] == listen  # it ends with a result
        await expect_end(idle)
        with pytest.raises(RpcFailure, match="mcpmux is stopping"):
            await client.request("tools/list")
        gate.set()
        answer = await client.receive()
        assert (answer["id"], answer["result"]["content"][0]["text"]) == (call, "late")
        await expect_end(client)
        await world.served.wait()


async def expect_end(client: ScriptedClient) -> None:
    with pytest.raises(TransportClosed):
        await client._pipe.receive()


async def test_connections_past_the_limit_are_told_so(tmp_path: Path):
    limits = Limits(max_connections=1)
    async with open_stream_world("tcp", Server(MODERN), tmp_path, limits) as world:
        await ready(world)
        first = await world.client()
        await call(first, "who", me="x")
        refused = json.loads(await (await world.connect()).receive())
        assert refused["error"] == {
            "code": -31003,
            "message": "Busy: too many connections; try again later",
            "data": {"retryAfterSeconds": 1, "limit": "limits.max_connections"},
        }


@pytest.mark.parametrize(
    "first",
    [b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"hello\n", b"x" * 3000 + b"\n", b'"text"\n'],
)
async def test_a_client_that_does_not_begin_with_json_is_cut_off(first: bytes, tmp_path: Path):
    server = Server(MODERN)
    async with open_stream_world("tcp", server, tmp_path, Limits(max_message_bytes=2000)) as world:
        await ready(world)
        pipe = await world.connect()
        line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE})
        await pipe._stream.send_all(first + line.encode() + b"\n")
        answers = []
        with pytest.raises(TransportClosed):
            while True:
                answers.append(json.loads(await pipe.receive()))
        assert all(answer["error"]["code"] == -32600 for answer in answers)
        assert len(answers) <= 1
