"""One upstream over HTTP, played by a scripted web server on a real socket, with mcpmux in front of it."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from mcpmux import app
from mcpmux.config import Config, Http, Upstream
from mcpmux.config.model import Limits
from mcpmux.protocol.call import CLIENT_CAPABILITIES, Call, Event
from mcpmux.protocol.envelope import decode_any, raw
from tests.inline import run_inline
from tests.peers.http_server import open_http
from tests.runtime.scripted import Json

JSON = (("Content-Type", "application/json"),)
SSE = (("Content-Type", "text/event-stream"),)
LEGACY = "2025-11-25"
SERVER = {"name": "w", "version": "1"}
TOOLS: Json = {"tools": {}, "resources": {}}

Script = Callable[["Web", Any, Json, Any], Awaitable[None]]


class Web:
    """A web server: `script(web, request, message, reply)` answers; `seen` holds (request, message)."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.seen: list[tuple[Any, Json]] = []
        self.sent = 0  # bytes, where a script counts them

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
async def open_web(
    script: Script,
    *,
    tls: ssl.SSLContext | None = None,
    make_target: Callable[[str], Http] = Http,
    limits: Limits | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[Web, app.Mux]]:
    """The server (https with `tls`), and mcpmux with it as its only, unprefixed upstream."""
    web = Web(script)
    async with open_http(web.handle, tls=None if tls is None else lambda: tls) as port:
        url = f"{'https' if tls else 'http'}://127.0.0.1:{port}/mcp"
        upstream = Upstream(name="web", target=make_target(url), prefix="", **settings)
        config = Config(upstreams=(upstream,), limits=limits or Limits())
        with trio.fail_after(60):
            async with app.open_mux(config) as mux:
                yield web, mux


async def initialize(web: Web, request: Any, message: Json, reply: Any, session: str | None = "s1") -> bool:
    """Play a legacy server's handshake; False when the message is something else."""
    method = message.get("method")
    if method == "server/discover":
        await reply.send(400, (), b"Bad Request: no session")
    elif method == "initialize":
        result = {
            "protocolVersion": LEGACY,
            "capabilities": {**TOOLS, "tools": {"listChanged": True}},
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
    result = await run_inline(mux.router.exchange(call, notify))
    return {key: decode_any(value) for key, value in result.items()}
