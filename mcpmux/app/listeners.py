"""Open, announce and serve each configured listener, and decide which of them authenticate clients.

A listener that would admit strangers from the network without an explicit setting does not start.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import structlog
import trio
from trio.abc import Listener

from mcpmux.clients.http_answer import refuse
from mcpmux.clients.http_endpoint import HttpEndpoint
from mcpmux.clients.server_card import ServerCard
from mcpmux.clients.service import Service
from mcpmux.clients.stdio_client import serve_messages
from mcpmux.config import (
    AnyListener,
    Config,
    HttpListener,
    Limits,
    TcpListener,
    UnixListener,
    WebSocketListener,
)
from mcpmux.config.auth import find_unguarded_listeners
from mcpmux.config.listener import asks_certificate, is_loopback, join_address
from mcpmux.errors import ConfigError
from mcpmux.mux.rewrite import Marks
from mcpmux.mux.share import Share
from mcpmux.protocol.headers import OriginPolicy
from mcpmux.protocol.principal import ANYONE
from mcpmux.transports.body_budget import BodyBudget
from mcpmux.transports.handing import HandedListener
from mcpmux.transports.http.server import serve_http
from mcpmux.transports.http.server_connection import Handler
from mcpmux.transports.stdio import open_stdio_stream
from mcpmux.transports.stream import open_tcp_listeners, open_unix_listener, serve_streams
from mcpmux.transports.tls import CurrentContext, TlsContexts
from mcpmux.transports.waiting import ReadinessPoller

if TYPE_CHECKING:
    from mcpmux.auth.gate import Gate
    from mcpmux.cluster.replica import Replica

log = structlog.get_logger()

Announce = Callable[[str], None]
StreamListener = WebSocketListener | TcpListener | UnixListener
SCHEMES = {HttpListener: ("http", "https"), WebSocketListener: ("ws", "wss"), TcpListener: ("tcp", "tls")}


class Serving(msgspec.Struct, frozen=True):
    """The objects that all listeners share. `announce` is called with a listener's URL when it is ready.

    `gate` authenticates clients from the network. `certificates`: the renewable ones. `stdio_view`: the view
    of the client on standard input and output. `replica`: this process among others that serve the same
    clients. `config` returns the present configuration; without it there are no server cards. `bodies`: the
    budget for large requests to all listeners.
    """

    limits: Limits
    service: Service
    stopping: trio.Event
    announce: Announce
    gate: Gate | None = None
    certificates: TlsContexts = msgspec.field(default_factory=TlsContexts)
    poller: ReadinessPoller | None = None
    stdio_view: str = ""
    replica: Replica | None = None
    config: Callable[[], Config] | None = None
    bodies: BodyBudget | None = None


async def serve_stdio(serving: Serving) -> None:
    """Serve the client on standard input and output, and set `stopping` when it has gone."""
    limits = serving.limits
    async with open_stdio_stream(limits.max_message_bytes) as messages, trio.open_nursery() as nursery:

        async def end_when_stopping() -> None:
            await serving.stopping.wait()
            nursery.cancel_scope.cancel(reason="stopping")

        nursery.start_soon(end_when_stopping)
        # Without a name: the client on standard input has started this process, and sends no token.
        await serve_messages(messages, serving.service, limits, principal=ANYONE.within(serving.stdio_view))
        serving.stopping.set()


async def serve_listener(
    listener: AnyListener,
    serving: Serving,
    handed: HandedListener | None = None,
    number: int = 0,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve clients of listener `number` until we stop.

    `handed`: the connections that another process accepts, which has bound the address. Raises TransportError
    when the address cannot be listened on, ConfigError for unusable TLS files.
    """
    tls = await tls_of(listener, serving.certificates)
    async with AsyncExitStack() as stack:
        accepting: Accepting
        if handed is None:
            url, accepting = await stack.enter_async_context(open_address(listener))
        else:
            url, accepting = "handed connections", [handed]
        # Around the connections: sessions and resumable calls outlive them.
        sessions = await stack.enter_async_context(trio.open_nursery())
        async with trio.open_nursery() as connections:
            if isinstance(listener, HttpListener):
                serve = await _prepare_http(listener, serving, tls, handed, number, sessions)
            else:
                serve = _prepare_streams(listener, serving, tls)
            await connections.start(serve, accepting, name=url)
            # Only now: a reader of the URL may connect at once.
            serving.announce(url)
            task_status.started()
        sessions.cancel_scope.cancel()


Accepting = Sequence[Listener[trio.SocketStream]]
Serve = Callable[..., Awaitable[None]]
"""Serve the connections of listening sockets, or of a HandedListener."""


async def _prepare_http(
    listener: HttpListener,
    serving: Serving,
    tls: CurrentContext | None,
    handed: HandedListener | None,
    number: int,
    nursery: trio.Nursery,
) -> Serve:
    """Return the function that serves an HTTP listener. `nursery`: for its sessions."""
    limits, stopping = serving.limits, serving.stopping
    gate = gate_of(listener, serving.gate)
    replica = serving.replica
    marks = replica.members.marks if replica is not None else Marks()
    sessions = replica.sessions_of(number) if replica is not None else None
    card = ServerCard(listener, serving.config) if serving.config is not None else None
    parts = gate, stopping, marks, sessions, card, serving.bodies
    endpoint = HttpEndpoint(serving.service, listener, limits, *parts)
    handle: Handler = endpoint.handle
    door = None
    if replica is not None and sessions is not None:
        sessions.on_loss = endpoint.sessions.lose
        nursery.start_soon(sessions.run, name="sessions in the store")
        door = replica.door_of(number, endpoint, sessions)
        handle = door.handle
    await nursery.start(endpoint.sessions.run)
    serve = partial(
        serve_http,
        handler=handle,
        inline=True,
        refuse=refuse,
        stopping=stopping,
        limits=limits,
        tls=tls,
        give_back=handed.give_back if handed is not None else None,
        poller=serving.poller,
        grants=endpoint.grants,
        judge=endpoint.judge,
        bodies=serving.bodies,
    )
    if door is None:
        return serve

    async def serve_replicas_too(accepting: Accepting, *, task_status: trio.TaskStatus[None]) -> None:
        await serve(accepting, task_status=task_status)
        # Requests of other replicas arrive on none of these connections, and are to be answered as well.
        await door.drained()

    return serve_replicas_too


def _prepare_streams(listener: StreamListener, serving: Serving, tls: CurrentContext | None) -> Serve:
    # Imported here: most configurations have HTTP listeners only, and importing WebSocket takes long.
    from mcpmux.clients.stream_clients import StreamClients
    from mcpmux.transports.websocket import HandshakePolicy

    limits, door = serving.limits, None
    if isinstance(listener, WebSocketListener):
        policy = OriginPolicy(listener.host, listener.allowed_hosts, listener.allowed_origins)
        door = HandshakePolicy(listener.path, policy, opens_below=True)  # paths below it name views
    gate = gate_of(listener, serving.gate)
    view = "" if isinstance(listener, WebSocketListener) else listener.view or ""
    # Each stream holds what it receives: one client with many must not take it all.
    share = Share(limits.stream_share())
    counted = share, serving.bodies
    clients = StreamClients(serving.service, limits, serving.stopping, door, gate, view, *counted)
    most = min(limits.max_connections, limits.max_sessions)  # a stream has at most one session

    async def serve(accepting: Accepting, *, task_status: trio.TaskStatus[None]) -> None:
        part = limits.address_share(most)
        await serve_streams(accepting, clients.serve, serving.stopping, most, part, tls, task_status)

    return serve


@asynccontextmanager
async def open_address(listener: AnyListener) -> AsyncIterator[tuple[str, list[trio.SocketListener]]]:
    """Yield (URL, listening sockets) of a listener, without TLS. Raises TransportError."""
    # A socket at a path is removed at the end, so that the next start finds no file in its place.
    if isinstance(listener, UnixListener):
        async with open_unix_listener(listener.path, int(listener.mode, 8)) as unix:
            yield f"unix:{listener.path}", [unix]
        return
    port, sockets = await open_tcp_listeners(listener.host, listener.port)
    scheme = SCHEMES[type(listener)][listener.tls is not None]
    path = "" if isinstance(listener, TcpListener) else listener.path
    yield f"{scheme}://{join_address(listener.host, port)}{path}", sockets


async def tls_of(listener: AnyListener, certificates: TlsContexts) -> CurrentContext | None:
    """Return the TLS context of a listener, None without TLS. Raises ConfigError for unusable files."""
    if listener.tls is None:
        return None
    return await certificates.open(f"listener {listener.address}", listener.tls)


def check_listeners(config: Config) -> None:
    """Check that no listener would admit strangers, and that key files are usable. Raises ConfigError."""
    # Also when the file is read again: tokens that are removed there could open a listener to strangers.
    problems = [f"{where}: {text}" for where, text in find_unguarded_listeners(config.listeners, config.auth)]
    if problems:
        raise ConfigError(problems)
    # Imported here: JWTs need joserfc, an extra, and most configurations have none.
    if config.auth.issuers:
        from mcpmux.auth.jwt import check_key_file

        for name, issuer in config.auth.issuers.items():
            check_key_file(name, issuer)


async def make_gate(config: Config) -> Gate | None:
    """Return the gate that authenticates clients; None if no listener does. Raises like `check_listeners`."""
    await trio.to_thread.run_sync(check_listeners, config)  # it reads files
    if not config.auth.asks_tokens and not any(map(asks_certificate, config.listeners.bound)):
        return None
    on_web = (*config.listeners.http, *config.listeners.websocket) if config.auth.asks_tokens else ()
    for listener in on_web:
        if listener.tls is None and not is_loopback(listener.host):
            log.warning(
                "tokens travel unencrypted to this listener unless something in front of it speaks TLS",
                listener=listener.address,
            )
    from mcpmux.auth.discovery import fetch_json
    from mcpmux.auth.gate import Gate

    return Gate(config.auth, config.identity.shown, fetch_json, time.time)


def gate_of(listener: AnyListener, gate: Gate | None) -> Gate | None:
    """Return the gate of one listener; None when it does not authenticate clients."""
    # The permissions of a socket's file decide who may connect there.
    if gate is None or isinstance(listener, UnixListener):
        return None
    # On TCP there is no place for a token: such a client shows a certificate, or is of this machine.
    if asks_certificate(listener) or (gate.asks_tokens and not isinstance(listener, TcpListener)):
        return gate
    return None
