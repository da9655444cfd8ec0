"""Metrics as text that Prometheus reads (exposition format 0.0.4), written by its client library.

The only module that knows `prometheus_client`, which takes a tenth of a second to import and is needed only
where an admin listener serves metrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import trio
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from mcpmux import __version__
from mcpmux.runtime.notification_hub import NotificationHub
from mcpmux.runtime.upstreams.registry import UpstreamRegistry
from mcpmux.runtime.upstreams.response_cache import CacheStore
from mcpmux.runtime.upstreams.upstream import Upstream
from mcpmux.traffic.telemetry.metrics import SECONDS, Labels, Metrics

if TYPE_CHECKING:
    from mcpmux.traffic.audit.journal import Audit
    from mcpmux.traffic.capture.capture import CaptureSink

Samples = Iterable[tuple[Labels, float]]


class Gauge(NamedTuple):
    """Looked up when metrics are asked for: a state, or a counter, whose name ends with `_total`.

    `read` gives a value for each set of label values, in the order of `labels`.
    """

    name: str
    help: str
    labels: Labels
    read: Callable[[], Samples]


_LEG = ("leg", "direction", "transport", "kind")
_UPSTREAM = ("upstream",)
_OF_CALLS = (*_UPSTREAM, "method")

# Name, label names, and attribute of Metrics, with what it says.
_COUNTED: tuple[tuple[str, Labels, str, str], ...] = (
    (
        "mcpmux_messages_total",
        _LEG,
        "messages",
        "JSON-RPC messages that passed; direction as mcpmux sees it.",
    ),
    ("mcpmux_message_bytes_total", _LEG, "bytes", "Their length, without the framing of the transport."),
    ("mcpmux_notifications_total", (*_LEG[:2], "method"), "notifications", "Notifications that passed."),
    (
        "mcpmux_exchanges_total",
        ("method", "upstream", "outcome"),
        "exchanges",
        "Requests of clients that were worked on, by how they went.",
    ),
    (
        "mcpmux_upstream_requests_total",
        (*_OF_CALLS, "outcome"),
        "calls",
        "Requests that upstreams have answered, by how.",
    ),
    ("mcpmux_exchanges_in_flight", ("method",), "in_flight", "Requests of clients that are being worked on."),
)


class Snapshot(Collector):
    """All metrics at one time. Copies values and nothing more, so that it takes little time."""

    def __init__(self, metrics: Metrics, gauges: Iterable[Gauge] = ()) -> None:
        counted = (
            Gauge(n, about, labels, getattr(metrics, each).items) for n, labels, each, about in _COUNTED
        )
        build = Gauge("mcpmux_build_info", "Version of mcpmux.", ("version",), lambda: [((__version__,), 1)])
        self._gauges = [(gauge, list(gauge.read())) for gauge in (build, *counted, *gauges)]
        self._durations = {values: each.copy() for values, each in metrics.durations.items()}
        self._call_durations = {values: each.copy() for values, each in metrics.call_durations.items()}

    def collect(self) -> Iterator[Metric]:
        for gauge, samples in self._gauges:
            make = CounterMetricFamily if gauge.name.endswith("_total") else GaugeMetricFamily
            family = make(gauge.name, gauge.help, labels=gauge.labels)
            for labels, value in samples:
                family.add_metric(labels, value)
            yield family
        exchanges = HistogramMetricFamily(
            "mcpmux_exchange_duration_seconds",
            "Time from a client's request to its answer.",
            labels=("method", "upstream"),
        )
        calls = HistogramMetricFamily(
            "mcpmux_upstream_request_duration_seconds",
            "Time from a request to an upstream to its answer.",
            labels=_OF_CALLS,
        )
        bounds = (*(f"{bound:g}" for bound in SECONDS), "+Inf")
        for histogram, durations in ((exchanges, self._durations), (calls, self._call_durations)):
            for labels, each in durations.items():
                buckets = list(zip(bounds, accumulate(each.counts), strict=True))
                histogram.add_metric(labels, buckets, each.total)
            yield histogram


async def render_in_thread(metrics: Metrics, gauges: Iterable[Gauge]) -> bytes:
    """Everything that was counted, and the gauges as they are now.

    The text is made in a thread: with many upstreams that takes long.
    """
    return await trio.to_thread.run_sync(generate_latest, Snapshot(metrics, gauges))


# Gauges of the running parts: upstreams, clients, cache, capture, audit log.


def mux_gauges(
    registry: UpstreamRegistry, hub: NotificationHub, store: CacheStore | None = None
) -> tuple[Gauge, ...]:
    """The gauges of upstreams and clients, and of what is kept in `store`."""

    def shared(name: str, read: Callable[[Upstream], float], about: str) -> Gauge:
        return Gauge(name, about, _UPSTREAM, lambda: [((key,), read(each)) for key, each in registry.items()])

    def summed(name: str, read: Callable[[Upstream], int], about: str) -> Gauge:
        def samples() -> Samples:
            found = Counter(dict.fromkeys(registry, 0))
            for upstream in registry.connected():
                found[upstream.name] += read(upstream)
            return [((key,), count) for key, count in found.items()]

        return Gauge(name, about, _UPSTREAM, samples)

    wanted = hub.subscriptions.wanted
    up = "Whether the upstream's shared session is ready."
    agreed = "Connections of its shared session that were agreed."
    again = "Those among them that followed a loss."
    sessions = "Sessions with the upstream: shared, for legacy clients, and clients' own."
    listened = "Resources of the upstream that any client listens to."
    return (
        shared("mcpmux_upstream_up", lambda each: float(each.state == "ready"), up),
        shared("mcpmux_upstream_connects_total", lambda each: each.connects, agreed),
        shared("mcpmux_upstream_reconnects_total", lambda each: max(0, each.connects - 1), again),
        summed("mcpmux_upstream_sessions", lambda each: 1, sessions),
        summed("mcpmux_upstream_subscriptions", lambda each: len(wanted(each.key)), listened),
        single("mcpmux_client_sessions", "Legacy sessions of clients.", lambda: registry.clients),
        single("mcpmux_listening_clients", "Clients that may hear of changes.", lambda: hub.listening),
        *(cache_gauges(store) if store is not None else ()),
    )


def cache_gauges(store: CacheStore) -> tuple[Gauge, ...]:
    """The gauges of what is served from memory. Whole merged lists have no upstream."""

    def counted(outcome: str, about: str) -> Gauge:
        def samples() -> Samples:
            return [((name,), getattr(counts, outcome)) for name, counts in store.counts.items()]

        return Gauge(f"mcpmux_cache_{outcome}_total", about, _UPSTREAM, samples)

    return (
        counted("hits", "Answers from memory."),
        counted("misses", "Reads and pages that were looked for in memory and asked for."),
        counted("shared", "Reads and pages that were another's, asked for at the same time."),
        single("mcpmux_cache_entries", "Answers in memory.", lambda: len(store.cache)),
        single("mcpmux_cache_bytes", "What they take, about.", lambda: store.cache.bytes),
    )


def capture_gauges(capture: CaptureSink) -> tuple[Gauge, ...]:
    """The gauges of what is kept in files."""
    dropped = "Messages that were not captured because the disk was too slow or full."
    return (
        single("mcpmux_capture_dropped_total", dropped, lambda: capture.dropped),
        single("mcpmux_capture_paused", "Whether files cannot be written.", lambda: float(capture.paused)),
    )


def audit_gauges(audit: Audit) -> tuple[Gauge, ...]:
    """The gauges of the audit log."""
    about = "Exchanges that wait for the disk of the audit log."
    return (single("mcpmux_audit_held_back", about, lambda: audit.held_back),)


def single(name: str, about: str, read: Callable[[], float]) -> Gauge:
    """A gauge of one value without labels, such as what a queue holds."""
    return Gauge(name, about, (), lambda: [((), read())])
