"""Metrics as text that Prometheus reads. Pure.

Source: Prometheus exposition formats, text format version 0.0.4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from mcpmux import __version__
from mcpmux.traffic.telemetry.metrics import Histogram, Labels, Metrics

WHOLE_LIMIT = 1e15  # below it every whole number is exact

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Kind = Literal["counter", "gauge"]
Samples = Iterable[tuple[Labels, float]]


class Gauge(NamedTuple):
    """What is looked up when somebody asks: a state, or a count that another part keeps.

    `read` gives a value for each set of label values, in the order of `labels`. A counter's name ends with
    `_total`.
    """

    name: str
    help: str
    kind: Kind
    labels: Labels
    read: Callable[[], Samples]


def render(metrics: Metrics, gauges: Iterable[Gauge] = ()) -> bytes:
    """Everything that was counted, and what the gauges say now."""
    lines = [*_build(), *_counted(metrics), *_timed(metrics)]
    for gauge in gauges:
        lines += _family(gauge.name, gauge.help, gauge.kind, gauge.labels, gauge.read())
    return ("\n".join(lines) + "\n").encode("utf-8", "replace")


def _build() -> Iterator[str]:
    return _family("mcpmux_build_info", "Version of mcpmux.", "gauge", ("version",), [((__version__,), 1)])


def _counted(metrics: Metrics) -> Iterator[str]:
    leg = ("leg", "direction", "transport", "kind")
    yield from _family(
        "mcpmux_messages_total",
        "JSON-RPC messages that passed; direction as mcpmux sees it.",
        "counter",
        leg,
        metrics.messages.items(),
    )
    yield from _family(
        "mcpmux_message_bytes_total",
        "Their length, without the framing of the transport.",
        "counter",
        leg,
        metrics.bytes.items(),
    )
    yield from _family(
        "mcpmux_notifications_total",
        "Notifications that passed.",
        "counter",
        ("leg", "direction", "method"),
        metrics.notifications.items(),
    )
    yield from _family(
        "mcpmux_exchanges_total",
        "Requests of clients that were worked on, by how they went.",
        "counter",
        ("method", "upstream", "outcome"),
        metrics.exchanges.items(),
    )
    yield from _family(
        "mcpmux_upstream_requests_total",
        "Requests that upstreams have answered, by how.",
        "counter",
        ("upstream", "method", "outcome"),
        metrics.calls.items(),
    )
    yield from _family(
        "mcpmux_exchanges_in_flight",
        "Requests of clients that are being worked on.",
        "gauge",
        ("method",),
        metrics.in_flight.items(),
    )


def _timed(metrics: Metrics) -> Iterator[str]:
    yield from _histograms(
        "mcpmux_exchange_duration_seconds",
        "Time from a client's request to its answer.",
        ("method", "upstream"),
        metrics.durations,
    )
    yield from _histograms(
        "mcpmux_upstream_request_duration_seconds",
        "Time from a request to an upstream to its answer.",
        ("upstream", "method"),
        metrics.call_durations,
    )


def _family(name: str, about: str, kind: str, labels: Sequence[str], samples: Samples) -> Iterator[str]:
    yield from _head(name, about, kind)
    for values, value in samples:
        yield f"{name}{_labels(zip(labels, values, strict=True))} {print_number(value)}"


def _histograms(
    name: str, about: str, labels: Sequence[str], histograms: Mapping[Labels, Histogram]
) -> Iterator[str]:
    yield from _head(name, about, "histogram")
    for values, histogram in histograms.items():
        inside = _inside(zip(labels, values, strict=True))
        count = 0
        for bound, more in zip(_bounds(histogram.bounds), histogram.counts, strict=True):
            count += more
            yield f'{name}_bucket{{{inside},le="{bound}"}} {count}'
        yield f"{name}_sum{{{inside}}} {print_number(histogram.total)}"
        yield f"{name}_count{{{inside}}} {count}"


@lru_cache
def _bounds(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return tuple(print_number(bound) for bound in (*bounds, math.inf))


def _head(name: str, about: str, kind: str) -> Iterator[str]:
    escaped = about.replace("\\", "\\\\").replace("\n", "\\n")
    yield f"# HELP {name} {escaped}"
    yield f"# TYPE {name} {kind}"


def _labels(pairs: Iterable[tuple[str, str]]) -> str:
    inside = _inside(pairs)
    return f"{{{inside}}}" if inside else ""


def _inside(pairs: Iterable[tuple[str, str]]) -> str:
    return ",".join(f'{name}="{_escape(value)}"' for name, value in pairs)


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def print_number(value: float) -> str:
    """A value as Prometheus reads it."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < WHOLE_LIMIT else repr(float(value))
