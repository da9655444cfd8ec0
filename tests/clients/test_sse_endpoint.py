"""Clients over HTTP+SSE on real sockets, with scripted upstreams behind mcpmux."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from mcpmux import app
from mcpmux.clients.http_answer import refuse
from mcpmux.clients.http_endpoint import HttpEndpoint
from mcpmux.config import Config, Http, HttpListener, Limits
from mcpmux.config import Upstream as UpstreamConfig
from mcpmux.protocol.call import Call
from mcpmux.protocol.codes import BUSY
from mcpmux.protocol.envelope import decode_any, raw
from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.http.route import HttpOrigin
from mcpmux.transports.http.server import serve_http
from mcpmux.transports.http.sse_streams import open_sse_client_stream
from tests.http_request import requested
from tests.peers.client import QuietClient
from tests.peers.http_client import request
from tests.peers.revision import LEGACY, MODERN, Json
from tests.peers.server import RpcFailure, ScriptedServer
from tests.peers.subscribable import Subscribable
from tests.runtime.test_asking import ASKED, CAPABILITIES, Curious, call_and_answer
from tests.runtime.test_flows import docs
from tests.runtime.world import World, open_world

REVISIONS = ["2024-11-05", "2025-03-26", "2025-06-18", LEGACY]
TOOL = {"name": "t", "inputSchema": {"type": "object"}}
PATIENCE = 60.0
PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
JSON = (("Content-Type", "application/json"),)


class Site:
    """mcpmux with an HTTP listener."""

    def __init__(self, world: World, endpoint: HttpEndpoint, url: str, stopping: trio.Event) -> None:
        self.world = world
        self.endpoint = endpoint
        self.url = url
        self.stopping = stopping
        self.ended = trio.Event()

    def pool(self) -> HttpPool:
        return HttpPool(HttpOrigin.from_url(self.url))

    @asynccontextmanager
    async def client(self, revision: str = MODERN, capabilities: Json | None = None) -> AsyncIterator[Any]:
        with self.pool() as pool:
            async with open_sse_client_stream(pool, self.url, (), 1 << 24, PATIENCE) as pipe:
                client = QuietClient(pipe)
                client.capabilities = capabilities or {}
                if revision != MODERN:
                    result = await client.initialize(revision)
                    assert result["protocolVersion"] == revision
                yield client

    async def send(self, method: str, target: str, body: bytes = b"", headers: Any = JSON) -> tuple[int, Any]:
        with self.pool() as pool:
            async with requested(pool, method, target, headers, body, idempotent=False) as response:
                data = await response.read()
        return response.status, json.loads(data) if data else None

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[tuple[str, Any]]:
        """Open a stream and read its first event. Yields the address in that, and the response."""
        with self.pool() as pool:
            request = requested(pool, "GET", "/sse", (), b"", idempotent=False)
            async with request as response:
                assert response.headers["content-type"] == "text/event-stream"
                first = await response.receive_some()
                assert first.startswith(b"event: endpoint\ndata: /sse?session_id=")
                yield first.decode().split()[3], response

    @property
    def listeners(self) -> str:
        return repr(self.world.mux.hub).split(",")[0]

    async def until_nobody_listens(self) -> None:
        while not self.listeners.startswith("<NotificationHub 0"):
            await trio.lowlevel.checkpoint()

    async def until_gone(self, address: str) -> None:
        """Wait until POSTs to an address are refused, once the server noticed that the client has left."""
        status = 202
        while status == 202:
            status, _ = await self.send("POST", address, PING)
        assert status == 404


@asynccontextmanager
async def open_site(
    servers: dict[str, Any] | None = None,
    *,
    sse_path: str = "/sse",
    max_sessions: int = 10,
    idle: float = 300,
    stall: float = 60,
    in_flight: int = 1024,
    **settings: Any,
) -> AsyncIterator[Site]:
    async with open_world(servers or {"docs": docs(), "more": docs()}, **settings) as world:
        sockets = await trio.open_tcp_listeners(0, host="127.0.0.1")
        url = f"http://127.0.0.1:{sockets[0].socket.getsockname()[1]}/sse"
        sessions = Limits(
            max_sessions=max_sessions, session_idle=idle, max_in_flight=in_flight, client_stall=stall
        )
        listener = HttpListener(port=0, sse_path=sse_path)
        stopping = trio.Event()
        endpoint = HttpEndpoint(world.mux.service, listener, sessions, stopping=stopping)
        site = Site(world, endpoint, url, stopping)
        limits = Limits(max_message_bytes=1 << 20, client_stall=stall)

        async def serve(task_status: trio.TaskStatus[None]) -> None:
            run = partial(serve_http, refuse=refuse, stopping=site.stopping, limits=limits)
            await run(sockets, endpoint.handle, task_status=task_status)
            site.ended.set()

        async with trio.open_nursery() as nursery:
            await nursery.start(endpoint.sessions.run)
            await nursery.start(serve)
            with trio.fail_after(PATIENCE):
                yield site
            nursery.cancel_scope.cancel()


def hanging() -> tuple[ScriptedServer, trio.Event, trio.Event]:
    """Return a server whose tool never ends, and events that are set when a call starts and is cancelled."""
    started, cancelled = trio.Event(), trio.Event()

    async def hang(_server: Any, _params: Json, _message: Json) -> Json:
        started.set()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()
        raise AssertionError

    return ScriptedServer(tools=[TOOL], handlers={"tools/call": hang}), started, cancelled


@pytest.mark.parametrize("revision", [*REVISIONS, MODERN])
async def test_every_revision_travels(revision):
    async with open_site() as site, site.client(revision) as client:
        listed = await client.walk("resources/list", "resources")
        result = await client.request("resources/read", {"uri": listed[0]["uri"]})
        assert result["contents"][0]["uri"] == listed[0]["uri"]


@pytest.mark.parametrize("method", ASKED)
@pytest.mark.parametrize("up", [LEGACY, MODERN])
async def test_a_question_comes_down_the_stream_and_its_answer_is_posted(up, method):
    servers = {"x": Curious(up, method, times=2), "docs": docs()}
    async with open_site(servers) as site, site.client(LEGACY, CAPABILITIES) as client:
        result = await call_and_answer(client, {"result": ASKED[method][1]})
        assert json.loads(result["content"][0]["text"]) == [ASKED[method][1]] * 2


@pytest.mark.parametrize("up", [LEGACY, MODERN])
async def test_an_update_of_a_subscribed_resource_is_told(up):
    server = Subscribable(up)
    async with open_site({"x": server, "docs": docs()}) as site, site.client("2024-11-05") as client:
        await client.request("resources/subscribe", {"uri": "x+memo:1"})
        while server.subscribed != {"memo:1"}:
            await trio.lowlevel.checkpoint()
        await server.update("memo:1")
        updated = await client.receive_method("notifications/resources/updated")
        assert updated["params"]["uri"] == "x+memo:1"


async def test_request_of_a_client_past_its_own_limit_is_refused():
    server, started, _ = hanging()
    async with open_site({"docs": server}, in_flight=1) as site, site.client() as client:
        await client.start("tools/call", {"name": "t", "arguments": {}})
        await started.wait()
        with pytest.raises(RpcFailure, match="more than 1 requests in flight") as refused:
            await client.request("tools/list")
        assert refused.value.error["code"] == BUSY


async def test_a_client_that_leaves_cancels_its_calls_and_is_forgotten():
    server, started, cancelled = hanging()
    async with open_site({"x": server, "docs": docs()}) as site:
        async with site.client(LEGACY) as client:
            await client.start("tools/call", {"name": "x__t"})
            await started.wait()
            assert site.listeners.startswith("<NotificationHub 1")
        await cancelled.wait()
        await site.until_nobody_listens()


async def test_a_client_that_never_initialized_leaves_nothing_behind():
    async with open_site(max_sessions=1) as site:
        for _ in range(3):
            async with site.stream() as (address, _):
                assert (await site.send("GET", "/sse"))[0] == 503
            await site.until_gone(address)


async def test_posts_without_a_stream_are_refused():
    async with open_site() as site:
        async with site.stream() as (address, _):
            assert await site.send("POST", address, PING) == (202, None)
        await site.until_gone(address)
        status, answer = await site.send("POST", address, PING)
        assert (status, answer["error"]["code"]) == (404, -32600)
        assert "open a new one" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("method", "target", "body", "headers", "status"),
    [
        ("POST", "{}", b"not json", JSON, 400),
        ("POST", "{}", b'{"jsonrpc":"2.0","id":1,"method":5}', JSON, 400),
        ("POST", "{}", b"[" + PING + b"]", JSON, 400),
        ("POST", "{}", b"", JSON, 400),
        ("POST", "{}", PING, (("Content-Type", "text/plain"),), 415),
        ("POST", "{}", PING, (), 415),
        ("POST", "{}", b'"' + b"x" * (1 << 20) + b'"', JSON, 413),
        ("POST", "{}", PING, (*JSON, ("Origin", "http://evil.example.com")), 403),
        ("POST", "/sse?session_id=guessed", PING, JSON, 404),
        ("POST", "/sse?session_id=", PING, JSON, 405),
        ("POST", "/sse", PING, JSON, 405),
        ("POST", "/sse?key=1", PING, JSON, 405),
        ("DELETE", "{}", b"", (), 405),
        ("GET", "/sse", b"", (("Origin", "http://evil.example.com"),), 403),
        ("GET", "/sse//", b"", (), 404),
    ],
)
async def test_bad_requests_get_the_right_status_and_harm_nothing(method, target, body, headers, status):
    async with open_site() as site, site.stream() as (address, response):
        answered, answer = await site.send(method, target.format(address), body, headers)
        assert answered == status
        assert isinstance(answer["error"]["code"], int)
        assert await site.send("POST", address, PING) == (202, None)
        assert (
            await response.receive_some() == b'event: message\ndata: {"jsonrpc":"2.0","id":1,"result":{}}\n\n'
        )


async def test_a_bad_message_is_answered_with_its_id():
    async with open_site() as site, site.stream() as (address, _):
        _, answer = await site.send("POST", address, b'{"jsonrpc":"1.0","id":7,"method":"ping"}')
        assert answer["id"] == 7


async def test_the_path_can_be_turned_off():
    async with open_site(sse_path="") as site:
        assert (await site.send("GET", "/sse"))[0] == 404
        assert (await site.send("GET", "/"))[0] == 404


async def test_sessions_of_both_kinds_are_limited_together():
    params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    hello = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).encode()
    async with open_site(max_sessions=2) as site, site.stream():
        assert (await site.send("POST", "/mcp", hello))[0] == 200
        for method, target, body in (("GET", "/sse", b""), ("POST", "/mcp", hello)):
            status, answer = await site.send(method, target, body)
            assert status == 503
            assert "try again" in answer["error"]["message"]


async def test_a_silent_client_is_closed_and_an_active_one_is_not():
    async with open_site(idle=0.3) as site, site.stream() as (address, talker):
        await site.send("POST", address, PING)
        await talker.receive_some()
        async with site.stream() as (_, silent):
            assert await silent.receive_some() == b""
        assert await site.send("POST", address, PING) == (202, None)
        assert b"result" in await talker.receive_some()


async def test_a_client_that_does_not_read_is_closed():
    big = {"contents": [{"uri": "a:1", "text": "x" * (1 << 20)}], "resultType": "complete"}

    async def read(_server: Any, _params: Json, _message: Json) -> Json:
        return big | {"ttlMs": 0, "cacheScope": "private"}

    server = ScriptedServer(resources=[], handlers={"resources/read": read})
    async with open_site({"x": server, "docs": docs()}, stall=0.3) as site, site.stream() as (address, _):
        params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
        await site.send("POST", address, json.dumps(request("initialize", params, "i")).encode())
        for number in range(40):
            message = request("resources/read", {"uri": "x+a:1"}, number)
            await site.send("POST", address, json.dumps(message).encode())
        await site.until_gone(address)
        await site.until_nobody_listens()


async def test_when_we_stop_what_was_asked_is_answered_and_the_stream_ends():
    started, finish = trio.Event(), trio.Event()

    async def call(_server: Any, _params: Json, _message: Json) -> Json:
        started.set()
        await finish.wait()
        return {"content": [], "resultType": "complete"}

    server = ScriptedServer(tools=[TOOL], handlers={"tools/call": call})
    servers = {"x": server, "docs": docs()}
    async with (
        open_site(servers) as site,
        site.stream() as (_, idle_stream),
        site.client(LEGACY) as client,
    ):
        request_id = await client.start("tools/call", {"name": "x__t"})
        await started.wait()
        site.stopping.set()
        assert await idle_stream.receive_some() == b""
        finish.set()
        assert (await client.receive())["id"] == request_id
        await site.ended.wait()


@pytest.mark.parametrize("transport", ["auto", "sse"])
async def test_mcpmux_is_an_upstream_of_mcpmux(transport):
    async def unheard(_event: object) -> None:
        """Ignore the notification."""

    async with open_site() as site:
        target = Http(site.url, transport=transport)
        config = Config(upstreams=(UpstreamConfig(name="inner", target=target),))
        async with app.open_mux(config) as outer:
            listed = decode_any(
                (await outer.router.exchange(Call("resources/list", {}, {}), unheard))["resources"]
            )
            uri = listed[0]["uri"]
            assert uri.startswith("inner+docs+")
            result = await outer.router.exchange(Call("resources/read", {"uri": raw(uri)}, {}), unheard)
            assert decode_any(result["contents"])[0]["uri"] == uri
