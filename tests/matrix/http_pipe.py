"""Streamable HTTP on both sides, looking like pipes to the strict client and the strict server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from mcpmux.errors import TransportClosed
from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.http.server_connection import HttpReply
from mcpmux.transports.sse import SseDecoder
from tests.http_request import requested
from tests.runtime.scripted import MODERN, Json
from tests.runtime.scripted_http import HttpFace

NAMED = {"resources/read": "uri", "tools/call": "name", "prompts/get": "name"}


class StreamFace(HttpFace):
    """A server's endpoint that puts what belongs to a request onto that request's stream."""

    async def send_about(self, data: bytes, about: Any) -> None:
        if about in self._replies and about is not None:
            await self._stream(self._replies[about], data)
        else:
            await self.send(data)

    async def _post(self, message: Json, reply: HttpReply) -> None:
        if "method" not in message:
            self._server.take_answer(message)
        await super()._post(message, reply)


class HttpPipe:
    """What is sent is posted; what comes back, on whatever stream, is received."""

    def __init__(self, pool: HttpPool, nursery: trio.Nursery) -> None:
        self._pool = pool
        self._nursery = nursery
        self._headers: dict[str, str] = {}
        self._scopes: dict[Any, trio.CancelScope] = {}
        self._came, self._received = trio.open_memory_channel[bytes](1000)

    async def receive(self) -> bytes:
        try:
            return await self._received.receive()
        except trio.EndOfChannel:
            raise TransportClosed("the end") from None

    async def send(self, data: bytes) -> None:
        message = json.loads(data)
        params = message.get("params", {})
        if message.get("method") == "notifications/cancelled" and not self._headers:
            self._scopes[params["requestId"]].cancel()  # how 2026-07-28 says it over HTTP
        elif "method" in message and "id" in message:
            self._nursery.start_soon(self._exchange, message, data)
        else:
            async with self._request("POST", self._headers, data) as response:
                assert response.status == 202
                await response.read()
            if message.get("method") == "notifications/initialized":
                await self._nursery.start(self._hear_own_stream)

    def _request(self, method: str, headers: dict[str, str], data: bytes) -> Any:
        fields = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        return requested(
            self._pool, method, "/mcp", tuple((fields | headers).items()), data, idempotent=False
        )

    async def _exchange(self, message: Json, data: bytes) -> None:
        headers = self._headers
        method, params = message["method"], message.get("params", {})
        if not headers and method != "initialize":
            headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method}
            headers |= {"Mcp-Name": params[NAMED[method]]} if method in NAMED else {}
        with trio.CancelScope() as self._scopes[message["id"]]:
            async with self._request("POST", headers, data) as response:
                if method == "initialize":
                    revision = params["protocolVersion"]
                    self._headers = {"Mcp-Session-Id": response.headers["mcp-session-id"]}
                    self._headers |= {"MCP-Protocol-Version": revision} if revision >= "2025-06-18" else {}
                await self._hear(response)

    async def _hear_own_stream(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with self._request("GET", self._headers, b"") as response:
            task_status.started()
            await self._hear(response)

    async def _hear(self, response: Any) -> None:
        if response.headers.get("content-type") != "text/event-stream":
            if data := await response.read():
                await self._came.send(data)
            return
        decoder = SseDecoder(1 << 20)
        while chunk := await response.receive_some():
            for event in decoder.feed(chunk):
                if event.data:
                    await self._came.send(event.data)


@asynccontextmanager
async def open_http_pipe(pool: HttpPool) -> AsyncIterator[HttpPipe]:
    """One client over HTTP; its streams end with it."""
    async with trio.open_nursery() as nursery:
        yield HttpPipe(pool, nursery)
        nursery.cancel_scope.cancel()
