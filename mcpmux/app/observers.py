"""Open the configured observers of the traffic: capture, audit log, inspector, metrics, traces.

Each is imported only if it is configured.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import trio

from mcpmux.app.listeners import Announce, Serving, serve_listener
from mcpmux.app.mux import Mux
from mcpmux.channels.tap import Tap, Trace
from mcpmux.clients.service import Service
from mcpmux.config import Admin, Config, HttpListener, Limits
from mcpmux.traffic.observer import ExchangeObserver, MessageObserver
from mcpmux.traffic.record import Run
from mcpmux.traffic.redaction.redactor import Redactor
from mcpmux.traffic.telemetry.tracing import open_tracing, servers_of
from mcpmux.transports.waiting import clock

if TYPE_CHECKING:
    from mcpmux.cluster.replica import Replica
    from mcpmux.traffic.admin.calls import RowOf
    from mcpmux.traffic.admin.configured_views import Views
    from mcpmux.traffic.admin.held import Desk
    from mcpmux.traffic.admin.ring import LiveRing
    from mcpmux.traffic.admin.route import Handle, HttpExchange, Route
    from mcpmux.traffic.admin.upstreams import Control, Replicas, Upstreams
    from mcpmux.traffic.audit.journal import Audit
    from mcpmux.traffic.capture.capture import CaptureSink
    from mcpmux.traffic.telemetry.metrics import Metrics
    from mcpmux.traffic.telemetry.prometheus import Family
    from mcpmux.traffic.telemetry.spans import Spans
    from mcpmux.transports.tls import TlsContexts

    ReadMetrics = Callable[[], Awaitable[list[Family]]]

TIME_SECONDS = 1.0  # between two looks at the system's time; a step of it is dated with this precision
RUN_BYTES = 4  # of randomness in the name of a run: enough to distinguish the runs of one machine


class Observer(MessageObserver, ExchangeObserver, Protocol):
    """An observer of messages and of exchanges."""


@dataclass(frozen=True)
class AdminSources:
    """The sources of the admin listener, for one mux or for several. `call`: see `call_routes`."""

    upstreams: Upstreams
    views: Views
    call: Handle | str
    desk: Desk
    read_metrics: ReadMetrics


@dataclass(slots=True)
class Observers:
    """All observers, None for those that are off. `ring`: also None when another process has it."""

    admin: Admin
    redactor: Redactor
    run: Run
    tap: Tap | None = None
    spans: Spans | None = None
    capture: CaptureSink | None = None
    audit: Audit | None = None
    ring: LiveRing | None = None
    metrics: Metrics | None = None

    @property
    def trace(self) -> Trace | None:
        return self.spans.trace if self.spans is not None else None

    def follow(self, config: Config) -> None:
        """Follow a changed configuration."""
        self.redactor.adopt(config.redaction)
        if self.capture is not None:
            self.capture.levels.adopt(config.prefixes)
        if self.spans is not None:
            self.spans.know(servers_of(config.enabled.values()))

    async def serve_admin(
        self,
        shown: AdminSources,
        certificates: TlsContexts,
        control: Control,
        stopping: trio.Event,
        announce: Callable[[str], None],
        replicas: Replicas | None = None,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve the admin listener until we stop. Raises TransportError, ConfigError."""
        from mcpmux.traffic.admin.calls import call_routes
        from mcpmux.traffic.admin.configured_views import view_routes
        from mcpmux.traffic.admin.held import held_routes
        from mcpmux.traffic.admin.listener import serve_admin
        from mcpmux.traffic.admin.mocks import Mocks
        from mcpmux.traffic.admin.view import LiveView
        from mcpmux.traffic.telemetry.prometheus import metrics_route

        assert self.ring is not None
        # A mock serves what the ring has of a server, until this listener ends.
        view = LiveView(self.ring, self.redactor, self.run)
        async with trio.open_nursery() as running:
            mocks = Mocks(view, serve_mock, running)
            await serve_admin(
                self.admin,
                view,
                shown.upstreams,
                stopping,
                announce,
                [
                    metrics_route(shown.read_metrics),
                    hosts_route(),
                    *view_routes(shown.views),
                    *call_routes(shown.call),
                    *held_routes(shown.desk),
                    *mocks.routes,
                ],
                control,
                certificates,
                replicas,
                task_status=task_status,
            )
            running.cancel_scope.cancel(reason="stopped")

    def shown_of(self, mux: Mux, replica: Replica | None = None, row_of: RowOf | None = None) -> AdminSources:
        """Return what there is to show of a mux.

        `replica`: this one of a cluster, of whose others some is shown as well. `row_of`: see Calls; None if
        the ring is here.
        """
        from mcpmux.app.held import MuxDesk, SharedDesk, answer_others
        from mcpmux.app.view_contents import MuxViews
        from mcpmux.traffic.admin.calls import OFF, Calls
        from mcpmux.traffic.admin.held import held_routes
        from mcpmux.traffic.admin.upstreams import UpstreamView

        row_of = row_of or self._row_of
        desk = MuxDesk(mux, row_of)
        if replica is not None:
            replica.inspector = answer_others(held_routes(desk))
        return AdminSources(
            UpstreamView(mux.upstreams, mux.hub, self.redactor, self.run, lambda: mux.config.upstreams),
            MuxViews(mux, self.redactor),
            Calls(mux.service, row_of).answer if self.admin.may_call else OFF,
            desk if replica is None else SharedDesk(replica.ask_inspectors, desk),
            partial(self._read_metrics, mux, replica),
        )

    async def _row_of(self, exchange: int) -> int | None:
        assert self.ring is not None
        return self.ring.row_of(exchange)

    async def _read_metrics(self, mux: Mux, replica: Replica | None) -> list[Family]:
        from mcpmux.traffic.telemetry import prometheus

        assert self.metrics is not None
        gauges = prometheus.mux_gauges(mux.upstreams, mux.hub, mux.store)
        if self.capture is not None:
            gauges += prometheus.capture_gauges(self.capture)
        if self.audit is not None:
            gauges += prometheus.audit_gauges(self.audit)
        if replica is not None:
            gauges += prometheus.cluster_gauges(replica.describe())
        return prometheus.snapshot(self.metrics, gauges)


def hosts_route() -> Route:
    """Return the route to what each host app needs in its file to use this mcpmux.

    `/api/hosts?url=` answers with `hosts`: each with its `file`, and the `text` for it, null where it takes
    no URL.
    """
    from mcpmux.hosts.host import HOSTS, Machine, find_places
    from mcpmux.hosts.installing import describe_entry
    from mcpmux.traffic.admin.route import BadRequest, Route

    async def answer(http: HttpExchange) -> None:
        url = http.query.get("url", "")
        if not url.startswith(("http://", "https://")):
            raise BadRequest("url has to be that of mcpmux, as host apps reach it")
        machine = Machine(sys.platform, Path("~"), os.environ)
        hosts = [
            {
                "name": host.name,
                "title": host.title,
                "file": str(next(find_places(machine, [host.name])).path),
                "text": describe_entry(host, url),
            }
            for host in HOSTS.values()
        ]
        await http.send({"hosts": hosts})

    return Route("/api/hosts", answer)


async def serve_mock(
    server: Service,
    stopping: trio.Event,
    announce: Announce,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve a mock over HTTP at a free port of this machine, until `stopping` is set."""
    serving = Serving(Limits(), server, stopping, announce)
    await serve_listener(HttpListener(port=0), serving, task_status=task_status)


def new_run() -> Run:
    return Run(secrets.token_hex(RUN_BYTES), trio.current_time(), time.time())


async def keep_time(run: Run) -> None:
    """Have a run follow the system's time, until cancelled."""
    since = trio.current_time()
    while True:
        await trio.sleep(TIME_SECONDS)
        now = trio.current_time()
        run.follow(since, now, time.time())
        since = now


@asynccontextmanager
async def open_observers(
    config: Config, forwarder: Observer | None = None, first: Sequence[ExchangeObserver] = ()
) -> AsyncIterator[Observers]:
    """Open and yield all observers; goes around `open_mux`. `forwarder` replaces the inspector's ring.

    `first`: more observers, which never refuse an exchange, and so come before those that may.

    Raises CaptureUnusable and AuditUnusable if traffic that must be kept cannot be kept.
    """
    redactor, run = Redactor(config.redaction), new_run()
    observers = Observers(config.admin, redactor, run)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        message_observers: list[MessageObserver] = []
        exchange_observers: list[ExchangeObserver] = [*first]
        # Metrics and traces get an exchange first, so that they count what the audit log refuses.
        if config.admin.port is not None:
            from mcpmux.traffic.admin.ring import LiveRing
            from mcpmux.traffic.telemetry.metrics import Metrics

            observers.metrics = Metrics()
            if forwarder is None:
                forwarder = observers.ring = LiveRing(config.admin.keep_exchanges, config.admin.keep_bytes)
            exchange_observers += (observers.metrics, forwarder)
            message_observers += (observers.metrics, forwarder)
        if config.tracing.enabled:
            observers.spans = await enter(open_tracing(config.tracing, redactor, config.enabled.values()))
            message_observers.append(observers.spans)
            exchange_observers.append(observers.spans)
        if config.capture.on:
            from mcpmux.traffic.capture.capture import open_capture

            observers.capture = await enter(open_capture(config.capture, redactor, run, config.prefixes))
            message_observers.append(observers.capture)
            # With `on_full = "wait"` exchanges wait for room in its queue; else it need not see them.
            if observers.capture.holds_back:
                exchange_observers.append(observers.capture)
        if config.audit.directory is not None:
            from mcpmux.traffic.audit.opening import open_audit

            replica = config.cluster.replica if config.cluster.url is not None else None
            observers.audit = await enter(open_audit(config.audit, run.name, redactor, replica=replica))
            exchange_observers.append(observers.audit)
        # Without an observer there is no tap, and exchanges are not recorded at all.
        if exchange_observers or message_observers:
            from mcpmux.traffic.recorder import Recorder

            observers.tap = Recorder(message_observers, exchange_observers, clock())
        nursery = await enter(trio.open_nursery())
        if observers.capture is not None or config.admin.port is not None:
            nursery.start_soon(keep_time, run, name="system time")
        yield observers
        nursery.cancel_scope.cancel(reason="stopped")
