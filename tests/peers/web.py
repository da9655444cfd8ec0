"""A web server that answers by a script: an MCP server over HTTP that may be odd in any way."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from tests.peers.revision import LEGACY, Json

JSON = (("Content-Type", "application/json"),)
SSE = (("Content-Type", "text/event-stream"),)
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
