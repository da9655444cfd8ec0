"""One replica of a cluster: a node with a port, and what it tells the others."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from functools import partial

import structlog
import trio

from mcpmux import __version__
from mcpmux.clients.http_answer import refuse, refuse_with
from mcpmux.clients.service import MuxService
from mcpmux.cluster.calls import HandedCalls
from mcpmux.cluster.card import Neighbour
from mcpmux.cluster.herald import Herald
from mcpmux.cluster.letter import HandedRequest, News
from mcpmux.cluster.listens import Listens
from mcpmux.cluster.membership import Membership
from mcpmux.cluster.node import Node
from mcpmux.cluster.port import ReplicaClient, ReplicaPort, port_limits
from mcpmux.cluster.seal import ClusterSeal
from mcpmux.cluster.state import INSIDE, LEFT, OUTSIDE, SILENT, ReplicaState
from mcpmux.cluster.store import Store
from mcpmux.config import Config
from mcpmux.errors import RemoteProtocolError, TransportError
from mcpmux.runtime.notification_hub import NotificationHub
from mcpmux.transports.body_budget import BodyBudget
from mcpmux.transports.http.server import serve_http
from mcpmux.transports.http.server_connection import HttpReply
from mcpmux.transports.stream import open_tcp_listeners
from mcpmux.transports.tls import TlsContexts
from mcpmux.upstreams.rate_counter import RateCounter

log = structlog.get_logger()

ASK_SECONDS = 2.0  # for another replica to say how it is; somebody waits to see it
NAME_BYTES = 2  # of randomness in a name that is made up


class Replica(Node):
    """One mcpmux of several that share nothing but the store. `port` answers the others."""

    def __init__(
        self, config: Config, store: Store, url: str, certificates: TlsContexts, nursery: trio.Nursery
    ) -> None:
        """`url`: where others reach the port. `certificates`: of the port, and towards others."""
        self._nursery = nursery
        cluster, key = config.cluster, config.merging.cursor_key
        assert key is not None
        seal = ClusterSeal(key.reveal().encode())
        name = cluster.replica or f"replica-{secrets.token_hex(NAME_BYTES)}"
        members = Membership(store, seal, name, url, cluster.lease)
        self._client = ReplicaClient(seal, certificates, cluster.peers, config.limits)
        super().__init__(store, seal, members, self._client, config.limits.session_idle)
        self.herald = Herald(members, self._client)
        self.listens = Listens(members, self._client)
        self.calls = HandedCalls(members, self._client)
        answers = self._deliver, self.calls.answer, self._hear, self.describe, self.listens.answer
        self.port = ReplicaPort(seal, members, *answers)
        self._name, self._url, self._since = name, url, time.time()
        self._hub: NotificationHub
        members.on_loss = self.herald.forget_all

    def attach(self, service: MuxService, hub: NotificationHub, rates: RateCounter) -> None:
        super().attach(service, hub, rates)
        self._hub = hub
        self.calls.attach(service)
        service.router.settle = hub.settle = self.herald.settle
        hub.on_list_change = self.herald.list_changed

    async def join(self) -> None:
        """Be a member from now on, until `open_replica` is left. Returns when the store was asked once."""
        await self._nursery.start(self.run, name="member of the cluster")

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.herald.run, name="herald")
                nursery.start_soon(self._keep_pools, name="connections to replicas")
                await nursery.start(super().run, name="member")
                task_status.started()
        finally:
            self._client.close()

    def describe(self) -> ReplicaState:
        """How this replica is."""
        members, store = self.members, self._store
        state, trouble = INSIDE, members.trouble
        if members.is_left:
            state, trouble = LEFT, trouble or "it stops"
        elif not members.is_inside:
            state, trouble = OUTSIDE, trouble or "its lease has ended"
        return ReplicaState(
            name=self._name,
            id=members.replica,
            url=self._url,
            version=__version__,
            state=state,
            trouble=trouble,
            since=self._since,
            store_away=members.trouble is not None,
            others=len(members.others),
            owned=self.listens.owned,
            sessions=sum(map(len, self._sessions)),
            taken_over=sum(each.taken_over for each in self._sessions),
            handed_over=self._client.handed_over,
            handed_in=self.port.handed_in,
            commands=store.commands,
            lag_ms=None if store.lag is None else round(store.lag * 1000, 2),
            events_waiting=sum(each.events.waiting for each in self._sessions),
            lease_seconds=round(members.seconds_left, 2),
        )

    async def describe_all(self) -> list[ReplicaState]:
        """How all replicas are, this one first. Takes no longer than ASK_SECONDS."""
        states: dict[str, ReplicaState] = {}
        others = sorted(self.members.others, key=lambda each: (each.card.name, each.replica))
        async with trio.open_nursery() as nursery:
            for each in others:
                nursery.start_soon(self._ask_state, each, states)
        return [self.describe(), *(states[each.replica] for each in others)]

    async def _ask_state(self, other: Neighbour, states: dict[str, ReplicaState]) -> None:
        trouble, card = f"it does not answer within {ASK_SECONDS:g} s", other.card
        with trio.move_on_after(ASK_SECONDS):
            try:
                states[other.replica] = await self._client.ask_state(other)
            except (TransportError, RemoteProtocolError) as error:
                trouble = str(error)
        if other.replica not in states:
            states[other.replica] = ReplicaState(
                name=card.name,
                id=other.replica,
                url=card.url,
                version=card.version,
                state=SILENT,
                trouble=trouble,
            )

    async def _keep_pools(self) -> None:
        while True:
            await self.members.changed(self.members.lease)
            async with trio.open_nursery() as nursery:
                for each in self.members.relied_on_and_gone():
                    nursery.start_soon(self._give_up_unless_it_stops, each)
            self._client.keep({each.card.url for each in self.members.others})

    async def _give_up_unless_it_stops(self, gone: Neighbour) -> None:
        """End what waits for a replica that has gone, but not while it finishes its work in good order.

        One that stops leaves the store first and answers what it has. One that hangs or has lost its lease
        may never answer.
        """
        with trio.move_on_after(ASK_SECONDS), suppress(TransportError, RemoteProtocolError):
            if (await self._client.ask_state(gone)).state == LEFT:
                return
        self.members.give_up(gone)

    def _deliver(self, handed: HandedRequest, reply: HttpReply) -> Awaitable[None]:
        door = self._doors.get(handed.listener)
        if door is None:
            return refuse_with(reply, 404, "this replica has other listeners than the one that was asked")
        return door.deliver(handed.request(), reply)

    def _hear(self, news: News) -> None:
        self.herald.hear(news)
        for upstream, method in news.lists:
            self._hub.tell_list_change(method, upstream)


@asynccontextmanager
async def open_replica(
    config: Config, store: Store, bodies: BodyBudget | None = None
) -> AsyncIterator[Replica]:
    """Open the port of this replica, and be a member. Raises TransportError, ConfigError.

    `bodies`: what letters may take, together with the requests of clients; see `serve_http`.
    """
    listener, certificates = config.cluster.listener, TlsContexts()
    tls = await certificates.open("cluster.listener", listener.tls) if listener.tls is not None else None
    port, sockets = await open_tcp_listeners(listener.host, listener.port)
    host = f"[{listener.host}]" if ":" in listener.host else listener.host
    url = listener.url or f"{'http' if tls is None else 'https'}://{host}:{port}"
    async with trio.open_nursery() as nursery:
        replica = Replica(config, store, url, certificates, nursery)
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
        await nursery.start(serve, name=url)
        try:
            yield replica
        finally:
            await replica.leave()
            nursery.cancel_scope.cancel(reason="stopped")
