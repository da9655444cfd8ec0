"""Serve with several workers. The supervisor has the addresses, shared upstreams and the configuration.

The first SIGINT or SIGTERM drains the workers, the second cancels.
"""

from __future__ import annotations

import errno
import math
import os
import secrets
import socket
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final, TypeVar

import attrs
import msgspec
import structlog
import trio

from mcpmux.app.control import ConfigFile, Control
from mcpmux.app.held import SharedDesk
from mcpmux.app.interceptors import check_interceptors
from mcpmux.app.listeners import Announce, check_listeners, open_address, tls_of
from mcpmux.app.mux import CURSOR_KEY_BYTES, Follower
from mcpmux.app.observers import AdminSources, Observers, keep_time, new_run
from mcpmux.app.serving import DRAIN_SECONDS, keep_reloading, watch_signals
from mcpmux.app.workers.channel import Handlers
from mcpmux.app.workers.pool import WorkerPool
from mcpmux.app.workers.shared_upstream import SharedUpstream
from mcpmux.app.workers.traffic_forwarder import TrafficCollector
from mcpmux.cluster.letter import INSPECTOR, HandedRequest, Neighbour
from mcpmux.cluster.port import Outcome, ReplicaClient
from mcpmux.cluster.store import OpenSeal
from mcpmux.config import Caching, Capture, Config, Limits, Listeners, Secret, Stdio, Unix, Upstream
from mcpmux.config.model import ToolSelection
from mcpmux.config.plan import Plan, in_force, plan_change
from mcpmux.errors import ConfigError, TransportError
from mcpmux.files import PRIVATE_FOLDER
from mcpmux.traffic.admin.calls import OFF
from mcpmux.traffic.admin.configured_views import ViewCount, ViewsState, describe_views
from mcpmux.traffic.admin.ring import LiveRing
from mcpmux.traffic.admin.route import BadRequest, HttpExchange
from mcpmux.traffic.admin.upstreams import (
    DISABLED,
    Subscription,
    UpstreamState,
    UpstreamView,
    merge_subscriptions,
)
from mcpmux.traffic.audit.chain import CHAIN_FOLDER
from mcpmux.traffic.redaction.redactor import Redactor
from mcpmux.traffic.telemetry.prometheus import Family, Totals
from mcpmux.transports.byte_stream import reason_of
from mcpmux.transports.handing import can_hand
from mcpmux.transports.tls import TlsContexts

log = structlog.get_logger()

T = TypeVar("T", Limits, Caching, Capture, Upstream)

FULL_SECONDS = 0.1  # until the next accept when there are too many open files
SILENT_SECONDS = 60.0  # after an event about that
SOCKET_FOLDER_BYTES: Final = 80  # of the folder above ours: with our names, a socket's path may have 107
SHARE_SECONDS = 5.0  # until another attempt to make the socket of a shared upstream
OVERTIME_SECONDS = 5.0  # for workers to end after they have drained
CAPACITY = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
STDIO = "--workers: the client on standard input and output is served by one process; leave --workers out"
NO_WORKER = "no worker answers; try again later"
CLUSTER = (
    "--workers: with [cluster] start one replica for each core instead, each with a `listener` of its own, "
    "behind a load balancer; configs/cluster has files for that"
)
SYSTEM = "--workers: this system cannot hand connections from one process to another; Linux can"


def folder_for_sockets() -> str:
    """Return the folder for temporary files, or /tmp when sockets in that one would have too long paths."""
    folder = tempfile.gettempdir()
    return folder if len(os.fsencode(folder)) <= SOCKET_FOLDER_BYTES else "/tmp"


async def serve_workers(
    config: Config,
    announce: Announce,
    file: ConfigFile | None = None,
    *,
    workers: int,
    followers: Sequence[Follower] = (),
) -> None:
    """Serve like `app.serve`, from `workers` processes. Raises the same errors, and those of workers."""
    if config.listeners.stdio:
        raise ConfigError([STDIO])
    if config.cluster.url is not None:
        raise ConfigError([CLUSTER])
    if not can_hand():
        raise ConfigError([SYSTEM])
    await trio.to_thread.run_sync(check_listeners, config)
    await trio.to_thread.run_sync(check_interceptors, config)
    # The folder around the workers' folders. A failure is reported by the workers, which cannot open theirs.
    if config.audit.directory is not None:
        with suppress(OSError):
            await trio.Path(config.audit.directory).mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    stopping = trio.Event()
    # Nesting is the stop order: shared upstreams ⊃ workers ⊃ accepting.
    async with AsyncExitStack() as ends, trio.open_nursery() as signals:
        folder = tempfile.TemporaryDirectory(
            prefix="mcpmux-", dir=folder_for_sockets(), ignore_cleanup_errors=True
        )
        ends.enter_context(folder)
        signals.start_soon(watch_signals, stopping, signals.cancel_scope, name="signals")
        async with trio.open_nursery() as sharing:
            supervisor = Supervisor(config, workers, Path(folder.name), sharing, followers)
            ends.callback(supervisor.letters.close)
            # The workers use the certificates; here they are read to know what a renewal has changed.
            for listener in config.listeners.bound:
                await tls_of(listener, supervisor.certificates)
            for shared in supervisor.share():
                await sharing.start(shared.run, name=f"shared upstream {shared.name}")
            async with trio.open_nursery() as pool:
                async with AsyncExitStack() as stack:
                    addresses = []
                    for listener in config.listeners.bound:
                        url, sockets = await stack.enter_async_context(open_address(listener))
                        for socket in sockets:
                            stack.callback(socket.socket.close)
                        addresses.append((url, sockets))
                    await pool.start(supervisor.pool.run)
                    control = Control(supervisor, file)
                    serving = await stack.enter_async_context(trio.open_nursery())
                    serving.start_soon(keep_time, supervisor.observers.run, name="system time")
                    if file is not None:
                        await serving.start(keep_reloading, control, file, stopping)
                    for number, (url, sockets) in enumerate(addresses):
                        for socket in sockets:
                            serving.start_soon(_accept, socket, partial(supervisor.pool.give, number))
                        control.noting(announce)(url)
                    if config.admin.port is not None:
                        call = supervisor.call if config.admin.may_call else OFF
                        shown = AdminSources(
                            supervisor, supervisor, call, supervisor.desk, supervisor.read_metrics
                        )
                        serve_admin = supervisor.observers.serve_admin
                        more = supervisor.certificates, control, stopping, announce
                        await serving.start(serve_admin, shown, *more)
                    await stopping.wait()
                    serving.cancel_scope.cancel(reason="stopping")
                # After the listening sockets are closed above: no connection arrives for a worker that ends.
                pool.cancel_scope.deadline = trio.current_time() + DRAIN_SECONDS + OVERTIME_SECONDS
                supervisor.pool.stop()
            sharing.cancel_scope.cancel(reason="stopped")
        signals.cancel_scope.cancel()


class Supervisor:
    """All workers and shared upstreams (in `sharing`, with sockets in `folder`), controlled like one mux."""

    def __init__(
        self, config: Config, workers: int, folder: Path, sharing: trio.Nursery, followers: Sequence[Follower]
    ) -> None:
        self.config = self._started = config
        ring = LiveRing(config.admin.keep_exchanges, config.admin.keep_bytes)
        self.observers = Observers(config.admin, Redactor(config.redaction), new_run(), ring=ring)
        self._collector = TrafficCollector(ring, workers)
        self._totals = Totals()
        self.pool = WorkerPool(workers, self._start_for, self._handlers_for)
        self.letters = ReplicaClient(OpenSeal(), TlsContexts(), config.cluster.peers, config.limits)
        self._shared: dict[str, SharedUpstream] = {}
        self._leaving: dict[str, SharedUpstream] = {}  # not shared any more, but perhaps not at their end
        self._sharing = sharing
        self._sockets = count(1)
        self.certificates = TlsContexts()
        self._folder = folder
        self._followers = followers
        self._key = Secret(secrets.token_hex(CURSOR_KEY_BYTES))
        self._drained: set[str] = set()
        self.desk = SharedDesk(self.ask_inspectors)

    def _config_of(self, worker: int, config: Config) -> Config:
        sockets = {name: str(shared.path) for name, shared in self._shared.items()}
        return worker_config(config, worker, self.pool.count, sockets, self._key)

    def _start_for(self, worker: int) -> tuple[Config, Config, str, tuple[str, ...]]:
        self._collector.begin(worker)
        config = self._config_of(worker, self.config)
        # A worker that is replaced gets the listeners and limits of the others, not those of the next start.
        started = in_force(self._config_of(worker, self._started), config)
        return started, config, str(self._folder), tuple(sorted(self._drained))

    def _handlers_for(self, worker: int) -> Handlers:
        return {
            "traffic": partial(self._collector.take, worker),
            "row": partial(self._collector.row_of, worker),
        }

    def share(self) -> list[SharedUpstream]:
        """Follow the shared upstreams of the configuration. Return the new ones, to be started."""
        upstreams = {upstream.name: upstream for upstream in self.config.upstreams if is_shared(upstream)}
        self._leaving = {name: shared for name, shared in self._leaving.items() if not shared.ended.is_set()}
        for name in self._shared.keys() - upstreams.keys():
            self._leaving[name] = shared = self._shared.pop(name)
            shared.leave()
        added = []
        for name, upstream in upstreams.items():
            config = shared_config(self.config, upstream)
            if name in self._shared:
                self._shared[name].apply(config)
            else:
                path = self._folder / f"{next(self._sockets)}.sock"
                on_ready = partial(self.pool.tell, "act", "reconnect")
                former = self._leaving.pop(name, None)
                self._shared[name] = SharedUpstream(name, path, config, on_ready, former)
                added.append(self._shared[name])
        return added

    def apply(self, config: Config) -> Plan:
        plan = plan_change(self.config, config)
        self.config = config
        if plan:
            self._drained -= {*plan.removed, *plan.restarted}
            # Shared upstreams first: a worker's new configuration names their sockets.
            added = self.share()
            for shared in added:
                self._sharing.start_soon(self._keep_sharing, shared, name=f"shared upstream {shared.name}")
            for worker in self.pool.running:
                # One that connects before the socket is there would report its server as down.
                for shared in added:
                    worker.control.pause(shared.listening)
                worker.control.post("apply", self._config_of(worker.number, config))
            for name, shared in self._shared.items():
                if name in plan.restarted and shared not in added:  # the workers' own settings are the same
                    self.pool.tell("act", "restart", name)
            for follower in (self.observers.follow, *self._followers):
                follower(config)
        return plan

    async def _keep_sharing(self, shared: SharedUpstream) -> None:
        """Run a shared upstream that a reload has added. Log why its socket cannot be made, and try again."""
        # At the start that ends mcpmux. Now it serves clients, who need its other servers.
        while True:
            try:
                await trio.Path(self._folder).mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
                return await shared.run()
            except (OSError, TransportError) as error:
                log.error("workers cannot reach it", upstream=shared.name, reason=str(error))
            await trio.sleep(SHARE_SECONDS)

    def act(self, action: str, name: str) -> None:
        self._drained.discard(name)
        if action == "drain":
            self._drained.add(name)
        elif action == "restart" and name in self._shared:
            self._shared[name].restart()
        self.pool.tell("act", action, name)

    async def renew(self, config: Config) -> tuple[str, ...]:
        changed = await self.certificates.renew(config.tls)
        # Also without a change: a worker's last attempt may have failed where the others' did not.
        self.pool.tell("renew", config.tls)
        return changed

    async def settled(self) -> None:
        """Wait until each running worker, even a starting one, has made the calls so far. Log late ones."""
        # Calls are made in order: the answer to a heartbeat comes after everything posted before it.
        await self.pool.ask("heartbeat", [worker for worker in self.pool.running if not worker.silent])

    # For the admin listener, which shows all workers as one. A worker that does not answer is left out.

    async def read_all(self) -> list[UpstreamState]:
        redactor, shared = self.observers.redactor, {}
        for name, value in self._shared.items():
            if (mux := value.mux) is not None:
                view = UpstreamView(mux.upstreams, mux.hub, redactor, self.observers.run)
                (shared[name],) = await view.read_all()
        return merge_upstreams(await self.pool.ask("upstreams"), shared)

    async def read_states(self) -> dict[str, str]:
        # As the workers see shared ones, too: one that no worker has reached yet is not ready for clients.
        states = merge_upstreams(await self.pool.ask("upstreams"), {})
        return {state.name: state.state for state in states if state.state != DISABLED}

    async def read_subscriptions(self) -> list[Subscription]:
        return merge_subscriptions(await self.pool.ask("subscriptions"))

    def read_views(self) -> ViewsState:
        return describe_views(self.config)

    async def count_views(self) -> Mapping[str, ViewCount]:
        counts: dict[str, ViewCount]
        for counts in (await self.pool.ask("views", self.pool.serving[:1])).values():  # all see the same
            return counts
        raise BadRequest(NO_WORKER, 503)

    async def call(self, http: HttpExchange) -> None:
        """Have a worker send a request of the inspector. Raises BadRequest."""
        for worker in self.pool.serving:
            if (there := worker.store.member) is not None:
                handed = HandedRequest.of(INSPECTOR, http.request)
                outcome = await self.letters.hand_over(there, handed, http.reply)
                if outcome is Outcome.LOST and not http.reply.started:
                    raise BadRequest("the worker has gone; the request may have been carried out", 502)
                if outcome is not Outcome.UNSENT:
                    return
        raise BadRequest(NO_WORKER, 503)

    async def ask_inspectors(
        self, method: str, path: str, body: bytes, only: str | None = None
    ) -> dict[Neighbour, tuple[int, bytes]]:
        """See Replica: have the workers answer a request."""
        members = [worker.store.member for worker in self.pool.serving]
        others = [member for member in members if member is not None and only in (None, member.replica)]
        return await self.letters.ask_inspectors(others, method, path, body)

    async def read_metrics(self) -> list[Family]:
        # With the number of its starts: a worker that was started again counts from zero.
        starts = self.pool.starts
        snapshots = {
            (key, starts[key]): snapshot for key, snapshot in (await self.pool.ask("metrics")).items()
        }
        return self._totals.add_up(snapshots, starts.items())


async def _accept(listener: trio.SocketListener, give: Callable[[socket.socket], Awaitable[None]]) -> None:
    silent_until = -math.inf
    while True:
        # Accepted here for all workers: only so can connections be spread evenly, and a worker be replaced
        # without losing one.
        try:
            accepted, _ = await listener.socket.accept()
        except OSError as error:
            if error.errno in CAPACITY:
                if trio.current_time() >= silent_until:
                    silent_until = trio.current_time() + SILENT_SECONDS
                    log.error("connections wait, none can be accepted", reason=reason_of(error))
                await trio.sleep(FULL_SECONDS)
            continue  # any other error is about one connection, whose client has gone
        with socket.socket(fileno=accepted.detach()) as connection:
            await give(connection)


# The configurations of several processes from one. Pure.
#
# Rules
#   * A server that mcpmux starts, and that all clients share, runs once, under the supervisor. Workers reach
#     it at a Unix socket as a server of the newest revision. Other upstreams run in each worker.
#   * Limits on the whole (connections, sessions, exchanges with a server, memory) are divided and rounded up.
#     Limits on one client are not divided.
#
# Laws: the workers' parts of a number add up to it, or to less than one a worker more; a worker has the
# upstreams of the whole in the same order with the same prefixes.


def is_shared(upstream: Upstream) -> bool:
    """Return whether a server runs once for all workers."""
    return (
        upstream.enabled
        and isinstance(upstream.target, Stdio)
        and upstream.session == "shared"
        and not upstream.per_worker
    )


DIVIDED = ("max_sessions", "max_connections", "max_connections_per_address", "max_streams_per_client")
"""Limits of a listener, of which each worker has a part."""


def divide(settings: T, workers: int, **least: int) -> T:
    """Return `settings` with one worker's part of each named limit that is set.

    A part is rounded up, and at least the given number.
    """
    whole = {name: getattr(settings, name) for name in least}
    parts = {name: max(low, -(-whole[name] // workers)) for name, low in least.items() if whole[name]}
    return attrs.evolve(settings, **parts)


def worker_config(
    config: Config, worker: int, workers: int, sockets: Mapping[str, str], key: Secret
) -> Config:
    """Return the configuration of worker number `worker`, which is 1 to `workers`.

    `sockets`: of shared upstreams, by name. `key`: for seals, when none is configured.
    """
    upstreams = []
    for upstream in config.upstreams:
        if upstream.name in sockets:
            era = "mirror" if upstream.era == "mirror" and upstream.revision is None else "newest"
            # The supervisor's mux speaks the newest revision for every server, and checks its health.
            target = Unix(sockets[upstream.name])
            upstream = attrs.evolve(upstream, target=target, era=era, revision=None, health_interval=0.0)
        elif upstream.session == "shared" and isinstance(upstream.target, Stdio | Unix):
            upstream = divide(upstream, workers, max_in_flight=1, max_waiting=0)
        # The workers divide the limits of servers at an address among them, as replicas do: see Mux.share.
        upstreams.append(upstream)
    # An audit log is one chain of records, which one process writes. Captures are apart for each run anyway.
    folder = config.audit.directory
    if folder is not None:
        folder = str(Path(folder) / f"{CHAIN_FOLDER}{worker}")
    return attrs.evolve(
        config,
        upstreams=tuple(upstreams),
        # Any worker must open what another one has sealed.
        merging=attrs.evolve(config.merging, cursor_key=config.merging.cursor_key or key),
        limits=divide(config.limits, workers, **dict.fromkeys(DIVIDED, 1)),
        caching=divide(config.caching, workers, max_bytes=1024, max_entries=1),
        capture=divide(config.capture, workers, queue_bytes=65536),
        audit=attrs.evolve(config.audit, directory=folder),
    )


def shared_config(config: Config, upstream: Upstream) -> Config:
    """Return the configuration of the mux in front of one shared upstream, which passes all messages on.

    It does not authenticate, select, rename, count or cache anything: each worker does that for its clients.
    """
    in_flight = upstream.max_in_flight + upstream.max_waiting
    limits = attrs.evolve(config.limits, max_in_flight=in_flight, rate=())
    return Config(
        upstreams=(attrs.evolve(upstream, prefix="", caching=False, tools=ToolSelection(), overrides=()),),
        listeners=Listeners(),
        limits=limits,
        logging=config.logging,
        redaction=config.redaction,
    )


# The states of the upstreams for all workers together. Pure.
#
# Rules
#   * The state of an upstream is the worst that it has at any worker, and the trouble names those workers.
#     Numbers are added up; sessions are listed side by side, with the worker in their `key`, as in `2/docs`.
#   * A shared upstream has one state, unless an administrator has drained it, which the workers do. Its
#     sessions are those of the supervisor, with the listeners of all workers.

_BEST_FIRST = ("ready", "drained", "draining", "connecting", "failing", "crash-loop", "down")
_RANKS = {state: rank for rank, state in enumerate(_BEST_FIRST)}
_SUMMED = ("restarts", "in_flight", "unasked_logs", "more_sessions")
_HELD = frozenset({"draining", "drained"})

WorkerStates = Mapping[int, Sequence[UpstreamState]]
"""The states of all upstreams at each worker, by the worker's number."""


def merge_upstreams(said: WorkerStates, shared: Mapping[str, UpstreamState]) -> list[UpstreamState]:
    """Return one state for each upstream, in the order in which the workers have them."""
    by_name: dict[str, dict[int, UpstreamState]] = {}
    for worker, states in said.items():
        for state in states:
            by_name.setdefault(state.name, {})[worker] = state
    return [_merge(states, shared.get(name)) for name, states in by_name.items()]


def worst(states: Iterable[str]) -> str:
    return max(states, key=lambda state: _RANKS.get(state, len(_RANKS)))


def _merge(states: Mapping[int, UpstreamState], shared: UpstreamState | None) -> UpstreamState:
    several = list(states.values())
    state = worst(state_there.state for state_there in several)
    cache: Counter[str] = Counter()
    for state_there in several:
        cache.update(state_there.cache or {})
    example = next(candidate for candidate in several if candidate.state == state)
    there = {worker: upstream.trouble for worker, upstream in states.items() if upstream.state == state}
    trouble = next((text for text in there.values() if text), None)
    if trouble is not None and len(there) < len(states):
        trouble = f"{trouble} (worker {', '.join(map(str, there))} of {len(states)})"
    merged = msgspec.structs.replace(
        example,
        trouble=trouble,
        cache=dict(cache) or None,
        sessions=[
            msgspec.structs.replace(session, key=f"{worker}/{session.key}")
            for worker, of in states.items()
            for session in of.sessions
        ],
        **{name: sum(getattr(state_there, name) for state_there in several) for name in _SUMMED},
    )
    return merged if shared is None else _merge_shared(merged, several, shared)


def _merge_shared(
    merged: UpstreamState, several: Sequence[UpstreamState], shared: UpstreamState
) -> UpstreamState:
    held = merged.state if all(each.state in _HELD for each in several) else None
    listeners: Counter[str] = Counter()
    for told in (told for each in several for session in each.sessions for told in session.subscriptions):
        listeners[told["uri"]] += told["listeners"]
    sessions = []
    for session in shared.sessions:
        subscriptions = [
            {**subscription, "listeners": listeners.get(subscription["uri"], subscription["listeners"])}
            for subscription in session.subscriptions
        ]
        sessions.append(msgspec.structs.replace(session, subscriptions=subscriptions))
    return msgspec.structs.replace(
        shared,
        prefix=merged.prefix,
        state=held or shared.state,
        since=merged.since if held else shared.since,
        cache=merged.cache,
        sessions=sessions,
    )
