"""Everything between clients and upstreams, and how it changes while it runs.

`apply` never pauses, so no exchange meets half of a configuration. It does not touch what has not changed.
Clients hear `list_changed` for upstreams that came, went or have a new name.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import Final

import structlog
import trio

from mcpmux import __version__
from mcpmux.config import Config, Http, Identity
from mcpmux.config.model import transport_of
from mcpmux.config.plan import Plan, plan_change
from mcpmux.mux.cache import Generations
from mcpmux.mux.policy import policy_of
from mcpmux.mux.rewrite import Namespace
from mcpmux.mux.seal import CursorSeal, StateSeal
from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.input_requests import SHARED_CAPABILITIES
from mcpmux.protocol.raw_json import Raw
from mcpmux.runtime.access_control import AccessControl
from mcpmux.runtime.calls import Client, Question
from mcpmux.runtime.downstreams.service import MuxService
from mcpmux.runtime.merger import Merger
from mcpmux.runtime.notification_hub import NotificationHub, upstream_of
from mcpmux.runtime.router import Router
from mcpmux.runtime.tap import Leg, Tap, Trace, Watch
from mcpmux.runtime.tasks import Tasks
from mcpmux.runtime.upstreams.addressee import Addressee
from mcpmux.runtime.upstreams.channels import ChannelOpener
from mcpmux.runtime.upstreams.connection import Eras
from mcpmux.runtime.upstreams.registry import UpstreamRegistry
from mcpmux.runtime.upstreams.response_cache import CacheStore
from mcpmux.runtime.upstreams.subscriber import Subscriber
from mcpmux.runtime.upstreams.upstream import OpenChannel, Upstream
from mcpmux.transports.polling import open_readiness_poller
from mcpmux.transports.process import StopLadder
from mcpmux.transports.tls.context import TlsContexts
from mcpmux.transports.waiting import ReadinessPoller, available

log = structlog.get_logger()

FIRST_CLIENT_SECONDS: Final = 45.0  # that a server waits for a client; SDKs wait a minute for an answer
CURSOR_KEY_BYTES = 32
DRAINED = "is being drained by whoever runs mcpmux; try again later"
STOP_LADDER = StopLadder(close_seconds=2.0, terminate_seconds=2.0)

Follower = Callable[[Config], None]
"""Called with each new configuration, right after the mux has taken it. Must not fail."""


@dataclass(eq=False)
class Sessions:
    """Makes every session with an upstream, and connects it to those who hear from it.

    A session keeps the configuration that it was made with; `adjust` replaces what is looked up at each use.
    `hub` must be set before the first session is made. `held`: why upstreams get no exchange, by name.
    """

    config: InitVar[Config]
    server_info: Raw
    open_channel: OpenChannel
    tap: Tap | None
    trace: Trace | None
    access: AccessControl
    store: CacheStore
    hub: NotificationHub = field(init=False)
    held: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self, config: Config) -> None:
        make_era_session = partial(self._make, capabilities=SHARED_CAPABILITIES, eras=Eras.LEGACY_ONLY)
        self.registry = UpstreamRegistry(self._make, make_era_session, self._move_interest)
        self.adopt(config)

    def __repr__(self) -> str:
        return f"<Sessions {self.registry!r}>"

    def adopt(self, config: Config) -> None:
        """Make sessions as this configuration says from now on."""
        self.settings = config.enabled
        self.namespace = Namespace(config.prefixes)

    def make_shared(self, name: str) -> Upstream:
        """A new shared session. It subscribes to what clients listen to already."""
        upstream = self._make(name, name, SHARED_CAPABILITIES, Eras.MODERN_FIRST)
        upstream.subscriber.take_over(self.hub.subscriptions.wanted(name))
        return upstream

    def adjust(self, session: Upstream) -> None:
        """Give a running session those current settings that it looks up at each use."""
        before, session.config = session.config, self.settings[session.name]
        if session.config.caching is not before.caching:
            self.adjust_memory(session)
        session.space = self.namespace.spaces[session.name]

    def adjust_memory(self, session: Upstream) -> None:
        """Cache the replies of a session, or do not, as the current configuration says."""
        session.remember(self.store.cache_of(session.config, session.key))

    def _update(self, key: str, uri: str) -> None:
        """Clients of a resource hear of a change that mcpmux may have missed."""
        upstream = self.registry.by_key(key)
        if upstream is not None and upstream.memory is not None:
            upstream.memory.updated(uri)
        self.hub.tell_update(key, uri)

    def _make(self, name: str, key: str, capabilities: Raw, eras: Eras) -> Upstream:
        config, hub, watch = self.settings[name], self.hub, None
        if self.tap is not None:
            leg = Leg("upstream", key, transport_of(config.target), name)
            watch = Watch(self.tap, leg, self.trace)
        # A client's own session comes and goes with it; nobody else's lists change.
        on_change = hub.upstream_changed if key == name else lambda _name, _capabilities: None
        upstream = Upstream(
            config,
            key,
            capabilities,
            eras if config.era != "legacy" else Eras.LEGACY_ONLY,
            self.namespace.spaces[name],
            self.server_info,
            self.open_channel,
            Subscriber(
                partial(hub.subscriptions.wanted, key),
                partial(hub.client_listening, key),
                partial(self._update, key),
                partial(on_change, name),
            ),
            partial(self._find_client, key),
            on_change,
            hub.hear,
            watch,
            self.store.generations,
        )
        self.adjust_memory(upstream)
        if name in self.held:
            upstream.hold(self.held[name])
        return upstream

    async def _find_client(self, key: str, question: Question) -> Client | None:
        client = await self._client_meant(key, question)
        space = self.registry.space(key)
        if client is not None and not self.access.sees(client.principal, upstream_of(key)):
            return None
        return Addressee(client, space) if client is not None and space is not None else None

    async def _client_meant(self, key: str, question: Question) -> Client | None:
        if question.client is not None:
            return self.registry.client(question.client)
        if question.task_id is not None:
            found = self.hub.personal.tasks.find(key, question.task_id)
            if found is not None:
                return self.registry.client(found[0])
        if question.method == m.ROOTS_LIST:  # many servers ask at once when they are started
            with trio.move_on_after(FIRST_CLIENT_SECONDS):
                return await self.registry.first_client_of(key)
        return self.registry.client_of(key)

    def _move_interest(self, key: str, name: str) -> None:
        moved = self.hub.move_interest(key, name)
        if name in self.registry:
            self.registry[name].subscriber.take_over(moved)

    def on_wanted(self, key: str) -> None:
        """The subscriptions wanted of a session have changed."""
        upstream = self.registry.by_key(key)
        if upstream is not None:
            upstream.subscriber.poke()


@dataclass(eq=False)
class Mux:
    """The running parts. `config` is what they follow now; `followers` are called when it has changed."""

    config: Config
    router: Router
    service: MuxService
    hub: NotificationHub
    upstreams: UpstreamRegistry
    merger: Merger
    sessions: Sessions
    poller: ReadinessPoller | None = None
    followers: list[Follower] = field(default_factory=list)
    certificates: TlsContexts = field(default_factory=TlsContexts)

    def apply(self, config: Config) -> Plan:
        """Become what `config` says. Returns what was done and what was not."""
        plan = plan_change(self.config, config)
        if not plan:
            self.config = config
            return plan
        merging, server_info = config.merging, implementation(config.identity)
        self.hub.window = merging.change_window
        self.merger.page_size, self.merger.strict = merging.page_size, merging.strict
        if merging.cursor_key != self.config.merging.cursor_key:
            self.merger.seal = CursorSeal(_key_of(config))
        self.router.instructions = config.identity.instructions
        self.router.server_info = self.service.server_info = self.sessions.server_info = server_info
        self.sessions.store.follow(config.caching)
        for session in self.upstreams.sessions():
            if config.caching != self.config.caching:
                self.sessions.adjust_memory(session)
            else:  # cached replies are as clients saw them under the old configuration
                session.forget()
        if plan.touches_upstreams:
            self._change_upstreams(config, plan)
        if config.access != self.config.access:
            self.router.policy = policy_of(config.access)
        self.config = config
        for follower in self.followers:
            follower(config)
        return plan

    def _change_upstreams(self, config: Config, plan: Plan) -> None:
        registry, sessions, before = self.upstreams, self.sessions, dict(self.upstreams)
        prefixes = {name: settings.prefix for name, settings in sessions.settings.items()}
        sessions.adopt(config)
        renamed = [
            name for name, each in sessions.settings.items() if prefixes.get(name, each.prefix) != each.prefix
        ]
        self.router.namespace = sessions.namespace
        self.hub.passes_all = sessions.namespace.transparent is not None
        for name in (*plan.removed, *plan.restarted):
            sessions.held.pop(name, None)
        for name in renamed:
            self.hub.forget(name)
        stay = [name for name in sessions.settings if name in before and name not in plan.restarted]
        for session in registry.sessions():
            if session.name in stay:
                sessions.adjust(session)
        registry.become(
            {name: before[name] if name in stay else sessions.make_shared(name) for name in sessions.settings}
        )
        self._tell([before[name] for name in before if name not in stay or name in renamed])

    def _tell(self, upstreams: list[Upstream]) -> None:
        for upstream in upstreams:
            if upstream.facts is not None:
                self.hub.upstream_changed(upstream.name, upstream.facts.capabilities)

    def restart(self, name: str) -> None:
        """Open a new session with an upstream; what is in flight in the old ones is finished there."""
        self.sessions.held.pop(name, None)
        self.upstreams.add(name, self.sessions.make_shared(name))

    def drain(self, name: str) -> None:
        """Give an upstream no exchange any more; what is in flight is finished, sessions stay open."""
        self.sessions.held[name] = DRAINED
        for session in self._sessions_with(name):
            session.hold(DRAINED)
        self._tell([self.upstreams[name]])

    def release(self, name: str) -> None:
        """Undo `drain`; nothing happens when there was none."""
        if self.sessions.held.pop(name, None) is not None:
            for session in self._sessions_with(name):
                session.release()
            self._tell([self.upstreams[name]])

    async def settled(self) -> None:
        """Wait until what was done so far holds for every exchange that begins: here it does at once."""

    async def renew(self) -> tuple[str, ...]:
        """Read all certificates again and return whose have changed. None has when it raises ConfigError."""
        targets = [each.target for each in self.config.upstreams]
        self.certificates.keep([target.tls for target in targets if isinstance(target, Http)])
        return await self.certificates.renew()

    def _sessions_with(self, name: str) -> list[Upstream]:
        return [session for session in self.upstreams.sessions() if session.name == name]


def implementation(identity: Identity) -> Raw:
    title = {} if identity.title is None else {"title": identity.title}
    return raw({"name": identity.name, "version": __version__, **title})


def _key_of(config: Config) -> bytes:
    """The configured key for seals, or a new one each time."""
    key = config.merging.cursor_key
    return key.reveal().encode() if key is not None else secrets.token_bytes(CURSOR_KEY_BYTES)


@asynccontextmanager
async def open_mux(
    config: Config,
    open_channel: OpenChannel | None = None,
    tap: Tap | None = None,
    trace: Trace | None = None,
    mark: str = "",
    generations: Generations | None = None,
) -> AsyncIterator[Mux]:
    """Connect the upstreams (in the background) and put the router in front of them.

    `open_channel` replaces the real transports. `tap` sees every message on both legs; `trace`, which needs a
    tap, every call of an upstream. If other processes serve the same clients, `mark` is put in front of the
    ids that clients come back with, and `generations` are shared.

    Nothing runs outside the context. Leaving it ends sessions and stops child processes, each step bounded.
    """
    async with AsyncExitStack() as stack:
        poller = await stack.enter_async_context(open_readiness_poller()) if available else None
        limits, merging, certificates = config.limits, config.merging, TlsContexts()
        opener = ChannelOpener(
            limits.max_message_bytes,
            limits.max_head_bytes,
            STOP_LADDER,
            head_fields=limits.max_header_fields,
            poller=poller,
            certificates=certificates,
        )
        server_info = implementation(config.identity)
        access, store = AccessControl(policy_of(config.access)), CacheStore(config.caching, generations)
        sessions = Sessions(config, server_info, open_channel or opener.open, tap, trace, access, store)
        registry, namespace = sessions.registry, sessions.namespace
        hub = sessions.hub = NotificationHub(
            registry.space, merging.change_window, sessions.on_wanted, access
        )
        hub.passes_all = namespace.transparent is not None
        registry.become({name: sessions.make_shared(name) for name in sessions.settings})
        tasks = Tasks(hub.personal, registry.client, access)
        merger = Merger(
            registry,
            CursorSeal(_key_of(config)),
            merging.page_size,
            tasks.hides,
            access,
            store,
            strict=merging.strict,
        )
        instructions = config.identity.instructions
        router = Router(registry, namespace, merger, hub, tasks, server_info, instructions, access)
        service = MuxService(router, hub, server_info, tap, StateSeal(_key_of(config)), mark)
        nursery = await stack.enter_async_context(trio.open_nursery())
        nursery.start_soon(hub.run, name="notification")
        await nursery.start(tasks.waits.run)
        await nursery.start(registry.run, name="upstreams")
        yield Mux(config, router, service, hub, registry, merger, sessions, poller, certificates=certificates)
        nursery.cancel_scope.cancel()
