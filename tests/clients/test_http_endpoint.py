"""The HTTP endpoint on a real socket, with scripted upstreams behind it."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.peers.http_client import request
from tests.peers.revision import CAPABILITIES, LEGACY, MODERN, VERSION, Json
from tests.peers.server import RpcFailure, ScriptedServer
from tests.runtime.http_front import open_endpoint
from tests.runtime.test_flows import docs


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
        unknown = {**session, "MCP-Protocol-Version": "1900-01-01"}
        for body, verb in ((initialized, "POST"), (b"", "GET"), (b"", "DELETE")):
            refused = await client.send(body, unknown, verb)
            assert (refused.status, refused.last["error"]["code"]) == (400, -32022)
        # The message opens a session: a header of another era does not make it a modern one.
        assert await client.initialize(headers={"MCP-Protocol-Version": MODERN})
        assert (await client.send(b"", session, "DELETE")).status == 204
        gone = await client.send(request("ping"), session)
        assert gone.status == 404
        assert gone.last["error"]["message"].startswith("Session not found")


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


async def test_a_version_unlike_its_header_is_a_mismatch_even_when_unknown():
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


@pytest.mark.parametrize(("code", "status"), [(-32600, 200), (-32700, 200), (-32021, 400), (-32601, 404)])
async def test_no_servers_refusal_looks_like_one_of_an_older_revision(code, status):
    """With 400, "if the body is [...] not a recognized modern JSON-RPC error, fall back to `initialize`"."""

    async def refuse(_server: Any, _params: Json, _message: Json) -> Json:
        raise RpcFailure(code, "no", {"requiredCapabilities": {}})

    servers = {"x": ScriptedServer(tools=[], handlers={"tools/call": refuse}), "docs": docs()}
    async with open_endpoint(servers) as client:
        answer = await client.modern("tools/call", {"name": "x__t"})
        assert (answer.status, answer.last["error"]["code"]) == (status, code)


async def test_other_verbs_and_paths_are_refused():
    async with open_endpoint() as client:
        assert (await client.send(b"", {}, "PUT")).status == 405
        assert (await client.send(b"", {"Mcp-Session-Id": "nope"}, "DELETE")).status == 404
        moved = await client.send(b"{}", path="/?resources=*")
        assert (moved.status, moved.headers["location"]) == (308, "/mcp?resources=*")


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
