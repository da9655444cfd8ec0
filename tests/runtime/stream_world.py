"""mcpmux between scripted servers and clients over real sockets: WebSocket, TCP and Unix, on both sides.

The peers' ends of the sockets share no code with mcpmux but the library that speaks WebSocket.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import trio
from trio_websocket import (
    connect_websocket_url,
    serve_websocket,
)

from mcpmux import app
from mcpmux.app.listeners import Serving, serve_listener
from mcpmux.config import Config, Limits, Listeners, Upstream
from mcpmux.config.argument import parse_listen_argument
from mcpmux.config.layout import make_target
from tests.peers.client import QuietClient, ScriptedClient
from tests.peers.revision import Json
from tests.peers.socket_pipe import Lines, Messages
from tests.peers.subscribable import Subscribable

KINDS = ["ws", "tcp", "unix"]
SECONDS = 60  # of real time that one test may take on a busy machine
SAMPLING: Json = {
    "messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}],
    "maxTokens": 5,
}
SAMPLED: Json = {"role": "assistant", "content": {"type": "text", "text": "ho"}, "model": "m"}
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("work", "ask", "hang", "who")]


class Server(Subscribable):
    """Tools: `work` reports progress, `ask` asks the client, `hang` never ends, `who` tells the argument."""

    def __init__(self, revision: str) -> None:
        super().__init__(revision)
        self.lists["tools/list"] = ("tools", TOOLS)
        self.hanging = trio.Event()
        self.listening = trio.Event()  # it has confirmed a subscription
        self.cancelled = trio.Event()
        self._answers, self._answered = trio.open_memory_channel[Json](1)

    def take_answer(self, message: Json) -> None:
        self._answers.send_nowait(message)

    async def send(self, message: Json) -> None:
        await super().send(message)
        honoured = message.get("params", {}).get("notifications", {})
        if self._legacy or honoured.get("resourceSubscriptions"):
            self.listening.set()

    async def handle(self, method: str, params: Json, message: Json) -> Json:
        if method == "resources/read":
            return self._result(
                {"contents": [{"uri": params["uri"], "text": f"of {params['uri']}"}]}, cached=True
            )
        if method != "tools/call":
            return await super().handle(method, params, message)
        if params["name"] == "work":
            for step in (1, 2):
                progress = {"progressToken": params["_meta"]["progressToken"], "progress": step}
                await self.send({"method": "notifications/progress", "params": progress})
            return self._say("done")
        if params["name"] == "ask":
            return await self._ask(params)
        if params["name"] == "who":
            return self._say(params["arguments"]["me"])
        self.hanging.set()
        try:
            await trio.sleep_forever()
        finally:
            self.cancelled.set()
        raise AssertionError

    async def _ask(self, params: Json) -> Json:
        if not self.modern:
            await self.send({"id": "a", "method": "sampling/createMessage", "params": SAMPLING})
            return self._say(json.dumps((await self._answered.receive())["result"]))
        if "inputResponses" in params:
            return self._say(json.dumps(params["inputResponses"]["it"]))
        wish = {"method": "sampling/createMessage", "params": SAMPLING}
        return {"resultType": "input_required", "inputRequests": {"it": wish}, "requestState": "s"}

    def _say(self, text: str) -> Json:
        return self._result({"content": [{"type": "text", "text": text}]})

    def _result(self, result: Json, *, cached: bool = False) -> Json:
        if not self.modern:
            return result
        return result | {"resultType": "complete"} | ({"ttlMs": 0, "cacheScope": "private"} if cached else {})


class StreamWorld:
    """Running mcpmux with one listener at `url`. Servers are at `server_url`, started and stopped by hand."""

    def __init__(self, kind: str, directory: Path, nursery: trio.Nursery) -> None:
        self.kind = kind
        self.url = ""
        self.server_url = ""
        self.mux: app.Mux
        self.stopping = trio.Event()
        self.served = trio.Event()
        self.pipes: list[Any] = []
        self._directory = directory
        self._nursery = nursery
        self._running: trio.CancelScope | None = None
        self._gone = trio.Event()

    async def start(self, server: Server) -> None:
        """Let `server` listen; from the second time on at the same address."""
        self._gone = trio.Event()
        await self._nursery.start(self._serve, server)

    async def stop(self) -> None:
        """Break its streams and stop listening."""
        assert self._running is not None
        self._running.cancel()
        await self._gone.wait()

    async def _serve(self, server: Server, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        with trio.CancelScope() as self._running:
            if self.kind == "ws":
                await self._serve_websocket(server, task_status)
            else:
                await self._serve_lines(server, task_status)
        self._gone.set()

    async def _serve_websocket(self, server: Server, task_status: Any) -> None:
        async def handle(request: Any) -> None:
            assert list(request.proposed_subprotocols) == ["mcp"]
            connection = await request.accept(subprotocol="mcp")
            await server.serve(Messages(connection))

        async with trio.open_nursery() as nursery:
            port = int(self.server_url.rpartition(":")[2].partition("/")[0] or 0)
            listening = await nursery.start(partial(serve_websocket, handle, "127.0.0.1", port, None))
            self.server_url = f"ws://127.0.0.1:{listening.port}/mcp"
            task_status.started()

    async def _serve_lines(self, server: Server, task_status: Any) -> None:
        async def handle(stream: trio.SocketStream) -> None:
            async with stream:
                await server.serve(Lines(stream))

        if self.kind == "tcp":
            port = int(self.server_url.rpartition(":")[2] or 0)
            listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
            self.server_url = f"tcp://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        else:
            path = trio.Path(self._directory / "server.sock")
            await path.unlink(missing_ok=True)
            socket = trio.socket.socket(trio.socket.AF_UNIX)
            await socket.bind(str(path))
            socket.listen()
            listeners = [trio.SocketListener(socket)]
            self.server_url = f"unix:{path}"
        await trio.serve_listeners(handle, listeners, task_status=task_status)

    async def client(self, revision: str = "2026-07-28", capabilities: Json | None = None) -> ScriptedClient:
        """Connect a new client by its own stream."""
        client = QuietClient(await self.connect())
        client.capabilities = capabilities or {}
        if revision != "2026-07-28":
            await client.initialize(revision)
        return client

    async def connect(self) -> Any:
        """Open a new stream to mcpmux, closed at the end of the world."""
        self.pipes.append(await self._connect())
        return self.pipes[-1]

    async def _connect(self) -> Any:
        if self.kind == "ws":
            connection = await connect_websocket_url(self._nursery, self.url, subprotocols=["mcp"])
            assert connection.subprotocol == "mcp"
            return Messages(connection)
        if self.kind == "tcp":
            return Lines(await trio.open_tcp_stream("127.0.0.1", int(self.url.rpartition(":")[2])))
        return Lines(await trio.open_unix_socket(self.url.removeprefix("unix:")))

    async def listen(self, config: Config) -> None:
        """Serve the one listener, as `mcpmux serve` does."""
        (listener,) = config.listeners.bound
        announced: list[str] = []

        async def serve(task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
            serving = Serving(config.limits, self.mux.service, self.stopping, announced.append)
            await serve_listener(listener, serving, task_status=task_status)
            self.served.set()

        await self._nursery.start(serve)
        (self.url,) = announced

    def stop_serving(self) -> None:
        """Stop as `mcpmux serve` does at the first signal."""
        self.stopping.set()
        self.mux.hub.close()


@asynccontextmanager
async def open_stream_world(
    kind: str, server: Server, directory: Path, limits: Limits | None = None, **settings: Any
) -> AsyncIterator[StreamWorld]:
    """Open mcpmux in front of `server`, which is its only upstream `x`."""
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            world = StreamWorld(kind, directory, nursery)
            await world.start(server)
            address = f"unix:{directory}/mux.sock" if kind == "unix" else f"{kind}://127.0.0.1:0"
            listener = parse_listen_argument(address)
            key = {"ws": "websocket"}.get(kind, kind)
            listeners: dict[str, Any] = {key: (listener,)}
            upstream = Upstream(
                name="x", target=make_target(world.server_url), **{"era": "newest", **settings}
            )
            config = Config(
                upstreams=(upstream,), limits=limits or Limits(), listeners=Listeners(**listeners)
            )
            async with app.open_mux(config) as world.mux:
                await world.listen(config)
                try:
                    yield world
                finally:
                    with trio.CancelScope(shield=True):
                        for pipe in world.pipes:
                            await trio.aclose_forcefully(pipe.resource)
                nursery.cancel_scope.cancel()
