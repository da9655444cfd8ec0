"""The state of the upstreams as JSON: each with its sessions and their subscriptions.

Disabled upstreams are in it, too, without sessions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

import msgspec
import trio

from mcpmux.config import Upstream as UpstreamConfig
from mcpmux.mux.subscriptions import Subscriptions
from mcpmux.protocol.envelope import decode_fields, text_of
from mcpmux.runtime.mailbox import Mailbox
from mcpmux.runtime.upstreams.fleet import Fleet
from mcpmux.runtime.upstreams.upstream import Upstream
from mcpmux.traffic.record import second_of
from mcpmux.traffic.redaction.redactor import Redactor

SESSIONS = 100  # of one upstream that are listed; there may be one for each client
URIS = 200  # of one session
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
    """One configured upstream. `target` is without secrets; `server` is what it calls itself.

    `since`: when it came into its state. `restarts`: how often its shared session was connected again;
    `in_flight`: exchanges in all its sessions; `retry_seconds`: until it is tried again; `last_error`: what
    went wrong last, perhaps long ago; `cache`: how often memory had its answer (`hits`) or not (`misses`),
    and how often one answer served another client, too (`shared`); None when nothing of it is kept.
    """

    name: str
    prefix: str
    target: str
    state: str
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


class UpstreamView:
    """Reads a fleet for people."""

    def __init__(
        self,
        fleet: Fleet,
        subscriptions: Subscriptions[Mailbox],
        redactor: Redactor,
        configured: Callable[[], Sequence[UpstreamConfig]] = tuple,
    ) -> None:
        """`configured`: all upstreams of the configuration of now, the disabled ones, too."""
        self._configured = configured
        self._epoch = time.time() - trio.current_time()
        self._fleet = fleet
        self._subscriptions = subscriptions
        self._redactor = redactor

    def __repr__(self) -> str:
        return f"<UpstreamView {self._fleet!r}>"

    async def read_all(self) -> list[UpstreamState]:
        """See `Upstreams`. Never waits."""
        return self.show()

    async def read_states(self) -> dict[str, str]:
        """See `Upstreams`. Never waits."""
        return {name: upstream.state for name, upstream in self._fleet.items()}

    def show(self) -> list[UpstreamState]:
        """All of them, in configuration order; then those that are disabled."""
        sessions: dict[str, list[Upstream]] = {}
        for each in self._fleet.sessions():
            sessions.setdefault(each.name, []).append(each)
        there = [self._upstream(upstream, sessions[name]) for name, upstream in self._fleet.items()]
        return there + [_disabled(each) for each in self._configured() if not each.enabled]

    def _upstream(self, upstream: Upstream, sessions: list[Upstream]) -> UpstreamState:
        facts = upstream.facts
        server, version = _calls_itself(facts.info) if facts is not None else (None, None)
        return UpstreamState(
            name=upstream.name,
            prefix=upstream.config.prefix,
            target=upstream.config.target.display,
            state=upstream.state,
            since=self._utc(upstream.since),
            restarts=upstream.restarts,
            in_flight=sum(each.in_flight for each in sessions),
            retry_seconds=None if upstream.retry_seconds is None else round(upstream.retry_seconds, 1),
            last_error=self._redactor.redact_name(upstream.last_error),
            revision=facts.revision if facts is not None else None,
            trouble=self._trouble(upstream),
            server=self._redactor.redact_name(server),
            version=self._redactor.redact_name(version),
            capabilities=sorted(facts.capabilities) if facts is not None else [],
            unasked_logs=sum(each.unasked_logs for each in sessions),
            cache=msgspec.to_builtins(upstream.memory.counts) if upstream.memory is not None else None,
            sessions=[self._session(each) for each in sessions[:SESSIONS]],
            more_sessions=max(0, len(sessions) - SESSIONS),
        )

    def _utc(self, clock: float) -> str:
        """A time of trio's clock in UTC, to the second."""
        return f"{second_of(int(self._epoch + clock))}Z"

    def _session(self, session: Upstream) -> SessionState:
        kind = "shared" if session.key == session.name else "lane" if "@" in session.key else "private"
        facts = session.facts
        asked, wanted = session.subscriber.asked, self._subscriptions.wanted(session.key)
        uris = sorted(asked | wanted)
        subscriptions = [
            {
                "uri": self._redactor.redact_text(uri)[0],
                "agreed": uri in asked,
                "listeners": self._subscriptions.listeners(session.key, uri),
            }
            for uri in islice(uris, URIS)
        ]
        return SessionState(
            key=session.key,
            kind=kind,
            state=session.state,
            since=self._utc(session.since),
            in_flight=session.in_flight,
            revision=facts.revision if facts is not None else None,
            trouble=self._trouble(session),
            connect_ms=round(session.connect_seconds * 1000, 1) if session.connect_seconds else None,
            subscriptions=subscriptions,
            more_subscriptions=max(0, len(uris) - URIS),
        )

    def _trouble(self, session: Upstream) -> str | None:
        if session.connection is not None:
            return None
        return self._redactor.redact_text(session.trouble)[0]


def _disabled(config: UpstreamConfig) -> UpstreamState:
    return UpstreamState(name=config.name, prefix=config.prefix, target=config.target.display, state=DISABLED)


def _calls_itself(info: Any) -> tuple[str | None, str | None]:
    """Name and version in a server's Implementation."""
    try:
        fields = decode_fields(info)
    except ValueError:
        return None, None
    return text_of(fields.get("title")) or text_of(fields.get("name")), text_of(fields.get("version"))


# What the admin listener needs: of one process, or of several together.


class Upstreams(Protocol):
    """Reads the state of the upstreams; see `UpstreamView`."""

    async def read_all(self) -> list[UpstreamState]:
        """All of them."""
        ...

    async def read_states(self) -> Mapping[str, str]:
        """The state of each that is enabled."""
        ...


ACTIONS = ("enable", "disable", "drain", "restart")
"""What can be done to one upstream."""


class NoSuchUpstream(LookupError):
    """The text lists the upstreams there are."""


class NotPossible(Exception):
    """It makes no sense in the present state; the text says why."""


class Control(Protocol):
    """Takes one of ACTIONS for an upstream, and reads the configuration again."""

    @property
    def pending(self) -> tuple[str, ...]:
        """Settings in the file that take effect when mcpmux is started again."""
        ...

    async def act(self, action: str, name: str) -> None:
        """Raises NoSuchUpstream, NotPossible."""
        ...

    async def reload(self) -> Mapping[str, Any]:
        """What has changed. Raises ConfigError, and nothing has changed then."""
        ...
