"""All upstreams: the shared session with each, its era session for legacy clients, and clients' private ones.

The set changes while it runs: one immutable mapping is put in the place of another. A session that is not in
the new one gets no new call; it ends when no exchange is in flight, or after RETIRE_SECONDS. A server that
mcpmux starts comes up again only then, as two of its processes at a time might get in each other's way.

A private session (`session = "per-client"`) is opened at the client's first use of the upstream, with that
client's capabilities, and closed when the client goes. The shared one beside it tells what the server can
do, and serves clients that nobody can recognise again (stateless requests over HTTP).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import structlog
import trio

from mcpmux.config import Stdio
from mcpmux.errors import RpcError
from mcpmux.mux.rewrite import Space
from mcpmux.protocol.call import CLIENT_CAPABILITIES, Call
from mcpmux.protocol.codes import UPSTREAM_UNAVAILABLE
from mcpmux.protocol.envelope import EMPTY_OBJECT
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.raw_json import Raw
from mcpmux.runtime.calls import Client
from mcpmux.runtime.upstreams.connection import Eras
from mcpmux.runtime.upstreams.era_sessions import (
    EraSessions,
    MakeEraSession,
    MoveInterest,
    era_session_key,
    mirrors,
)
from mcpmux.runtime.upstreams.upstream import Upstream

log = structlog.get_logger()

RETIRE_SECONDS: Final = 30.0  # for what is in flight when an upstream is removed or restarted

MakePrivate = Callable[[str, str, Raw, Eras], Upstream]
"""Makes the upstream for a private session: (configured name, key, the client's capabilities, eras)."""


class Run(NamedTuple):
    """One session with an upstream, being kept connected."""

    upstream: Upstream
    scope: trio.CancelScope
    ended: trio.Event


class UpstreamRegistry(Mapping[str, Upstream]):
    """The shared upstreams by name, in configuration order. `run` has to run."""

    def __init__(
        self, make_private: MakePrivate, make_era_session: MakeEraSession, move_interest: MoveInterest
    ) -> None:
        self._shared: Mapping[str, Upstream] = {}
        self._runs: dict[str, Run] = {}
        self._make_private = make_private
        self._move_interest = move_interest
        self._private: dict[object, dict[str, Run]] = {}
        self._by_key: dict[str, Upstream] = {}
        self._era_sessions = EraSessions(make_era_session, self._by_key, move_interest)
        self._clients: dict[object, Client] = {}
        self._arrival = trio.Event()  # the next client has come
        self._numbers = itertools.count(1)
        self._nursery: trio.Nursery | None = None

    def __repr__(self) -> str:
        return f"<UpstreamRegistry {list(self._shared.values())}, {len(self._private)} clients of their own>"

    def __getitem__(self, name: str) -> Upstream:
        return self._shared[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shared)

    def __len__(self) -> int:
        return len(self._shared)

    def add(self, name: str, upstream: Upstream) -> None:
        """One more shared upstream, or one in place of that with this name."""
        self.become({**self._shared, name: upstream})

    def remove(self, name: str) -> None:
        """One less. Raises KeyError when there is no such upstream."""
        self._shared[name]
        self.become({other: upstream for other, upstream in self._shared.items() if other != name})

    def become(self, shared: Mapping[str, Upstream]) -> None:
        """These are the shared upstreams from now on, in this order; those that stay are not touched."""
        before, self._shared = self._shared, dict(shared)
        for name, upstream in before.items():
            if shared.get(name) is not upstream:
                self._retire(name)
        for name, upstream in shared.items():
            if before.get(name) is not upstream:
                self._by_key[name] = upstream
                if self._nursery is not None:
                    upstream.left_out()
                    self._start(self._nursery, upstream)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep every upstream connected until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await nursery.start(self._era_sessions.run)
            for upstream in self._shared.values():
                self._start(nursery, upstream)
            task_status.started()
            await trio.sleep_forever()

    def _start(self, nursery: trio.Nursery, upstream: Upstream) -> None:
        before = self._runs.get(upstream.name)
        run = self._runs[upstream.name] = Run(upstream, trio.CancelScope(), trio.Event())
        waits = before is not None and isinstance(before.upstream.config.target, Stdio)
        nursery.start_soon(
            self._keep,
            run,
            before.ended if before is not None and waits else None,
            name=f"upstream {upstream.key}",
        )

    async def _keep(self, run: Run, after: trio.Event | None = None) -> None:
        """Keep one session connected until its scope is cancelled; `after`: what has to be over first."""
        upstream = run.upstream
        try:
            with run.scope:
                if after is not None:
                    await after.wait()
                await upstream.run()
        finally:
            upstream.end("its session was closed; ask again")
            if self._by_key.get(upstream.key) is upstream:
                del self._by_key[upstream.key]
            if self._runs.get(upstream.name) is run:
                del self._runs[upstream.name]
            run.ended.set()

    def _retire(self, name: str) -> None:
        """Every session with an upstream gets no new call, and ends when nothing is in flight in it."""
        ending = [(self._runs[name].upstream, self._runs[name].scope)] if name in self._runs else []
        if (era_session := self._era_sessions.retire(name)) is not None:
            ending.append(era_session)
        for sessions in self._private.values():
            if (private := sessions.pop(name, None)) is not None:
                self._move_interest(private.upstream.key, name)
                ending.append((private.upstream, private.scope))
        for upstream, scope in ending:
            upstream.retire()
            if self._nursery is not None:
                self._nursery.start_soon(_end_when_idle, upstream, scope, name=f"end {upstream.key}")

    @property
    def clients(self) -> int:
        """How many clients there are that can be asked things: those with a session."""
        return len(self._clients)

    def connected(self) -> Iterator[Upstream]:
        """Every upstream with a connection, private ones included."""
        return (upstream for upstream in list(self._by_key.values()) if upstream.connection is not None)

    def sessions(self) -> list[Upstream]:
        """Every session: the shared ones, era sessions and private ones."""
        return list(self._by_key.values())

    def by_key(self, key: str) -> Upstream | None:
        """The upstream with that key; None when it was a private one that has gone."""
        return self._by_key.get(key)

    def space(self, key: str) -> Space | None:
        """How the texts of the upstream with that key look from outside."""
        upstream = self._by_key.get(key)
        return upstream.space if upstream is not None else None

    def for_call(self, name: str, call: Call) -> Upstream:
        """The session with upstream `name` that serves a call. Raises RpcError when it was removed."""
        try:
            shared = self._shared[name]
        except KeyError:
            raise _removed(name) from None
        if shared.config.session != "shared" and call.client is not None:
            sessions = self._private.setdefault(call.client, {})
            if name not in sessions:
                sessions[name] = self._open_private(name, call)
            return sessions[name].upstream
        return self._era_sessions.of(shared) if call.legacy else shared

    def tellers(self, name: str, call: Call) -> list[Upstream]:
        """Who may tell a client of updates: the session that serves it; then the shared one, for a server
        may tell in 2026-07-28 alone. Raises as `for_call` does.
        """
        serving = self.for_call(name, call)
        shared = self._shared[name]
        return [serving] if serving is shared else [serving, shared]

    def keys_of(self, name: str, call: Call) -> set[str]:
        """The keys of every session with upstream `name` that may serve calls of this client.

        Raises as `for_call` does.
        """
        return {name, era_session_key(name), self.for_call(name, call).key}

    async def settled(self, *, legacy: bool) -> None:
        """Every upstream had its first attempt; for a legacy client about to come its era session, too."""
        async with trio.open_nursery() as nursery:
            for upstream in self._shared.values():
                nursery.start_soon(self._settle, upstream, legacy)

    async def _settle(self, upstream: Upstream, legacy: bool) -> None:
        await upstream.settled()
        if legacy:
            await self._era_sessions.settled(upstream)

    def facts(self, *, legacy: bool) -> list[tuple[str, ServerFacts]]:
        """What each upstream that is ready said about itself, in the era that such a client meets."""
        serving = [(name, self._era_sessions.of(up) if legacy else up) for name, up in self._shared.items()]
        return [(name, upstream.facts) for name, upstream in serving if upstream.facts is not None]

    def _open_private(self, name: str, call: Call) -> Run:
        key = f"{name}#{next(self._numbers)}"
        in_its_era = call.legacy and mirrors(self._shared[name].config)
        eras = Eras.LEGACY_FIRST if in_its_era else Eras.MODERN_FIRST
        upstream = self._make_private(name, key, call.meta.get(CLIENT_CAPABILITIES, EMPTY_OBJECT), eras)
        run = Run(upstream, trio.CancelScope(), trio.Event())
        self._by_key[key] = upstream
        assert self._nursery is not None
        self._nursery.start_soon(self._keep, run, name=f"upstream {key}")
        return run

    def join(self, client: Client) -> None:
        """A client has come that can be asked things. `leave` must follow."""
        self._clients[client] = client
        arrival, self._arrival = self._arrival, trio.Event()
        arrival.set()

    def client(self, identity: object) -> Client | None:
        """The client that calls itself so in its calls, when it can be asked things."""
        return self._clients.get(identity)

    def client_of(self, key: str) -> Client | None:
        """The client that the session with that key belongs to: its own, or the only one there is."""
        for client, sessions in self._private.items():
            if any(run.upstream.key == key for run in sessions.values()):
                return self._clients.get(client)
        return next(iter(self._clients.values())) if len(self._clients) == 1 else None

    async def first_client_of(self, key: str) -> Client | None:
        """As `client_of`, but waits while there is no client at all."""
        while not self._clients:
            await self._arrival.wait()
        return self.client_of(key)

    def leave(self, client: object) -> None:
        """A client has gone: its private sessions are closed."""
        self._clients.pop(client, None)
        for run in self._private.pop(client, {}).values():
            log.debug("private session closed", upstream=run.upstream.key)
            run.scope.cancel(reason="its client has gone")


async def _end_when_idle(upstream: Upstream, scope: trio.CancelScope) -> None:
    with trio.move_on_after(RETIRE_SECONDS):
        await upstream.idle()
    if upstream.in_flight:
        log.warning(
            "exchanges are cut off, their upstream has gone", upstream=upstream.key, number=upstream.in_flight
        )
    scope.cancel(reason="it was removed or restarted")


def _removed(name: str) -> RpcError:
    return RpcError(
        UPSTREAM_UNAVAILABLE, f"Upstream {name!r} was removed", {"upstream": name, "state": "removed"}
    )
