"""All upstreams: the shared session with each, its lane for legacy clients, and clients' private ones.

A private session (`session = "per-client"`) is opened at the client's first use of the upstream, with that
client's capabilities, and closed when the client goes. The shared one beside it tells what the server can
do, and serves clients that nobody can recognise again (stateless requests over HTTP).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

import structlog
import trio
from msgspec import Raw

from mcpmux.mux.namespace import Space
from mcpmux.protocol.call import CLIENT_CAPABILITIES, Call
from mcpmux.protocol.envelope import EMPTY_OBJECT
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.runtime.calls import Client
from mcpmux.runtime.upstreams.connection import Eras
from mcpmux.runtime.upstreams.lanes import Lanes, MakeLane, MoveInterest, lane_key, mirrors
from mcpmux.runtime.upstreams.upstream import Upstream

log = structlog.get_logger()

MakePrivate = Callable[[str, str, Raw, Eras], Upstream]
"""Makes the upstream for a private session: (configured name, key, the client's capabilities, eras)."""


class Fleet(Mapping[str, Upstream]):
    """The shared upstreams by name, in configuration order. `run` has to run."""

    def __init__(self, make_private: MakePrivate, make_lane: MakeLane, move_interest: MoveInterest) -> None:
        self._shared: dict[str, Upstream] = {}
        self._make_private = make_private
        self._private: dict[object, dict[str, tuple[Upstream, trio.CancelScope]]] = {}
        self._by_key: dict[str, Upstream] = {}
        self._lanes = Lanes(make_lane, self._by_key, move_interest)
        self._clients: dict[object, Client] = {}
        self._numbers = itertools.count(1)
        self._nursery: trio.Nursery

    def __repr__(self) -> str:
        return f"<Fleet {list(self._shared.values())}, {len(self._private)} clients with own sessions>"

    def __getitem__(self, name: str) -> Upstream:
        return self._shared[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shared)

    def __len__(self) -> int:
        return len(self._shared)

    def add(self, name: str, upstream: Upstream) -> None:
        """One more shared upstream, before `run`."""
        self._shared[name] = self._by_key[name] = upstream

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep every upstream connected until cancelled."""
        async with trio.open_nursery() as self._nursery:
            await self._nursery.start(self._lanes.run)
            for name, upstream in self._shared.items():
                self._nursery.start_soon(upstream.run, name=f"upstream {name}")
            task_status.started()
            await trio.sleep_forever()

    @property
    def clients(self) -> int:
        """How many clients there are that can be asked things: those with a session."""
        return len(self._clients)

    def connected(self) -> Iterator[Upstream]:
        """Every upstream with a connection, private ones included."""
        return (upstream for upstream in list(self._by_key.values()) if upstream.connection is not None)

    def sessions(self) -> list[Upstream]:
        """Every session: the shared ones, lanes and private ones."""
        return list(self._by_key.values())

    def by_key(self, key: str) -> Upstream | None:
        """The upstream with that key; None when it was a private one that has gone."""
        return self._by_key.get(key)

    def space(self, key: str) -> Space | None:
        """How the texts of the upstream with that key look from outside."""
        upstream = self._by_key.get(key)
        return upstream.space if upstream is not None else None

    def for_call(self, name: str, call: Call) -> Upstream:
        """The session with upstream `name` that serves a call."""
        shared = self._shared[name]
        if shared.config.session != "shared" and call.client is not None:
            sessions = self._private.setdefault(call.client, {})
            if name not in sessions:
                sessions[name] = self._open_private(name, call)
            return sessions[name][0]
        return self._lanes.of(shared) if call.legacy else shared

    def tellers(self, name: str, call: Call) -> list[Upstream]:
        """Who may tell a client of updates: the session that serves it; then the shared one, for a server
        may tell in 2026-07-28 alone.
        """
        serving, shared = self.for_call(name, call), self._shared[name]
        return [serving] if serving is shared else [serving, shared]

    def keys_of(self, name: str, call: Call) -> set[str]:
        """The keys of every session with upstream `name` that may serve calls of this client."""
        return {name, lane_key(name), self.for_call(name, call).key}

    async def settled(self, *, legacy: bool) -> None:
        """Every upstream had its first attempt; for a legacy client about to come its lane, too."""
        async with trio.open_nursery() as nursery:
            for upstream in self._shared.values():
                nursery.start_soon(self._settle, upstream, legacy)

    async def _settle(self, upstream: Upstream, legacy: bool) -> None:
        await upstream.settled()
        if legacy:
            await self._lanes.settled(upstream)

    def facts(self, *, legacy: bool) -> list[tuple[str, ServerFacts]]:
        """What each upstream that is ready said about itself, in the era that such a client meets."""
        serving = [(name, self._lanes.of(up) if legacy else up) for name, up in self._shared.items()]
        return [(name, upstream.facts) for name, upstream in serving if upstream.facts is not None]

    def _open_private(self, name: str, call: Call) -> tuple[Upstream, trio.CancelScope]:
        key = f"{name}#{next(self._numbers)}"
        in_its_era = call.legacy and mirrors(self._shared[name].config)
        eras = Eras.LEGACY_FIRST if in_its_era else Eras.MODERN_FIRST
        upstream = self._make_private(name, key, call.meta.get(CLIENT_CAPABILITIES, EMPTY_OBJECT), eras)
        scope = trio.CancelScope()
        self._by_key[key] = upstream
        self._nursery.start_soon(self._run_private, upstream, scope, name=f"upstream {key}")
        return upstream, scope

    async def _run_private(self, upstream: Upstream, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await upstream.run()
        finally:
            del self._by_key[upstream.key]

    def join(self, client: Client) -> None:
        """A client has come that can be asked things. `leave` must follow."""
        self._clients[client] = client

    def client(self, identity: object) -> Client | None:
        """The client that calls itself so in its calls, when it can be asked things."""
        return self._clients.get(identity)

    def client_of(self, key: str) -> Client | None:
        """The client that the session with that key belongs to: its own, or the only one there is."""
        for client, sessions in self._private.items():
            if any(upstream.key == key for upstream, _ in sessions.values()):
                return self._clients.get(client)
        return next(iter(self._clients.values())) if len(self._clients) == 1 else None

    def leave(self, client: object) -> None:
        """A client has gone: its private sessions are closed."""
        self._clients.pop(client, None)
        for upstream, scope in self._private.pop(client, {}).values():
            log.debug("private session closed", upstream=upstream.key)
            scope.cancel(reason="its client has gone")
