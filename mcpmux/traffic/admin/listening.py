"""Show the subscribed resources and lists as JSON, with their clients and the time of their last change.

Promises: only the times of changes are kept for it; an answer is bounded.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any

import msgspec

from mcpmux.protocol import method as m
from mcpmux.runtime.client_outbox import ClientOutbox
from mcpmux.runtime.notification_hub import NotificationHub, ResourceKey
from mcpmux.traffic.record import second_of
from mcpmux.traffic.redaction.redactor import Redactor
from mcpmux.upstreams.registry import UpstreamRegistry
from mcpmux.upstreams.upstream import Upstream

RESOURCES = 200  # of one answer, those with the newest changes first
CLIENTS = 50  # of one subject


class ListeningClient(msgspec.Struct, frozen=True, kw_only=True):
    """`era`: `modern`, `legacy`, or `replica` for all clients of another one. `peer`: as in its exchanges."""

    era: str
    principal: str | None
    view: str | None
    name: str | None = None
    peer: str | None = None
    revision: str | None = None
    transport: str | None = None


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """A subject that clients listen to: a `uri` of an upstream, as clients see it, or a `list` (`tools`).

    `sessions`: keys of the upstream's sessions that announce it. `agreed`: whether they all do by now.
    `changed`: time of the last change. `told`: number of clients that got each session's last change, as
    a sum.
    """

    clients: Sequence[ListeningClient]
    more_clients: int
    changed: str | None
    told: int
    upstream: str | None = None
    uri: str | None = None
    list: str | None = None
    sessions: Sequence[str] = ()
    agreed: bool = True


@dataclass(eq=False, slots=True)
class ListeningView:
    """Reads the listeners of one process. `_epoch`: the time when trio's clock showed 0, since 1970."""

    _hub: NotificationHub
    _registry: UpstreamRegistry
    _redactor: Redactor
    _epoch: float

    def read_all(self) -> Sequence[Subscription]:
        """Return lists, then resources."""
        tellers: defaultdict[ResourceKey, list[Upstream]] = defaultdict(list)
        for session in self._registry.sessions():
            for uri in self._hub.subscriptions.wanted(session.key):
                tellers[session.name, uri].append(session)

        def newest_first(subject: ResourceKey) -> tuple[float, ResourceKey]:
            notices = (self._hub.told.get((session.key, subject[1])) for session in tellers[subject])
            return -max((notice.at for notice in notices if notice is not None), default=-math.inf), subject

        chosen = nsmallest(RESOURCES, tellers, newest_first)
        return [*self._lists(), *(self._resource(uri, tellers[name, uri]) for name, uri in chosen)]

    def _lists(self) -> Iterable[Subscription]:
        for name, method in m.LIST_CHANGES.items():
            if clients := list(self._hub.listening_to(method)):
                yield self._subscription([("", method)], clients, list=name)

    def _resource(self, uri: str, sessions: Sequence[Upstream]) -> Subscription:
        return self._subscription(
            [(session.key, uri) for session in sessions],
            [
                outbox
                for session in sessions
                for outbox, subscribed in self._hub.subscriptions.audience(session.key, uri).items()
                if subscribed == uri
            ],
            upstream=sessions[0].name,
            uri=self._redactor.clean(sessions[0].space.expose_uri(uri)),
            sessions=[session.key for session in sessions],
            agreed=all(uri in session.subscriber.asked for session in sessions),
        )

    def _subscription(
        self, subjects: Sequence[ResourceKey], clients: list[ClientOutbox], **of: Any
    ) -> Subscription:
        notices = [notice for notice in map(self._hub.told.get, subjects) if notice is not None]
        changed = max((notice.at for notice in notices), default=None)
        return Subscription(
            clients=[self._client(outbox) for outbox in clients[:CLIENTS]],
            more_clients=max(0, len(clients) - CLIENTS),
            changed=f"{second_of(int(self._epoch + changed))}Z" if changed is not None else None,
            told=sum(notice.clients for notice in notices),
            **of,
        )

    def _client(self, outbox: ClientOutbox) -> ListeningClient:
        leg, clean = outbox.leg, self._redactor.redact_name
        era = "replica" if outbox.is_replica else "modern" if outbox.is_granted else "legacy"
        who = ListeningClient(
            era=era, principal=clean(outbox.principal.name or None), view=clean(outbox.principal.view or None)
        )
        if leg is None:
            return who
        return msgspec.structs.replace(
            who, name=clean(leg.name), peer=leg.peer, revision=clean(leg.revision), transport=leg.transport
        )


def merge_subscriptions(said: Mapping[int, Iterable[Subscription]]) -> list[Subscription]:
    """Return those of several workers, by number, as one. Keys and peers name the worker, as in `2/docs`."""
    merged: dict[tuple[str | None, ...], Subscription] = {}
    for worker, subscriptions in said.items():
        for subscription in subscriptions:
            subject = subscription.list, subscription.upstream, subscription.uri
            here = msgspec.structs.replace(
                subscription,
                sessions=[f"{worker}/{key}" for key in subscription.sessions],
                clients=[
                    msgspec.structs.replace(client, peer=client.peer and f"{worker}/{client.peer}")
                    for client in subscription.clients
                ],
            )
            merged[subject] = _together(merged[subject], here) if subject in merged else here
    return sorted(merged.values(), key=lambda each: (each.list is None, each.changed is None))


def _together(one: Subscription, other: Subscription) -> Subscription:
    clients = [*one.clients, *other.clients]
    return msgspec.structs.replace(
        one,
        sessions=[*one.sessions, *other.sessions],
        agreed=one.agreed and other.agreed,
        clients=clients[:CLIENTS],
        more_clients=one.more_clients + other.more_clients + max(0, len(clients) - CLIENTS),
        changed=max(one.changed or "", other.changed or "") or None,
        told=one.told + other.told,
    )
