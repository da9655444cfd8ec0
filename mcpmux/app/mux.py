"""Assemble the parts between clients and upstreams, and apply configurations while they run."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final

import structlog
import trio

from mcpmux import __version__
from mcpmux.app.interceptors import NO_FUNCTIONS, Functions, Interceptors
from mcpmux.channels.opener import ChannelOpener
from mcpmux.channels.questions import Client, Question
from mcpmux.channels.tap import Leg, Tap, Trace, Watch
from mcpmux.clients.service import MuxService
from mcpmux.config import Config, Identity, Stdio, Unix
from mcpmux.config.model import transport_of
from mcpmux.config.plan import Plan, plan_change
from mcpmux.mux.cache import Generations
from mcpmux.mux.naming import Naming, naming_of
from mcpmux.mux.policy import policy_of
from mcpmux.mux.rewrite import Marks, Namespace
from mcpmux.mux.seal import CursorSeal
from mcpmux.mux.view import selection_of, selections_of
from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.input_requests import SHARED_CAPABILITIES
from mcpmux.protocol.raw_json import Raw
from mcpmux.runtime.access_control import AccessControl, Shown
from mcpmux.runtime.merger import Merger
from mcpmux.runtime.notification_hub import NotificationHub, upstream_of
from mcpmux.runtime.router import Router
from mcpmux.runtime.sessions import SessionCounter
from mcpmux.runtime.tasks import Tasks
from mcpmux.transports.polling import open_readiness_poller
from mcpmux.transports.process import StopLadder
from mcpmux.transports.tls import TlsContexts
from mcpmux.transports.waiting import ReadinessPoller
from mcpmux.upstreams.connection import Eras, SessionOpener
from mcpmux.upstreams.limiter import RateCounter
from mcpmux.upstreams.registry import PRIVATE, Addressee, UpstreamRegistry, is_one_for_all
from mcpmux.upstreams.response_cache import CacheStore
from mcpmux.upstreams.subscriber import Replicas, Subscriber
from mcpmux.upstreams.supervision import OpenChannel
from mcpmux.upstreams.upstream import Upstream

log = structlog.get_logger()

FIRST_CLIENT_SECONDS: Final = 45.0  # that a server waits for a client; SDKs wait a minute for an answer
CURSOR_KEY_BYTES = 32
INSTANCE_DIGITS: Final = 16  # hexadecimal ones, of 64 bits
DRAINED = "is being drained by whoever runs mcpmux; try again later"
# Host apps wait two seconds before they terminate us, and two more before they kill us.
STOP_LADDER = StopLadder(close_seconds=1.5, terminate_seconds=2.0)

Follower = Callable[[Config], None]
"""Called with each new configuration, right after the mux has applied it. Must not fail."""


class Mux:
    """The running parts. `config`: their present configuration. `followers` are called when it has changed.

    A session keeps the configuration that it was made with, except for settings that are read at each use.
    """

    def __init__(
        self,
        config: Config,
        open_channel: OpenChannel | None,
        tap: Tap | None,
        trace: Trace | None,
        marks: Marks | None,
        generations: Generations | None,
        poller: ReadinessPoller,
        nursery: trio.Nursery,
        replicas: Replicas | None = None,
        functions: Functions = NO_FUNCTIONS,
        certificates: TlsContexts | None = None,
    ) -> None:
        """See `open_mux`."""
        merging = config.merging
        self.config = config
        self.followers: list[Follower] = []
        self.poller = poller
        self.certificates = certificates or TlsContexts()
        self.store = CacheStore(config.caching, generations)
        shown = shown_by(config)
        access = AccessControl(policy_of(config.access, shown.naming), shown)
        opener = ChannelOpener(config.limits, STOP_LADDER, poller=poller, certificates=self.certificates)
        self._open_channel = open_channel or opener.open
        self.marks = marks or Marks()
        self.rates = RateCounter(config.limits.rate)
        self._watch = partial(Watch, tap, trace=trace) if tap is not None else None
        self._replicas = replicas
        self._parts = 1  # the number of replicas among which the limits of upstreams are divided
        key = _key_of(config)
        self._held: dict[str, str] = {}  # why upstreams get no exchange, by name
        # The latest prefix of each upstream, also of removed ones, whose clients stay subscribed.
        self._prefixes = dict(config.prefixes)
        self.upstreams = registry = UpstreamRegistry(
            self._make, self._move_interest, _instance_of(config, key)
        )
        self.hub = NotificationHub(
            registry.space,
            merging.change_window,
            self._poke,
            access,
            registry.lists_changed,
            registry.client_of,
        )
        self._adopt(config)
        registry.become({name: self.make_shared(name) for name in config.enabled})
        tasks = Tasks(self.hub.personal, registry.client, access, nursery, marks=self.marks)
        seal = CursorSeal(key)
        self.merger = Merger(registry, seal, merging, tasks.hides, access, self.store)
        self.router = Router(
            registry,
            self._namespace,
            self.merger,
            self.hub,
            tasks,
            access,
            key,
            self.rates,
            self.marks,
        )
        self.router.present_itself(implementation(config.identity), config.identity.instructions)
        largest = config.limits.max_message_bytes
        self.interceptors = Interceptors(self.router, tap, largest, registry.for_call, functions)
        self.interceptors.adopt(self.interceptors.make(config, shown.naming))
        counter = SessionCounter(config.limits.max_sessions_per_principal)
        self.service = MuxService(self.router, self.hub, tap, counter)

    def _adopt(self, config: Config) -> None:
        self._namespace = Namespace(config.prefixes, config.merging.name_limit)
        # Of a single upstream without a prefix also notifications that mcpmux does not know are passed on.
        self.hub.passes_all = self._namespace.transparent is not None

    # Sessions with upstreams

    def make_shared(self, name: str) -> Upstream:
        """Return a new shared session, which subscribes to the URIs that clients listen to already."""
        upstream = self._make(name, name, SHARED_CAPABILITIES, Eras.MODERN_FIRST)
        upstream.subscriber.take_over(self.hub.subscriptions.wanted(name))
        return upstream

    def _make(self, name: str, key: str, capabilities: Raw, eras: Eras) -> Upstream:
        config, hub, watch = self.config.enabled[name], self.hub, None
        eras = eras if config.era != "legacy" else Eras.LEGACY_ONLY
        if self._watch is not None:
            watch = self._watch(Leg("upstream", key, transport_of(config.target), name))
        # A private session comes and goes with its client: the lists of other clients stay the same.
        on_change = hub.upstream_changed if key == name else lambda _name, _capabilities: None
        upstream = Upstream(
            config,
            key,
            SessionOpener(
                implementation(self.config.identity),
                capabilities,
                eras,
                config.revision,
                self.upstreams.instance,
            ),
            self._namespace.spaces[name],
            self._open_channel,
            Subscriber(
                key,
                partial(hub.subscriptions.wanted, key),
                partial(hub.client_listening, key),
                partial(self._update, key),
                partial(on_change, name),
                partial(hub.tell_update, key),
                # Replicas share no private session, and no server that each starts for itself.
                self._replicas if PRIVATE not in key and is_one_for_all(config) else None,
            ),
            partial(self._find_client, key),
            on_change,
            hub.hear,
            watch,
            self.store.generations,
            self.rates,
        )
        self._adjust_memory(upstream)
        self._divide(upstream)
        if name in self._held:
            upstream.hold(self._held[name])
        return upstream

    def share(self, replicas: int) -> None:
        """Divide the limits of upstreams among so many replicas, of which this is one."""
        self._parts = replicas
        for session in self.upstreams.sessions():
            self._divide(session)

    def _divide(self, session: Upstream) -> None:
        # A child process, a socket of this machine and a private session belong to one replica only.
        if not isinstance(session.config.target, Stdio | Unix) and PRIVATE not in session.key:
            session.limiter.become_one_of(self._parts)

    def _adjust_memory(self, session: Upstream) -> None:
        session.remember(self.store.cache_of(session.config, session.key))

    def _update(self, key: str, uri: str) -> None:
        """Report a resource of a session as changed, as mcpmux may have missed a change."""
        # The cache first: a client that is notified may read at once.
        upstream = self.upstreams.by_key(key)
        if upstream is not None and upstream.memory is not None:
            upstream.memory.updated(uri)
        self.hub.tell_update(key, uri)

    async def _find_client(self, key: str, question: Question) -> Client | None:
        maker = None
        if question.client is None and question.task_id is not None:
            maker = self.hub.personal.tasks.find(key, question.task_id)
        if question.client is not None:
            client = self.upstreams.client(question.client)
        elif maker is not None:
            client = self.upstreams.client(maker[0])
        else:
            # Many servers ask for the roots when they start, before any client has come.
            if question.method == m.ROOTS_LIST:
                with trio.move_on_after(FIRST_CLIENT_SECONDS):
                    await self.upstreams.first_client_of(key)
            client = self.upstreams.client_of(key)
        # A server must not reach a client that may not see it.
        space = self.upstreams.space(key)
        if client is None or space is None:
            return None
        if not self.router.access.of(client.principal).sees(upstream_of(key)):
            return None
        return Addressee(client, space)

    def _move_interest(self, key: str, name: str) -> None:
        moved = self.hub.move_interest(key, name)
        if name in self.upstreams:
            self.upstreams[name].subscriber.take_over(moved)

    def _poke(self, key: str) -> None:
        upstream = self.upstreams.by_key(key)
        if upstream is not None:
            upstream.subscriber.poke()

    # Changes while it runs

    def apply(self, config: Config) -> Plan:
        """Apply a configuration. Return what was done, and what has to wait for a restart.

        Raises ConfigError, without any change, when an interceptor cannot be made.
        """
        former = self.config
        plan = plan_change(former, config)
        # It never waits from here on, so no exchange meets half of a configuration.
        shown, old = shown_by(config), shown_by(former)
        # First, as it can fail: a module that can be imported no more.
        steps = self.interceptors.make(config, shown.naming) if plan else []
        self.config = config
        if not plan:
            return plan
        merging = config.merging
        self.hub.window = merging.change_window
        self.merger.merging = merging
        # Replicas that are started with the new key must open what this one seals from now on.
        if merging.cursor_key != former.merging.cursor_key:
            self.merger.seal = CursorSeal(_key_of(config))
            self.router.round_trips.use_key(_key_of(config))
        self.router.present_itself(implementation(config.identity), config.identity.instructions)
        # Always, as cached pages contain the names of the old configuration.
        self.store.follow(config.caching)
        if config.limits.rate != former.limits.rate:
            self.rates.become(config.limits.rate)
        for session in self.upstreams.sessions():
            if config.caching != former.caching:
                self._adjust_memory(session)
            else:  # cached replies contain names for clients of the old configuration
                session.forget()
        if plan.touches_upstreams or merging.name_limit != former.merging.name_limit:
            self._change_upstreams(former, plan)
        # The same rules are about other items when the names of items have changed.
        goes_by_names = any(rule.targets for rule in config.access)
        is_same = config.access == former.access and (not goes_by_names or shown.naming == old.naming)
        if not is_same or shown != old:
            policy = self.router.access.policy if is_same else policy_of(config.access, shown.naming)
            self.router.adopt(policy, shown)
        if steps or former.intercept:
            self.interceptors.adopt(steps)
        for follower in self.followers:
            follower(config)
        return plan

    def _change_upstreams(self, before: Config, plan: Plan) -> None:
        registry, former, settings = self.upstreams, dict(self.upstreams), self.config.enabled
        is_other_limit = before.merging.name_limit != self.config.merging.name_limit
        self._adopt(self.config)
        self.router.resolver.namespace = self._namespace
        prefixes, self._prefixes = self._prefixes, {**self._prefixes, **self.config.prefixes}
        renamed = [name for name in settings if prefixes.get(name) not in (None, self._prefixes[name])]
        # A new session with an upstream gets exchanges, as after `restart`.
        for name in (*plan.removed, *plan.restarted):
            self._held.pop(name, None)
        # Before the new prefixes are set below: the last updates go out under the old URIs. An upstream that
        # returns has no session; the subscriptions of all its former ones are under its name.
        keys = (session.key for session in registry.sessions() if session.name in renamed)
        for key in dict.fromkeys([*renamed, *keys]):
            self.hub.forget(key)
        stay = [name for name in settings if name in former and name not in plan.restarted]
        for session in registry.sessions():
            if session.name in stay:
                cached = session.config.caching
                session.adopt(settings[session.name])
                if session.config.caching is not cached:
                    self._adjust_memory(session)
                session.space = self._namespace.spaces[session.name]
        registry.become({name: former[name] if name in stay else self.make_shared(name) for name in settings})
        # Clients know the URIs of one that has gone by its prefix: with that they are those of its successor.
        successors = {prefix: name for name, prefix in self.config.prefixes.items()}
        for gone in self._prefixes.keys() - settings.keys():
            if (successor := successors.get(self._prefixes[gone])) is not None:
                del self._prefixes[gone]
                self._move_interest(gone, successor)
        # New ones announce their lists themselves, once they are connected.
        changed = [name for name in former if is_other_limit or name not in stay or name in renamed]
        self._tell([former[name] for name in changed])

    def _tell(self, upstreams: list[Upstream]) -> None:
        for upstream in upstreams:
            if upstream.facts is not None:
                self.hub.upstream_changed(upstream.name, upstream.facts.capabilities)

    def act(self, action: str, name: str) -> None:
        """Do one thing to an upstream: `restart`, `drain` or `release`."""
        getattr(self, action)(name)

    def restart(self, name: str) -> None:
        """Open a new session with an upstream. Exchanges in flight end in the old sessions."""
        self._held.pop(name, None)
        self.upstreams.add(name, self.make_shared(name))

    def drain(self, name: str) -> None:
        """Give an upstream no exchange any more. Exchanges in flight are finished, sessions stay open."""
        self._held[name] = DRAINED
        for session in self._sessions_with(name):
            session.hold(DRAINED)
        self._tell([self.upstreams[name]])

    def release(self, name: str) -> None:
        """Undo `drain`, if the upstream was drained."""
        if self._held.pop(name, None) is not None:
            for session in self._sessions_with(name):
                session.hold(None)
            self._tell([self.upstreams[name]])

    def _sessions_with(self, name: str) -> list[Upstream]:
        return [session for session in self.upstreams.sessions() if session.name == name]

    async def settled(self) -> None:
        """Wait until every new exchange follows the actions so far. In one process they do at once."""

    async def renew(self, config: Config) -> tuple[str, ...]:
        """Read the certificates of a configuration again that are in use. Return the owners of changed ones.

        Raises ConfigError if one cannot be used; then none is replaced.
        """
        return await self.certificates.renew(config.tls)


def shown_by(config: Config) -> Shown:
    """Return the views and names for clients of a configuration."""
    upstreams, naming = config.enabled.values(), config_naming(config)
    return Shown(selections_of(config.views, naming), selection_of(upstreams, naming), naming)


def config_naming(config: Config) -> Naming:
    """Return the names that items have for clients of a configuration."""
    return naming_of(config.enabled.values(), config.views, config.merging.name_limit)


def implementation(identity: Identity) -> Raw:
    title = {} if identity.title is None else {"title": identity.title}
    return raw({"name": identity.name, "version": __version__, **title})


def _key_of(config: Config) -> bytes:
    """Return the configured key for seals, or a new random one each time."""
    key = config.merging.cursor_key
    return key.reveal().encode() if key is not None else secrets.token_bytes(CURSOR_KEY_BYTES)


def _instance_of(config: Config, key: bytes) -> str:
    """Return the id of this mcpmux: that of all its workers and replicas, which have the same `key`."""
    # The names, too: one key may be for several clusters, of which one is behind another.
    parts = [key, *(name.encode() for name in config.prefixes)]
    return hashlib.sha256(b"\x00".join(parts)).hexdigest()[:INSTANCE_DIGITS]


@asynccontextmanager
async def open_mux(
    config: Config,
    open_channel: OpenChannel | None = None,
    tap: Tap | None = None,
    trace: Trace | None = None,
    marks: Marks | None = None,
    generations: Generations | None = None,
    replicas: Replicas | None = None,
    functions: Functions = NO_FUNCTIONS,
    certificates: TlsContexts | None = None,
) -> AsyncIterator[Mux]:
    """Connect the upstreams (in the background) and yield the mux in front of them.

    `open_channel` replaces the real transports. `tap` sees every message on both legs; `trace`, which needs a
    tap, every call of an upstream. If other processes serve the same clients, `marks` are the prefix of the
    ids that clients send back, and `generations` are shared. One of `replicas` subscribes for all.
    `functions`: those that interceptors name, besides what can be imported. `certificates`: those that are
    renewed together with the mux's own. Raises ConfigError.

    No task runs outside the context. Leaving it ends sessions and stops child processes, each step bounded.
    """
    async with AsyncExitStack() as stack:
        poller = await stack.enter_async_context(open_readiness_poller())
        nursery = await stack.enter_async_context(trio.open_nursery())
        parts = tap, trace, marks, generations, poller, nursery, replicas, functions, certificates
        mux = Mux(config, open_channel, *parts)
        nursery.start_soon(mux.hub.run, name="notification")
        await nursery.start(mux.upstreams.run, name="upstreams")
        yield mux
        nursery.cancel_scope.cancel()
