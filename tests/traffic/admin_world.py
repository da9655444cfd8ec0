"""An admin listener in front of a running mux, and traffic for it: made by hand, or real."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import trio

from mcpmux.app.control import Control
from mcpmux.app.held import MuxDesk
from mcpmux.app.listeners import Serving, serve_listener
from mcpmux.app.observers import hosts_route, serve_mock
from mcpmux.app.view_contents import MuxViews
from mcpmux.channels.tap import EXCHANGE, Leg
from mcpmux.config import AccessRule, HttpListener, Intercept, Limits
from mcpmux.config.listener import Admin
from mcpmux.config.traffic import Redaction
from mcpmux.config.views import View
from mcpmux.protocol.call import Call
from mcpmux.protocol.principal import ANYONE
from mcpmux.traffic.admin.calls import OFF, Calls, call_routes
from mcpmux.traffic.admin.configured_views import view_routes
from mcpmux.traffic.admin.held import held_routes
from mcpmux.traffic.admin.listener import serve_admin
from mcpmux.traffic.admin.mocks import Mocks
from mcpmux.traffic.admin.ring import LiveRing
from mcpmux.traffic.admin.upstreams import Replicas, UpstreamView
from mcpmux.traffic.admin.view import LiveView
from mcpmux.traffic.observer import Observation
from mcpmux.traffic.record import Run
from mcpmux.traffic.recorder import Recorder
from mcpmux.traffic.redaction.redactor import Redactor
from mcpmux.traffic.telemetry.metrics import Metrics
from mcpmux.traffic.telemetry.prometheus import Family, metrics_route, mux_gauges, snapshot
from mcpmux.transports.http.route import HttpOrigin
from mcpmux.transports.sse import SseDecoder
from mcpmux.transports.tls import TlsContexts
from tests.peers.server import ScriptedServer
from tests.runtime.world import World, open_world

Json = dict[str, Any]
SECRET = "sk-live-4242424242424242abcdef"
WAIT_SECONDS = 60


class Traffic:
    """A recorder and the ring behind it, with messages made by hand.

    `now` is the recorder's clock; `ago`: seconds since it was 0.
    """

    def __init__(self, rows: int = 100_000, size: int = 64 * 2**20, ago: float = 0) -> None:
        self.now = 0.0
        self.run = Run("test", 0.0, time.time() - ago)
        ring = LiveRing(rows, size)
        self.recorder = Recorder([ring], [ring], lambda: self.now)
        self.view = LiveView(ring, Redactor(Redaction()), self.run)
        self.client = self.recorder.client("http")
        self.client.name = "example-client"
        self.client.revision = "2026-07-28"
        self.upstreams = {name: Leg("upstream", name, "stdio", name) for name in ("docs", "search")}
        self._ids = 0

    @property
    def ring(self) -> LiveRing:
        return self.view.ring

    def message_passed(self, leg: Leg, direction: Any, message: Json, status: int | None = None) -> None:
        self.recorder.message_passed(
            leg, direction, json.dumps({"jsonrpc": "2.0", **message}).encode(), status
        )

    def begin(self, method: str, params: Json, view: str = "") -> tuple[int, int]:
        """Begin a request of a client of a view. Return its id, and the number of its exchange."""
        self._ids += 1
        self.message_passed(self.client, "in", {"id": self._ids, "method": method, "params": params})
        exchange = self.recorder.exchange_of(self.client, self._ids)
        self.recorder.admit(self.client, exchange, Call(method, {}, {}, principal=ANYONE.within(view)))
        return self._ids, exchange

    def exchange(
        self,
        method: str = "tools/call",
        params: Json | None = None,
        upstream: str = "docs",
        *,
        inside: Json | None = None,
        answer: Json | None = None,
        ms: float = 12.0,
        view: str = "",
    ) -> int:
        """Make a whole exchange, and return its number. `inside`: the params for the upstream."""
        params = (
            params if params is not None else {"name": f"{upstream}__find", "arguments": {"n": self._ids}}
        )
        answer = (
            answer if answer is not None else {"result": {"content": [{"type": "text", "text": "found"}]}}
        )
        request, exchange = self.begin(method, params, view)
        leg = self.upstreams[upstream]
        token = EXCHANGE.set(exchange)
        try:
            self.now += 0.1 * ms / 1000
            own = (
                inside
                if inside is not None
                else {**params, "name": str(params.get("name", "")).removeprefix(f"{upstream}__")}
            )
            self.message_passed(leg, "out", {"id": request + 1000, "method": method, "params": own})
            self.now += 0.8 * ms / 1000
            self.message_passed(leg, "in", {"id": request + 1000, **answer})
            self.now += 0.1 * ms / 1000
            self.message_passed(self.client, "out", {"id": request, **answer}, 200)
        finally:
            EXCHANGE.reset(token)
        return exchange

    def quick(self, number: int) -> None:
        """Put `number` finished exchanges into the ring, without a recorder."""
        request = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()
        response = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {}}).encode()
        for exchange in range(1, number + 1):
            self.ring.take(Observation(self.client, "in", request, self.now, "request", exchange, "ping", 1))
            self.ring.take(
                Observation(self.client, "out", response, self.now, "result", exchange, "ping", 1, ms=1.0)
            )


class Listening:
    """A running admin listener."""

    def __init__(self, traffic: Traffic, world: World, announced: str) -> None:
        self.traffic = traffic
        self.world = world
        self.announced = announced
        self.port = HttpOrigin.from_url(announced).port
        self.url = f"http://127.0.0.1:{self.port}"
        self.token = (parse_qs(urlsplit(announced).query).get("token") or [""])[0]
        self.stopping: trio.Event


@asynccontextmanager
async def listening(
    traffic: Traffic | None = None,
    servers: Mapping[str, ScriptedServer | None] | None = None,
    tap: bool = False,
    file: Any = None,
    health_interval: float | None = None,
    views: Mapping[str, View] = MappingProxyType({}),
    access: tuple[AccessRule, ...] = (),
    intercept: tuple[Intercept, ...] = (),
    replicas: Replicas | None = None,
    **settings: Any,
) -> AsyncIterator[Listening]:
    """Open an admin listener on a free port. With `tap` it shows the traffic of its mux to HTTP clients.

    `file`: what a reload reads.
    """
    traffic = traffic or Traffic()
    servers = servers if servers is not None else {"docs": ScriptedServer(tools=[]), "search": None}
    announced: list[str] = []
    of_each = {name: {"health_interval": health_interval} for name in servers} if health_interval else None
    async with (
        open_world(
            servers,
            settings=of_each,
            views=views,
            access=access,
            intercept=intercept,
            tap=traffic.recorder if tap else None,
        ) as world,
        trio.open_nursery() as nursery,
    ):
        upstreams = UpstreamView(
            world.mux.upstreams,
            world.mux.hub,
            traffic.view.redactor,
            traffic.run,
            lambda: world.mux.config.upstreams,
        )
        stopping = trio.Event()
        control = Control(world.mux, file)

        async def row_of(exchange: int) -> int | None:
            return traffic.view.ring.row_of(exchange)

        async def read_metrics() -> list[Family]:
            return snapshot(Metrics(), mux_gauges(world.mux.upstreams, world.mux.hub))

        serve = partial(
            serve_admin,
            Admin(**{"port": 0, **settings}),
            traffic.view,
            upstreams,
            stopping,
            announced.append,
            [
                hosts_route(),
                *view_routes(MuxViews(world.mux, traffic.view.redactor)),
                *call_routes(Calls(world.mux.service, row_of).answer if tap else OFF),
                metrics_route(read_metrics),
                *Mocks(traffic.view, serve_mock, nursery).routes,
                *held_routes(MuxDesk(world.mux, row_of)),
            ],
            control,
            TlsContexts(),
            replicas,
        )
        if tap:
            serving = Serving(Limits(), world.mux.service, stopping, control.noting(lambda _: None))
            await nursery.start(serve_listener, HttpListener(port=0), serving)
        await nursery.start(serve)
        here = Listening(traffic, world, announced[0])
        here.stopping = stopping
        yield here
        nursery.cancel_scope.cancel()


async def ask(here, path, *, method="GET", token=None, **headers):
    """Make one request, and return (status, headers, body)."""
    async with connection(here, path, method=method, token=token, **headers) as stream:
        answer = b""
        with trio.fail_after(WAIT_SECONDS):
            async for part in stream:
                answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(first.split()[1]), fields, body


@asynccontextmanager
async def connection(here, path, *, method="GET", token=None, body=b"", **headers):
    fields = {
        "host": f"127.0.0.1:{here.port}",
        "connection": "close",
        **{k.replace("_", "-"): v for k, v in headers.items()},
    }
    if token is not None:
        fields["authorization"] = f"Bearer {token}"
    if body:
        fields["content-length"] = str(len(body))
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    async with await trio.open_tcp_stream("127.0.0.1", here.port) as stream:
        await stream.send_all(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body)
        yield stream


async def get(here, path):
    status, _, body = await ask(here, path, token=here.token)
    assert status == 200, body
    return json.loads(body)


@asynccontextmanager
async def events(here, path, **request):
    """Open an event stream, and yield a channel of its (event, data) pairs."""
    async with connection(here, path, token=here.token, **request) as stream:
        send, receive = trio.open_memory_channel(10_000)

        async def read(task_status):
            decoder = SseDecoder(2**24)
            data = b""
            while b"\r\n\r\n" not in data:
                data += await stream.receive_some()
            assert data.startswith(b"HTTP/1.1 200"), data
            rest = data.partition(b"\r\n\r\n")[2]
            task_status.started()
            while True:
                for event in decoder.feed(unchunked(rest)):
                    send.send_nowait((event.event, json.loads(event.data)))
                rest = await stream.receive_some()
                if not rest:
                    send.close()
                    return

        async with trio.open_nursery() as nursery:
            await nursery.start(read)
            yield receive
            nursery.cancel_scope.cancel()


def unchunked(data):
    """Return the data without the size lines of its chunks. In these chunks line ends come only in pairs."""
    return re.sub(rb"(?:\A|\r\n)[0-9a-f]+\r\n", b"", data).removesuffix(b"\r\n")


async def hear(receive):
    with trio.fail_after(WAIT_SECONDS):
        return await receive.receive()


async def post(here, path, body=b"{}", **headers):
    """Return (status, headers, body) of a POST with the token, unless `headers` have credentials."""
    token = None if headers.keys() & {"authorization", "cookie"} else here.token
    fields = {"content_type": "application/json", "content_length": str(len(body)), **headers}
    return await ask(here, path, method="POST", token=token, body=body, **fields)
