"""Streamable HTTP that looks like a pipe to a client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from mcpmux.errors import TransportClosed
from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.sse import SseDecoder
from tests.peers.http_client import HttpClient
from tests.peers.revision import MODERN, Json, make_fields


class HttpPipe:
    """Posts what is sent, and receives what comes back on any stream."""

    def __init__(self, pool: HttpPool, nursery: trio.Nursery) -> None:
        self._client = HttpClient(pool)
        self._nursery = nursery
        self._revision = MODERN
        self._session: str | None = None
        self._scopes: dict[Any, trio.CancelScope] = {}
        self._came, self._received = trio.open_memory_channel[bytes](1000)

    async def receive(self) -> bytes:
        try:
            return await self._received.receive()
        except trio.EndOfChannel:
            raise TransportClosed("the end") from None

    async def send(self, data: bytes) -> None:
        message = json.loads(data)
        if message.get("method") == "notifications/cancelled" and self._revision == MODERN:
            self._scopes[message["params"]["requestId"]].cancel()  # how 2026-07-28 does it over HTTP
        elif "method" in message and "id" in message:
            self._nursery.start_soon(self._exchange, message)
        else:
            assert (await self._client.send(message, self._fields(message))).status == 202
            if message.get("method") == "notifications/initialized":
                await self._nursery.start(self._hear_own_stream)

    def _fields(self, message: Json | None) -> dict[str, str]:
        return make_fields(self._revision, message, self._session)

    async def _exchange(self, message: Json) -> None:
        if message["method"] == "initialize":
            self._revision = message["params"]["protocolVersion"]
        with trio.CancelScope() as self._scopes[message["id"]]:
            async with self._client.open(message, self._fields(message)) as response:
                self._session = response.headers.get("mcp-session-id", self._session)
                await self._hear(response)

    async def _hear_own_stream(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with self._client.open(None, self._fields(None), "GET") as response:
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
    """Open one client over HTTP; its streams end with it."""
    async with trio.open_nursery() as nursery:
        yield HttpPipe(pool, nursery)
        nursery.cancel_scope.cancel()
