"""One subscription at an upstream for all replicas: each upstream has an owner, where the others listen.

An owner is a member whose lease holds, and by its own list of members the one for that upstream. Another
replica is a client of the owner's hub.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import trio

from mcpmux.cluster.letter import ListenWanted
from mcpmux.cluster.membership import Membership
from mcpmux.cluster.port import MISDIRECTED, NOT_HERE, ReplicaClient
from mcpmux.errors import TransportClosed
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call, Event, Notify
from mcpmux.protocol.envelope import encode_notification, raw
from mcpmux.protocol.raw_json import Fields
from mcpmux.runtime.client_outbox import ClientOutbox
from mcpmux.runtime.notification_hub import NotificationHub
from mcpmux.transports.http.reply import HttpReply
from mcpmux.transports.inline import in_task
from mcpmux.transports.sse import KEEP_ALIVE, STREAM_HEADERS, encode_event
from mcpmux.upstreams.registry import UpstreamRegistry, is_one_for_all
from mcpmux.upstreams.subscriber import REPLACES, uris_in
from mcpmux.upstreams.upstream import Upstream

NAME_BYTES: Final = 8  # of randomness in the name of a stream
SIGNS: Final = 3  # of life within one lease; a reader that gets none for so long ends its stream
LINGER_LEASES: Final = 4  # until the others know of another owner, listen there, and let the one before end
WEIGHT_BYTES: Final = 8
SETTLE_LEASES: Final = 2  # until all replicas have forgotten, when one of them does not answer


class Listens:
    """Listens at other replicas, and answers theirs. `attach` has to follow before anything is answered."""

    def __init__(self, members: Membership, client: ReplicaClient) -> None:
        self._members, self._client = members, client
        self._hub: NotificationHub
        self._registry: UpstreamRegistry
        self._streams: dict[str, ClientOutbox] = {}  # those of others, by their names
        self._newest: dict[str, str] = {}  # upstreams -> names of the streams on which this replica relies
        self._told: Counter[str] = Counter()  # upstreams -> replicas that listen here
        self._ids: frozenset[str] = frozenset()
        self._owners: dict[str, str] = {}  # by upstream, among those with `_ids`

    def attach(self, hub: NotificationHub, registry: UpstreamRegistry) -> None:
        """Set the clients of this replica, and its sessions with upstreams."""
        self._hub, self._registry = hub, registry

    @property
    def owned(self) -> int:
        """The number of upstreams at which this replica subscribes for all."""
        return sum(
            is_one_for_all(upstream.config) and self._owns(key) for key, upstream in self._registry.items()
        )

    # This replica listens at others: see `Replicas`

    def owner_of(self, upstream: str) -> Owner | None:
        # A former owner at which others still listen keeps its subscription at the upstream for them.
        if not self._members.is_inside or self._told[upstream]:
            return None
        owner = self._owner(upstream)
        return Owner(self, owner, upstream) if owner != self._members.replica else None

    async def owners_changed(self) -> None:
        await self._members.changed(math.inf)

    @property
    def settle_seconds(self) -> float:
        return self._members.lease * SETTLE_LEASES

    async def listen_at(self, owner: str, upstream: str, uris: Collection[str], notify: Notify) -> None:
        """Listen at `owner`, see Owner. Raises TransportError, RemoteProtocolError."""
        there = self._members.neighbours.get(owner)
        if there is None:
            raise TransportClosed("that replica has gone")
        stream, former = secrets.token_hex(NAME_BYTES), self._newest.get(upstream, "")

        async def hear(event: Event) -> None:
            # From the acknowledgement on the stream has all changes: only then this replica relies on it.
            if event.method == m.ACKNOWLEDGED:
                self._newest[upstream] = stream
            await notify(event)

        wanted = ListenWanted(upstream, sorted(uris), stream, former)
        await self._client.listen(there, wanted, self._members.lease, hear)

    def _owner(self, upstream: str) -> str:
        members = self._members
        ids = frozenset((members.replica, *(other.replica for other in members.others)))
        # Each replica computes the owner, so that none has to ask the store for it.
        if ids != self._ids:
            self._ids, self._owners = ids, {}
        if upstream not in self._owners:
            self._owners[upstream] = choose_owner(upstream, ids)
        return self._owners[upstream]

    def _owns(self, upstream: str) -> bool:
        return self._members.is_inside and self._owner(upstream) == self._members.replica

    # Others listen here

    async def answer(self, wanted: ListenWanted, reply: HttpReply) -> None:
        """Tell another replica what changes, until it closes the connection or that cannot be promised."""
        await in_task()
        key = wanted.upstream
        upstream = self._registry.for_replica(key) if self._owns(key) else None
        # No other replica answers, so that none listens at a replica that listens elsewhere.
        if upstream is None:
            await reply.send(MISDIRECTED, ((NOT_HERE, "1"),))
            return
        # As a client of the hub it gets a change once all replicas have cleared their caches.
        outbox = self._hub.join(ClientOutbox(frozenset(), is_replica=True))
        self._told[key] += 1
        self._streams[wanted.stream] = outbox
        try:
            # Before the upstream is asked, which may take longer than the other replica waits for a sign.
            await reply.open(200, STREAM_HEADERS, KEEP_ALIVE)
            honoured = await self._subscribe(outbox, upstream, wanted.uris)
            # The stream that this one replaces sends what it has, and ends.
            former = self._streams.pop(wanted.replaces, None)
            self._hub.rely_on(outbox, former)
            params: Fields = {"notifications": raw({"resourceSubscriptions": sorted(honoured)})}
            if former is not None:
                # Two streams are two connections: the other replica may see the former one end first, and
                # would take that for a failure of the owner.
                params |= {REPLACES: raw(True)}
            await reply.write(_encode(Event(m.ACKNOWLEDGED, params)))
            await self._tell(outbox, upstream, honoured, reply)
        finally:
            self._told[key] -= 1
            self._streams.pop(wanted.stream, None)
            self._hub.leave(outbox)
        await reply.finish()

    async def _subscribe(
        self, outbox: ClientOutbox, upstream: Upstream, uris: Collection[str]
    ) -> frozenset[str]:
        """Return the URIs to which the upstream agrees before the other replica would give up."""
        for uri in uris:
            self._hub.subscribe(outbox, upstream.key, uri, said_raw=True)
        seconds = self._members.lease * (SIGNS - 1) / SIGNS
        honoured = await upstream.subscriber.ensure_all(uris, seconds)
        for uri in uris:
            # The other replica asks the upstream itself for these, so its client gets the upstream's error.
            if uri not in honoured:
                self._hub.unsubscribe(outbox, upstream.key, uri)
        return honoured

    async def _tell(
        self, outbox: ClientOutbox, upstream: Upstream, honoured: frozenset[str], reply: HttpReply
    ) -> None:
        """Tell what is put into the outbox, and a sign of life when there is nothing to tell."""
        members, subscriber, lease = self._members, upstream.subscriber, self._members.lease
        owned_at = due = trio.current_time()
        while True:
            now = trio.current_time()
            if now >= due and not outbox.is_closed:
                due = now + lease / SIGNS
                owned_at = now if self._owns(upstream.key) else owned_at
                # The upstream was replaced, or stopped reporting something that was honoured here.
                is_current = self._registry.by_key(upstream.key) is upstream and honoured <= subscriber.asked
                # Without a lease other replicas send no changes here. One that stops still has them.
                is_reached = members.is_inside or members.is_left
                # With another owner the stream goes on for a few leases: by then the other replica listens
                # there, and has got what was still to be sent here.
                if not is_current or not is_reached or now - owned_at > LINGER_LEASES * lease:
                    return
            data = KEEP_ALIVE
            with trio.move_on_at(due):
                event = await outbox.take()
                if event is None:
                    return
                data = _encode(event)
            await reply.write(data)


@dataclass(frozen=True)
class Owner:
    """The replica that asks `upstream` for this one. It answers a listen as a server does."""

    listens: Listens
    replica: str
    upstream: str

    async def exchange(self, call: Call, notify: Notify) -> Fields:
        """Listen there until it ends that. Raises TransportError, RemoteProtocolError."""
        await self.listens.listen_at(self.replica, self.upstream, uris_in(call.params), notify)
        return {}


def _encode(event: Event) -> bytes:
    return encode_event(encode_notification(event.method, event.params))


def choose_owner(name: str, replicas: Collection[str]) -> str:
    """Return the id of the replica that owns `name`. Raises ValueError when there are no replicas.

    Rendezvous hashing: each replica has a weight for each name, and the heaviest owns it. So all that know
    the same replicas agree without a word; when one goes only what it owned moves, and one that comes takes
    its share from all others alike.
    """
    # Not `hash`, which is another one in each process.
    weights = {
        replica: hashlib.blake2b(f"{name}\n{replica}".encode(), digest_size=WEIGHT_BYTES).digest()
        for replica in replicas
    }
    return max(replicas, key=lambda replica: (weights[replica], replica))
