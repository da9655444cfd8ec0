"""What the running parts say of themselves when metrics are asked for: upstreams, clients, capture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from mcpmux.runtime.relay import Relay
from mcpmux.runtime.upstreams.fleet import Fleet
from mcpmux.runtime.upstreams.memory import Store
from mcpmux.traffic.audit.journal import Audit
from mcpmux.traffic.capture.sink import CaptureSink
from mcpmux.traffic.telemetry.prometheus import Gauge, Samples

OF_UPSTREAM = ("upstream",)


def mux_gauges(fleet: Fleet, relay: Relay, store: Store | None = None) -> tuple[Gauge, ...]:
    """The gauges of upstreams and clients, and of what is kept in `store`."""

    def up() -> Samples:
        return [((name,), float(upstream.state == "ready")) for name, upstream in fleet.items()]

    def connects() -> Samples:
        return [((name,), upstream.connects) for name, upstream in fleet.items()]

    def reconnects() -> Samples:
        return [((name,), max(0, upstream.connects - 1)) for name, upstream in fleet.items()]

    def sessions() -> Samples:
        found = Counter(dict.fromkeys(fleet, 0))
        found.update(upstream.name for upstream in fleet.connected())
        return [((name,), count) for name, count in found.items()]

    def subscriptions() -> Samples:
        found = Counter(dict.fromkeys(fleet, 0))
        for upstream in fleet.connected():
            found[upstream.name] += len(relay.subscriptions.wanted(upstream.key))
        return [((name,), count) for name, count in found.items()]

    return (
        Gauge("mcpmux_upstream_up", "Whether the upstream's shared session is ready.", OF_UPSTREAM, up),
        Gauge(
            "mcpmux_upstream_connects_total",
            "Connections of its shared session that were agreed.",
            OF_UPSTREAM,
            connects,
        ),
        Gauge(
            "mcpmux_upstream_reconnects_total",
            "Those among them that followed a loss.",
            OF_UPSTREAM,
            reconnects,
        ),
        Gauge(
            "mcpmux_upstream_sessions",
            "Sessions with the upstream: shared, for legacy clients, and clients' own.",
            OF_UPSTREAM,
            sessions,
        ),
        Gauge(
            "mcpmux_upstream_subscriptions",
            "Resources of the upstream that any client listens to.",
            OF_UPSTREAM,
            subscriptions,
        ),
        single("mcpmux_client_sessions", "Legacy sessions of clients.", lambda: fleet.clients),
        single("mcpmux_listening_clients", "Clients that may hear of changes.", lambda: relay.listening),
        *(cache_gauges(store) if store is not None else ()),
    )


def cache_gauges(store: Store) -> tuple[Gauge, ...]:
    """The gauges of what is served from memory. Whole merged lists have no upstream."""

    def counted(outcome: str) -> Callable[[], Samples]:
        return lambda: [((name,), getattr(counts, outcome)) for name, counts in store.counts.items()]

    return (
        Gauge("mcpmux_cache_hits_total", "Answers from memory.", OF_UPSTREAM, counted("hits")),
        Gauge(
            "mcpmux_cache_misses_total",
            "Reads and pages that were looked for in memory and asked for.",
            OF_UPSTREAM,
            counted("misses"),
        ),
        Gauge(
            "mcpmux_cache_shared_total",
            "Reads and pages that were another's, asked for at the same time.",
            OF_UPSTREAM,
            counted("shared"),
        ),
        single("mcpmux_cache_entries", "Answers in memory.", lambda: len(store.cache)),
        single("mcpmux_cache_bytes", "What they take, about.", lambda: store.cache.bytes),
    )


def capture_gauges(capture: CaptureSink) -> tuple[Gauge, ...]:
    """The gauges of what is kept in files."""
    return (
        single(
            "mcpmux_capture_dropped_total",
            "Messages that were not captured because the disk was too slow or full.",
            lambda: capture.dropped,
        ),
        single("mcpmux_capture_paused", "Whether files cannot be written.", lambda: float(capture.paused)),
    )


def audit_gauges(audit: Audit) -> tuple[Gauge, ...]:
    """The gauges of the audit log."""
    about = "Exchanges that wait for the disk of the audit log."
    return (single("mcpmux_audit_held_back", about, lambda: audit.held_back),)


def single(name: str, about: str, read: Callable[[], float]) -> Gauge:
    """A gauge of one value without labels, such as what a queue holds."""
    return Gauge(name, about, (), lambda: [((), read())])
