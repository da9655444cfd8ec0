"""Hold all sessions: one shared with each upstream, era sessions for legacy clients, and private ones.

The set of upstreams changes while it runs. A session that is not in the new set gets no new call; it ends
when no exchange is in flight, or after RETIRE_SECONDS. Calls that wait for their clients' answers are in
flight if another session takes its place. A child process of mcpmux is started again only then.

A private session (`session = "per-client"`) is opened at the client's first use of the upstream, with that
client's capabilities, and closed when the client goes. The shared session beside it provides the server's
facts, and serves clients that cannot be recognised again (stateless requests over HTTP).

Many servers of 2026-07-28 serve legacy clients too, but differently: they push their questions (sampling,
elicitation) instead of answering `input_required`. So while such a server has legacy clients, it has a legacy
session beside the modern one, its era session:

    none --open--> opening --connected--> ready --lost and not regained--> none
    opening --refused--> none          (then not opened again for PAUSE_SECONDS)

Without an era session a call is served by the shared session.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final

import structlog
import trio

from mcpmux.channels.questions import Client
from mcpmux.config import Http, Stdio
from mcpmux.config import Upstream as UpstreamConfig
from mcpmux.errors import RpcError
from mcpmux.mux import rewrite
from mcpmux.mux.cache import CHANGES
from mcpmux.mux.merge import UNKNOWN
from mcpmux.mux.rewrite import Space
from mcpmux.protocol.call import CLIENT_CAPABILITIES, Call
from mcpmux.protocol.codes import UPSTREAM_UNAVAILABLE
from mcpmux.protocol.envelope import EMPTY_OBJECT
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.input_requests import SHARED_CAPABILITIES, STATE
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.protocol.tasks import related_task
from mcpmux.upstreams.connection import Eras
from mcpmux.upstreams.upstream import Upstream

log = structlog.get_logger()

RETIRE_SECONDS: Final = 30.0  # for exchanges in flight when an upstream is removed or restarted
LOOK_SECONDS: Final = 0.1  # between two looks whether calls of such a session wait for their clients
PAUSE_SECONDS: Final = 60.0  # after a server refused a legacy session; asking again costs it one request

Make = Callable[[str, str, Raw, Eras], Upstream]
"""Make the upstream of another session: (configured name, key, capabilities of its clients, eras)."""

MoveInterest = Callable[[str, str], None]
"""Move subscriptions: (key of the session that ended, key of the shared session that takes over)."""


def mirrors(config: UpstreamConfig) -> bool:
    """Return whether an upstream gets a session of each era, for the clients of that era."""
    # A second session with a child process is a second process, without the state of the first.
    if config.revision is not None:
        return False
    return config.era == "mirror" or (config.era == "auto" and not isinstance(config.target, Stdio))


ERA: Final = "@"  # in the key of an era session; no upstream's name contains it
PRIVATE: Final = "#"  # in the key of a private session; no upstream's name contains it


def era_session_key(name: str) -> str:
    return f"{name}{ERA}legacy"


def is_one_for_all(config: UpstreamConfig) -> bool:
    """Return whether an upstream is one server for all replicas, with sessions that all clients share."""
    return isinstance(config.target, Http) and config.session == "shared"


class Addressee:
    """The client for a server's questions outside of any call, with names translated for that server."""

    def __init__(self, client: Client, space: Space) -> None:
        self._client = client
        self._space = space
        self.capabilities, self.principal = client.capabilities, client.principal
        self.knows_tasks = client.knows_tasks

    async def ask(self, method: str, params: Fields) -> Fields:
        """Return the client's answer. Raises RpcError when it refuses or cannot be reached."""
        own = related_task(params)
        answer = await self._client.ask(method, rewrite.expose_question(method, params, self._space))
        return answer if own is None else rewrite.resolve_related(answer, lambda _exposed: own)


class UpstreamRegistry(Mapping[str, Upstream]):
    """The shared upstreams by name, in configuration order. `run` must run meanwhile.

    `instance`: the id of this mcpmux.
    """

    def __init__(self, make: Make, move_interest: MoveInterest, instance: str = "") -> None:
        self.instance = instance
        self._make = make
        self._move_interest = move_interest
        self._shared: Mapping[str, Upstream] = {}
        self._by_key: dict[str, Upstream] = {}  # sessions of all kinds
        self._of_era: dict[str, Upstream] = {}  # era sessions, by name
        self._not_before: dict[str, float] = {}  # trio's time of the next attempt at an era session
        self._private: dict[object, dict[str, Upstream]] = {}
        self._retired: dict[str, list[Upstream]] = {}  # sessions that have not ended yet, by name
        self._clients: dict[object, Client] = {}
        self._arrival = trio.lowlevel.ParkingLot()  # tasks that wait for the next client
        self._numbers = itertools.count(1)
        self._nursery: trio.Nursery | None = None
        self.waits_for_clients = True  # whether a session waits for their answers before another replaces it

    def __getitem__(self, name: str) -> Upstream:
        return self._shared[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shared)

    def __len__(self) -> int:
        return len(self._shared)

    def add(self, name: str, upstream: Upstream) -> None:
        """Add a shared upstream, or replace the one with that name."""
        self.become({**self._shared, name: upstream})

    def become(self, shared: Mapping[str, Upstream]) -> None:
        """Set the shared upstreams, in this order. Sessions that stay are not touched."""
        former, self._shared = self._shared, dict(shared)
        for name, upstream in former.items():
            if shared.get(name) is not upstream:
                self._retire(name)
        for name, upstream in shared.items():
            if former.get(name) is not upstream and self._nursery is not None:
                # Clients have lists without it: they are notified once it is connected.
                upstream.supervision.left_out()
                self._start(upstream)
            self._by_key[name] = upstream

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self._nursery:
            for upstream in self._shared.values():
                self._start(upstream)
            task_status.started()
            await trio.sleep_forever()

    # Beginning and end of sessions

    def _start(self, upstream: Upstream) -> Upstream:
        """Keep a session connected until its scope is cancelled."""
        assert self._nursery is not None
        key = upstream.key
        former, self._by_key[key] = self._by_key.get(key, upstream), upstream
        self._nursery.start_soon(self._keep, upstream, former, name=f"upstream {key}")
        return upstream

    async def _keep(self, upstream: Upstream, before: Upstream) -> None:
        """Run a session until it is cancelled. `before`: the session that had its key, or itself."""
        name, key, reason = upstream.name, upstream.key, "its session was closed; ask again"
        try:
            # Two processes of one server at a time might disturb each other, as by a lock on a file. Not in
            # the scope: the one that replaces this one waits for this one's end, and so for that of `before`.
            if before is not upstream and isinstance(before.config.target, Stdio):
                await before.supervision.ended.wait()
            with upstream.supervision.scope:
                await trio.lowlevel.checkpoint()  # it may be cancelled already
                if key != era_session_key(name):
                    await upstream.supervision.run()
                else:
                    await upstream.supervision.run_while_it_lasts()
                    reason = upstream.status.trouble
                    why = upstream.status.trouble_in_full
                    log.info("legacy clients are served in 2026-07-28", upstream=key, reason=why)
        finally:
            upstream.end(reason)
            # The shared session serves legacy clients from now on, and gets their subscriptions.
            if self._of_era.get(name) is upstream:
                del self._of_era[name]
                self._not_before[name] = trio.current_time() + PAUSE_SECONDS
                self._move_interest(key, name)
            if self._by_key.get(key) is upstream:  # else another one has the key already
                del self._by_key[key]

    def _retire(self, name: str) -> None:
        """Give all sessions with an upstream no new call, and end each when no call is in flight in it."""
        self._not_before.pop(name, None)
        private = [sessions.pop(name, None) for sessions in self._private.values()]
        for upstream in (self._by_key.get(name), self._of_era.pop(name, None), *private):
            if upstream is not None and self._nursery is not None:
                # Subscriptions move to the shared session; a new shared session has the key of the old one.
                if upstream.key != name:
                    self._move_interest(upstream.key, name)
                upstream.retire()
                self._retired.setdefault(name, []).append(upstream)
                self._nursery.start_soon(self._end_when_idle, upstream, name=f"end {upstream.key}")

    async def _end_when_idle(self, upstream: Upstream) -> None:
        name = upstream.name
        with trio.move_on_after(RETIRE_SECONDS):
            await upstream.idle()
            # Clients cannot name an upstream any more that is not there.
            while self.waits_for_clients and upstream.status.parked and name in self._shared:
                await trio.sleep(LOOK_SECONDS)
                await upstream.idle()
        if number := upstream.status.in_flight:
            what = "exchanges are cut off, their upstream has gone"
            log.warning(what, upstream=upstream.key, number=number)
        upstream.supervision.scope.cancel(reason="it was removed or restarted")
        self._retired[name].remove(upstream)
        if not self._retired[name]:
            del self._retired[name]

    # The sessions that serve calls

    def connected(self) -> Iterator[Upstream]:
        """Yield every session with a connection, private ones included."""
        return (upstream for upstream in self.sessions() if upstream.status.connection is not None)

    def sessions(self) -> list[Upstream]:
        """Return all sessions: shared ones, era sessions and private ones."""
        return list(self._by_key.values())

    def lists_changed(self, change: str, name: str | None) -> None:
        """Take note that lists of an upstream (None: of all) may have changed. `change`: the notification."""
        for session in self.sessions():
            for method in CHANGES[change] if name in (None, session.name) else ():
                if method in session.listings:
                    session.listings[method].changed()

    def for_replica(self, key: str) -> Upstream | None:
        """Return the session with that key if it serves clients of all replicas; None without a connection.

        An era session is opened if there is none.
        """
        name = key.partition(ERA)[0]
        shared = self._shared.get(name)
        if shared is None or not is_one_for_all(shared.config):
            return None
        if key != name:
            self._for_legacy(shared)
        session = self._by_key.get(key)
        return session if session is not None and session.status.connection is not None else None

    def by_key(self, key: str) -> Upstream | None:
        """Return the session with that key; None when it has ended."""
        return self._by_key.get(key)

    def space(self, key: str) -> Space | None:
        """Return the space that translates names for the session with that key; None when it has ended."""
        upstream = self._by_key.get(key)
        return upstream.space if upstream is not None else None

    def for_call(self, name: str, call: Call) -> Upstream:
        """Return the session with upstream `name` that serves a call, opening a private one if needed.

        Raises RpcError when the upstream was removed.
        """
        try:
            shared = self._shared[name]
        except KeyError:
            data = {"upstream": name, "state": "removed"}
            raise RpcError(UPSTREAM_UNAVAILABLE, f"Upstream {name!r} was removed", data) from None
        if self._retired and STATE in call.params:  # a parked call goes on in its own session
            state = call.text(STATE)
            for retired in self._retired.get(name, ()):
                if state in retired.status.parked:
                    return retired
        # A modern client over HTTP cannot be recognised, so there is no private session for it.
        if shared.config.session != "shared" and call.client is not None:
            sessions = self._private.setdefault(call.client, {})
            if name not in sessions:
                eras = Eras.LEGACY_FIRST if call.legacy and mirrors(shared.config) else Eras.MODERN_FIRST
                offers = call.meta.get(CLIENT_CAPABILITIES, EMPTY_OBJECT)
                private = self._make(name, f"{name}{PRIVATE}{next(self._numbers)}", offers, eras)
                private.reported = shared.reported  # each problem of a list is logged once for all sessions
                sessions[name] = self._start(private)
            return sessions[name]
        return self._for_legacy(shared) if call.legacy else shared

    def _for_legacy(self, shared: Upstream) -> Upstream:
        """Return the session for legacy clients: the era session once it is connected, until then `shared`.

        An era session is started, unless the server cannot have one, or refused one lately.
        """
        name = shared.name
        # A call never waits for an era session: the shared one can answer it meanwhile.
        if (session := self._of_era.get(name)) is not None:
            return session if session.status.connection is not None else shared
        # Most servers that legacy clients reach here are legacy ones, so this comes first.
        if not shared.status.is_modern or self._nursery is None or not mirrors(shared.config):
            return shared
        if trio.current_time() >= self._not_before.get(name, 0):
            session = self._make(name, era_session_key(name), SHARED_CAPABILITIES, Eras.LEGACY_ONLY)
            session.reported = shared.reported
            self._of_era[name] = self._start(session)
        return shared

    def tellers(self, name: str, call: Call) -> list[Upstream]:
        """Return the sessions to ask for a client's updates: the one that serves it, then the shared one.

        Raises as `for_call` does.
        """
        # Some servers offer subscriptions in 2026-07-28 only.
        serving = self.for_call(name, call)
        shared = self._shared[name]
        return [serving] if serving is shared else [serving, shared]

    def keys_of(self, name: str, call: Call) -> set[str]:
        """Return the keys of all sessions that may serve calls of this client. Raises as `for_call` does."""
        return {name, era_session_key(name), self.for_call(name, call).key}

    async def settled(self, *, legacy: bool) -> None:
        """Wait until every upstream has appeared or is late; for a legacy client, its era session as well."""
        # A legacy client learns once what servers offer: one that came too early would never ask for tools.
        async with trio.open_nursery() as nursery:
            for upstream in self._shared.values():
                nursery.start_soon(self._settle, upstream, legacy)

    async def _settle(self, upstream: Upstream, legacy: bool) -> None:
        with suppress(RpcError):  # late: clients are served without it, and notified when it comes
            await upstream.supervision.appear()
        if legacy:
            self._for_legacy(upstream)
            if (session := self._of_era.get(upstream.name)) is not None:
                with suppress(RpcError):
                    await session.supervision.appear()

    def facts(self, *, legacy: bool) -> list[tuple[str, ServerFacts]]:
        """Return (name, facts) of each upstream for a client of that era; UNKNOWN without a connection."""
        serving = [(name, self._for_legacy(up) if legacy else up) for name, up in self._shared.items()]
        return [(name, upstream.facts or UNKNOWN) for name, upstream in serving]

    # Clients that accept requests: those with a session

    @property
    def clients(self) -> int:
        return len(self._clients)

    def join(self, client: Client) -> None:
        """Register a client. `leave` must follow."""
        self._clients[client] = client
        self._arrival.unpark_all()

    def leave(self, client: object) -> None:
        """Forget a client that has gone, and close its private sessions."""
        self._clients.pop(client, None)
        for upstream in self._private.pop(client, {}).values():
            log.debug("private session closed", upstream=upstream.key)
            upstream.supervision.scope.cancel(reason="its client has gone")

    def client(self, identity: object) -> Client | None:
        """Return the client that is identified so in its calls, None if it has no session."""
        return self._clients.get(identity)

    def client_of(self, key: str) -> Client | None:
        """Return the client for questions of the session with that key: its owner, or the only client."""
        for client, sessions in self._private.items():
            if any(upstream.key == key for upstream in sessions.values()):
                return self._clients.get(client)
        # Among several, the question might show one client's data to another.
        return next(iter(self._clients.values())) if len(self._clients) == 1 else None

    async def first_client_of(self, key: str) -> Client | None:
        # Servers ask for roots when they start, which is before any client is there.
        while not self._clients:
            await self._arrival.park()
        return self.client_of(key)
