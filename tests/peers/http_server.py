"""Web servers on the loopback: with their own handler, or the endpoint of a scripted MCP server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import Any

import trio

from mcpmux.clients.http_answer import refuse
from mcpmux.transports.http.message import HttpRequest
from mcpmux.transports.http.reply import HttpReply
from mcpmux.transports.http.server import serve_http
from mcpmux.transports.http.server_connection import Handler
from tests.peers.revision import Json
from tests.peers.server import ScriptedServer
from tests.peers.subscribable import SUBSCRIPTION_ID

JSON = (("Content-Type", "application/json"),)
EVENT_STREAM = (("Content-Type", "text/event-stream"),)


async def start_http(
    nursery: trio.Nursery, handle: Handler, *, host: str = "127.0.0.1", port: int = 0, **serving: Any
) -> int:
    """Serve HTTP until the nursery ends, and return the port. `serving`: more arguments of `serve_http`."""
    listeners = await trio.open_tcp_listeners(port, host=host)
    serve = partial(serve_http, **{"refuse": refuse, "stopping": trio.Event(), **serving})
    await nursery.start(serve, listeners, handle)
    bound: int = listeners[0].socket.getsockname()[1]
    return bound


@asynccontextmanager
async def open_http(handle: Handler, **serving: Any) -> AsyncIterator[int]:
    """Serve HTTP in its own nursery, which is cancelled at the end. Yield the port."""
    async with trio.open_nursery() as nursery:
        yield await start_http(nursery, handle, **serving)
        nursery.cancel_scope.cancel()


class HttpFace:
    """The endpoint of `server`, in its era. A legacy one has one session at a time.

    `own_streams` counts how often the session's own stream was opened. `headers`: of the last request of each
    method.
    """

    def __init__(self, server: ScriptedServer) -> None:
        self._server = server
        server._pipe = self
        self._sessions = count(1)
        self._session: str | None = None
        self._own_stream: HttpReply | None = None
        self._replies: dict[Any, HttpReply] = {}
        self._scopes: dict[Any, trio.CancelScope] = {}
        self._connections: set[trio.CancelScope] = set()
        self.own_streams = 0
        self.headers: dict[str, Mapping[str, str]] = {}
        self.refusal = 404  # of what comes without the session
        self.url = ""

    def break_off(self) -> None:
        """Break off every open response."""
        for scope in self._connections:
            scope.cancel()

    def forget(self) -> None:
        """Start the server anew: open responses end, and no session is left."""
        self._session = None
        self.break_off()

    async def handle(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer one HTTP request."""
        with trio.CancelScope() as scope:
            self._connections.add(scope)
            try:
                await self._handle(request, reply)
            finally:
                self._connections.discard(scope)
        if not reply.started:
            await reply.send(500, ())

    async def _handle(self, request: HttpRequest, reply: HttpReply) -> None:
        message = json.loads(request.body) if request.body else {}
        opening = message.get("method") in ("initialize", "server/discover")
        if not (self._server.modern or opening) and request.headers.get("mcp-session-id") != self._session:
            await reply.send(
                self.refusal, JSON, b'{"jsonrpc":"2.0","error":{"code":-32600,"message":"no session"}}'
            )
        elif request.method == "GET" and not self._server.modern:
            await self._hold_own_stream(reply)
        elif request.method == "POST":
            self.headers[message.get("method", "")] = request.headers
            await self._post(message, reply)
        else:
            await reply.send(405, ())

    async def _hold_own_stream(self, reply: HttpReply) -> None:
        self._own_stream = reply
        self.own_streams += 1
        await reply.open(200, EVENT_STREAM, b": open\n\n")
        await trio.sleep_forever()

    async def _post(self, message: Json, reply: HttpReply) -> None:
        self._server.seen.append(message)
        if "id" in message and "method" in message:
            await self._answer(message, reply)
            return
        if "method" not in message:
            self._server.take_answer(message)
        elif message["method"] == "notifications/cancelled":
            scope = self._scopes.get(message["params"]["requestId"])
            if scope is not None:
                scope.cancel()
        await reply.send(202, ())

    async def _answer(self, message: Json, reply: HttpReply) -> None:
        request_id = message["id"]
        self._replies[request_id] = reply
        scope = self._scopes[request_id] = trio.CancelScope()
        try:
            if self._server.streams and message["method"] != "initialize":
                await reply.open(200, EVENT_STREAM)
            await self._server._answer(message, scope)
        finally:
            del self._replies[request_id], self._scopes[request_id]
        if not reply.started:  # it was cancelled, and is not answered
            await reply.open(200, EVENT_STREAM)

    # Messages of the server, as a pipe would take them

    async def send(self, data: bytes, about: Any = None) -> None:
        """Put a message of the server onto the response that it belongs to: to the request `about`."""
        message = json.loads(data)
        if "method" in message:
            about = _about(message) if about is None else about
            reply = self._replies.get(about, self._own_stream)
            assert reply is not None, message
            await self._stream(reply, data)
            return
        reply = self._replies[message["id"]]
        if reply.started:
            await self._stream(reply, data)
            return
        headers: tuple[tuple[str, str], ...] = JSON
        if "protocolVersion" in message.get("result", {}):
            self._session = f"session-{next(self._sessions)}"
            headers = (*JSON, ("Mcp-Session-Id", self._session))
        await reply.send(200, headers, data)

    async def _stream(self, reply: HttpReply, data: bytes) -> None:
        if not reply.started:
            await reply.open(200, EVENT_STREAM)
        await reply.write(b"data: " + data + b"\n\n")


def _about(message: Json) -> Any:
    """Return the id of the request that a notification belongs to, None for one that belongs to none."""
    params = message.get("params", {})
    listen = params.get("_meta", {}).get(SUBSCRIPTION_ID)
    return params.get("progressToken", listen)


@asynccontextmanager
async def open_http_face(
    server: ScriptedServer, face_class: type[HttpFace] = HttpFace
) -> AsyncIterator[HttpFace]:
    """Serve `server` on a free port; its `url` is where."""
    face = face_class(server)
    async with open_http(face.handle) as port:
        face.url = f"http://127.0.0.1:{port}/mcp"
        yield face
