"""The parts of a report, and its CSV: the contents, order and words of a report. Pure.

A terminal and an HTML page show the same parts, each in its own way. Texts may hold what strangers wrote.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from mcpmux.bench.assertion import Judgement
from mcpmux.bench.report.compare import Comparison
from mcpmux.bench.results import FanOut, OperationResult, Report, Results, Step, by_name, pool, pooled
from mcpmux.format import NOTHING, bytes_text, rate_text, share_text, time_text
from mcpmux.printable import spreadsheet_cell
from mcpmux.traffic.reading.histogram import Distribution

PERCENTS = (50.0, 90.0, 99.0, 99.9)
TIMES = ("p50", "p90", "p99", "p99.9", "max")
FEW = 1000  # requests; with fewer, p99.9 is the slowest one

Tone = Literal["", "strong", "dim", "good", "warn", "bad"]


class Cell(msgspec.Struct, frozen=True):
    """A text and how to show it."""

    text: str
    tone: Tone = ""


Row = Sequence[Cell | str]
"""What becomes a row of a table; a text is a cell in the usual tone."""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Rows under headings. `left`: the columns that hold words; all others hold numbers."""

    title: str
    headings: tuple[str, ...]
    left: tuple[int, ...]
    rows: tuple[tuple[Cell, ...], ...]


Part = Table | Sequence[Cell]
"""A table, or sentences below each other."""


def parts_of(
    results: Sequence[Results], answers: Mapping[str, str], comparisons: Iterable[Comparison]
) -> Iterator[Part]:
    """Yield all results, reasons to doubt them, `answers` of searches by target, and what has changed."""
    yield from tables_of(results)
    yield _doubts(notes_on(results))
    yield [Cell(f"{name}: {sentence}", "strong") for name, sentence in answers.items()]
    for comparison in comparisons:
        yield comparison_table(comparison)
        yield _doubts(comparison.notes)


def _doubts(notes: Iterable[str]) -> list[Cell]:
    return [Cell(f"note: {note}", "warn") for note in notes]


def verdicts_of(judgements: Iterable[Judgement]) -> list[Cell]:
    """Return the verdict of each condition in a sentence."""
    return [
        Cell(f"{'✓' if judgement.held else '✗'} {judgement.sentence}", "good" if judgement.held else "bad")
        for judgement in judgements
    ]


def tables_of(results: Sequence[Results]) -> list[Table]:
    """Return tables of all targets, side by side; several runs of one are combined and listed."""
    targets = by_name(results)
    whole = [pool(runs) for runs in targets.values()]
    tables = [_throughput(whole), _latencies(whole)]
    for result in whole:
        of = f" of {result.about.name}" if len(whole) > 1 else ""
        if len(targets[result.about.name]) > 1:
            tables.append(_runs(f"Runs{of}", targets[result.about.name]))
        if result.steps:
            tables.append(_steps(f"Steps{of}", result.steps))
        if result.fan_out is not None:
            tables.append(_fan_out(f"Pushes{of}", result.fan_out))
        errors = _errors(f"Errors{of}", result)
        if errors.rows:
            tables.append(errors)
    return tables


def comparison_table(comparison: Comparison) -> Table:
    """Return a table of all changes with their verdicts."""
    tones: dict[str, Tone] = {"better": "good", "worse": "bad"}
    rows = []
    for change in comparison.changes:
        name = change.measure if change.part is None else f"{change.part}.{change.measure}"
        numbers = (change.text(change.old), change.text(change.new), change.range_text)
        rows.append((name, *numbers, Cell(change.verdict, tones.get(change.verdict, "dim"))))
    title = f"{comparison.name}: compared {comparison.basis}"
    return _table(title, ("", *comparison.sides, "change (range)", "verdict"), rows, (0, 4))


def headline(one: Results) -> str:
    """Return the target in one line."""
    about = one.about
    name = "" if about.name == about.target else f"{about.name}: "
    return f"{name}{about.target}  {about.transport}, {about.revision}"


def circumstances(runs: Sequence[Results]) -> str:
    """Return under what load, and for how long, all runs of one target went."""
    pooled_runs = pool(runs)
    warm_up = f" after {time_text(pooled_runs.warm_up)} of warm-up" if pooled_runs.warm_up else ""
    times = f" in {len(runs)} runs{', each' if warm_up else ''}" if len(runs) > 1 else ""
    return f"{pooled_runs.about.load.text}; measured {time_text(pooled_runs.seconds)}{times}{warm_up}"


def notes_on(results: Sequence[Results]) -> list[str]:
    """Return reasons to doubt the numbers, a sentence each."""
    notes = []
    for result in pooled(results):
        name, whole = result.about.name, result.overall()
        if result.stopped:
            notes.append(f"{name}: ended before its time: {result.stopped}")
        if result.unfinished:
            requests = "1 request" if result.unfinished == 1 else f"{result.unfinished:,} requests"
            notes.append(f"{name}: {requests} had no answer yet at the end")
        if result.generator.warning:
            notes.append(f"{name}: {result.generator.warning}")
        count = whole.latency.count
        if not whole.count and result.fan_out is None and not result.stopped:
            measured = time_text(result.seconds)
            notes.append(f"{name}: no request began in the {measured} measured: take longer (--duration)")
        if 0 < count < FEW:
            notes.append(f"{name}: only {count:,} latencies, so p99.9 is the slowest of them")
    return notes


def differs(latency: Distribution, service: Distribution) -> bool:
    """Return whether counting from the actual send makes a visible difference."""
    pairs = zip(latency.percentiles(PERCENTS), service.percentiles(PERCENTS), strict=True)
    return any(one is not None and other is not None and one > other * 1.02 for one, other in pairs)


def _throughput(results: Sequence[Results]) -> Table:
    rows: list[Row] = []
    for result in results:
        whole = result.overall()
        connections = result.connections
        counts = (sum(connections.errors.values()), "failed"), (connections.lost, "lost")
        wrong = ", ".join(f"{count} {what}" for count, what in counts if count)
        opened = f"{connections.count:,} ({wrong})" if wrong else f"{connections.count:,}"
        volume = map(bytes_text, (whole.sent_bytes, whole.received_bytes))
        times = map(time_text, connections.times.percentiles((50, 100)))
        busy = Cell(share_text(result.generator.cpu_share), "warn" if result.generator.warning else "")
        counted = (f"{whole.count:,}", Cell(_rate(result, whole), "strong"), _error_cell(whole))
        rows.append(
            (result.about.name, *counted, *volume, Cell(opened, "bad" if wrong else ""), *times, busy)
        )
    headings = ("target", "requests", "rate", "errors", "sent", "received", "connections", "connect p50")
    return _table("Throughput", (*headings, "connect max", "generator CPU"), rows)


def _latencies(results: Sequence[Results]) -> Table:
    """List operations, then all together, then from the actual send where that differs."""
    names = sorted({name for result in results for name in result.operations})
    every = names[0] if len(names) == 1 else "all"
    parts = [
        (name, result, result.operations.get(name)) for name in names for result in results if len(names) > 1
    ]
    rows = [_latency_row(name, result, part) for name, result, part in parts if part is not None]
    for result in results:
        whole = result.overall()
        rows.append(_latency_row(every, result, whole, "strong"))
        if differs(whole.latency, whole.service):
            texts = (f"{every}, from the actual send", result.about.name, "", "", *_times_of(whole.service))
            rows.append([Cell(text, "dim") for text in texts])
    headings = ("operation", "target", "requests", "rate", *TIMES)
    if len(results) > 1:
        return _table("Latency", headings, rows, (0, 1))
    return _table("Latency", (headings[0], *headings[2:]), [(row[0], *row[2:]) for row in rows])


def _latency_row(name: str, one: Results, part: OperationResult, tone: Tone = "") -> list[Cell]:
    texts = (name, one.about.name, f"{part.count:,}", _rate(one, part), *_times_of(part.latency))
    return [Cell(text, tone) for text in texts]


def _rate(one: Results, part: OperationResult) -> str:
    return rate_text(one.rate(part) if one.seconds else None)


def _runs(title: str, runs: Sequence[Results]) -> Table:
    """Return each run, and their spread: half the distance from least to most, relative to the mean."""
    wholes = [run.overall() for run in runs]
    rates = [run.rate(whole) if run.seconds else None for run, whole in zip(runs, wholes, strict=True)]
    times = [whole.latency.percentiles((50, 99, 100)) for whole in wholes]
    rows: list[Row] = [
        (str(number), f"{whole.count:,}", _error_cell(whole), rate_text(rate), *map(time_text, percentiles))
        for number, (whole, rate, percentiles) in enumerate(zip(wholes, rates, times, strict=True), 1)
    ]
    spreads = (Cell(_spread(column), "dim") for column in (rates, *zip(*times, strict=True)))
    rows.append((Cell("spread", "dim"), "", "", *spreads))
    return _table(title, ("run", "requests", "errors", "rate", "p50", "p99", "max"), rows)


def _spread(values: Sequence[float | None]) -> str:
    measured = [value for value in values if value is not None]
    middle = sum(measured) / len(measured) if measured else 0.0
    return f"±{share_text((max(measured) - min(measured)) / 2 / middle)}" if middle else NOTHING


def _steps(title: str, steps: Sequence[Step]) -> Table:
    held = {True: Cell("yes", "good"), None: Cell("")}
    rows: list[Row] = [
        (
            step.name,
            "" if step.offered is None else rate_text(step.offered),
            rate_text(step.rate),
            share_text(step.error_share),
            *_times_of(step.latency),
            Cell(f"no: {step.why or 'too slow'}", "bad") if step.held is False else held[step.held],
        )
        for step in steps
    ]
    return _table(title, ("step", "offered", "rate", "errors", *TIMES, "held"), rows, (0, 9))


def _fan_out(title: str, pushes: FanOut) -> Table:
    counts = (f"{count:,}" for count in (pushes.subscribers, pushes.resources, pushes.changes))
    delivered = f"{pushes.deliveries:,} of {pushes.expected:,}"
    lost = Cell(f"{pushes.losses:,}", "bad" if pushes.losses else "")
    duplicates = Cell(f"{pushes.duplicates:,}", "warn" if pushes.duplicates else "")
    row: Row = (*counts, delivered, lost, duplicates, *_times_of(pushes.delay))
    headings = ("subscribers", "resources", "changes", "delivered", "lost", "duplicates", *TIMES)
    return _table(title, headings, [row], ())


def _errors(title: str, one: Results) -> Table:
    """List errors by operation and kind, the most frequent first."""
    connections = one.connections
    failures = {**connections.errors, **({"lost while in use": connections.lost} if connections.lost else {})}
    parts = [(name, part.count, part.errors) for name, part in one.operations.items()]
    parts.append(("connect", connections.count, failures))
    errors_of_parts = [
        (count, name, kind, whole) for name, whole, errors in parts for kind, count in errors.items()
    ]
    rows: list[Row] = []
    for count, name, kind, whole in sorted(errors_of_parts, key=lambda each: -each[0]):
        example = Cell(one.examples.get(f"{name}: {kind}", ""), "dim")
        rows.append((name, Cell(kind, "bad"), f"{count:,}", share_text(count / whole), example))
    return _table(title, ("operation", "error", "count", "share", "such as"), rows, (0, 1, 4))


def _error_cell(whole: OperationResult) -> Cell:
    text = f"{whole.failed:,} ({share_text(whole.error_share)})"
    return Cell(text, "bad") if whole.failed else Cell("0")


def _times_of(times: Distribution) -> list[str]:
    return [time_text(value) for value in times.percentiles((*PERCENTS, 100))]


def _table(title: str, headings: tuple[str, ...], rows: Iterable[Row], left: tuple[int, ...] = (0,)) -> Table:
    cells = tuple(tuple(Cell(cell) if isinstance(cell, str) else cell for cell in row) for row in rows)
    return Table(title=title, headings=headings, left=left, rows=cells)


# Results as CSV: a row per target, run, operation and measure, so that a spreadsheet can pivot it.
#
# Columns: name, target, transport, revision, when, part, measure, value, unit. `part` is an operation's
# name, empty for all of them together. Units: s, /s, bytes, share, or none for counts.

COLUMNS = ("name", "target", "transport", "revision", "when", "part", "measure", "value", "unit")
CSV_PERCENTS = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9)

Line = tuple[str, str, float | int | None, str]


def csv_of(report: Report) -> str:
    """Return the whole report with a heading line, as RFC 4180 has it."""
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(COLUMNS)
    for result in report.results:
        about = result.about
        head = (about.name, about.target, about.transport, about.revision, about.when)
        for part, measure, value, unit in _lines(result):
            texts = map(spreadsheet_cell, (*head, part, measure))
            writer.writerow([*texts, "" if value is None else value, unit])
    return file.getvalue()


def _lines(one: Results) -> Iterator[Line]:
    yield "", "measured", one.seconds, "s"
    for name, part in (("", one.overall()), *one.operations.items()):
        yield name, "requests", part.count, ""
        yield name, "rate", one.rate(part), "/s"
        yield name, "errors", part.failed, ""
        yield name, "error share", part.error_share, "share"
        yield from _kinds(name, part.errors)
        yield name, "sent", part.sent_bytes, "bytes"
        yield name, "received", part.received_bytes, "bytes"
        yield from _times(name, "latency", part.latency)
        yield from _times(name, "service", part.service)
    yield "connect", "count", one.connections.count, ""
    yield "connect", "lost", one.connections.lost, ""
    yield from _kinds("connect", one.connections.errors)
    yield from _times("connect", "time", one.connections.times)
    yield "", "generator CPU", one.generator.cpu_share, "share"
    for step in one.steps:
        name = f"step {step.name}"
        yield name, "offered", step.offered, "/s"
        yield name, "rate", step.rate, "/s"
        yield name, "errors", step.failed, ""
        yield from _times(name, "latency", step.latency)
    if one.fan_out is not None:
        counts = ("subscribers", "resources", "changes", "expected", "deliveries", "losses", "duplicates")
        for measure in counts:
            yield "delivery", measure, getattr(one.fan_out, measure), ""
        yield from _times("delivery", "delay", one.fan_out.delay)


def _kinds(part: str, errors: Mapping[str, int]) -> Iterator[Line]:
    return ((part, f"error {kind}", count, "") for kind, count in errors.items())


def _times(part: str, what: str, times: Distribution) -> Iterator[Line]:
    for percent, value in zip(CSV_PERCENTS, times.percentiles(CSV_PERCENTS), strict=True):
        yield part, f"{what} p{percent:g}", value, "s"
    yield part, f"{what} mean", times.mean, "s"
    yield part, f"{what} max", times.most if times.count else None, "s"
