"""`/metrics` of the admin listener: what is counted, of one process or of several as of one.

Rules for several processes
  * Values of the same name and labels are added up: counters, histograms, and gauges, which count what is
    there.
  * What is 1 or 0 is 1 when it is so everywhere, or anywhere; see `_JOINS`.
  * Counters of a process that has ended stay in the sum; its gauges do not. So no counter ever goes back,
    but for what was counted after the last look at a process.

Law: the sum of one process says the same as that process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from importlib import import_module
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from mcpmux import __version__
from mcpmux.runtime.notification_hub import NotificationHub
from mcpmux.runtime.upstreams.registry import UpstreamRegistry
from mcpmux.runtime.upstreams.response_cache import CacheStore
from mcpmux.runtime.upstreams.upstream import Upstream
from mcpmux.traffic.admin.route import NO_STORE, SECURITY, HttpExchange, Route
from mcpmux.traffic.telemetry.metrics import SECONDS, Labels, Metrics
from mcpmux.transports.http.message import Fields

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from mcpmux.traffic.audit.journal import Audit
    from mcpmux.traffic.capture.capture import CaptureSink

_FIELDS: Fields = (("Content-Type", "text/plain; version=0.0.4; charset=utf-8"), NO_STORE, *SECURITY)

_JOINS: Mapping[str, Callable[[Any, Any], Any]] = {
    "mcpmux_upstream_up": min,
    "mcpmux_capture_paused": max,
    "mcpmux_build_info": max,
}

Samples = dict[Labels, Any]
"""By label values: a number; in a histogram a list, as in `Metrics.durations`."""


class Family(NamedTuple):
    """One metric at one time. `labels`: the names of the labels, in the order of their values.

    Its name says its kind: it ends with `_total` for a counter, with `_seconds` for a histogram; any other
    is a gauge.
    """

    name: str
    help: str
    labels: Labels
    samples: Samples

    @property
    def is_counted(self) -> bool:
        """Whether it counts what has happened since the start."""
        return self.name.endswith(("_total", "_seconds"))


Gauge = tuple[str, str, Callable[[], float | Mapping[str, float]]]
"""What is looked up when metrics are asked for: name, what it says, and a number, or numbers by upstream."""

_LEG = ("leg", "direction", "transport", "kind")
_EXCHANGE = ("method", "upstream")
_CALL = ("upstream", "method")
_OUTCOME = ("outcome",)

# Label names, attribute of Metrics, name, and what it says.
_COUNTED: tuple[tuple[Labels, str, str, str], ...] = (
    (_LEG, "messages", "messages_total", "JSON-RPC messages that passed; direction as mcpmux sees it."),
    (_LEG, "bytes", "message_bytes_total", "Their length, without the framing of the transport."),
    ((*_LEG[:2], "method"), "notifications", "notifications_total", "Notifications that passed."),
    (
        _EXCHANGE + _OUTCOME,
        "exchanges",
        "exchanges_total",
        "Requests of clients that were worked on, by how they went.",
    ),
    (_CALL + _OUTCOME, "calls", "upstream_requests_total", "Requests that upstreams have answered, by how."),
    (("method",), "in_flight", "exchanges_in_flight", "Requests of clients that are being worked on."),
    (_EXCHANGE, "durations", "exchange_duration_seconds", "Time from a client's request to its answer."),
    (
        _CALL,
        "call_durations",
        "upstream_request_duration_seconds",
        "Time from a request to an upstream to its answer.",
    ),
)


def snapshot(metrics: Metrics, gauges: Iterable[Gauge] = ()) -> list[Family]:
    """All metrics at one time. Copies values and nothing more, so that it takes little time."""
    build = Family("mcpmux_build_info", "Version of mcpmux.", ("version",), {(__version__,): 1})
    counted = [
        Family(f"mcpmux_{name}", about, labels, _copy(getattr(metrics, attribute)))
        for labels, attribute, name, about in _COUNTED
    ]
    return [build, *counted, *(_read(*gauge) for gauge in gauges)]


def _read(name: str, about: str, read: Callable[[], float | Mapping[str, float]]) -> Family:
    found = read()
    if isinstance(found, Mapping):
        samples: Samples = {(upstream,): value for upstream, value in found.items()}
        return Family(f"mcpmux_{name}", about, ("upstream",), samples)
    return Family(f"mcpmux_{name}", about, (), {(): found})


def _copy(samples: Mapping[Labels, Any]) -> Samples:
    return {labels: value.copy() if isinstance(value, list) else value for labels, value in samples.items()}


def add_up(snapshots: Iterable[Iterable[Family]]) -> list[Family]:
    """Those of several processes as one."""
    found: dict[str, Family] = {}
    for family in chain.from_iterable(snapshots):
        samples = found.setdefault(family.name, family._replace(samples={})).samples
        join = _JOINS.get(family.name, _add)
        for labels, value in family.samples.items():
            samples[labels] = join(samples[labels], value) if labels in samples else value
    return list(found.values())


def _add(one: Any, other: Any) -> Any:
    return [a + b for a, b in zip(one, other, strict=True)] if isinstance(one, list) else one + other


class Totals:
    """The sum over processes that come and go, each known by a name that no other ever has."""

    def __init__(self) -> None:
        self._last: dict[object, list[Family]] = {}
        self._ended: list[Family] = []

    def add_up(self, snapshots: Mapping[Any, list[Family]], running: Iterable[object]) -> list[Family]:
        """The sum of the processes' present metrics; `running` also has those that did not answer."""
        self._last.update(snapshots)
        for gone in self._last.keys() - set(running):
            counted = filter(lambda family: family.is_counted, self._last.pop(gone))
            self._ended = add_up([self._ended, counted])
        return add_up([*snapshots.values(), self._ended])


def render(families: Iterable[Family]) -> bytes:
    """The text that Prometheus reads (exposition format 0.0.4). With many upstreams that takes long."""
    from prometheus_client import generate_latest  # not at the top: workers do not need it
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.registry import Collector

    bounds = (*(f"{bound:g}" for bound in SECONDS), "+Inf")

    def convert(family: Family) -> Metric:
        name, about, labels, samples = family
        if name.endswith("_seconds"):
            histogram = HistogramMetricFamily(name, about, labels=labels)
            for values, (*counts, total) in samples.items():
                histogram.add_metric(values, list(zip(bounds, accumulate(counts), strict=True)), total)
            return histogram
        make = CounterMetricFamily if family.is_counted else GaugeMetricFamily
        metric = make(name, about, labels=labels)
        for values, value in samples.items():
            metric.add_metric(values, value)
        return metric

    class Families(Collector):
        def collect(self) -> Iterator[Metric]:
            return map(convert, families)

    return generate_latest(Families())


def metrics_route(read: Callable[[], Awaitable[list[Family]]]) -> Route:
    """A route for `serve_admin`."""
    import_module("prometheus_client")  # takes a tenth of a second, which nobody who asks should wait for

    async def handle(http: HttpExchange) -> None:
        await http.reply.send(200, _FIELDS, await trio.to_thread.run_sync(render, await read()))

    return Route("/metrics", handle)


# Gauges of the running parts: upstreams, clients, cache, capture, audit log.


def mux_gauges(
    registry: UpstreamRegistry, hub: NotificationHub, store: CacheStore | None = None
) -> list[Gauge]:
    """Of upstreams and clients, and of what is kept in `store`."""

    def shared(read: Callable[[Upstream], float]) -> Callable[[], Mapping[str, float]]:
        return lambda: {key: read(each) for key, each in registry.items()}

    def summed(read: Callable[[Upstream], int]) -> Callable[[], Mapping[str, float]]:
        def add() -> Mapping[str, float]:
            found = Counter(dict.fromkeys(registry, 0))
            for upstream in registry.connected():
                found[upstream.name] += read(upstream)
            return found

        return add

    wanted = hub.subscriptions.wanted
    up = "Whether the upstream's shared session is ready."
    agreed = "Connections of its shared session that were agreed."
    again = "Those among them that followed a loss."
    sessions = "Sessions with the upstream: shared, for legacy clients, and clients' own."
    listened = "Resources of the upstream that any client listens to."
    return [
        ("upstream_up", up, shared(lambda each: float(each.state == "ready"))),
        ("upstream_connects_total", agreed, shared(lambda each: each.connects)),
        ("upstream_reconnects_total", again, shared(lambda each: max(0, each.connects - 1))),
        ("upstream_sessions", sessions, summed(lambda each: 1)),
        ("upstream_subscriptions", listened, summed(lambda each: len(wanted(each.key)))),
        ("client_sessions", "Legacy sessions of clients.", lambda: registry.clients),
        ("listening_clients", "Clients that may hear of changes.", lambda: hub.listening),
        *(cache_gauges(store) if store is not None else ()),
    ]


def cache_gauges(store: CacheStore) -> list[Gauge]:
    """Of what is served from memory. Whole merged lists have no upstream."""

    def counted(outcome: str) -> Callable[[], Mapping[str, float]]:
        return lambda: {name: getattr(counts, outcome) for name, counts in store.counts.items()}

    misses = "Reads and pages that were looked for in memory and asked for."
    shared = "Reads and pages that were another's, asked for at the same time."
    return [
        ("cache_hits_total", "Answers from memory.", counted("hits")),
        ("cache_misses_total", misses, counted("misses")),
        ("cache_shared_total", shared, counted("shared")),
        ("cache_entries", "Answers in memory.", lambda: len(store.cache)),
        ("cache_bytes", "What they take, about.", lambda: store.cache.bytes),
    ]


def capture_gauges(capture: CaptureSink) -> list[Gauge]:
    dropped = "Messages that were not captured because the disk was too slow or full."
    return [
        ("capture_dropped_total", dropped, lambda: capture.dropped),
        ("capture_paused", "Whether files cannot be written.", lambda: float(capture.paused)),
    ]


def audit_gauges(audit: Audit) -> list[Gauge]:
    about = "Exchanges that wait for the disk of the audit log."
    return [("audit_held_back", about, lambda: audit.held_back)]
