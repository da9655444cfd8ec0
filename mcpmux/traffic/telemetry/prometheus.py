"""Metrics as text that Prometheus reads (exposition format 0.0.4), written by its client library.

The only module that knows `prometheus_client`, which takes a tenth of a second to import and is needed only
where an admin listener serves metrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import trio
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from mcpmux import __version__
from mcpmux.runtime.relay import Relay
from mcpmux.runtime.upstreams.fleet import Fleet
from mcpmux.runtime.upstreams.memory import Store
from mcpmux.traffic.telemetry.metrics import Histogram, Labels, Metrics

if TYPE_CHECKING:
    from mcpmux.traffic.audit.journal import Audit
    from mcpmux.traffic.capture.capture import CaptureSink

Samples = Iterable[tuple[Labels, float]]
_Histograms = Mapping[Labels, Histogram]


class Gauge(NamedTuple):
    """Looked up when metrics are asked for: a state, or a counter, whose name ends with `_total`.

    `read` gives a value for each set of label values, in the order of `labels`.
    """

    name: str
    help: str
    labels: Labels
    read: Callable[[], Samples]


def render(metrics: Metrics, gauges: Iterable[Gauge] = ()) -> bytes:
    """Everything that was counted, and the gauges as they are now."""
    return generate_latest(_Snapshot(metrics, gauges))


async def render_in_thread(metrics: Metrics, gauges: Iterable[Gauge]) -> bytes:
    """The same, made into text in a thread: with many upstreams that takes long."""
    return await trio.to_thread.run_sync(generate_latest, _Snapshot(metrics, gauges))


class _Snapshot(Collector):
    """All metrics at one time. Copies values and nothing more, so that it takes little time."""

    def __init__(self, metrics: Metrics, gauges: Iterable[Gauge]) -> None:
        self._gauges = [(gauge, list(gauge.read())) for gauge in (*_counted(metrics), *gauges)]
        self._histograms = [
            (name, about, labels, {values: each.copy() for values, each in histograms.items()})
            for name, about, labels, histograms in _timed(metrics)
        ]

    def collect(self) -> Iterator[Metric]:
        """See Collector."""
        for gauge, samples in self._gauges:
            yield _family(gauge, samples)
        for histogram in self._histograms:
            yield _histogram_family(*histogram)


def _family(gauge: Gauge, samples: Samples) -> Metric:
    make = CounterMetricFamily if gauge.name.endswith("_total") else GaugeMetricFamily
    family = make(gauge.name, gauge.help, labels=gauge.labels)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def _histogram_family(name: str, about: str, labels: Labels, histograms: _Histograms) -> Metric:
    family = HistogramMetricFamily(name, about, labels=labels)
    for values, histogram in histograms.items():
        bounds = (*(f"{bound:g}" for bound in histogram.bounds), "+Inf")
        buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
        family.add_metric(values, buckets, histogram.total)
    return family


_LEG = ("leg", "direction", "transport", "kind")


def _counted(metrics: Metrics) -> Iterator[Gauge]:
    yield Gauge("mcpmux_build_info", "Version of mcpmux.", ("version",), lambda: [((__version__,), 1)])
    yield Gauge(
        "mcpmux_messages_total",
        "JSON-RPC messages that passed; direction as mcpmux sees it.",
        _LEG,
        metrics.messages.items,
    )
    yield Gauge(
        "mcpmux_message_bytes_total",
        "Their length, without the framing of the transport.",
        _LEG,
        metrics.bytes.items,
    )
    yield Gauge(
        "mcpmux_notifications_total",
        "Notifications that passed.",
        ("leg", "direction", "method"),
        metrics.notifications.items,
    )
    yield Gauge(
        "mcpmux_exchanges_total",
        "Requests of clients that were worked on, by how they went.",
        ("method", "upstream", "outcome"),
        metrics.exchanges.items,
    )
    yield Gauge(
        "mcpmux_upstream_requests_total",
        "Requests that upstreams have answered, by how.",
        ("upstream", "method", "outcome"),
        metrics.calls.items,
    )
    yield Gauge(
        "mcpmux_exchanges_in_flight",
        "Requests of clients that are being worked on.",
        ("method",),
        metrics.in_flight.items,
    )


def _timed(metrics: Metrics) -> Iterator[tuple[str, str, Labels, _Histograms]]:
    yield (
        "mcpmux_exchange_duration_seconds",
        "Time from a client's request to its answer.",
        ("method", "upstream"),
        metrics.durations,
    )
    yield (
        "mcpmux_upstream_request_duration_seconds",
        "Time from a request to an upstream to its answer.",
        ("upstream", "method"),
        metrics.call_durations,
    )


# Gauges of the running parts: upstreams, clients, cache, capture, audit log.

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
