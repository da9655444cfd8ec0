"""How the upstreams are, as JSON: each with its sessions, and what those are subscribed to."""

from __future__ import annotations

from itertools import islice
from typing import Any

import msgspec

from mcpmux.mux.subscriptions import Subscriptions
from mcpmux.protocol.envelope import decode_fields, text_of
from mcpmux.runtime.mailbox import Mailbox
from mcpmux.runtime.upstreams.fleet import Fleet
from mcpmux.runtime.upstreams.upstream import Upstream
from mcpmux.traffic.redaction.redactor import Redactor

SESSIONS = 100  # of one upstream that are told; there may be one for each client
URIS = 200  # of one session


class SessionState(msgspec.Struct, frozen=True, kw_only=True):
    """One session. `kind`: `shared`, `lane` (for legacy clients) or `private`."""

    key: str
    kind: str
    state: str
    revision: str | None
    trouble: str | None
    connect_ms: float | None
    subscriptions: list[dict[str, Any]]
    more_subscriptions: int


class UpstreamState(msgspec.Struct, frozen=True, kw_only=True):
    """One configured upstream. `target` is without secrets; `server` is what it calls itself."""

    name: str
    prefix: str
    target: str
    state: str
    revision: str | None
    trouble: str | None
    server: str | None
    version: str | None
    capabilities: list[str]
    sessions: list[SessionState]
    more_sessions: int


class UpstreamView:
    """Reads a fleet for people."""

    def __init__(self, fleet: Fleet, subscriptions: Subscriptions[Mailbox], redactor: Redactor) -> None:
        self._fleet = fleet
        self._subscriptions = subscriptions
        self._redactor = redactor

    def __repr__(self) -> str:
        return f"<UpstreamView {self._fleet!r}>"

    @property
    def states(self) -> dict[str, str]:
        """The state of each upstream's shared session."""
        return {name: upstream.state for name, upstream in self._fleet.items()}

    def show(self) -> list[UpstreamState]:
        """All of them, in configuration order."""
        sessions: dict[str, list[Upstream]] = {}
        for each in self._fleet.sessions():
            sessions.setdefault(each.name, []).append(each)
        return [self._upstream(upstream, sessions[name]) for name, upstream in self._fleet.items()]

    def _upstream(self, upstream: Upstream, sessions: list[Upstream]) -> UpstreamState:
        facts = upstream.facts
        server, version = _calls_itself(facts.info) if facts is not None else (None, None)
        return UpstreamState(
            name=upstream.name,
            prefix=upstream.config.prefix,
            target=upstream.config.target.display,
            state=upstream.state,
            revision=facts.revision if facts is not None else None,
            trouble=self._trouble(upstream),
            server=self._redactor.redact_name(server),
            version=self._redactor.redact_name(version),
            capabilities=sorted(facts.capabilities) if facts is not None else [],
            sessions=[self._session(each) for each in sessions[:SESSIONS]],
            more_sessions=max(0, len(sessions) - SESSIONS),
        )

    def _session(self, session: Upstream) -> SessionState:
        kind = "shared" if session.key == session.name else "lane" if "@" in session.key else "private"
        facts = session.facts
        asked, wanted = session.subscriber.asked, self._subscriptions.wanted(session.key)
        uris = sorted(asked | wanted)
        told = [
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
            revision=facts.revision if facts is not None else None,
            trouble=self._trouble(session),
            connect_ms=round(session.connect_seconds * 1000, 1) if session.connect_seconds else None,
            subscriptions=told,
            more_subscriptions=max(0, len(uris) - URIS),
        )

    def _trouble(self, session: Upstream) -> str | None:
        if session.connection is not None:
            return None
        return self._redactor.redact_text(session.trouble)[0]


def _calls_itself(info: Any) -> tuple[str | None, str | None]:
    """Name and version in a server's Implementation."""
    try:
        fields = decode_fields(info)
    except ValueError:
        return None, None
    return text_of(fields.get("title")) or text_of(fields.get("name")), text_of(fields.get("version"))
