"""Everything between clients and upstreams, running, and what may be done to it meanwhile.

Promises: `apply` is one step without a pause in it, so that no exchange ever meets half of a configuration;
what did not change is not touched; clients hear `list_changed` for what came, went or is called otherwise.
Refuses to know where a configuration comes from and who wants it.

Whoever has something else to change with the configuration adds a function to `followers`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from mcpmux import __version__
from mcpmux.app.sessions import Sessions
from mcpmux.config import Config, Http, Identity
from mcpmux.config.plan import Plan, plan_change
from mcpmux.mux.cursor import CursorSeal
from mcpmux.mux.policy import policy_of
from mcpmux.mux.request_state import StateSeal
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.raw_json import Raw
from mcpmux.runtime.downstreams.front import Front
from mcpmux.runtime.merger import Merger
from mcpmux.runtime.relay import Relay
from mcpmux.runtime.router import Router
from mcpmux.runtime.upstreams.fleet import Fleet
from mcpmux.runtime.upstreams.upstream import Upstream
from mcpmux.transports.reception import Reception
from mcpmux.transports.tls.context import TlsContexts

log = structlog.get_logger()

CURSOR_KEY_BYTES = 32
DRAINED = "is being drained by whoever runs mcpmux; try again later"

Follower = Callable[[Config], None]
"""Called with each new configuration, right after the mux has taken it. Must not fail."""


@dataclass(eq=False)
class Mux:
    """The running parts; see the module. `config` is what they are after now."""

    config: Config
    router: Router
    front: Front
    relay: Relay
    upstreams: Fleet
    merger: Merger
    sessions: Sessions
    reception: Reception | None = None
    followers: list[Follower] = field(default_factory=list)
    certificates: TlsContexts = field(default_factory=TlsContexts)

    def apply(self, config: Config) -> Plan:
        """Become what `config` says; what was done and what was not."""
        plan = plan_change(self.config, config)
        if not plan:
            self.config = config
            return plan
        self._change_settings(config)
        self._forget(config)
        if plan.touches_upstreams:
            self._change_upstreams(config, plan)
        if config.access != self.config.access:
            self.router.policy = policy_of(config.access)
        self.config = config
        for follower in self.followers:
            follower(config)
        return plan

    def _change_settings(self, config: Config) -> None:
        before, merging = self.config.merging, config.merging
        server_info = implementation(config.identity)
        self.relay.window = merging.change_window
        self.merger.page_size = merging.page_size
        self.merger.strict = merging.strict
        if merging.cursor_key != before.cursor_key:
            self.merger.seal = seal_of(config)
        self.router.instructions = config.identity.instructions
        self.router.server_info = self.front.server_info = self.sessions.server_info = server_info

    def _forget(self, config: Config) -> None:
        """What upstreams have said was kept as the configuration before has clients see it."""
        before, store = self.config.caching, self.sessions.store
        store.follow(config.caching)
        for session in self.upstreams.sessions():
            if config.caching != before:
                self.sessions.adjust_memory(session)
            else:
                session.forget()

    def _change_upstreams(self, config: Config, plan: Plan) -> None:
        fleet, sessions, before = self.upstreams, self.sessions, dict(self.upstreams)
        prefixes = {name: settings.prefix for name, settings in sessions.settings.items()}
        sessions.adopt(config)
        renamed = [
            name for name, each in sessions.settings.items() if prefixes.get(name, each.prefix) != each.prefix
        ]
        self.router.namespace = sessions.namespace
        self.relay.passes_all = sessions.namespace.transparent is not None
        for name in (*plan.removed, *plan.restarted):
            sessions.held.pop(name, None)
        for name in renamed:
            self.relay.forget(name)
        stay = [name for name in sessions.settings if name in before and name not in plan.restarted]
        for session in fleet.sessions():
            if session.name in stay:
                sessions.adjust(session)
        fleet.become(
            {name: before[name] if name in stay else sessions.make_shared(name) for name in sessions.settings}
        )
        self._tell([before[name] for name in before if name not in stay or name in renamed])

    def _tell(self, upstreams: list[Upstream]) -> None:
        """Clients hear that the lists have changed which these were part of."""
        for upstream in upstreams:
            if upstream.facts is not None:
                self.relay.upstream_changed(upstream.name, upstream.facts.capabilities)

    def restart(self, name: str) -> None:
        """A new session with an upstream takes over; what is in flight in those of now is finished there."""
        self.sessions.held.pop(name, None)
        self.upstreams.add(name, self.sessions.make_shared(name))

    def drain(self, name: str) -> None:
        """An upstream is given no exchange any more; what is in flight is finished, sessions stay open."""
        self.sessions.held[name] = DRAINED
        for session in self._sessions_with(name):
            session.hold(DRAINED)
        self._tell([self.upstreams[name]])

    def release(self, name: str) -> None:
        """The end of `drain`; nothing happens when there was none."""
        if self.sessions.held.pop(name, None) is not None:
            for session in self._sessions_with(name):
                session.release()
            self._tell([self.upstreams[name]])

    async def settled(self) -> None:
        """What was done holds at once."""

    async def renew(self) -> tuple[str, ...]:
        """Read all certificates again: whose have changed. Raises ConfigError, and none has."""
        targets = [each.target for each in self.config.upstreams]
        self.certificates.keep([target.tls for target in targets if isinstance(target, Http)])
        return await self.certificates.renew()

    def _sessions_with(self, name: str) -> list[Upstream]:
        return [session for session in self.upstreams.sessions() if session.name == name]


def implementation(identity: Identity) -> Raw:
    """What mcpmux says that it is."""
    info = {"name": identity.name, "version": __version__}
    if identity.title is not None:
        info["title"] = identity.title
    return raw(info)


def state_seal_of(config: Config) -> StateSeal:
    """What binds states to principals; without a configured key a new one each time."""
    key = config.merging.cursor_key
    return StateSeal(key.reveal().encode() if key is not None else secrets.token_bytes(CURSOR_KEY_BYTES))


def seal_of(config: Config) -> CursorSeal:
    """What cursors are sealed with; without a configured key a new one each time."""
    key = config.merging.cursor_key
    return CursorSeal(key.reveal().encode() if key is not None else secrets.token_bytes(CURSOR_KEY_BYTES))
