"""Metrics as text that Prometheus reads (exposition format 0.0.4), written by its client library.

The only module that knows `prometheus_client`, which takes a tenth of a second to import and is needed only
where an admin listener serves metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import trio
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from mcpmux import __version__
from mcpmux.traffic.telemetry.metrics import Histogram, Labels, Metrics

Samples = Iterable[tuple[Labels, float]]


class Gauge(NamedTuple):
    """What is looked up when somebody asks: a state, or a counter, whose name ends with `_total`.

    `read` gives a value for each set of label values, in the order of `labels`.
    """

    name: str
    help: str
    labels: Labels
    read: Callable[[], Samples]


def render(metrics: Metrics, gauges: Iterable[Gauge] = ()) -> bytes:
    """Everything that was counted, and what the gauges say now."""
    return generate_latest(_Families(_collect(metrics, gauges)))


async def render_in_thread(metrics: Metrics, gauges: Iterable[Gauge]) -> bytes:
    """The same, written in a thread: with many upstreams that takes long."""
    return await trio.to_thread.run_sync(generate_latest, _Families(_collect(metrics, gauges)))


class _Families(Collector):
    """Metrics as they were when they were collected."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """See Collector."""
        return self._families


def _collect(metrics: Metrics, gauges: Iterable[Gauge]) -> list[Metric]:
    return [*map(_family, _counted(metrics)), *_histograms(metrics), *map(_family, gauges)]


def _family(gauge: Gauge) -> Metric:
    make = CounterMetricFamily if gauge.name.endswith("_total") else GaugeMetricFamily
    family = make(gauge.name, gauge.help, labels=gauge.labels)
    for labels, value in gauge.read():
        family.add_metric(labels, value)
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


def _histograms(metrics: Metrics) -> Iterator[Metric]:
    yield _histogram(
        "mcpmux_exchange_duration_seconds",
        "Time from a client's request to its answer.",
        ("method", "upstream"),
        metrics.durations,
    )
    yield _histogram(
        "mcpmux_upstream_request_duration_seconds",
        "Time from a request to an upstream to its answer.",
        ("upstream", "method"),
        metrics.call_durations,
    )


def _histogram(name: str, about: str, labels: Labels, histograms: Mapping[Labels, Histogram]) -> Metric:
    family = HistogramMetricFamily(name, about, labels=labels)
    for values, histogram in histograms.items():
        bounds = (*(f"{bound:g}" for bound in histogram.bounds), "+Inf")
        family.add_metric(
            values, list(zip(bounds, accumulate(histogram.counts), strict=True)), histogram.total
        )
    return family
