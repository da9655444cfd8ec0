"""A client over Streamable HTTP, on a pool of mcpmux, for tests that look at statuses, headers and events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import trio

from mcpmux.transports.http.client import HttpPool, HttpResponse
from mcpmux.transports.sse import SseDecoder
from tests.http_request import requested
from tests.oracle import SchemaOracle
from tests.peers.revision import LEGACY, MODERN, Json, make_fields, make_greeting, make_request


class Answer:
    """An HTTP answer: `messages` holds the JSON-RPC messages, or arrays of them, of a stream or of a body."""

    def __init__(self, status: int, headers: dict[str, str], messages: list[Any]) -> None:
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

    async def message(self) -> Json:
        """Return the next message, without the events that have none."""
        while (message := (await self.next())[1]) is None:
            pass
        return message

    async def next(self) -> tuple[str | None, Json | None]:
        with trio.fail_after(60):
            while not self._events:
                chunk = await self.response.receive_some()
                assert chunk, "the stream has ended"
                self._events += self._decoder.feed(chunk)
        event = self._events.pop(0)
        return event.id, json.loads(event.data) if event.data else None


class HttpClient:
    """A client of both eras, which checks by the official schema how it is greeted and answered.

    `world`: what it is a client of, for tests that look into that.
    """

    def __init__(self, pool: HttpPool, world: Any = None) -> None:
        self._pool = pool
        self.world = world
        self.origin = pool.origin
        self.port = pool.origin.port

    def open(
        self,
        body: Json | bytes | None = None,
        headers: Json | None = None,
        method: str = "POST",
        path: str = "/mcp",
    ) -> AbstractAsyncContextManager[HttpResponse]:
        """Return the context of one HTTP exchange. A header that is None is left out."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if body else b""
        fields = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        fields |= headers or {}
        present = tuple((name, value) for name, value in fields.items() if value is not None)
        return requested(self._pool, method, path, present, data, idempotent=False)

    async def send(
        self, body: Json | bytes, headers: Json | None = None, method: str = "POST", path: str = "/mcp"
    ) -> Answer:
        """Make one exchange, and read its answer to the end."""
        with trio.fail_after(60):
            async with self.open(body, headers, method, path) as response:
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
        """Make one exchange, and read its answer event by event."""
        with trio.fail_after(60):
            async with self.open(body, headers, method, path) as response:
                yield Stream(response)

    async def modern(self, method: str, params: Json | None = None, **headers: Any) -> Answer:
        """Make a request of 2026-07-28."""
        message = make_request(method, params or {})
        answer = await self.send(message, make_fields(MODERN, message) | headers)
        for answer_message in answer.messages:
            SchemaOracle(MODERN).check_from_server(answer_message, method)
        return answer

    async def initialize(
        self,
        revision: str = LEGACY,
        path: str = "/mcp",
        headers: Json | None = None,
        capabilities: Json | None = None,
    ) -> Json:
        """Open a session, and return the headers of requests in it."""
        greeting = make_greeting(revision, capabilities=capabilities or {})
        answer = await self.send(request("initialize", greeting), headers, path=path)
        SchemaOracle(revision).check_from_server(answer.last, "initialize")
        return {"Mcp-Session-Id": answer.headers["mcp-session-id"], "MCP-Protocol-Version": revision}


def request(method: str, params: Json | None = None, request_id: Any = 1) -> Json:
    """Return a request."""
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params or {}}
