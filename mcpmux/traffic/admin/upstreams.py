"""Show the state of the upstreams as JSON, each with its sessions, and who listens to what.

Disabled upstreams are included, without sessions. Promises: only the times of changes are kept for listeners;
an answer is bounded.
"""

from __future__ import annotations

import math
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any, Protocol

import msgspec

from mcpmux.cluster.letter import ReplicaState
from mcpmux.config import Stdio, Target
from mcpmux.config import Upstream as UpstreamConfig
from mcpmux.config.expansion import make_hide
from mcpmux.config.model import secrets_of
from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import members_of, text_of
from mcpmux.runtime.client_outbox import ClientOutbox
from mcpmux.runtime.notification_hub import NotificationHub, ResourceKey
from mcpmux.traffic.record import Run, second_of
from mcpmux.traffic.redaction.redactor import Redactor
from mcpmux.upstreams.registry import UpstreamRegistry
from mcpmux.upstreams.upstream import Upstream

SESSIONS = 100  # of one upstream that are listed; there may be one for each client
URIS = 200  # of one session
RESOURCES = 200  # of one answer, those with the newest changes first
CLIENTS = 50  # of one subject
DISABLED = "disabled"


class SessionState(msgspec.Struct, frozen=True, kw_only=True):
    """One session. `kind`: `shared`, `lane` (for legacy clients) or `private`."""

    key: str
    kind: str
    state: str
    since: str
    revision: str | None
    trouble: str | None
    in_flight: int
    connect_ms: float | None
    subscriptions: list[dict[str, Any]]
    more_subscriptions: int


class UpstreamState(msgspec.Struct, frozen=True, kw_only=True):
    """One configured upstream. `target` is without secrets; `server` is its own name.

    `command`: the whole command of a process, and `output`: the last lines on its standard error, redacted.

    `since`: the time when it came into its state. `restarts`: attempts to connect its shared session after
    the first; `in_flight`: exchanges in all its sessions; `retry_seconds`: until the next attempt;
    `last_error`: the latest error, perhaps long ago; `cache`: number of answers from memory (`hits`), of
    others (`misses`), and of those that served another client, too (`shared`); None when none of its answers
    are kept.
    """

    name: str
    prefix: str
    target: str
    state: str
    command: str | None = None
    output: list[str] = []
    since: str | None = None
    revision: str | None = None
    trouble: str | None = None
    last_error: str | None = None
    restarts: int = 0
    unasked_logs: int = 0
    in_flight: int = 0
    retry_seconds: float | None = None
    server: str | None = None
    version: str | None = None
    capabilities: list[str] = []
    cache: dict[str, int] | None = None
    sessions: list[SessionState] = []
    more_sessions: int = 0


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


@dataclass(eq=False)
class UpstreamView:
    """Reads the registry for people. `configured`: all upstreams, disabled ones included."""

    _registry: UpstreamRegistry
    _hub: NotificationHub
    _redactor: Redactor
    _run: Run
    _configured: Callable[[], Sequence[UpstreamConfig]] = tuple

    async def read_states(self) -> dict[str, str]:
        """Return the state of each enabled upstream."""
        return {name: upstream.state for name, upstream in self._registry.items()}

    async def read_all(self) -> list[UpstreamState]:
        """Return all upstreams in configuration order, then the disabled ones."""
        sessions: dict[str, list[Upstream]] = {}
        for session in self._registry.sessions():
            sessions.setdefault(session.name, []).append(session)
        there = [self._upstream(upstream, sessions[name]) for name, upstream in self._registry.items()]
        return there + [
            UpstreamState(
                name=upstream.name,
                prefix=upstream.prefix,
                target=upstream.target.display,
                command=self._command(upstream.target),
                state=DISABLED,
            )
            for upstream in self._configured()
            if not upstream.enabled
        ]

    def _upstream(self, upstream: Upstream, sessions: list[Upstream]) -> UpstreamState:
        facts, status = upstream.facts, upstream.status
        retry = status.retry_seconds
        info = members_of(facts.info) if facts is not None else {}
        title = text_of(info.get("title")) or text_of(info.get("name"))
        return UpstreamState(
            name=upstream.name,
            prefix=upstream.config.prefix,
            target=upstream.config.target.display,
            command=self._command(upstream.config.target),
            output=list(map(self._redactor.clean, status.output)),
            **self._common(upstream),
            restarts=status.restarts,
            in_flight=sum(session.status.in_flight for session in sessions),
            retry_seconds=None if retry is None else round(retry, 1),
            last_error=self._redactor.clean(status.last_error),
            server=self._redactor.clean(title),
            version=self._redactor.clean(text_of(info.get("version"))),
            capabilities=sorted(facts.capabilities) if facts is not None else [],
            unasked_logs=sum(session.unasked_logs for session in sessions),
            cache=msgspec.to_builtins(upstream.memory.counts) if upstream.memory is not None else None,
            sessions=[self._session(session) for session in sessions[:SESSIONS]],
            more_sessions=max(0, len(sessions) - SESSIONS),
        )

    def _command(self, target: Target) -> str | None:
        if not isinstance(target, Stdio):
            return None
        words = shlex.join([target.command, *target.args])
        return self._redactor.clean(make_hide(secrets_of(target))(words))

    def _common(self, session: Upstream) -> dict[str, Any]:
        status, facts = session.status, session.facts
        return {
            "state": status.state,
            "since": self._time(status.since),
            "revision": facts.revision if facts is not None else None,
            "trouble": self._redactor.clean(status.trouble_in_full) if facts is None else None,
        }

    def _session(self, session: Upstream) -> SessionState:
        kind = "shared" if session.key == session.name else "lane" if "@" in session.key else "private"
        agreed, subscribed = session.subscriber.asked, self._hub.subscriptions.wanted(session.key)
        uris = sorted(agreed | subscribed)
        subscriptions = [
            {
                "uri": self._redactor.clean(uri),
                "agreed": uri in agreed,
                "listeners": self._hub.subscriptions.listeners(session.key, uri),
            }
            for uri in uris[:URIS]
        ]
        seconds = session.status.connect_seconds
        return SessionState(
            key=session.key,
            kind=kind,
            **self._common(session),
            in_flight=session.status.in_flight,
            connect_ms=round(seconds * 1000, 1) if seconds else None,
            subscriptions=subscriptions,
            more_subscriptions=max(0, len(uris) - URIS),
        )

    async def read_subscriptions(self) -> Sequence[Subscription]:
        """Return all subjects that clients listen to: lists, then resources."""
        tellers: defaultdict[ResourceKey, list[Upstream]] = defaultdict(list)
        for session in self._registry.sessions():
            for uri in self._hub.subscriptions.wanted(session.key):
                tellers[session.name, uri].append(session)

        def newest_first(subject: ResourceKey) -> tuple[float, ResourceKey]:
            notices = (self._hub.told.get((session.key, subject[1])) for session in tellers[subject])
            return -max((notice.at for notice in notices if notice is not None), default=-math.inf), subject

        subscriptions: list[Subscription] = []
        for name, method in m.LIST_CHANGES.items():
            if clients := list(self._hub.listening_to(method)):
                subscriptions.append(self._subscription([("", method)], clients, list=name))
        for name, uri in nsmallest(RESOURCES, tellers, newest_first):
            sessions = tellers[name, uri]
            clients = [
                outbox
                for session in sessions
                for outbox, subscribed in self._hub.subscriptions.audience(session.key, uri).items()
                if subscribed == uri
            ]
            about = {
                "upstream": name,
                "uri": self._redactor.clean(sessions[0].space.expose_uri(uri)),
                "sessions": [session.key for session in sessions],
                "agreed": all(uri in session.subscriber.asked for session in sessions),
            }
            subjects = [(session.key, uri) for session in sessions]
            subscriptions.append(self._subscription(subjects, clients, **about))
        return subscriptions

    def _subscription(
        self, subjects: Sequence[ResourceKey], clients: list[ClientOutbox], **of: Any
    ) -> Subscription:
        notices = [notice for notice in map(self._hub.told.get, subjects) if notice is not None]
        changed = max((notice.at for notice in notices), default=None)
        return Subscription(
            clients=[self._client(outbox) for outbox in clients[:CLIENTS]],
            more_clients=max(0, len(clients) - CLIENTS),
            changed=self._time(changed) if changed is not None else None,
            told=sum(notice.clients for notice in notices),
            **of,
        )

    def _client(self, outbox: ClientOutbox) -> ListeningClient:
        leg, clean = outbox.leg, self._redactor.clean
        era = "replica" if outbox.is_replica else "modern" if outbox.is_granted else "legacy"
        who = ListeningClient(
            era=era, principal=clean(outbox.principal.name or None), view=clean(outbox.principal.view or None)
        )
        if leg is None:
            return who
        return msgspec.structs.replace(
            who, name=clean(leg.name), peer=leg.peer, revision=clean(leg.revision), transport=leg.transport
        )

    def _time(self, clock: float) -> str:
        """Return a reading of trio's clock as RFC 3339 in UTC."""
        return f"{second_of(int(self._run.wall_at(clock)))}Z"


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
            if (there := merged.get(subject)) is not None:
                clients = [*there.clients, *here.clients]
                here = msgspec.structs.replace(
                    there,
                    sessions=[*there.sessions, *here.sessions],
                    agreed=there.agreed and here.agreed,
                    clients=clients[:CLIENTS],
                    more_clients=there.more_clients + here.more_clients + max(0, len(clients) - CLIENTS),
                    changed=max(there.changed or "", here.changed or "") or None,
                    told=there.told + here.told,
                )
            merged[subject] = here
    return sorted(merged.values(), key=lambda each: (each.list is None, each.changed is None))


# The interfaces for the admin listener: of one process, or of several together.


class Upstreams(Protocol):
    """Reads the state of the upstreams; see `UpstreamView`."""

    async def read_all(self) -> list[UpstreamState]:
        """Return all upstreams."""

    async def read_states(self) -> Mapping[str, str]:
        """Return the state of each enabled upstream."""

    async def read_subscriptions(self) -> Sequence[Subscription]:
        """Return all subjects that clients listen to."""


class Replicas(Protocol):
    """Reads the state of the replicas of a cluster."""

    def describe(self) -> ReplicaState:
        """Return the state of this one."""

    async def describe_all(self) -> Sequence[ReplicaState]:
        """Return the states of all of them, this one first. Takes a bounded time."""


ACTIONS = ("enable", "disable", "drain", "restart")
"""The actions on one upstream."""


class Control(Protocol):
    """Takes one of ACTIONS for an upstream, and reads the configuration again."""

    @property
    def pending(self) -> tuple[str, ...]:
        """Settings in the file that take effect at the next start."""

    @property
    def endpoint(self) -> str | None:
        """URL at which clients connect by HTTP; None where they do not."""

    async def act(self, action: str, name: str) -> None:
        """Act on an upstream. Raises BadRequest: 404 for an unknown one, 409 if its state forbids it."""

    async def reload(self) -> Mapping[str, Any]:
        """Read the configuration again. Return the changes. Raises ConfigError, without any change."""
