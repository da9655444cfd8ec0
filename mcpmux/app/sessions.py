"""Makes sessions with upstreams: as the configuration of now has them, wired to whom they tell what.

Promises: a session is made with the configuration that holds at that moment and keeps it; what is looked up
at each use is replaced in it by `adjust`. Refuses to know when a session begins and ends.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Final

import trio

from mcpmux.config import Config, Http, Stdio, Tcp, Unix, WebSocket
from mcpmux.config import Upstream as UpstreamConfig
from mcpmux.mux.namespace import Namespace
from mcpmux.protocol import method as m
from mcpmux.protocol.input_requests import SHARED_CAPABILITIES
from mcpmux.protocol.raw_json import Raw
from mcpmux.runtime.calls import Client, Question
from mcpmux.runtime.guard import Guard
from mcpmux.runtime.relay import Relay, upstream_of
from mcpmux.runtime.tap import Leg, Tap, Trace, Watch
from mcpmux.runtime.upstreams.addressee import Addressee
from mcpmux.runtime.upstreams.connection import Eras
from mcpmux.runtime.upstreams.fleet import Fleet
from mcpmux.runtime.upstreams.memory import Store
from mcpmux.runtime.upstreams.subscriber import Subscriber
from mcpmux.runtime.upstreams.upstream import OpenChannel, Upstream

FIRST_CLIENT_SECONDS: Final = 45.0  # that a server waits for a client; SDKs wait a minute for an answer

_TRANSPORTS = {Stdio: "stdio", Http: "http", WebSocket: "websocket", Tcp: "tcp", Unix: "unix"}


class Sessions:
    """Makes every `Upstream`. `relay` must be set before the first; `fleet` is empty at first.

    `held`: why upstreams are given no exchange, by name; a new session with one of them is held, too.
    """

    relay: Relay

    def __init__(
        self,
        config: Config,
        server_info: Raw,
        open_channel: OpenChannel,
        tap: Tap | None,
        trace: Trace | None,
        guard: Guard,
        store: Store,
    ) -> None:
        self.server_info = server_info
        self._open_channel = open_channel
        self._tap = tap
        self._trace = trace
        self.guard = guard
        self.store = store
        self.held: dict[str, str] = {}
        self.fleet = Fleet(self._make, self._make_lane, self._move_interest)
        self.adopt(config)

    def __repr__(self) -> str:
        return f"<Sessions {self.fleet!r}>"

    def adopt(self, config: Config) -> None:
        """Sessions are made after this configuration from now on."""
        self.settings: Mapping[str, UpstreamConfig] = {
            upstream.name: upstream for upstream in config.upstreams if upstream.enabled
        }
        self.namespace = Namespace({name: upstream.prefix for name, upstream in self.settings.items()})

    def make_shared(self, name: str) -> Upstream:
        """A new shared session. Whoever listens to its resources already hears of them once it is there."""
        upstream = self._make(name, name, SHARED_CAPABILITIES, Eras.MODERN_FIRST)
        upstream.subscriber.take_over(self.relay.subscriptions.wanted(name))
        return upstream

    def adjust(self, session: Upstream) -> None:
        """What a running session looks up at each use is as the configuration of now says."""
        before, session.config = session.config, self.settings[session.name]
        if session.config.caching is not before.caching:
            self.adjust_memory(session)
        session.space = self.namespace.spaces[session.name]

    def adjust_memory(self, session: Upstream) -> None:
        """What a session has said is kept, or not, as the configuration of now says."""
        session.remember(self.store.memory_of(session.config, session.key))

    def _update(self, key: str, uri: str) -> None:
        """A resource of the session with that key may have changed, which was not heard."""
        upstream = self.fleet.by_key(key)
        if upstream is not None and upstream.memory is not None:
            upstream.memory.updated(uri)
        self.relay.tell_update(key, uri)

    def _make(self, name: str, key: str, capabilities: Raw, eras: Eras) -> Upstream:
        config, relay = self.settings[name], self.relay
        on_change = relay.upstream_changed if key == name else _ignore_change
        upstream = Upstream(
            config,
            key,
            capabilities,
            eras if config.era != "legacy" else Eras.LEGACY_ONLY,
            self.namespace.spaces[name],
            self.server_info,
            self._open_channel,
            Subscriber(
                partial(relay.subscriptions.wanted, key),
                partial(relay.client_listening, key),
                partial(self._update, key),
                partial(on_change, name),
            ),
            partial(self._find_client, key),
            on_change,
            relay.hear,
            _watch(self._tap, config, key, self._trace),
            self.store.generations,
        )
        self.adjust_memory(upstream)
        if name in self.held:
            upstream.hold(self.held[name])
        return upstream

    def _make_lane(self, name: str, key: str) -> Upstream:
        return self._make(name, key, SHARED_CAPABILITIES, Eras.LEGACY_ONLY)

    async def _find_client(self, key: str, question: Question) -> Client | None:
        client = await self._client_meant(key, question)
        space = self.fleet.space(key)
        if client is not None and not self.guard.sees(client.principal, upstream_of(key)):
            return None
        return Addressee(client, space) if client is not None and space is not None else None

    async def _client_meant(self, key: str, question: Question) -> Client | None:
        if question.client is not None:
            return self.fleet.client(question.client)
        if question.task_id is not None:
            found = self.relay.personal.tasks.find(key, question.task_id)
            if found is not None:
                return self.fleet.client(found[0])
        if question.method == m.ROOTS_LIST:  # many servers ask at once when they are started
            with trio.move_on_after(FIRST_CLIENT_SECONDS):
                return await self.fleet.first_client_of(key)
        return self.fleet.client_of(key)

    def _move_interest(self, key: str, name: str) -> None:
        moved = self.relay.move_interest(key, name)
        if name in self.fleet:
            self.fleet[name].subscriber.take_over(moved)

    def on_wanted(self, key: str) -> None:
        """What is wanted of the session with that key has changed."""
        upstream = self.fleet.by_key(key)
        if upstream is not None:
            upstream.subscriber.poke()


def _watch(tap: Tap | None, upstream: UpstreamConfig, key: str, trace: Trace | None) -> Watch | None:
    """How the tap sees the session `key` with an upstream."""
    if tap is None:
        return None
    return Watch(tap, Leg("upstream", key, _TRANSPORTS[type(upstream.target)], upstream.name), trace)


def _ignore_change(_name: str, _capabilities: Collection[str]) -> None:
    """A client's own session comes and goes with it; nobody else's lists change."""
