"""The HTTP endpoint on a real socket, with scripted upstreams behind it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from mcpmux.config import HttpListener, Limits
from mcpmux.runtime.downstreams.http_answer import refuse
from mcpmux.runtime.downstreams.http_endpoint import HttpEndpoint
from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.http.route import HttpOrigin
from mcpmux.transports.http.server import serve_http
from mcpmux.transports.sse import SseDecoder
from tests.http_request import requested
from tests.oracle import SchemaOracle
from tests.runtime.scripted import CAPABILITIES, CLIENT_INFO, MODERN, VERSION, Json, ScriptedServer
from tests.runtime.test_flows import docs
from tests.runtime.world import World, open_world

LEGACY = "2025-11-25"


class Answer:
    """An HTTP answer: `messages` holds the JSON-RPC messages in it, of a stream or of a body."""

    def __init__(self, status: int, headers: dict[str, str], messages: list[Json]) -> None:
        self.status = status
        self.headers = headers
        self.messages = messages

    @property
    def last(self) -> Json:
        return self.messages[-1]


class Stream:
    """An event stream that is being read: `next` gives (event id, message or None)."""

    def __init__(self, response: Any) -> None:
        self.response = response
        self._decoder = SseDecoder(1 << 20)
        self._events: list[Any] = []

    @property
    def retry_milliseconds(self) -> int | None:
        return self._decoder.retry_milliseconds

    async def next(self) -> tuple[str | None, Json | None]:
        with trio.fail_after(60):
            while not self._events:
                chunk = await self.response.receive_some()
                assert chunk, "the stream has ended"
                self._events += self._decoder.feed(chunk)
        event = self._events.pop(0)
        return event.id, json.loads(event.data) if event.data else None


class HttpClient:
    def __init__(self, pool: HttpPool, world: World | None = None) -> None:
        self._pool = pool
        self.world = world
        self.origin = pool.origin
        self.port = pool.origin.port

    async def send(
        self, body: Json | bytes, headers: Json | None = None, method: str = "POST", path: str = "/mcp"
    ) -> Answer:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        fields = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        fields |= headers or {}
        wanted = tuple((name, value) for name, value in fields.items() if value is not None)
        with trio.fail_after(60):
            async with requested(self._pool, method, path, wanted, data, idempotent=False) as response:
                content = await response.read()
        if response.headers.get("content-type") == "text/event-stream":
            events = SseDecoder(1 << 20).feed(content)
            messages = [json.loads(event.data) for event in events if event.data]
        else:
            messages = [json.loads(content)] if content else []
        return Answer(response.status, response.headers, messages)

    @asynccontextmanager
    async def stream(
        self, method: str, body: Json | None, headers: Json, path: str = "/mcp"
    ) -> AsyncIterator[Stream]:
        fields = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
        } | headers
        data = json.dumps(body).encode() if body else b""
        request = requested(self._pool, method, path, tuple(fields.items()), data, idempotent=False)
        with trio.fail_after(60):
            async with request as response:
                yield Stream(response)

    async def modern(self, method: str, params: Json | None = None, **headers: Any) -> Answer:
        params = {**(params or {}), "_meta": {VERSION: MODERN, CLIENT_INFO: IMPLEMENTATION, CAPABILITIES: {}}}
        named: Json = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method}
        if method in ("resources/read", "tools/call", "prompts/get"):
            named["Mcp-Name"] = params.get("uri") or params.get("name")
        answer = await self.send(request(method, params), named | headers)
        for message in answer.messages:
            SchemaOracle(MODERN).check_from_server(message, method)
        return answer

    async def initialize(
        self,
        revision: str = LEGACY,
        path: str = "/mcp",
        headers: Json | None = None,
        capabilities: Json | None = None,
    ) -> Json:
        offered = capabilities or {}
        params = {"protocolVersion": revision, "capabilities": offered, "clientInfo": IMPLEMENTATION}
        answer = await self.send(request("initialize", params), headers, path=path)
        SchemaOracle(revision).check_from_server(answer.last, "initialize")
        return {"Mcp-Session-Id": answer.headers["mcp-session-id"], "MCP-Protocol-Version": revision}


IMPLEMENTATION = {"name": "test", "version": "1"}


def request(method: str, params: Json | None = None, request_id: Any = 1) -> Json:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params or {}}


@asynccontextmanager
async def open_endpoint(
    servers: dict[str, Any] | None = None,
    *,
    body_bytes: int = 1 << 20,
    max_sessions: int = 10,
    **watching: Any,
) -> AsyncIterator[HttpClient]:
    async with open_world(servers or {"docs": docs(), "more": docs()}, **watching) as world:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        sessions = Limits(max_sessions=max_sessions)
        endpoint = HttpEndpoint(world.mux.service, HttpListener(port=0), sessions)
        await world.nursery.start(endpoint.run)
        limits = Limits(max_message_bytes=body_bytes)
        serve = partial(
            serve_http,
            inline=True,
            refuse=refuse,
            stopping=trio.Event(),
            limits=limits,
            poller=world.mux.poller,
        )
        await world.nursery.start(serve, listeners, endpoint.handle)
        with HttpPool(HttpOrigin(False, "127.0.0.1", port)) as pool:
            yield HttpClient(pool, world)


async def test_a_modern_client_lists_and_reads_without_a_session():
    async with open_endpoint() as client:
        listed = await client.modern("resources/list")
        assert listed.status == 200
        assert "mcp-session-id" not in listed.headers
        uri = listed.last["result"]["resources"][0]["uri"]
        read = await client.modern("resources/read", {"uri": uri})
        assert read.last["result"]["contents"][0]["uri"] == uri
        discovered = await client.modern("server/discover")
        assert MODERN in discovered.last["result"]["supportedVersions"]


async def test_a_legacy_session_lives_from_initialize_to_delete():
    async with open_endpoint() as client:
        session = await client.initialize()
        initialized = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert (await client.send(initialized, session)).status == 202
        assert (await client.send(request("ping"), session)).last["result"] == {}
        listed = await client.send(request("resources/list"), session)
        assert len(listed.last["result"]["resources"]) == 4
        assert (await client.send(b"", session, "DELETE")).status == 204
        gone = await client.send(request("ping"), session)
        assert gone.status == 404
        assert gone.last["error"]["message"].startswith("Session not found")


async def test_progress_turns_the_answer_into_an_event_stream():
    async def slow(server: ScriptedServer, params: Json, _message: Json) -> Json:
        progress = {"progressToken": params["_meta"]["progressToken"], "progress": 1}
        await server.send({"method": "notifications/progress", "params": progress})
        return {"resultType": "complete", "content": []}

    tool = {"name": "t", "inputSchema": {"type": "object"}}
    servers = {"x": ScriptedServer(tools=[tool], handlers={"tools/call": slow}), "docs": docs()}
    async with open_endpoint(servers) as client:
        session = await client.initialize()
        params = {"name": "x__t", "_meta": {"progressToken": "mine"}}
        answer = await client.send(request("tools/call", params), session)
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.messages[0]["params"] == {"progressToken": "mine", "progress": 1}
        assert answer.last["result"]["content"] == []
        plain = await client.send(request("tools/call", params), session | {"Accept": "application/json"})
        assert plain.headers["content-type"] == "application/json"
        assert len(plain.messages) == 1


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Mcp-Method": None}, -32020),
        ({"Mcp-Method": "tools/list"}, -32020),
        ({"Mcp-Method": "RESOURCES/READ"}, -32020),
        ({"Mcp-Name": None}, -32020),
        ({"Mcp-Name": "docs+memo:2"}, -32020),
        ({"Mcp-Name": "=?base64?%%%?="}, -32020),
        ({"MCP-Protocol-Version": None}, -32020),
        ({"MCP-Protocol-Version": LEGACY}, -32020),
        ({"MCP-Protocol-Version": "1900-01-01"}, -32020),
    ],
)
async def test_each_header_rule_is_enforced(headers, code):
    async with open_endpoint() as client:
        answer = await client.modern("resources/read", {"uri": "docs+memo:1"}, **headers)
        assert (answer.status, answer.last["error"]["code"]) == (400, code)
        assert answer.last["id"] == 1
        assert (await client.modern("resources/read", {"uri": "docs+memo:1"})).status == 200


@pytest.mark.parametrize("header", [None, "us", "=?base64?!?="])
async def test_annotated_arguments_must_be_in_the_headers_too(header):
    async def call(_server: Any, _params: Json, _message: Json) -> Json:
        return {"resultType": "complete", "content": []}

    region = {"type": "string", "x-mcp-header": "Region"}
    tool = {"name": "t", "inputSchema": {"type": "object", "properties": {"region": region}}}
    servers = {"x": ScriptedServer(tools=[tool], handlers={"tools/call": call}), "docs": docs()}
    async with open_endpoint(servers) as client:
        assert (await client.modern("tools/list")).status == 200
        params = {"name": "x__t", "arguments": {"region": "eu"}}
        answer = await client.modern("tools/call", params, **{"Mcp-Param-Region": header})
        assert (answer.status, answer.last["error"]["code"]) == (400, -32020)
        assert (await client.modern("tools/call", params, **{"Mcp-Param-Region": "eu"})).status == 200


async def test_a_version_that_differs_from_its_header_is_a_mismatch_even_when_unknown():
    async with open_endpoint() as client:
        params = {"_meta": {VERSION: "1900-01-01", CAPABILITIES: {}}}
        headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "resources/list"}
        answer = await client.send(request("resources/list", params), headers)
        assert (answer.status, answer.last["error"]["code"]) == (400, -32020)


async def test_an_encoded_name_is_decoded_before_it_is_compared():
    async with open_endpoint() as client:
        name = "=?base64?ZG9jcyttZW1vOjE=?="
        answer = await client.modern("resources/read", {"uri": "docs+memo:1"}, **{"Mcp-Name": name})
        assert answer.status == 200


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (b"{", {}, 400, -32700),
        (b"\xff", {}, 400, -32700),
        (b"[]", {}, 400, -32600),
        (b'{"jsonrpc":"2.0","id":1}', {}, 400, -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"}', {"Content-Type": "text/plain"}, 415, -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"}', {}, 400, -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"}', {"Mcp-Session-Id": "nope"}, 404, -32600),
        (b'{"jsonrpc":"2.0","method":"notifications/initialized"}', {"Mcp-Session-Id": "nope"}, 404, -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"}', {"MCP-Protocol-Version": "1900-01-01"}, 400, -32022),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"}', {"MCP-Protocol-Version": MODERN}, 400, -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"}', {"Origin": "http://evil.example.com"}, 403, -32600),
        (b'"' + b"x" * (1 << 20) + b'"', {}, 413, -32600),
    ],
)
async def test_bad_requests_get_the_right_status_and_harm_nothing(body, headers, status, code):
    async with open_endpoint() as client:
        answer = await client.send(body, headers)
        assert (answer.status, answer.last["error"]["code"]) == (status, code)
        assert (await client.modern("resources/list")).status == 200


@pytest.mark.parametrize(("method", "status"), [("no/such", 404), ("ping", 404), ("initialize", 404)])
async def test_unknown_methods_are_404_for_modern_clients(method, status):
    async with open_endpoint() as client:
        answer = await client.modern(method)
        assert (answer.status, answer.last["error"]["code"]) == (status, -32601)


async def test_other_verbs_and_paths_are_refused():
    async with open_endpoint() as client:
        assert (await client.send(b"", {}, "PUT")).status == 405
        assert (await client.send(b"", {"Mcp-Session-Id": "nope"}, "DELETE")).status == 404


@pytest.mark.parametrize(
    ("host", "status"),
    [("evil.example.com", 403), ("localhost:1", 400), ("127.0.0.1", 400), ("[::1]:80", 400), ("", 403)],
)
async def test_only_our_own_names_are_served(host, status):
    """400 is what a served request without a session gets."""
    async with open_endpoint() as client:
        stream = await trio.open_tcp_stream("127.0.0.1", client.port)
        body = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
        head = f"POST /mcp HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        async with stream:
            await stream.send_all(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            with trio.fail_after(60):
                answer = await stream.receive_some(4096)
        assert answer.split()[1] == str(status).encode()


async def test_sessions_are_limited():
    async with open_endpoint(max_sessions=1) as client:
        await client.initialize()
        params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": IMPLEMENTATION}
        answer = await client.send(request("initialize", params))
        assert answer.status == 503
        assert "try again" in answer.last["error"]["message"]


async def test_a_modern_client_that_leaves_cancels_its_exchange():
    started, cancelled = trio.Event(), trio.Event()

    async def hang(_server: Any, _params: Json, _message: Json) -> Json:
        started.set()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()
        raise AssertionError

    tool = {"name": "t", "inputSchema": {"type": "object"}}
    server = ScriptedServer(tools=[tool], handlers={"tools/call": hang})
    async with open_endpoint({"x": server, "docs": docs()}) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.modern, "tools/call", {"name": "x__t"})
        with trio.fail_after(60):
            await started.wait()
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await cancelled.wait()


async def test_a_client_that_leaves_a_slow_read_can_use_the_id_again():
    hanging = trio.Event()

    async def read(_server: Any, params: Json, _message: Json) -> Json:
        if params["uri"] == "slow:1":
            hanging.set()
            await trio.sleep_forever()
        return {"resultType": "complete", "contents": [], "ttlMs": 0, "cacheScope": "private"}

    servers = {"x": ScriptedServer(resources=[], handlers={"resources/read": read}), "docs": docs()}
    async with open_endpoint(servers) as client:
        session = await client.initialize()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, request("resources/read", {"uri": "x+slow:1"}, 7), session)
            with trio.fail_after(60):
                await hanging.wait()
            nursery.cancel_scope.cancel()
        with trio.fail_after(60):
            while True:  # the server notices within its sweep that the client has left
                answer = await client.send(request("resources/read", {"uri": "x+fast:1"}, 7), session)
                if "result" in answer.last:
                    break
                assert "already in flight" in answer.last["error"]["message"]
