"""A scripted MCP server on a pipe: plain JSON, sharing no code with mcpmux.

Every message that mcpmux sends to it is checked against the official schema.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from mcpmux.errors import TransportClosed
from tests.oracle import SchemaOracle
from tests.peers.revision import MODERN, Json

Handler = Callable[[Any, Json, Json], Awaitable[Json]]
"""Called with the server, of whatever class of its own, the parameters and the whole message."""

CACHE = {"ttlMs": 0, "cacheScope": "private"}


class RpcFailure(Exception):
    """A JSON-RPC error object."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.error: Json = {"code": code, "message": message} | ({"data": data} if data is not None else {})


class ScriptedServer:
    """One upstream. `lists` maps a list method to its items, good or bad; `handlers` override or add methods.

    `seen` has every message that mcpmux sent, `pages` counts list pages asked for by (method, cursor).
    `streams`: over HTTP every answer comes in an event stream, which is opened at once.
    """

    def __init__(
        self,
        revision: str = MODERN,
        *,
        resources: list[Any] | None = None,
        templates: list[Any] | None = None,
        tools: list[Any] | None = None,
        prompts: list[Any] | None = None,
        page_size: int = 1000,
        instructions: str | None = None,
        handlers: dict[str, Handler] | None = None,
        capabilities: Json | None = None,
    ) -> None:
        self.revision = revision
        self.page_size = page_size
        self.instructions = instructions
        self.lists = {
            "resources/list": ("resources", resources),
            "resources/templates/list": ("resourceTemplates", templates),
            "tools/list": ("tools", tools),
            "prompts/list": ("prompts", prompts),
        }
        self.capabilities = capabilities if capabilities is not None else self._capabilities()
        self.handlers = handlers or {}
        self.seen: list[Json] = []
        self.pages: dict[tuple[str, str | None], int] = {}
        self.oracle = SchemaOracle(revision)
        self.streams = False
        self._pipe: Any = None
        self.initialized = trio.Event()

    @property
    def modern(self) -> bool:
        return self.revision == MODERN

    def _capabilities(self) -> Json:
        offered = {name for name, items in self.lists.values() if items is not None}
        capabilities: Json = {}
        if offered & {"resources", "resourceTemplates"}:
            capabilities["resources"] = {}
        capabilities |= {name: {} for name in ("tools", "prompts") if name in offered}
        return capabilities

    def items(self, method: str) -> list[Json]:
        """Return the items of a list that this server has, for a test to change."""
        items = self.lists[method][1]
        assert items is not None
        return items

    async def serve(self, pipe: Any) -> None:
        """Answer until the pipe ends."""
        self._pipe = pipe
        scopes: dict[Any, trio.CancelScope] = {}
        async with trio.open_nursery() as nursery:
            try:
                while True:
                    message = json.loads(await pipe.receive())
                    self.seen.append(message)
                    if "method" not in message:
                        self.take_answer(message)
                        continue
                    if message.get("method") == "notifications/cancelled":
                        if scope := scopes.get(message["params"]["requestId"]):
                            scope.cancel()
                    elif "id" in message:
                        scope = scopes[message["id"]] = trio.CancelScope()
                        nursery.start_soon(self._answer, message, scope)
                    elif message["method"] == "notifications/initialized":
                        self.initialized.set()
            except TransportClosed:
                nursery.cancel_scope.cancel()

    def take_answer(self, message: Json) -> None:
        """Take the answer to a request of this server."""

    async def send(self, message: Json) -> None:
        await self._pipe.send(json.dumps({"jsonrpc": "2.0", **message}).encode())

    async def _answer(self, message: Json, scope: trio.CancelScope) -> None:
        with scope:
            try:
                result = await self.handle(message["method"], message.get("params") or {}, message)
            except RpcFailure as failure:
                await self.send({"id": message["id"], "error": failure.error})
            else:
                await self.send({"id": message["id"], "result": result})

    async def handle(self, method: str, params: Json, message: Json) -> Json:
        if method not in ("server/discover", "initialize") and not method.startswith("vendor/"):
            self.oracle.check_from_client(message, None)
        if method in self.handlers:
            return await self.handlers[method](self, params, message)
        if method == "server/discover" and self.modern:
            return self._discover()
        if method == "initialize" and not self.modern:
            return self._initialize()
        if method in self.lists and self.lists[method][1] is not None:
            return self._page(method, params)
        raise RpcFailure(-32601, "Method not found")

    def _discover(self) -> Json:
        result = {"resultType": "complete", "supportedVersions": [MODERN], "capabilities": self.capabilities}
        return result | CACHE | ({"instructions": self.instructions} if self.instructions else {})

    def _initialize(self) -> Json:
        result = {
            "protocolVersion": self.revision,
            "capabilities": self.capabilities,
            "serverInfo": {"name": "scripted", "version": "1"},
        }
        return result | ({"instructions": self.instructions} if self.instructions else {})

    def _page(self, method: str, params: Json) -> Json:
        key, items = self.lists[method][0], self.items(method)
        cursor = params.get("cursor")
        self.pages[method, cursor] = self.pages.get((method, cursor), 0) + 1
        start = int(cursor or 0)
        end = start + self.page_size
        result: Json = {key: items[start:end]}
        if end < len(items):
            result["nextCursor"] = str(end)
        return result | ({"resultType": "complete"} | CACHE if self.modern else {})
