"""Results as CSV: a row per target, run, operation and measure, so that a spreadsheet can pivot it. Pure.

Columns: name, target, transport, revision, when, part, measure, value, unit. `part` is an operation's name,
empty for all of them together. Units: s, /s, bytes, share, or none for counts.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from mcpmux.bench.histogram import Distribution
from mcpmux.bench.result_file import Report
from mcpmux.bench.results import Operation, Results

COLUMNS = ("name", "target", "transport", "revision", "when", "part", "measure", "value", "unit")
PERCENTS = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9)
_RISKY = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would take it for a formula

Line = tuple[str, str, float | int | None, str]


def csv_of(report: Report) -> str:
    """The whole report, with a heading line, lines ending as RFC 4180 wants it."""
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(COLUMNS)
    for one in report.results:
        about = one.about
        head = [_harmless(text) for text in (about.name, about.target, about.transport, about.revision)]
        for part, measure, value, unit in _lines(one):
            cells = (_harmless(part), _harmless(measure), "" if value is None else value, unit)
            writer.writerow([*head, about.when, *cells])
    return file.getvalue()


def _lines(one: Results) -> Iterator[Line]:
    yield "", "measured", one.seconds, "s"
    yield from _operation("", one, one.overall())
    for name, part in one.operations.items():
        yield from _operation(name, one, part)
    yield "connect", "count", one.connections.count, ""
    yield "connect", "lost", one.connections.lost, ""
    for kind, count in one.connections.errors.items():
        yield "connect", f"error {kind}", count, ""
    yield from _times("connect", "time", one.connections.times)
    yield "", "generator CPU", one.generator.cpu_share, "share"
    for step in one.steps:
        yield f"step {step.name}", "offered", step.offered, "/s"
        yield f"step {step.name}", "rate", step.rate, "/s"
        yield f"step {step.name}", "errors", sum(step.errors.values()), ""
        yield from _times(f"step {step.name}", "latency", step.latency)
    if one.fan_out is not None:
        for measure in (
            "subscribers",
            "resources",
            "changes",
            "expected",
            "deliveries",
            "losses",
            "duplicates",
        ):
            yield "delivery", measure, getattr(one.fan_out, measure), ""
        yield from _times("delivery", "delay", one.fan_out.delay)


def _operation(name: str, one: Results, part: Operation) -> Iterator[Line]:
    yield name, "requests", part.count, ""
    yield name, "rate", one.rate(part), "/s"
    yield name, "errors", part.failed, ""
    yield name, "error share", part.error_share, "share"
    for kind, count in part.errors.items():
        yield name, f"error {kind}", count, ""
    yield name, "sent", part.sent_bytes, "bytes"
    yield name, "received", part.received_bytes, "bytes"
    yield from _times(name, "latency", part.latency)
    yield from _times(name, "service", part.service)


def _times(part: str, what: str, times: Distribution) -> Iterator[Line]:
    for percent, value in zip(PERCENTS, times.percentiles(PERCENTS), strict=True):
        yield part, f"{what} p{percent:g}", value, "s"
    yield part, f"{what} mean", times.mean, "s"
    yield part, f"{what} max", times.most if times.count else None, "s"


def _harmless(text: str) -> str:
    """What came from outside, so that a spreadsheet does not run it."""
    return f"'{text}" if text.startswith(_RISKY) else text
