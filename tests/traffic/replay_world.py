"""Sessions of scripted clients, captured as mcpmux captures them, and replayed to servers in memory."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

import trio
import trio.testing

from mcpmux import app
from mcpmux.channels.opener import open_duplex_channel
from mcpmux.clients.stdio_client import serve_messages
from mcpmux.config import Config, Merging
from mcpmux.config.views import View
from mcpmux.protocol.principal import ANYONE
from mcpmux.traffic.capture.line import to_record
from mcpmux.traffic.observer import Observation
from mcpmux.traffic.reading.dialogue import Dialogue
from mcpmux.traffic.record import Record, Run
from mcpmux.traffic.recorder import Recorder
from mcpmux.traffic.redaction.redactor import Redactor
from mcpmux.traffic.replay.replay import run_replay
from mcpmux.traffic.replay.report import Report
from tests.peers.client import ScriptedClient
from tests.peers.pipe import open_memory_pipes
from tests.peers.revision import Json
from tests.peers.server import RpcFailure, ScriptedServer
from tests.peers.subscribable import Subscribable
from tests.runtime.world import World, upstream
from tests.traffic.made import read_dialogues

LEGACY = "2025-11-25"
MODERN = "2026-07-28"
ERAS = [LEGACY, MODERN]
CAPABILITIES: Json = {"roots": {"listChanged": True}}
WISH: Json = {"method": "roots/list", "params": {}}
ROOTS: Json = {"roots": [{"uri": "file:///home"}]}
URIS = [f"memo:{number}" for number in range(1, 6)]


class Varied(Subscribable):
    """Gives out cursors, states and names of questions that no other one gives out.

    `texts`: of its resources. Its tool `count` returns the number of calls, `ask` the client's answers.
    """

    _numbers = itertools.count(1)

    def __init__(self, revision: str) -> None:
        offers = {"resources": {"subscribe": True, "listChanged": True}, "tools": {}, "prompts": {}}
        super().__init__(revision, uris=URIS, capabilities={**offers, "completions": {}})
        self.mark = f"varied-{next(self._numbers)}"
        self.page_size = 2
        self.texts = {uri: f"text of {uri}" for uri in URIS}
        self.tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("count", "ask")]
        self.lists["tools/list"] = ("tools", self.tools)
        self.lists["prompts/list"] = ("prompts", [{"name": "greet"}])
        self.calls = 0
        self._told: dict[str, trio.MemorySendChannel[Json]] = {}

    def _page(self, method: str, params: Json) -> Json:
        cursor = params.get("cursor")
        if cursor is not None:
            mark, _, position = cursor.rpartition(":")
            if mark != self.mark:
                raise RpcFailure(-32602, "Invalid cursor")
            params = {"cursor": position}
        result = super()._page(method, params)
        if "nextCursor" in result:
            result["nextCursor"] = f"{self.mark}:{result['nextCursor']}"
        return result

    async def handle(self, method: str, params: Json, message: Json) -> Json:
        own: dict[str, Callable[[Json, Json], Any]] = {
            "resources/read": self._read,
            "prompts/get": self._prompt,
            "completion/complete": self._complete,
            "tools/call": self._call,
        }
        if method not in own:
            return await super().handle(method, params, message)
        self.oracle.check_from_client(message, None)
        result: Json = await own[method](params, message)
        if self.modern:
            result = {"resultType": "complete", **result}
        return result

    async def _read(self, params: Json, _message: Json) -> Json:
        if params["uri"] not in self.texts:
            code = -32602 if self.modern else -32002
            raise RpcFailure(code, "Resource not found", {"uri": params["uri"]})
        fresh = {"ttlMs": 0, "cacheScope": "private"} if self.modern else {}
        return {"contents": [{"uri": params["uri"], "text": self.texts[params["uri"]]}], **fresh}

    async def _prompt(self, params: Json, _message: Json) -> Json:
        name = params.get("arguments", {}).get("name", "you")
        return {"messages": [{"role": "user", "content": {"type": "text", "text": f"hello {name}"}}]}

    async def _complete(self, params: Json, _message: Json) -> Json:
        return {"completion": {"values": [params["argument"]["value"] + "x"]}}

    async def _call(self, params: Json, message: Json) -> Json:
        if params["name"] == "ask":
            return await self._ask(params)
        self.calls += 1
        token = params.get("_meta", {}).get("progressToken")
        if token is not None:
            progress = {"progressToken": token, "progress": 1, "total": 2, "message": "half"}
            await self.send({"method": "notifications/progress", "params": progress})
        return _text(str(self.calls))

    async def _ask(self, params: Json) -> Json:
        if not self.modern:
            return _text(json.dumps(await self.ask_client()))
        if params.get("requestState") == f"state of {self.mark}":
            return _text(json.dumps(params["inputResponses"][self.mark]))
        if "requestState" in params:
            raise RpcFailure(-32602, "Invalid requestState")
        questions = {self.mark: WISH}
        return {
            "resultType": "input_required",
            "inputRequests": questions,
            "requestState": f"state of {self.mark}",
        }

    async def ask_client(self) -> Json:
        request_id = f"{self.mark}-{len(self._told)}"
        send, receive = trio.open_memory_channel[Json](1)
        self._told[request_id] = send
        await self.send({"id": request_id, "method": WISH["method"]})
        message = await receive.receive()
        return message.get("result") or {"error": message["error"]}

    def take_answer(self, message: Json) -> None:
        self._told[message["id"]].send_nowait(message)


def _text(text: str) -> Json:
    return {"content": [{"type": "text", "text": text}]}


class Tape:
    """A capture in memory: `records`. `time` is the recorder's clock."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._redactor = Redactor()
        self._run = Run("5f3a9c01", 0.0, 1_800_000_000.0)

    most_waiting = 1

    def expect(self, settle: Callable[[], None]) -> None:
        pass

    def take_all(self, batch: Sequence[Observation]) -> None:
        self.records += [to_record(seen, self._run, self._redactor) for seen in batch]

    def dialogues(self, side: Any = "client", name: str | None = None) -> list[Dialogue]:
        return read_dialogues(self.records, side, name).dialogues()


@asynccontextmanager
async def open_taped(
    servers: Mapping[str, ScriptedServer], views: Mapping[str, View] = MappingProxyType({})
) -> AsyncIterator[tuple[World, Tape]]:
    """Open mcpmux with a tape between scripted servers and clients; its pages are small."""
    world, tape = World(servers), Tape()
    recorder = Recorder([tape], [], trio.current_time)
    upstreams = tuple(upstream(name, era="newest") for name in servers)
    config = Config(upstreams=upstreams, merging=Merging(page_size=3), views=views)
    async with (
        app.open_mux(config, world.open_channel, recorder) as world.mux,
        trio.open_nursery() as world.nursery,
    ):
        yield world, tape
        world.nursery.cancel_scope.cancel()


async def client_of(world: World, revision: str, view: str = "") -> ScriptedClient:
    client = world.client(principal=world.enter(ANYONE, *view.split("?", 1)))
    client.capabilities = CAPABILITIES
    if revision == MODERN:
        await client.request("server/discover")
    else:
        await client.initialize(revision)
        await client.drain()
    return client


async def live(client: ScriptedClient, server: Varied, name: str = "x") -> None:
    """Do everything that a client does; `server` is the one with that name."""
    await client.walk("resources/list", "resources")
    await client.walk("tools/list", "tools")
    await client.walk("prompts/list", "prompts")
    for uri in (f"{name}+memo:1", f"{name}+memo:2", f"{name}+memo:9"):
        await tried(client, "resources/read", {"uri": uri})
    await client.request("prompts/get", {"name": f"{name}__greet", "arguments": {"name": "me"}})
    ref = {"type": "ref/prompt", "name": f"{name}__greet"}
    await client.request("completion/complete", {"ref": ref, "argument": {"name": "name", "value": "m"}})
    await listen(client, f"{name}+memo:1", f"{name}+memo:2")
    await server.update("memo:2")
    await server.update("memo:1")
    await client.drain()
    for _ in range(2):
        await call(client, f"{name}__count", progressToken="p")
    await call(client, f"{name}__ask")


async def tried(client: ScriptedClient, method: str, params: Json) -> Json | None:
    try:
        return await client.request(method, params)
    except RpcFailure:
        return None


async def listen(client: ScriptedClient, *uris: str) -> list[Json]:
    """Subscribe to resources in the client's era. Return the messages that follow at once."""
    if client.revision == MODERN:
        await client.start("subscriptions/listen", {"notifications": {"resourceSubscriptions": list(uris)}})
        return await client.drain()
    messages: list[Json] = []
    for uri in uris:
        await client.request("resources/subscribe", {"uri": uri})
        messages += await client.drain()
    return messages


async def call(client: ScriptedClient, tool: str, **meta: Any) -> tuple[Json, list[Json]]:
    """Call a tool and answer its questions. Return its result, and the progress before it."""
    params: Json = {"name": tool}
    progress: list[Json] = []
    while True:
        request_id = await client.start("tools/call", params, **meta)
        while (message := await client.receive()).get("id") != request_id or "method" in message:
            if "id" in message:
                await client.send({"id": message["id"], "result": ROOTS})
            else:
                progress.append(message)
        result = message["result"]
        if result.get("resultType") != "input_required":
            return result, progress
        responses = dict.fromkeys(result["inputRequests"], ROOTS)
        params = {"name": tool, "inputResponses": responses, "requestState": result["requestState"]}


Open = Callable[[Any, str], AbstractAsyncContextManager[Any]]


def to_server(server: ScriptedServer) -> Open:
    """Return a function that opens channels to a scripted server."""

    @asynccontextmanager
    async def open_channel(hear: Any, _view: str) -> AsyncIterator[Any]:
        ours, theirs = open_memory_pipes()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve, theirs)
            async with open_duplex_channel(ours, hear) as link:
                yield link
            await ours.aclose()
            nursery.cancel_scope.cancel()

    return open_channel


def to_service(service: Any) -> Open:
    """Return a function that opens channels to the mux, or to its substitute."""

    @asynccontextmanager
    async def open_channel(hear: Any, view: str) -> AsyncIterator[Any]:
        ours, theirs = open_memory_pipes()
        principal = service.enter(ANYONE, *view.split("?", 1)) if view else ANYONE
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(serve_messages, theirs, service, principal=principal))
            async with open_duplex_channel(ours, hear) as link:
                yield link
            await ours.aclose()

    return open_channel


async def replayed(dialogues: Sequence[Dialogue], open_channel: Open, **settings: Any) -> Report:
    report = Report(Counter())
    await run_replay(dialogues, open_channel, report, **{"with_tools": True, "timeout": 20.0, **settings})
    return report


async def taped(revision: str, up: str) -> Tape:
    """Record the capture of a whole session with two servers."""
    servers = {"x": Varied(up), "y": Varied(up)}
    async with open_taped(servers) as (world, tape):
        client = await client_of(world, revision)
        await live(client, servers["x"])
        await trio.testing.wait_all_tasks_blocked()
        return tape
