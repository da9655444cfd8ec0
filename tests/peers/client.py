"""A scripted MCP client on a pipe: plain JSON, sharing no code with mcpmux.

Every message that mcpmux sends to it is checked against the official schema.
"""

from __future__ import annotations

import json
from typing import Any

import trio

from tests.oracle import SchemaOracle
from tests.peers.revision import MODERN, Json, make_greeting, make_meta
from tests.peers.server import RpcFailure


class ScriptedClient:
    """One downstream client over a pipe. `initialize` makes it legacy; without it speaks 2026-07-28."""

    def __init__(self, pipe: Any) -> None:
        self.info: Json = {"name": "scripted", "version": "1"}
        self._pipe = pipe
        self._ids = 0
        self._methods: dict[Any, str] = {}
        self.revision = MODERN
        self.capabilities: Json = {}

    async def initialize(self, revision: str) -> Json:
        self.revision = revision
        result = await self.request("initialize", make_greeting(revision, self.info, self.capabilities))
        await self.send({"method": "notifications/initialized"})
        return result

    async def send(self, message: Json) -> None:
        await self._pipe.send(json.dumps({"jsonrpc": "2.0", **message}).encode())

    async def send_raw(self, data: bytes) -> None:
        await self._pipe.send(data)

    async def receive_raw(self) -> Any:
        """Wait for the next message, without any check."""
        return json.loads(await self._pipe.receive())

    async def receive(self) -> Json:
        """Wait for the next message, and check it against the schema."""
        with trio.fail_after(60):  # of virtual time
            message = await self.receive_raw()
        self.check(message, self._methods.get(message.get("id")))
        return message

    def check(self, message: Json, method: str | None) -> None:
        """Check a message of mcpmux, which answers a request with `method` unless that is None."""
        if method is None or "error" in message or not method.startswith("vendor/"):
            SchemaOracle(self.revision).check_from_server(message, method)

    async def receive_method(self, method: str) -> Json:
        """Receive the next message with that method; others are skipped."""
        while (message := await self.receive()).get("method") != method:
            pass
        return message

    async def drain(self) -> list[Json]:
        """Return all messages until no more come."""
        messages = []
        with trio.move_on_after(20):  # of virtual time
            while True:
                messages.append(await self.receive())
        return messages

    async def vanish(self) -> None:
        """Close the stream without a word."""
        await self._pipe.aclose()

    def params(self, params: Json | None = None, **meta: Any) -> Json:
        """Return parameters with the `_meta` that the revision asks for."""
        params = dict(params or {})
        if self.revision == MODERN:
            meta = {**make_meta(self.info, self.capabilities), **meta}
        return params | ({"_meta": meta} if meta else {})

    async def start(self, method: str, params: Json | None = None, **meta: Any) -> int:
        """Send a request without waiting; its id."""
        self._ids += 1
        self._methods[self._ids] = method
        params = params if method == "initialize" else self.params(params, **meta)
        await self.send({"id": self._ids, "method": method, **({"params": params} if params else {})})
        return self._ids

    async def request(self, method: str, params: Json | None = None, **meta: Any) -> Json:
        """Make a request, and return its result; raise RpcFailure for an error."""
        request_id = await self.start(method, params, **meta)
        return _result_of(await self.answer(request_id))

    async def refusal(self, method: str, params: Json | None = None, **meta: Any) -> Json:
        """Make a request, and return the error that answers it."""
        error: Json = (await self.answer(await self.start(method, params, **meta)))["error"]
        return error

    async def answer(self, request_id: int) -> Json:
        """Wait for the answer to a request, which has to be the next message."""
        message = await self.receive()
        assert message["id"] == request_id, message
        return message

    async def walk(self, method: str, key: str) -> list[Json]:
        """Return every item of a list, read page by page."""
        items: list[Json] = []
        params: Json = {}
        while True:
            result = await self.request(method, params)
            items += result[key]
            if result.get("nextCursor") is None:
                return items
            params = {"cursor": result["nextCursor"]}


class QuietClient(ScriptedClient):
    """A client that skips list changes: in real time, they may come at any moment."""

    async def receive(self) -> Json:
        while str((message := await super().receive()).get("method")).endswith("list_changed"):
            pass
        return message


def _result_of(message: Json) -> Json:
    """Return the result in an answer; raise RpcFailure for an error."""
    if "error" in message:
        error = message["error"]
        raise RpcFailure(error["code"], error["message"], error.get("data"))
    result: Json = message["result"]
    return result
