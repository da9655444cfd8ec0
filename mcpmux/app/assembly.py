"""Everything between clients and upstreams, made and connected.

Promises: nothing runs outside the context; leaving it ends sessions and stops child processes, each step
bounded.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import trio
from msgspec import Raw

from mcpmux import __version__
from mcpmux.config import (
    Config,
    Http,
    Identity,
    Stdio,
    Tcp,
    Unix,
    WebSocket,
)
from mcpmux.config import Upstream as UpstreamConfig
from mcpmux.mux.cursor import CursorSeal
from mcpmux.mux.namespace import Namespace
from mcpmux.protocol.asking import SHARED_CAPABILITIES
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.runtime.calls import Client
from mcpmux.runtime.downstreams.front import Front
from mcpmux.runtime.merger import Merger
from mcpmux.runtime.relay import Relay
from mcpmux.runtime.router import Router
from mcpmux.runtime.tap import Leg, Tap, Trace, Watch
from mcpmux.runtime.tasks.tasks import Tasks
from mcpmux.runtime.upstreams.addressee import Addressee
from mcpmux.runtime.upstreams.channels import ChannelOpener
from mcpmux.runtime.upstreams.connection import Eras
from mcpmux.runtime.upstreams.fleet import Fleet
from mcpmux.runtime.upstreams.subscriber import Subscriber
from mcpmux.runtime.upstreams.upstream import OpenChannel, Upstream
from mcpmux.transports.process import StopLadder

STOP_LADDER = StopLadder(close_seconds=2.0, terminate_seconds=2.0)
CURSOR_KEY_BYTES = 32

_TRANSPORTS = {Stdio: "stdio", Http: "http", WebSocket: "websocket", Tcp: "tcp", Unix: "unix"}


class Mux(NamedTuple):
    """Everything between clients and upstreams, running."""

    router: Router
    front: Front
    relay: Relay
    upstreams: Fleet


@asynccontextmanager
async def open_mux(
    config: Config,
    open_channel: OpenChannel | None = None,
    tap: Tap | None = None,
    trace: Trace | None = None,
) -> AsyncIterator[Mux]:
    """Connect the upstreams (in the background) and put the router in front of them.

    `open_channel` replaces the real transports, for embedding mcpmux where servers are not reached by them.
    `tap` sees every message on both legs; `trace`, which needs a tap, every call of an upstream.

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
            _watch(tap, settings[name], key, trace),
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


def _watch(tap: Tap | None, upstream: UpstreamConfig, key: str, trace: Trace | None) -> Watch | None:
    """How the tap sees the session `key` with an upstream."""
    if tap is None:
        return None
    return Watch(tap, Leg("upstream", key, _TRANSPORTS[type(upstream.target)], upstream.name), trace)


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
