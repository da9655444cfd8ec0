"""One upstream over HTTP, played by a scripted web server on a real socket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from mcpmux import app
from mcpmux.config import Config, Http, Upstream
from mcpmux.errors import RpcError
from mcpmux.protocol.call import CLIENT_CAPABILITIES, Call, Event
from mcpmux.protocol.envelope import decode_any, raw
from mcpmux.runtime.http_answer import refuse
from mcpmux.transports.http_server import serve_http
from tests.runtime.scripted import Json

JSON = (("Content-Type", "application/json"),)
SSE = (("Content-Type", "text/event-stream"),)
LEGACY = "2025-11-25"
SERVER = {"name": "w", "version": "1"}
TOOLS = {"tools": {}, "resources": {}}

Script = Callable[["Web", Any, Json, Any], Awaitable[None]]


class Web:
    """A web server: `script(web, request, message, reply)` answers; `seen` holds (request, message)."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.seen: list[tuple[Any, Json]] = []

    async def handle(self, request: Any, reply: Any) -> None:
        message = json.loads(request.body) if request.body else {"method": request.method}
        self.seen.append((request, message))
        await self._script(self, request, message, reply)
        if not reply.started:
            await reply.send(405, ())

    async def answer(self, reply: Any, message: Json, result: Json, headers: Any = ()) -> None:
        body = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        await reply.send(200, (*JSON, *headers), json.dumps(body).encode())

    async def refuse(self, reply: Any, message: Json, status: int, code: int) -> None:
        body = {"jsonrpc": "2.0", "id": message.get("id"), "error": {"code": code, "message": "no"}}
        await reply.send(status, JSON, json.dumps(body).encode())

    def methods(self) -> list[str]:
        return [message.get("method", "answer") for _, message in self.seen]


@asynccontextmanager
async def open_web(script: Script, **settings: Any) -> AsyncIterator[tuple[Web, app.Mux]]:
    """The server, and mcpmux with it as its only, unprefixed upstream."""
    web = Web(script)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/mcp"
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve_http, refuse=refuse, stopping=trio.Event()), listeners, web.handle)
        config = Config(upstreams=(Upstream(name="web", target=Http(url), prefix="", **settings),))
        with trio.fail_after(10):
            async with app.open_mux(config) as mux:
                yield web, mux
        nursery.cancel_scope.cancel()


async def initialize(web: Web, request: Any, message: Json, reply: Any, session: str | None = "s1") -> bool:
    """Play a legacy server's handshake; False when the message is something else."""
    method = message.get("method")
    if method == "server/discover":
        await reply.send(400, (), b"Bad Request: no session")
    elif method == "initialize":
        result = {
            "protocolVersion": LEGACY,
            "capabilities": TOOLS,
            "serverInfo": SERVER,
        }
        headers = (("Mcp-Session-Id", session),) if session else ()
        await web.answer(reply, message, result, headers)
    elif method in ("notifications/initialized", "notifications/cancelled") or "result" in message:
        await reply.send(202, ())
    elif method == "DELETE":
        await reply.send(204, ())
    elif method == "GET" and "last-event-id" not in request.headers:
        return False
    else:
        return False
    return True


def event(data: Json | str, event_id: str | None = None) -> bytes:
    text = data if isinstance(data, str) else json.dumps({"jsonrpc": "2.0", **data})
    return (f"id: {event_id}\n" if event_id else "").encode() + f"data: {text}\n\n".encode()


async def exchange(mux: app.Mux, method: str, params: Json, events: list[Event] | None = None) -> Json:
    async def notify(happened: Event) -> None:
        if events is not None:
            events.append(happened)

    meta = {"progressToken": raw("t"), CLIENT_CAPABILITIES: raw({"roots": {}})}
    call = Call(method, {key: raw(value) for key, value in params.items()}, meta)
    result = await mux.router.exchange(call, notify)
    return {key: decode_any(value) for key, value in result.items()}


async def test_a_legacy_session_carries_its_headers_and_is_ended():
    async def script(web: Web, request: Any, message: Json, reply: Any) -> None:
        if not await initialize(web, request, message, reply) and message["method"] == "resources/read":
            await web.answer(reply, message, {"contents": []})

    async with open_web(script) as (web, mux):
        assert (await exchange(mux, "resources/read", {"uri": "a:1"}))["contents"] == []
        headers = web.seen[-1][0].headers
        assert headers["mcp-session-id"] == "s1"
        assert headers["mcp-protocol-version"] == LEGACY
        assert "mcp-method" not in headers
    assert web.methods()[-1] == "DELETE"


async def test_a_broken_stream_is_resumed_behind_the_last_event():
    async def script(web: Web, request: Any, message: Json, reply: Any) -> None:
        if await initialize(web, request, message, reply):
            return
        if message["method"] == "tools/call":
            token = message["params"]["_meta"]["progressToken"]
            progress = {"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}}
            web.call = message["id"]
            await reply.open(200, SSE, b"retry: 1\n" + event("", "1-0") + event(progress, "1-1"))
        elif request.headers.get("last-event-id") == "1-1":
            done = {"id": web.call, "result": {"content": []}}
            await reply.open(200, SSE, event(done, "1-2"))

    events: list[Event] = []
    async with open_web(script) as (_, mux):
        result = await exchange(mux, "tools/call", {"name": "t"}, events)
        assert result["content"] == []
    assert [decode_any(happened.params["progressToken"]) for happened in events] == ["t"]


async def test_a_forgotten_session_is_opened_again_and_the_request_repeated():
    async def script(web: Web, request: Any, message: Json, reply: Any) -> None:
        session = f"s{web.methods().count('initialize')}"
        if await initialize(web, request, message, reply, session):
            return
        if message["method"] == "tools/call":
            if request.headers["mcp-session-id"] == "s1":
                await web.refuse(reply, {}, 404, -32600)
            else:
                await web.answer(reply, message, {"content": [{"type": "text", "text": session}]})

    async with open_web(script) as (web, mux):
        result = await exchange(mux, "tools/call", {"name": "t"})
        assert result["content"][0]["text"] == "s2"
        assert web.methods().count("tools/call") == 2


async def test_a_question_in_a_calls_stream_parks_it_and_the_answer_is_posted():
    async def script(web: Web, request: Any, message: Json, reply: Any) -> None:
        if message.get("id") == "q1":
            web.told = message["result"]
            web.heard.set()
        if await initialize(web, request, message, reply):
            return
        if message["method"] == "tools/call":
            await reply.open(200, SSE, event({"id": "q1", "method": "roots/list"}))
            await web.heard.wait()
            await reply.finish(
                event({"id": message["id"], "result": {"content": [{"type": "text", "text": "k"}]}})
            )

    async with open_web(script) as (web, mux):
        web.heard = trio.Event()
        asked = await exchange(mux, "tools/call", {"name": "t"})
        assert asked["resultType"] == "input_required"
        ((key, wish),) = asked["inputRequests"].items()
        assert wish["method"] == "roots/list"
        again = {"name": "t", "requestState": asked["requestState"], "inputResponses": {key: {"roots": []}}}
        assert (await exchange(mux, "tools/call", again))["content"][0]["text"] == "k"
        assert web.told == {"roots": []}


async def test_missing_parameter_headers_are_looked_up_and_sent():
    tool = {
        "name": "t",
        "inputSchema": {
            "type": "object",
            "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
        },
    }

    async def script(web: Web, request: Any, message: Json, reply: Any) -> None:
        more = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        if message["method"] == "server/discover":
            result = {"supportedVersions": ["2026-07-28"], "capabilities": TOOLS}
            await web.answer(reply, message, result | more)
        elif message["method"] == "tools/list":
            bad = {"name": "bad", "inputSchema": {"type": "object", "x-mcp-header": "X"}}
            await web.answer(reply, message, {"tools": [bad, tool]} | more)
        elif request.headers.get("mcp-param-region") != "eu":
            await web.refuse(reply, message, 400, -32020)
        else:
            await web.answer(reply, message, {"content": [], "resultType": "complete"})

    async with open_web(script) as (web, mux):
        params = {"name": "t", "arguments": {"region": "eu"}}
        assert (await exchange(mux, "tools/call", params))["content"] == []
        assert web.methods().count("tools/list") == 1
        assert (await exchange(mux, "tools/call", params))["content"] == []
        assert web.methods().count("tools/list") == 1
        listed = await exchange(mux, "tools/list", {})
        assert [item["name"] for item in listed["tools"]] == ["t"]


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, b"", "asks for credentials"),
        (404, b"<html>nothing</html>", "check the URL's path"),
        (500, b"boom \x1b[31m", "HTTP status 500"),
        (200, b"<html>hello</html>", "no JSON-RPC response"),
        (302, b"", "HTTP status 302"),
    ],
)
async def test_what_is_no_mcp_server_is_told_in_words(status, body, words):
    async def script(_web: Web, _request: Any, _message: Json, reply: Any) -> None:
        await reply.send(status, (("Content-Type", "text/html"),), body)

    async with open_web(script) as (_, mux):
        with pytest.raises(RpcError) as failure:
            await exchange(mux, "resources/list", {})
        assert words in failure.value.message
        assert "web" in failure.value.message


async def test_updates_come_on_the_servers_own_stream_across_its_breaks():
    async def script(web: Web, request: Any, message: Json, reply: Any) -> None:
        if await initialize(web, request, message, reply):
            return
        if message["method"] == "GET":
            last = request.headers.get("last-event-id")
            change = {"method": "notifications/tools/list_changed"}
            await reply.open(200, SSE, b"retry: 1\n" + event(change, "0-2" if last else "0-1"))
            if last:
                web.second.set()
                await trio.sleep_forever()

    async with open_web(script) as (web, mux):
        web.second = trio.Event()
        mailbox = mux.relay.join(frozenset({"notifications/tools/list_changed"}))
        await web.second.wait()
        heard = await mailbox.take()
        assert heard is not None
        assert heard.method == "notifications/tools/list_changed"
        mux.relay.leave(mailbox)
