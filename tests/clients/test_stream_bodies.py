"""Large messages on WebSocket and TCP: they count in the budget of the process as bodies over HTTP do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Ping, Pong, Request, TextMessage

from mcpmux.app.listeners import Serving, make_gate, serve_listener
from mcpmux.config import Auth, Config, HttpListener, Limits, Listeners, TcpListener, WebSocketListener
from mcpmux.errors import TransportClosed
from mcpmux.transports.body_budget import BodyBudget, Holding
from mcpmux.transports.message_stream import LineStream, open_line_stream
from tests.clients.test_client_shares import BOB, TOKENS
from tests.clients.test_http_bodies import ANN, PATIENCE, Site, declared, head, padded, read_answer
from tests.peers.http_client import request
from tests.peers.revision import CAPABILITIES, CLIENT, CLIENT_INFO, MODERN, VERSION, Json
from tests.runtime.test_flows import docs
from tests.runtime.world import open_world, upstream

SETTING = "limits.max_body_bytes_in_flight"
BUDGET = 2**20
PART = b'{"pad":"' + b"x" * (BUDGET * 3 // 4)
META = {VERSION: MODERN, CAPABILITIES: {}, CLIENT_INFO: CLIENT}


@asynccontextmanager
async def open_site(listener: Any, auth: Auth | None = None) -> AsyncIterator[Site]:
    limits = Limits(max_body_bytes_in_flight=BUDGET)
    kind = {HttpListener: "http", TcpListener: "tcp", WebSocketListener: "websocket"}[type(listener)]
    settings: dict[str, Any] = {kind: (listener,)}
    listeners, auth = Listeners(**settings), auth or Auth()
    config = Config(upstreams=(upstream("docs"),), listeners=listeners, limits=limits, auth=auth)
    server = docs()
    server.handlers["tools/call"] = hang
    async with open_world({"docs": server}) as world:
        announced: list[str] = []
        bodies = BodyBudget(BUDGET)
        served = limits, world.mux.service, trio.Event(), announced.append, await make_gate(config)
        await world.nursery.start(serve_listener, listener, Serving(*served, bodies=bodies))
        with trio.fail_after(PATIENCE):
            yield Site(int(announced[0].rpartition(":")[2].partition("/")[0]), bodies)


async def hang(_server: Any, _params: Json, _message: Json) -> Json:
    await trio.sleep_forever()
    raise AssertionError


async def until(site: Site, taken: int, exactly: bool = True) -> None:
    """Wait for the budget to be taken so far."""
    while site.bodies.taken != taken if exactly else site.bodies.taken < taken:
        await trio.testing.wait_all_tasks_blocked(0.01)


async def test_a_line_counts_while_it_arrives_and_may_be_refused():
    async with open_site(TcpListener(port=0)) as site:
        async with await site.connect() as first:
            await first.send_all(PART)
            await until(site, len(PART))
            async with await site.connect() as second:
                await second.send_all(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')  # small: it fits
                assert b'"id":1' in await second.receive_some()
                await second.send_all(PART[: BUDGET // 2])
                answer = json.loads(await second.receive_some())
                assert answer["error"]["code"] == -31003
                assert answer["error"]["data"]["limit"] == SETTING
                assert await second.receive_some() == b""
            assert site.bodies.taken == len(PART)
        await until(site, 0)


class WebClient:
    """A WebSocket client that sends parts of messages."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.protocol = WSConnection(ConnectionType.CLIENT)

    async def send(self, event: Any) -> None:
        await self.stream.send_all(self.protocol.send(event))

    async def next(self, kind: Any) -> Any:
        while True:
            for event in self.protocol.events():
                if isinstance(event, kind):
                    return event
            self.protocol.receive_data(bytes(await self.stream.receive_some()))


async def test_a_websocket_message_counts_while_it_arrives_and_may_be_refused():
    async with open_site(WebSocketListener(port=0)) as site:
        async with await site.connect() as first, await site.connect() as two:
            clients = [WebClient(first), WebClient(two)]
            for client in clients:
                await client.send(Request(f"127.0.0.1:{site.port}", "/mcp"))
                await client.next(AcceptConnection)
            await clients[0].send(TextMessage(PART.decode(), message_finished=False))
            await until(site, len(PART), exactly=False)
            await clients[1].send(TextMessage(PART.decode(), message_finished=False))
            closed = await clients[1].next(CloseConnection)
            assert closed.code == 1013
        await until(site, 0)


async def test_a_large_request_counts_until_it_is_answered():
    call = request(
        "tools/call", {"_meta": META, "name": "docs__t", "arguments": {"pad": "x" * (BUDGET // 2)}}, 7
    )
    line = json.dumps(call).encode() + b"\n"
    async with open_site(TcpListener(port=0)) as site, await site.connect() as stream:
        await stream.send_all(line)
        await until(site, len(line) - 1)
        async with await site.connect() as other:  # the half of it and this are too much
            await other.send_all(PART[: BUDGET // 2])
            answer = json.loads(await other.receive_some())
            assert answer["error"]["code"] == -31003
            assert answer["error"]["data"]["limit"] == SETTING
            assert await other.receive_some() == b""
        assert site.bodies.taken == len(line) - 1
        cancelled = {"method": "notifications/cancelled", "params": {"requestId": 7}}
        await stream.send_all(json.dumps({"jsonrpc": "2.0", **cancelled}).encode() + b"\n")
        await until(site, 0)


LARGE_CALL = {"name": "docs__t", "arguments": {"pad": "x" * (BUDGET // 2)}}
CANCELLED = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}


def hello(revision: str) -> Json:
    return request("initialize", {"protocolVersion": revision, "capabilities": {}, "clientInfo": CLIENT}, 1)


async def test_a_batch_counts_until_its_last_request_is_answered():
    ping = request("ping", {}, 6)
    batch = json.dumps([ping, request("tools/call", LARGE_CALL, 7)]).encode() + b"\n"
    async with open_site(TcpListener(port=0)) as site, await site.connect() as stream:
        await stream.send_all(json.dumps(hello("2025-03-26")).encode() + b"\n")
        assert b'"protocolVersion":"2025-03-26"' in await stream.receive_some()
        await stream.send_all(batch)
        await until(site, len(batch) - 1)
        await trio.testing.wait_all_tasks_blocked(0.01)  # the first is answered, and waits for the other
        assert site.bodies.taken == len(batch) - 1
        await stream.send_all(json.dumps(CANCELLED).encode() + b"\n")
        await until(site, 0)
        assert json.loads(await stream.receive_some()) == [{"jsonrpc": "2.0", "id": 6, "result": {}}]


def post(path: str, body: bytes, *fields: str) -> bytes:
    accept = "Accept: application/json, text/event-stream"
    lines = "\r\n".join(["Host: localhost", "Content-Type: application/json", accept, *fields])
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n{declared(len(body))}\r\n\r\n".encode() + body


async def test_a_call_counts_beyond_its_connection():
    body = json.dumps(request("tools/call", LARGE_CALL, 7)).encode()
    async with open_site(HttpListener(port=0)) as site, await site.connect() as other:
        await other.send_all(post("/mcp", json.dumps(hello("2025-11-25")).encode()))
        answer = bytes(await other.receive_some())
        session = next(line for line in answer.decode().splitlines() if line.startswith("Mcp-Session-Id: "))
        async with await site.connect() as stream:
            await stream.send_all(post("/mcp", body, session))
            await until(site, len(body))
            await stream.send_eof()
            while await stream.receive_some():  # the beginning of a stream, if the call already has one
                pass
            # The end says that the server has seen that the client left.
        assert site.bodies.taken == len(body)
        await other.send_all(post("/mcp", json.dumps(CANCELLED).encode(), session))
        assert (await read_answer(other))[0] == 202
        await until(site, 0)


async def test_a_message_over_http_and_sse_counts_until_it_is_answered():
    body = json.dumps(request("tools/call", LARGE_CALL, 7)).encode()
    async with open_site(HttpListener(port=0, sse_path="/sse")) as site, await site.connect() as stream:
        await stream.send_all(b"GET /sse HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
        opening = b""
        while b"\n\n" not in opening.partition(b"data: ")[2]:
            opening += await stream.receive_some()
        path = opening.partition(b"data: ")[2].partition(b"\n")[0].decode().strip()
        async with await site.connect() as other:
            await other.send_all(post(path, json.dumps(hello("2025-11-25")).encode()))
            assert (await read_answer(other))[0] == 202
            await other.send_all(post(path, body))
            assert (await read_answer(other))[0] == 202
            assert site.bodies.taken == len(body)
            await other.send_all(post(path, json.dumps(CANCELLED).encode()))
            await until(site, 0)


async def test_pings_of_a_websocket_do_not_count():
    async with open_site(WebSocketListener(port=0)) as site, await site.connect() as stream:
        client = WebClient(stream)
        await client.send(Request(f"127.0.0.1:{site.port}", "/mcp"))
        await client.next(AcceptConnection)
        for _ in range(1000):
            await client.send(Ping(b"x" * 125))
        await client.send(Ping(b"last"))
        while (await client.next(Pong)).payload != b"last":
            assert site.bodies.taken == 0
        assert site.bodies.taken == 0


async def test_a_large_line_that_comes_too_slowly_ends_the_stream(autojump_clock: trio.testing.MockClock):
    bodies = BodyBudget(BUDGET)
    ours, theirs = trio.testing.memory_stream_pair()
    holding = Holding(bodies, "ann", patience=60.0)
    async with open_line_stream(theirs, BUDGET, holding) as messages, trio.open_nursery() as nursery:
        nursery.start_soon(expect_late, messages)
        for _ in range(100):  # as fast as a body must come over HTTP
            await ours.send_all(b"x" * 2048)
            await trio.sleep(2.0)
    assert trio.current_time() < 200.0 + 70.0
    assert bodies.taken == 0


async def expect_late(messages: LineStream) -> None:
    with pytest.raises(TransportClosed, match="body_timeout"):
        await messages.receive()
    assert trio.current_time() > 200.0


async def test_one_principal_takes_half_of_the_budget_with_several_bodies():
    size = BUDGET * 5 // 16
    async with open_site(HttpListener(port=0), TOKENS) as site:
        async with (
            await site.connect() as first,
            await site.connect() as second,
            await site.connect() as third,
        ):
            await first.send_all(head(f"Content-Length: {size}", ANN))
            await until(site, size)
            await second.send_all(head(f"Content-Length: {size}", ANN))
            answer = bytes(await second.receive_some())
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert SETTING.encode() in answer
            await third.send_all(head(f"Content-Length: {size}", BOB))
            await until(site, 2 * size)
            await first.send_all(padded(size))
            assert (await first.receive_some()).startswith(b"HTTP/1.1 200 ")
            await until(site, size)
        await until(site, 0)


def test_a_lone_message_fits_and_no_client_has_over_half():
    bodies = BodyBudget(100)
    assert bodies.take(300, 0, "ann")
    assert bodies.take(200, 300, "ann")  # it grows
    assert not bodies.take(1, 0, "bob")
    bodies.give_back(500, "ann")
    assert bodies.take(30, 0, "ann")
    assert not bodies.take(30, 0, "ann")
    assert bodies.take(30, 0, "bob")
    assert bodies.take(30)  # of an unnamed client on this machine
    assert not bodies.take(30)
    for client in ("ann", "bob", ""):
        bodies.give_back(30, client)
    assert bodies.taken == 0


def test_what_a_stream_keeps_counts_as_far_as_it_is_large():
    bodies = BodyBudget(100)
    holding = Holding(bodies, "ann", small=10)
    for size, counted in ((10, 0), (40, 40), (20, 20), (5, 0), (11, 11), (0, 0)):
        assert holding.hold(size)
        assert (bodies.taken, holding.size) == (counted, counted)
    assert bodies.take(90)
    assert not holding.hold(11)
    assert (bodies.taken, holding.size) == (90, 0)
