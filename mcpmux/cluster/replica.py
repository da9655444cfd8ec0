"""One process among several that serve the same clients: its lease, its port, and what it shares with them.

The others are replicas of a cluster, whose store is a Redis, or workers of one mcpmux, whose store is in the
memory of the supervisor.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

import structlog
import trio

from mcpmux import __version__
from mcpmux.clients.http_answer import refuse, refuse_with
from mcpmux.clients.http_endpoint import HttpEndpoint
from mcpmux.clients.service import MuxService
from mcpmux.cluster.door import Door, HandedCalls
from mcpmux.cluster.herald import Herald
from mcpmux.cluster.letter import (
    GONE,
    INSIDE,
    INSPECTOR,
    LEFT,
    OUTSIDE,
    SILENT,
    HandedRequest,
    Neighbour,
    News,
    ReplicaState,
)
from mcpmux.cluster.listens import Listens
from mcpmux.cluster.membership import Membership
from mcpmux.cluster.port import ASK_SECONDS, ReplicaClient, ReplicaPort, port_limits
from mcpmux.cluster.sessions import StoredPlaces, StoredSessions
from mcpmux.cluster.store import Bucket, Seal, Store, StoreAway
from mcpmux.config import ClientTls, Config
from mcpmux.config.listener import join_address
from mcpmux.errors import RemoteProtocolError, TransportError
from mcpmux.mux.cache import Generations
from mcpmux.mux.rate import Counted, Exceeded
from mcpmux.runtime.notification_hub import NotificationHub
from mcpmux.transports.body_budget import BodyBudget
from mcpmux.transports.http.reply import HttpReply
from mcpmux.transports.http.server import serve_http
from mcpmux.transports.http.server_connection import Handler
from mcpmux.transports.inline import in_task
from mcpmux.transports.stream import open_tcp_listeners
from mcpmux.transports.tls import CurrentContext, TlsContexts
from mcpmux.upstreams.limiter import RateCounter

log = structlog.get_logger()

LEAVE_SECONDS = 2.0  # to tell the store that we go
NAME_BYTES = 2  # of randomness in a name that is made up


class StoredTokens:
    """`take` is for `RateCounter.take_together`.

    When the store is away each replica counts tokens alone.
    """

    def __init__(self, store: Store, seal: Seal, rates: RateCounter) -> None:
        self._store, self._seal, self._rates = store, seal, rates

    async def take(self, counted: Sequence[Counted]) -> Exceeded | None:
        """Take a token out of each bucket, unless one has none."""
        await in_task()
        buckets = []
        for bucket in counted:
            # With its numbers: after a change of the limit there are other buckets.
            limit = bucket.limit
            numbers = f"{limit.requests} {limit.per:g} {limit.burst}"
            name = self._seal.name("bucket", "\0".join((bucket.setting, numbers, *bucket.key)))
            buckets.append(Bucket(name, bucket.interval, bucket.room))
        try:
            refused = await self._store.take(buckets)
        # Limits hold less exactly then, which is better than to refuse all clients.
        except StoreAway:
            return self._rates.take_here(counted)
        if refused is None:
            return None
        number, seconds = refused
        return Exceeded(counted[number].setting, counted[number].limit, seconds)


class Replica:
    """One mcpmux, or worker of one, of several that share nothing but the store. `port` answers the others.

    `attach` has to follow before anything is served, and `join` before the first session begins. `inspector`
    answers requests of an inspector in another process, see `ask_inspectors`. `certificates`: of the port,
    and towards others; they may be renewed.
    """

    def __init__(
        self,
        config: Config,
        store: Store,
        seal: Seal,
        members: Membership,
        certificates: TlsContexts,
        nursery: trio.Nursery,
        generations: Generations | None = None,
    ) -> None:
        """`generations`: None if they share no memory."""
        self.members, self.certificates = members, certificates
        self._store, self._seal, self._nursery = store, seal, nursery
        self._seconds = config.limits.session_idle
        self._client = ReplicaClient(seal, certificates, config.cluster.peers, config.limits)
        self.herald = Herald(members, self._client, generations or Generations(is_told=True))
        self.listens = Listens(members, self._client)
        self.calls = HandedCalls(members, self._client)
        answers = self._deliver, self.calls.answer, self._hear, self.describe, self.listens.answer
        self.port = ReplicaPort(seal, members, *answers)
        self._places = StoredPlaces(store, seal, members, config.limits)
        self._sessions: list[StoredSessions] = []
        self._doors: dict[int, Door] = {}
        self._since = time.time()
        self._service: MuxService
        self._hub: NotificationHub
        self.inspector: Handler | None = None
        members.on_return = self._regain
        self._tells = generations is None
        # Workers see the counters of the others at once, and the supervisor counts for one that was killed.
        if self._tells:
            members.on_loss = self.herald.generations.lose_all

    def attach(self, service: MuxService, hub: NotificationHub, rates: RateCounter) -> None:
        """Set the parts of the process that it serves with."""
        self.members.on_gone = hub.others_lost
        hub.others_lost()  # one whose clients come here may have gone before
        self._service, self._hub = service, hub
        service.session_counter = self._places
        rates.take_together = StoredTokens(self._store, self._seal, rates).take
        self.calls.attach(service)
        # A client must not get an answer or an update before all replicas have cleared their caches.
        if self._tells:
            service.router.settle = hub.settle = self.herald.settle
        hub.on_list_change = self.herald.list_changed

    def sessions_of(self, listener: int) -> StoredSessions:
        """Return the sessions of the listener with that number. `join` has to follow."""
        sessions = StoredSessions(
            listener, self._store, self._seal, self.members, self._service, self._seconds
        )
        self._sessions.append(sessions)
        return sessions

    def door_of(self, listener: int, endpoint: HttpEndpoint, sessions: StoredSessions) -> Door:
        """Return a door for the endpoint of that listener."""
        door = Door(listener, endpoint, sessions, self.members, self._store, self._client)
        self._doors[listener] = door
        return door

    async def join(self) -> None:
        """Become a member, until `open_port` is left. Return when the store was asked once."""
        start = self._nursery.start_soon
        start(self._places.run, name="places in the store")
        start(self.herald.run, name="herald")
        start(self._keep_pools, name="connections to replicas")
        await self._nursery.start(self.members.run, name="lease")

    async def leave(self) -> None:
        """Give up the sessions, as this process stops: other replicas take them over."""
        if self.members.is_left:
            return
        # First the events: who takes a session over reads them as soon as this replica has left.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + LEAVE_SECONDS):
            for sessions in self._sessions:
                await sessions.events.written()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + LEAVE_SECONDS):
            await self.members.leave()
        for door in self._doors.values():
            door.let_go()

    async def _regain(self, before: Collection[str]) -> None:
        for sessions in self._sessions:
            await sessions.regain(before)
        await self._places.regain()

    def describe(self) -> ReplicaState:
        """Return the state of this replica."""
        members, store = self.members, self._store
        state, trouble = INSIDE, members.trouble
        if members.is_left:
            state, trouble = LEFT, trouble or "it stops"
        elif not members.is_inside:
            state, trouble = OUTSIDE, trouble or "its lease has ended"
        return ReplicaState(
            name=members.card.name,
            id=members.replica,
            url=members.card.url,
            version=__version__,
            state=state,
            trouble=trouble,
            since=self._since,
            store_away=members.trouble is not None,
            others=len(members.others),
            owned=self.listens.owned,
            sessions=sum(map(len, self._sessions)),
            taken_over=sum(session.taken_over for session in self._sessions),
            handed_over=self._client.handed_over,
            handed_in=self.port.handed_in,
            commands=store.commands,
            lag_ms=None if store.lag is None else round(store.lag * 1000, 2),
            events_waiting=sum(session.events.waiting for session in self._sessions),
            lease_seconds=round(members.seconds_left, 2),
        )

    async def describe_all(self) -> list[ReplicaState]:
        """Return the states of all replicas: this one first, those last that have gone of late.

        Takes no longer than ASK_SECONDS.
        """
        states: dict[str, ReplicaState] = {}
        others = sorted(self.members.others, key=lambda each: (each.card.name, each.replica))
        async with trio.open_nursery() as nursery:
            for other in others:
                nursery.start_soon(self._ask_state, other, states)
        traces = [
            _unknown(gone, GONE, f"it has gone {seconds:.0f} s ago")
            for gone, seconds in self.members.traces()
        ]
        return [self.describe(), *(states[other.replica] for other in others), *traces]

    async def _ask_state(self, other: Neighbour, states: dict[str, ReplicaState]) -> None:
        trouble = f"it does not answer within {ASK_SECONDS:g} s"
        with trio.move_on_after(ASK_SECONDS):
            try:
                states[other.replica] = await self._client.ask_state(other)
            except (TransportError, RemoteProtocolError) as error:
                trouble = str(error)
        if other.replica not in states:
            states[other.replica] = _unknown(other, SILENT, trouble)

    async def ask_inspectors(
        self, method: str, path: str, body: bytes, only: str | None = None
    ) -> dict[Neighbour, tuple[int, bytes]]:
        """Have the inspectors of the other replicas answer a request, see ReplicaClient.

        `only`: the id of the only one to ask.
        """
        others = [other for other in self.members.others if only in (None, other.replica)]
        return await self._client.ask_inspectors(others, method, path, body)

    async def _keep_pools(self) -> None:
        try:
            while True:
                await self.members.changed(self.members.lease)
                # A replica whose machine is lost closes no connection: what waits for it would wait for ever.
                async with trio.open_nursery() as nursery:
                    for neighbour in self._client.awaited_beyond(self.members.neighbours):
                        nursery.start_soon(self._give_up_unless_it_stops, neighbour)
                self._client.keep({other.card.url for other in self.members.others})
        finally:
            self._client.close()

    async def _give_up_unless_it_stops(self, gone: Neighbour) -> None:
        """End what waits for a replica that has gone, but not while it finishes its work in good order."""
        # One that stops leaves the store first and answers what it has. One that hangs or has lost its lease
        # may never answer.
        with trio.move_on_after(ASK_SECONDS), suppress(TransportError, RemoteProtocolError):
            if (await self._client.ask_state(gone)).state == LEFT:
                return
        self._client.give_up(gone)

    def _deliver(self, handed: HandedRequest, reply: HttpReply) -> Awaitable[None]:
        if handed.listener == INSPECTOR and self.inspector is not None:
            return self.inspector(handed.request(), reply)
        door = self._doors.get(handed.listener)
        # While replicas are updated one after the other their configurations differ.
        if door is None:
            return refuse_with(reply, 404, "this replica has other listeners than the one that was asked")
        return door.deliver(handed.request(), reply)

    def _hear(self, news: News) -> None:
        # The caches first: a client that is notified may read at once.
        self.herald.hear(news)
        for upstream, method in news.lists:
            self._hub.tell_list_change(method, upstream)


def _unknown(other: Neighbour, state: str, trouble: str) -> ReplicaState:
    """Return the state of a replica of which only the card is known."""
    card = other.card
    return ReplicaState(
        name=card.name, id=other.replica, url=card.url, version=card.version, state=state, trouble=trouble
    )


@asynccontextmanager
async def open_replica(
    config: Config, store: Store, seal: Seal, bodies: BodyBudget | None = None
) -> AsyncIterator[Replica]:
    """Open the port of this replica at its address. Raises TransportError, ConfigError. See `open_port`."""
    cluster, certificates = config.cluster, TlsContexts()
    listener = cluster.listener
    tls = await certificates.open("cluster.listener", listener.tls) if listener.tls is not None else None
    # Now, so that a file of no use is reported at the start, not with the first letter.
    if cluster.peers != ClientTls():
        await certificates.open("cluster.peers", cluster.peers)
    port, sockets = await open_tcp_listeners(listener.host, listener.port)
    scheme = "http" if tls is None else "https"
    url = listener.url or f"{scheme}://{join_address(listener.host, port)}"
    name = cluster.replica or f"replica-{secrets.token_hex(NAME_BYTES)}"
    members = Membership(store, seal, name, url, cluster.lease)
    async with open_port(config, store, seal, members, sockets, bodies, certificates, tls) as replica:
        yield replica


@asynccontextmanager
async def open_port(
    config: Config,
    store: Store,
    seal: Seal,
    members: Membership,
    sockets: Sequence[trio.SocketListener],
    bodies: BodyBudget | None,
    certificates: TlsContexts | None = None,
    tls: CurrentContext | None = None,
    generations: Generations | None = None,
) -> AsyncIterator[Replica]:
    """Answer other replicas at `sockets`, which are closed in the end; leave the cluster then.

    `bodies`: what letters may take, together with the requests of clients; see `serve_http`.
    """
    async with trio.open_nursery() as nursery:
        contexts = certificates or TlsContexts()
        replica = Replica(config, store, seal, members, contexts, nursery, generations)
        serve = partial(
            serve_http,
            sockets,
            replica.port.handle,
            refuse=refuse,
            stopping=trio.Event(),
            limits=port_limits(config.limits),
            tls=tls,
            judge=replica.port.judge,
            bodies=bodies,
        )
        await nursery.start(serve, name=members.card.url)
        try:
            yield replica
        finally:
            await replica.leave()
            nursery.cancel_scope.cancel(reason="stopped")
