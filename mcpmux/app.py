"""Configuration in, nurseries around, exit out: where the rooms are put together.

Nesting is the stop order: upstreams ⊃ clients ⊃ exchanges. The first SIGINT or SIGTERM drains: listeners
close, exchanges finish up to a deadline, then upstreams are closed. The second cancels.
"""

from __future__ import annotations

import gc
import secrets
import signal
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import structlog
import trio
from msgspec import Raw
from trio.abc import Listener, Stream

from mcpmux import __version__
from mcpmux.config import (
    Config,
    Http,
    HttpListener,
    Identity,
    Stdio,
    Tcp,
    TcpListener,
    Unix,
    UnixListener,
    WebSocket,
    WebSocketListener,
)
from mcpmux.config import Upstream as UpstreamConfig
from mcpmux.errors import ConfigError, TransportError
from mcpmux.mux.cursor import CursorSeal
from mcpmux.mux.namespace import Namespace
from mcpmux.mux.replay import ReplayBounds
from mcpmux.protocol.asking import SHARED_CAPABILITIES
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.origin import OriginPolicy
from mcpmux.runtime.addressee import Addressee
from mcpmux.runtime.calls import Client
from mcpmux.runtime.channels import ChannelOpener
from mcpmux.runtime.connection import Eras
from mcpmux.runtime.fleet import Fleet
from mcpmux.runtime.front import Front
from mcpmux.runtime.http_answer import refuse
from mcpmux.runtime.http_endpoint import HttpEndpoint, SessionLimits
from mcpmux.runtime.merger import Merger
from mcpmux.runtime.relay import Relay
from mcpmux.runtime.router import Router
from mcpmux.runtime.stdio_client import serve_pipe
from mcpmux.runtime.stream_clients import StreamClients, StreamLimits
from mcpmux.runtime.subscriber import Subscriber
from mcpmux.runtime.tap import Leg, Tap, Watch
from mcpmux.runtime.tasks import Tasks
from mcpmux.runtime.upstream import OpenChannel, Upstream
from mcpmux.transports.http_message import HttpLimits
from mcpmux.transports.http_server import serve_http
from mcpmux.transports.process import StopLadder
from mcpmux.transports.stdio import open_stdio_pipe
from mcpmux.transports.stream_server import open_tcp_listeners, serve_streams
from mcpmux.transports.tls import server_context
from mcpmux.transports.unix_socket import open_unix_listener
from mcpmux.transports.websocket_server import Door

log = structlog.get_logger()

DRAIN_SECONDS = 10.0  # for exchanges that run when we are asked to stop; a container runtime waits as long
STOP_LADDER = StopLadder(close_seconds=2.0, terminate_seconds=2.0)
CURSOR_KEY_BYTES = 32

_TRANSPORTS = {Stdio: "stdio", Http: "http", WebSocket: "websocket", Tcp: "tcp", Unix: "unix"}

Announce = Callable[[str], None]
StreamListener = WebSocketListener | TcpListener | UnixListener


class Mux(NamedTuple):
    """Everything between clients and upstreams, running."""

    router: Router
    front: Front
    relay: Relay
    upstreams: Fleet


@asynccontextmanager
async def open_mux(
    config: Config, open_channel: OpenChannel | None = None, tap: Tap | None = None
) -> AsyncIterator[Mux]:
    """Connect the upstreams (in the background) and put the router in front of them.

    `open_channel` replaces the real transports, for embedding mcpmux where servers are not reached by them.
    `tap` sees every message on both legs.

    Leaving ends sessions and stops child processes, each step bounded.
    """
    configured = [upstream for upstream in config.upstreams if upstream.enabled]
    namespace = Namespace({upstream.name: upstream.prefix for upstream in configured})
    opener = ChannelOpener(config.limits.max_message_bytes, config.limits.max_head_bytes, STOP_LADDER)
    server_info = _implementation(config.identity)
    settings = {upstream.name: upstream for upstream in configured}

    def make(name: str, key: str, capabilities: Raw, eras: Eras) -> Upstream:
        on_change = relay.upstream_changed if key == name else _ignore_change
        return Upstream(
            settings[name],
            key,
            capabilities,
            eras if settings[name].era != "legacy" else Eras.LEGACY_ONLY,
            namespace.spaces[name],
            server_info,
            open_channel or opener.open,
            Subscriber(
                partial(relay.subscriptions.wanted, key),
                partial(relay.tell_update, key),
                partial(on_change, name),
            ),
            partial(find_client, key),
            on_change,
            relay.hear,
            _watch(tap, settings[name], key),
        )

    def find_client(key: str, task_id: str | None) -> Client | None:
        found = relay.personal.tasks.find(key, task_id) if task_id is not None else None
        client = fleet.client(found[0]) if found is not None else fleet.client_of(key)
        space = fleet.space(key)
        return Addressee(client, space) if client is not None and space is not None else None

    def on_wanted(key: str) -> None:
        upstream = fleet.by_key(key)
        if upstream is not None:
            upstream.subscriber.poke()

    def make_lane(name: str, key: str) -> Upstream:
        return make(name, key, SHARED_CAPABILITIES, Eras.LEGACY_ONLY)

    def move_interest(key: str, name: str) -> None:
        fleet[name].subscriber.take_over(relay.move_interest(key, name))

    fleet = Fleet(make, make_lane, move_interest)
    relay = Relay(fleet.space, config.merging.change_window, on_wanted)
    relay.passes_all = namespace.transparent is not None
    for name in settings:
        fleet.add(name, make(name, name, SHARED_CAPABILITIES, Eras.MODERN_FIRST))
    tasks = Tasks(relay.personal, fleet.client)
    merger = Merger(fleet, CursorSeal(_cursor_key(config)), config.merging.page_size, tasks.hides)
    router = Router(fleet, namespace, merger, relay, tasks, server_info, config.identity.instructions)
    front = Front(router, relay, server_info, tap)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relay.run, name="relay")
        await nursery.start(tasks.waits.run)
        await nursery.start(fleet.run, name="fleet")
        yield Mux(router, front, relay, fleet)
        nursery.cancel_scope.cancel()


def _watch(tap: Tap | None, upstream: UpstreamConfig, key: str) -> Watch | None:
    """How the tap sees the session `key` with an upstream."""
    if tap is None:
        return None
    return Watch(tap, Leg("upstream", key, _TRANSPORTS[type(upstream.target)], upstream.name))


def _ignore_change(_name: str, _facts: ServerFacts) -> None:
    """A client's own session comes and goes with it; nobody else's lists change."""


def _implementation(identity: Identity) -> Raw:
    info = {"name": identity.name, "version": __version__}
    if identity.title is not None:
        info["title"] = identity.title
    return raw(info)


def _cursor_key(config: Config) -> bytes:
    key = config.merging.cursor_key
    return key.reveal().encode() if key is not None else secrets.token_bytes(CURSOR_KEY_BYTES)


async def serve(config: Config, announce: Announce) -> None:
    """Serve until SIGINT or SIGTERM, or until the client on standard input has gone.

    `announce` is called with each listener's URL when it is ready. Raises TransportError when an address
    cannot be listened on.
    """
    stopping = trio.Event()
    async with trio.open_nursery() as signals:
        signals.start_soon(_watch_signals, stopping, signals.cancel_scope, name="signals")
        async with open_mux(config) as mux, trio.open_nursery() as clients:
            for listener in config.listeners.http:
                await clients.start(_serve_http, listener, config, mux.front, stopping, announce)
            for each in config.listeners.streams:
                await clients.start(_serve_streams, each, config, mux.front, stopping, announce)
            if config.listeners.stdio:
                clients.start_soon(_serve_stdio, config, mux.front, stopping, name="stdio client")
            _settle_memory()
            await stopping.wait()
            mux.relay.close()
            clients.cancel_scope.deadline = trio.current_time() + DRAIN_SECONDS
        signals.cancel_scope.cancel()


def _settle_memory() -> None:
    """What exists once everything is set up stays: the collector need not look at it on every round."""
    gc.collect()
    gc.freeze()


async def _watch_signals(stopping: trio.Event, everything: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
        async for number in received:
            name = signal.Signals(number).name
            if stopping.is_set():
                log.warning("stopping at once", signal=name)
                everything.cancel(reason=f"second {name}")
                return
            log.info("stopping; once more to stop at once", signal=name)
            stopping.set()


async def _serve_stdio(config: Config, front: Front, stopping: trio.Event) -> None:
    async with open_stdio_pipe(config.limits.max_message_bytes) as pipe:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_when, stopping, scope)
                await serve_pipe(pipe, front, config.limits.client_stall)
                stopping.set()


async def _cancel_when(stopping: trio.Event, scope: trio.CancelScope) -> None:
    await stopping.wait()
    scope.cancel(reason="stopping")


async def _serve_http(
    listener: HttpListener,
    config: Config,
    front: Front,
    stopping: trio.Event,
    announce: Announce,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    tls = await _tls_of(listener)
    sockets = await _listen(listener)
    port = sockets[0].socket.getsockname()[1]
    policy = OriginPolicy(listener.host, listener.allowed_hosts, listener.allowed_origins)
    sessions = SessionLimits(config.limits.max_sessions, config.limits.session_idle, ReplayBounds())
    stall = config.limits.client_stall
    endpoint = HttpEndpoint(front, listener.path, policy, sessions, listener.sse_path, stall)
    limits = HttpLimits(
        head_bytes=config.limits.max_head_bytes,
        body_bytes=config.limits.max_message_bytes,
        write_seconds=stall,
        connections=config.limits.max_connections,
    )
    async with trio.open_nursery() as sessions_of_listener:
        await sessions_of_listener.start(endpoint.run)
        sessions_of_listener.start_soon(endpoint.drain_after, stopping, name="drain")
        async with trio.open_nursery() as serving:
            serve_listener = partial(serve_http, refuse=refuse, stopping=stopping, limits=limits, tls=tls)
            await serving.start(serve_listener, sockets, endpoint.handle, name=f"http {listener.host}:{port}")
            host = f"[{listener.host}]" if ":" in listener.host else listener.host
            announce(f"{'http' if tls is None else 'https'}://{host}:{port}{listener.path}")
            task_status.started()
        sessions_of_listener.cancel_scope.cancel()


async def _serve_streams(
    listener: StreamListener,
    config: Config,
    front: Front,
    stopping: trio.Event,
    announce: Announce,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    limits = config.limits
    door = None
    if isinstance(listener, WebSocketListener):
        policy = OriginPolicy(listener.host, listener.allowed_hosts, listener.allowed_origins)
        door = Door(listener.path, policy)
    bounds = StreamLimits(limits.max_message_bytes, limits.client_stall)
    clients = StreamClients(front, bounds, stopping, door)
    most = min(limits.max_connections, limits.max_sessions)  # a stream has at most one session
    async with _open_listeners(listener) as (url, listeners), trio.open_nursery() as serving:
        await serving.start(serve_streams, listeners, clients.serve, stopping, most, name=url)
        announce(url)
        task_status.started()


@asynccontextmanager
async def _open_listeners(listener: StreamListener) -> AsyncIterator[tuple[str, list[Listener[Stream]]]]:
    """What listens, and its URL."""
    if isinstance(listener, UnixListener):
        async with open_unix_listener(listener.path, int(listener.mode, 8)) as unix:
            yield f"unix:{listener.path}", [unix]
        return
    tls = await _tls_of(listener)
    port, listeners = await open_tcp_listeners(listener.host, listener.port, tls)
    host = f"[{listener.host}]" if ":" in listener.host else listener.host
    if isinstance(listener, WebSocketListener):
        yield f"{'ws' if tls is None else 'wss'}://{host}:{port}{listener.path}", listeners
    else:
        yield f"{'tcp' if tls is None else 'tls'}://{host}:{port}", listeners


async def _tls_of(listener: HttpListener | WebSocketListener | TcpListener) -> ssl.SSLContext | None:
    if listener.tls is None:
        return None
    try:
        return await trio.to_thread.run_sync(server_context, listener.tls)
    except ConfigError as error:
        where = f"listener {listener.host}:{listener.port}"
        raise ConfigError([f"{where}: {problem}" for problem in error.problems]) from None


async def _listen(listener: HttpListener) -> list[trio.SocketListener]:
    try:
        return await trio.open_tcp_listeners(listener.port, host=listener.host)
    except OSError as error:
        reason = error.strerror or str(error)
        raise TransportError(f"cannot listen on {listener.host}:{listener.port}: {reason.lower()}") from None
