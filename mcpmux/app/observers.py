"""Observers of the traffic, as the configuration says: capture, audit log, inspector, metrics, traces.

Without an observer there is no tap. Metrics and traces hear of an exchange first, so what the audit log
refuses is counted too. Each observer is imported only if it is configured.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

import trio

from mcpmux.app.mux import Mux
from mcpmux.config import Admin, Config
from mcpmux.runtime.tap import Tap, Trace
from mcpmux.traffic.observer import ExchangeObserver, MessageObserver
from mcpmux.traffic.record import Run
from mcpmux.traffic.redaction.redactor import Redactor
from mcpmux.traffic.telemetry.tracing import open_tracing, servers_of

if TYPE_CHECKING:
    from mcpmux.traffic.admin.ring import LiveRing
    from mcpmux.traffic.admin.upstreams import Control, UpstreamView
    from mcpmux.traffic.audit.journal import Audit
    from mcpmux.traffic.capture.capture import CaptureSink
    from mcpmux.traffic.capture.level import Levels
    from mcpmux.traffic.telemetry.metrics import Metrics
    from mcpmux.traffic.telemetry.spans import Spans

RUN_BYTES = 4  # of randomness in the name of a run: enough to tell the runs of one machine apart


@dataclass(frozen=True, slots=True)
class Observers:
    """All of them. `tap` and `trace` are for `open_mux`."""

    tap: Tap | None = None
    trace: Trace | None = None
    inspector: Inspector | None = None
    redactor: Redactor = field(default_factory=Redactor)
    levels: Levels | None = None
    spans: Spans | None = None

    def follow(self, config: Config) -> None:
        """The configuration has changed."""
        self.redactor.adopt(config.redaction)
        if self.levels is not None:
            self.levels.adopt(config.prefixes)
        if self.spans is not None:
            self.spans.know(servers_of(config.enabled.values()))


class Observer(MessageObserver, ExchangeObserver, Protocol):
    """Told of messages and of exchanges."""


@dataclass(frozen=True, slots=True)
class Inspector:
    """What the admin listener shows. `ring` is None when another process shows it."""

    config: Admin
    ring: LiveRing | None
    metrics: Metrics
    redactor: Redactor
    run: Run
    capture: CaptureSink | None
    audit: Audit | None

    async def serve(
        self,
        mux: Mux,
        control: Control,
        stopping: trio.Event,
        announce: Callable[[str], None],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve the admin listener until we stop. Raises TransportError, ConfigError."""
        from mcpmux.traffic.admin.listener import serve_admin
        from mcpmux.traffic.admin.view import LiveView
        from mcpmux.traffic.telemetry.scraping import metrics_route

        assert self.ring is not None
        await serve_admin(
            self.config,
            LiveView(self.ring, self.redactor, self.run),
            self.view(mux),
            stopping,
            announce,
            [metrics_route(self.renderer(mux))],
            control,
            mux.certificates,
            task_status=task_status,
        )

    def view(self, mux: Mux) -> UpstreamView:
        """The states of the upstreams."""
        from mcpmux.traffic.admin.upstreams import UpstreamView

        return UpstreamView(mux.upstreams, mux.hub.subscriptions, self.redactor, lambda: mux.config.upstreams)

    def renderer(self, mux: Mux) -> Callable[[], Awaitable[bytes]]:
        """Renders all metrics as text for Prometheus."""
        from mcpmux.traffic.telemetry import prometheus  # not at the top: see there

        gauges = prometheus.mux_gauges(mux.upstreams, mux.hub, mux.sessions.store)
        if self.capture is not None:
            gauges += prometheus.capture_gauges(self.capture)
        if self.audit is not None:
            gauges += prometheus.audit_gauges(self.audit)
        return partial(prometheus.render_in_thread, self.metrics, gauges)


def new_run() -> Run:
    return Run(secrets.token_hex(RUN_BYTES), trio.current_time(), time.time())


@asynccontextmanager
async def open_observers(config: Config, forwarder: Observer | None = None) -> AsyncIterator[Observers]:
    """All observers; goes around `open_mux`. `forwarder` replaces the inspector's ring.

    Raises CaptureUnusable and AuditUnusable if traffic that must be kept cannot be kept.
    """
    redactor, run = Redactor(config.redaction), new_run()
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        spans = capture = audit = inspector = tap = None
        observers: list[Observer] = []
        if config.tracing.enabled:
            spans = await enter(open_tracing(config.tracing, redactor, config.enabled.values()))
            observers.append(spans)
        if config.capture.on:
            from mcpmux.traffic.capture.capture import open_capture

            capture = await enter(open_capture(config.capture, redactor, run, config.prefixes))
        if config.audit.directory is not None:
            from mcpmux.traffic.audit.journal import open_audit

            audit = await enter(open_audit(config.audit, run.name, redactor))
        if config.admin.port is not None:
            from mcpmux.traffic.admin.ring import LiveRing
            from mcpmux.traffic.telemetry.metrics import Metrics

            ring, metrics = None, Metrics()
            if forwarder is None:
                forwarder = ring = LiveRing(config.admin.keep_exchanges, config.admin.keep_bytes)
            inspector = Inspector(config.admin, ring, metrics, redactor, run, capture, audit)
            observers = [metrics, *observers, forwarder]
        exchange_observers: list[ExchangeObserver] = [*observers]
        if capture is not None and capture.holds_back:
            exchange_observers.append(capture)
        if audit is not None:
            exchange_observers.append(audit)
        if exchange_observers or capture is not None:
            from mcpmux.traffic.recorder import Recorder

            clock = trio.lowlevel.current_clock().current_time  # saves two calls for each message
            tap = Recorder(observers, exchange_observers, clock, capture)
        trace = spans.trace if spans is not None else None
        levels = capture.levels if capture is not None else None
        yield Observers(tap, trace, inspector, redactor, levels, spans)
