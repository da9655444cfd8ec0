"""Configuration in, nurseries around, exit out: where the rooms are put together.

Nesting is the stop order: upstreams ⊃ clients ⊃ exchanges. The first SIGINT or SIGTERM drains: listeners
close, exchanges finish up to a deadline, then upstreams are closed. The second cancels.
"""

from __future__ import annotations

import gc
import secrets
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import structlog
import trio
from msgspec import Raw

from mcpmux import __version__
from mcpmux.config import Config, HttpListener, Identity
from mcpmux.errors import TransportError
from mcpmux.mux.cursor import CursorSeal
from mcpmux.mux.namespace import Namespace
from mcpmux.mux.replay import ReplayBounds
from mcpmux.protocol.asking import SHARED_CAPABILITIES
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.origin import OriginPolicy
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
from mcpmux.runtime.subscriber import Subscriber
from mcpmux.runtime.upstream import OpenChannel, Upstream
from mcpmux.transports.http_message import HttpLimits
from mcpmux.transports.http_server import serve_http
from mcpmux.transports.process import StopLadder
from mcpmux.transports.stdio import open_stdio_pipe

log = structlog.get_logger()

DRAIN_SECONDS = 10.0  # for exchanges that run when we are asked to stop; a container runtime waits as long
STOP_LADDER = StopLadder(close_seconds=2.0, terminate_seconds=2.0)
CURSOR_KEY_BYTES = 32

Announce = Callable[[str], None]


class Mux(NamedTuple):
    """Everything between clients and upstreams, running."""

    router: Router
    front: Front
    relay: Relay
    upstreams: Fleet


@asynccontextmanager
async def open_mux(config: Config, open_channel: OpenChannel | None = None) -> AsyncIterator[Mux]:
    """Connect the upstreams (in the background) and put the router in front of them.

    `open_channel` replaces the real transports, for embedding mcpmux where servers are not reached by them.

    Leaving ends sessions and stops child processes, each step bounded.
    """
    configured = [upstream for upstream in config.upstreams if upstream.enabled]
    namespace = Namespace({upstream.name: upstream.prefix for upstream in configured})
    opener = ChannelOpener(config.limits.max_message_bytes, config.limits.max_head_bytes, STOP_LADDER)
    server_info = _implementation(config.identity)
    settings = {upstream.name: upstream for upstream in configured}

    def make(name: str, key: str, capabilities: Raw, eras: Eras) -> Upstream:
        return Upstream(
            settings[name],
            key,
            capabilities,
            eras if settings[name].era != "legacy" else Eras.LEGACY_ONLY,
            namespace.spaces[name],
            server_info,
            open_channel or opener.open,
            Subscriber(partial(relay.subscriptions.wanted, key), partial(relay.tell_update, key)),
            partial(fleet.client_of, key),
            relay.upstream_changed if key == name else _ignore_change,
            relay.hear,
        )

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
    for name in settings:
        fleet.add(name, make(name, name, SHARED_CAPABILITIES, Eras.MODERN_FIRST))
    merger = Merger(fleet, CursorSeal(_cursor_key(config)), config.merging.page_size)
    router = Router(fleet, namespace, merger, relay, server_info, config.identity.instructions)
    front = Front(router, relay, server_info)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relay.run, name="relay")
        await nursery.start(fleet.run, name="fleet")
        yield Mux(router, front, relay, fleet)
        nursery.cancel_scope.cancel()


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
    sockets = await _listen(listener)
    port = sockets[0].socket.getsockname()[1]
    policy = OriginPolicy(listener.host, listener.allowed_hosts, listener.allowed_origins)
    sessions = SessionLimits(config.limits.max_sessions, config.limits.session_idle, ReplayBounds())
    endpoint = HttpEndpoint(front, listener.path, policy, sessions)
    limits = HttpLimits(
        head_bytes=config.limits.max_head_bytes,
        body_bytes=config.limits.max_message_bytes,
        write_seconds=config.limits.client_stall,
        connections=config.limits.max_connections,
    )
    async with trio.open_nursery() as sessions_of_listener:
        await sessions_of_listener.start(endpoint.run)
        async with trio.open_nursery() as serving:
            serve_listener = partial(serve_http, refuse=refuse, stopping=stopping, limits=limits)
            await serving.start(serve_listener, sockets, endpoint.handle, name=f"http {listener.host}:{port}")
            host = f"[{listener.host}]" if ":" in listener.host else listener.host
            announce(f"http://{host}:{port}{listener.path}")
            task_status.started()
        sessions_of_listener.cancel_scope.cancel()


async def _listen(listener: HttpListener) -> list[trio.SocketListener]:
    try:
        return await trio.open_tcp_listeners(listener.port, host=listener.host)
    except OSError as error:
        reason = error.strerror or str(error)
        raise TransportError(f"cannot listen on {listener.host}:{listener.port}: {reason.lower()}") from None
