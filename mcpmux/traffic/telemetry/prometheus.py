"""Serve `/metrics` of the admin listener, for one process or for the sum of several.

Rules for several processes
  * Values of the same name and labels are added up: counters, histograms, and gauges, which are counts of
    present things.
  * A value of 1 or 0 is 1 when it is so in all processes, or in any; see `_JOINS`.
  * Counters of a process that has ended stay in the sum; its gauges do not. So no counter ever decreases,
    except by what was counted after the last reading of a process.

Law: the sum of one process equals its own metrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from importlib import import_module
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from mcpmux import __version__
from mcpmux.cluster.letter import INSIDE, ReplicaState
from mcpmux.runtime.notification_hub import NotificationHub
from mcpmux.traffic.admin.route import NO_STORE, SECURITY, HttpExchange, Route
from mcpmux.traffic.telemetry.metrics import SECONDS, Labels, Metrics
from mcpmux.transports.http.message import HeaderFields
from mcpmux.upstreams.registry import UpstreamRegistry
from mcpmux.upstreams.response_cache import CacheStore

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from mcpmux.traffic.audit.journal import Audit
    from mcpmux.traffic.capture.capture import CaptureSink

_FIELDS: HeaderFields = (("Content-Type", "text/plain; version=0.0.4; charset=utf-8"), NO_STORE, *SECURITY)

_JOINS: Mapping[str, Callable[[Any, Any], Any]] = {
    "mcpmux_upstream_up": min,
    "mcpmux_capture_paused": max,
    "mcpmux_audit_failing": max,
    "mcpmux_build_info": max,
}

Samples = dict[Labels, Any]  # by label values: a number; in a histogram a list, as in `metrics`


class Family(NamedTuple):
    """One metric at one time. `labels`: the names of the labels, in the order of their values.

    Its name determines its kind: it ends with `_total` for a counter, with `_seconds` for a histogram; any
    other is a gauge.
    """

    name: str
    help: str
    labels: Labels
    samples: Samples

    @property
    def is_counted(self) -> bool:
        """Whether it counts events since the start."""
        return self.name.endswith(("_total", "_seconds"))


_LEG = ("leg", "direction", "transport", "kind")
_EXCHANGE = ("method", "upstream")
_CALL = ("upstream", "method")
_OUTCOME = ("outcome",)

# Attributes of Metrics: name, label names, and help text.
_COUNTED: tuple[tuple[str, Labels, str], ...] = (
    ("messages_total", _LEG, "JSON-RPC messages that passed; direction as mcpmux sees it."),
    ("message_bytes_total", _LEG, "Their length, without the framing of the transport."),
    ("notifications_total", (*_LEG[:2], "method"), "Notifications that passed."),
    ("exchanges_total", _EXCHANGE + _OUTCOME, "Requests of clients that were worked on, by how they went."),
    ("upstream_requests_total", _CALL + _OUTCOME, "Requests that upstreams have answered, by how."),
    ("exchanges_in_flight", ("method",), "Requests of clients that are being worked on."),
    ("verdicts_total", ("interceptor", "on", "verdict"), "Verdicts of interceptors."),
    ("verdict_duration_seconds", ("interceptor", "on"), "Time that an interceptor, or a person, took."),
    ("exchange_duration_seconds", _EXCHANGE, "Time from a client's request to its answer."),
    (
        "exchange_duration_by_name_seconds",
        ("method", "name"),
        "The same by tool and prompt, of a bounded number.",
    ),
    ("upstream_request_duration_seconds", _CALL, "Time from a request to an upstream to its answer."),
)


def snapshot(metrics: Metrics, gauges: Iterable[Family] = ()) -> list[Family]:
    """Return all metrics at one time. Only copies values, so that it takes little time."""
    metrics.settle()
    families = [Family("mcpmux_build_info", "Version of mcpmux.", ("version",), {(__version__,): 1})]
    for name, labels, about in _COUNTED:
        counts: Mapping[Labels, Any] = getattr(metrics, name)
        samples = {key: value.copy() if isinstance(value, list) else value for key, value in counts.items()}
        families.append(Family(f"mcpmux_{name}", about, labels, samples))
    return [*families, *gauges]


def add_up(snapshots: Iterable[Iterable[Family]]) -> list[Family]:
    """Return the metrics of several processes as one."""
    families: dict[str, Family] = {}
    for family in chain.from_iterable(snapshots):
        samples = families.setdefault(family.name, family._replace(samples={})).samples
        join = _JOINS.get(family.name, _add)
        for labels, value in family.samples.items():
            samples[labels] = join(samples[labels], value) if labels in samples else value
    return list(families.values())


def _add(one: Any, other: Any) -> Any:
    return [a + b for a, b in zip(one, other, strict=True)] if isinstance(one, list) else one + other


class Totals:
    """The sum over processes that come and go, each with a name that is never used again."""

    def __init__(self) -> None:
        self._last: dict[object, list[Family]] = {}
        self._ended: list[Family] = []

    def add_up(self, snapshots: Mapping[Any, list[Family]], running: Iterable[object]) -> list[Family]:
        """Return the sum of the present metrics; `running` also has processes that did not answer."""
        self._last.update(snapshots)
        # Counters of a process that has gone are kept, or the sums would decrease.
        for gone in self._last.keys() - set(running):
            counted = filter(lambda family: family.is_counted, self._last.pop(gone))
            self._ended = add_up([self._ended, counted])
        return add_up([*snapshots.values(), self._ended])


def render(families: Iterable[Family]) -> bytes:
    """Return the text for Prometheus (exposition format 0.0.4). Takes long with many upstreams."""
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
    """Return the route for `serve_admin`."""
    import_module("prometheus_client")  # takes a tenth of a second, which no request should wait for

    async def handle(http: HttpExchange) -> None:
        await http.reply.send(200, _FIELDS, await trio.to_thread.run_sync(render, await read()))

    return Route("/metrics", handle)


# Gauges of the running parts: upstreams, clients, cache, capture, audit log, cluster.


def gauge(name: str, about: str, value: float | Mapping[str, float]) -> Family:
    """Return a value that is read when metrics are asked for: a number, or numbers by upstream."""
    if isinstance(value, Mapping):
        samples: Samples = {(upstream,): number for upstream, number in value.items()}
        return Family(f"mcpmux_{name}", about, ("upstream",), samples)
    return Family(f"mcpmux_{name}", about, (), {(): value})


def mux_gauges(
    registry: UpstreamRegistry, hub: NotificationHub, store: CacheStore | None = None
) -> list[Family]:
    """Return the gauges of upstreams and clients, and of the cache in `store`."""
    up = {name: float(upstream.state == "ready") for name, upstream in registry.items()}
    connects = {name: upstream.status.connects for name, upstream in registry.items()}
    reconnects = {name: max(0, count - 1) for name, count in connects.items()}
    sessions = Counter(dict.fromkeys(registry, 0))
    listened = sessions.copy()
    for session in registry.connected():
        sessions[session.name] += 1
        listened[session.name] += len(hub.subscriptions.wanted(session.key))
    about = "Sessions with the upstream: shared, for legacy clients, and clients' own."
    return [
        gauge("upstream_up", "Whether the upstream's shared session is ready.", up),
        gauge("upstream_connects_total", "Connections of its shared session that were agreed.", connects),
        gauge("upstream_reconnects_total", "Those among them that followed a loss.", reconnects),
        gauge("upstream_sessions", about, sessions),
        gauge("upstream_subscriptions", "Resources of the upstream that any client listens to.", listened),
        gauge("client_sessions", "Legacy sessions of clients.", registry.clients),
        gauge("listening_clients", "Clients that may hear of changes.", hub.listening),
        *(cache_gauges(store) if store is not None else ()),
    ]


def cache_gauges(store: CacheStore) -> list[Family]:
    """Return the gauges of answers from memory. Whole merged lists have no upstream."""
    counted = {
        "hits": "Answers from memory.",
        "misses": "Reads and pages that were looked for in memory and asked for.",
        "shared": "Reads and pages that were another's, asked for at the same time.",
    }
    upstreams = store.counts.items()
    return [
        *(
            gauge(f"cache_{key}_total", about, {name: getattr(cache, key) for name, cache in upstreams})
            for key, about in counted.items()
        ),
        gauge("cache_entries", "Answers in memory.", len(store.cache)),
        gauge("cache_bytes", "What they take, about.", store.cache.bytes),
    ]


def capture_gauges(capture: CaptureSink) -> list[Family]:
    """Return the gauges of the capture."""
    dropped = "Messages that were not captured because the disk was too slow or full."
    return [
        gauge("capture_dropped_total", dropped, capture.dropped),
        gauge("capture_paused", "Whether files cannot be written.", float(capture.paused)),
    ]


def audit_gauges(audit: Audit) -> list[Family]:
    """Return the gauges of the audit log."""
    return [
        gauge("audit_held_back", "Exchanges that wait for the disk of the audit log.", audit.held_back),
        gauge("audit_failing", "Whether the audit log cannot be written.", float(audit.failing)),
    ]


def cluster_gauges(state: ReplicaState) -> list[Family]:
    """Return the gauges of this replica; Prometheus adds up those of all replicas."""
    about: dict[str, tuple[float, str]] = {
        "replicas": (state.others + 1, "Replicas that this one knows to be there, itself among them."),
        "inside": (float(state.state == INSIDE), "Whether the lease of this replica holds."),
        "store_away": (float(state.store_away), "Whether the store did not answer when it was asked last."),
        "owned_upstreams": (state.owned, "Upstreams at which this replica subscribes for all."),
        "sessions": (state.sessions, "Legacy sessions that are at this replica."),
        "takeovers_total": (state.taken_over, "Sessions that were taken over from replicas that had gone."),
        "handed_over_total": (state.handed_over, "Requests of clients that another replica has answered."),
        "handed_in_total": (state.handed_in, "Requests that another replica has handed to this one."),
        "store_commands_total": (state.commands, "Commands that were sent to the store."),
        "events_waiting": (state.events_waiting, "Events of streams that wait for the store."),
    }
    families = [gauge(f"cluster_{name}", text, value) for name, (value, text) in about.items()]
    if state.lag_ms is not None:
        lag = "Milliseconds that the store took for its last answer."
        families.append(gauge("cluster_store_lag_milliseconds", lag, state.lag_ms))
    return families
