"""`mcpmux traffic stats` and `mcpmux traffic export`: a capture as numbers, or for other programs."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO, Any

import click
import msgspec

from mcpmux import __version__
from mcpmux.cli.console import OUT, Columns, for_screen, is_screen, show_items, show_line, tell
from mcpmux.cli.options import json_option, quiet_option
from mcpmux.cli.process import Mistake
from mcpmux.cli.traffic.source import (
    CaptureFiles,
    filter_help,
    format_time,
    read_redactor,
    redact_option,
    show_lines,
    where_argument,
)
from mcpmux.files import replacing
from mcpmux.format import bytes_text, sparkline, time_text
from mcpmux.protocol.raw_json import Raw
from mcpmux.traffic.reading.export import to_csv, to_har
from mcpmux.traffic.reading.histogram import Histogram
from mcpmux.traffic.reading.stats import CLIENTS, PERCENTILES, Group, Stats, Timeline
from mcpmux.traffic.record import Record, encode_record
from mcpmux.traffic.recorder import method_id_target
from mcpmux.traffic.redaction.redactor import Redactor
from mcpmux.transports.byte_stream import reason_of

SPARK_WIDTH = 12
BAR_WIDTH = 40
LATENCY_BARS = 12
NAME_LIMIT = 64  # characters: as long as names of tools are
ROWS_LIMIT = 40
PIPE_WIDTH = 100  # columns of a picture away from a terminal


@click.command(epilog=filter_help())
@where_argument
@click.option(
    "--by",
    type=click.Choice(["method", "name"]),
    default="method",
    help="A row for each method, or for each tool, prompt or resource, the slowest first.",
)
@json_option(help="Print all groups and the timeline as one JSON object.")
@quiet_option
def stats(where: tuple[str, ...], by: str, as_json: bool) -> None:
    """Count messages, errors and latencies for each upstream and method.

    Rows of (clients) show the latency for clients, rows of an upstream the latency of the upstream alone.
    Errors are JSON-RPC errors, tool results with isError, and HTTP statuses from 400. Percentiles are at most
    0.1% off. OPEN counts requests whose response is not in the capture. SLOWEST is the number of the exchange
    that took longest, with its run if there are several; `mcpmux traffic show` shows it.

    \b
    Examples:
      mcpmux traffic stats
      mcpmux traffic stats captures/ 'method=resources/read since=1h'
      mcpmux traffic stats --by name method=tools/call
      mcpmux traffic stats --json leg=upstream | jq '.groups[] | {upstream, method, latencyMs}'
    """
    source = CaptureFiles(where)
    counts = Stats(by_name=by == "name")
    for record in source.wanted():
        counts.add(record)
    if as_json:
        click.echo(json.dumps(counts.as_json()))
    else:
        _show(counts, by)
    if not counts.messages:
        source.tell_nothing_fits()
    source.check_read()


def _show(found: Stats, by: str) -> None:
    overview = "no messages"
    if found.messages:
        span = f"{format_time(found.first or '')} to {format_time(found.last or '')} UTC"
        invalid = f", {found.invalid} invalid" if found.invalid else ""
        overview = f"{found.messages} messages, {bytes_text(found.bytes)}{invalid}, {span}"
    show_lines([overview])
    groups = found.groups()
    if groups:
        click.echo()
        columns = columns_by(by, found.has_runs)
        show_items(groups[:ROWS_LIMIT], False, columns, {*columns} - {"UPSTREAM", by.upper(), "LATENCY"})
        if len(groups) > ROWS_LIMIT:
            click.echo(f"… {len(groups) - ROWS_LIMIT} more rows; --json has them all")
    upstreams = found.latency(CLIENTS).count == 0
    latency = found.latency() if upstreams else found.latency(CLIENTS)
    if latency.count > 1:
        click.echo()
        show_line(f"Latency {'of upstreams' if upstreams else 'as clients saw it'}")
        show_lines(latency_lines(latency))
    if len(found.timeline.slots()) > 1:
        click.echo()
        show_line("Answers over time")
        show_lines(timeline_lines(found.timeline, OUT.width if is_screen() else PIPE_WIDTH))


def columns_by(by: str, has_runs: bool) -> Columns:
    """Return the columns of groups; the last one shows the distribution of latencies.

    `has_runs`: several have an exchange of each number.
    """

    def name(group: Group) -> str:
        return (group.method if by == "method" or group.name is None else group.name)[:NAME_LIMIT]

    def percentile(percent: float) -> Callable[[Group], str]:
        return lambda group: time_text(group.latency.percentiles((percent,))[0])

    def slowest(group: Group) -> str | None:
        if group.slowest is None:
            return None
        return f"#{group.slowest}" + (f" --run {group.slowest_run}" if has_runs else "")

    return {
        "UPSTREAM": lambda group: (group.upstream[:NAME_LIMIT], "dim" if group.upstream == CLIENTS else ""),
        by.upper(): name,
        "ANSWERS": lambda group: group.answers or group.notifications,
        "ERRORS": _errors,
        "OPEN": lambda group: group.open or None,
        **{f"P{percent}": percentile(percent) for percent in PERCENTILES},
        "MAX": percentile(100),
        "SLOWEST": slowest,
        "SIZE": lambda group: bytes_text(group.bytes),
        "LATENCY": lambda group: spark([count for _, count in group.latency.bars(SPARK_WIDTH)]),
    }


def _errors(group: Group) -> tuple[str, str] | None:
    rate = group.error_rate
    return None if not group.failures or rate is None else (f"{group.failures} {rate:.1%}", "red")


def spark(counts: Sequence[int]) -> str:
    """Return a sparkline of numbers. Zero is a blank."""
    return sparkline([count or None for count in counts], len(counts))


def latency_lines(latency: Histogram) -> list[str]:
    bars = latency.bars(LATENCY_BARS)
    most = max(count for _, count in bars)
    return [
        f"  ≤ {time_text(end):>8}  {'█' * math.ceil(count / most * BAR_WIDTH):<{BAR_WIDTH}} {count}"
        for end, count in bars
    ]


def timeline_lines(timeline: Timeline, width: int) -> list[str]:
    """Return sparklines of all responses and of those that are not ok, and the times of both ends."""
    slots = timeline.slots()
    most = max(slot.answers for slot in slots)
    step = math.ceil(len(slots) / max(10, width - 4))
    parts = [slots[at : at + step] for at in range(0, len(slots), step)]
    counts = [sum(slot.answers for slot in part) for part in parts]
    wrong = [sum(slot.failed for slot in part) for part in parts]
    ends = [f"{datetime.fromtimestamp(slot.start, UTC):%Y-%m-%d %H:%M:%S}" for slot in (slots[0], slots[-1])]
    lines = [f"  {spark(counts)}"]
    if any(wrong):
        lines.append(f"  {spark(wrong)}  not ok, {sum(wrong)} in all")
    gap = " " * max(2, len(counts) - len(ends[0]) - len(ends[1]))
    lines.append(f"  {ends[0]}{gap}{ends[1]}")
    return [*lines, f"  at most {most / timeline.width:.1f} a second, in slots of {timeline.width} s"]


STDOUT = "-"
TOGETHER_BYTES = 64 * 1024  # written to a file in one go

FORMATS: dict[str, Callable[[Iterable[Record]], Iterator[str]]] = {
    "har": partial(to_har, version=__version__),
    "csv": to_csv,
    "jsonl": lambda records: (encode_record(record).decode() for record in records),
}


@click.command(epilog=filter_help())
@where_argument
@click.option("--har", metavar="FILE", help="HTTP archive 1.2, for the developer tools of browsers.")
@click.option("--csv", metavar="FILE", help="A table without bodies.")
@click.option("--jsonl", metavar="FILE", help="A capture of these messages, for replay and mock.")
@redact_option
@quiet_option
def export(where: tuple[str, ...], redact: str | None, **files: str | None) -> None:
    """Write captured messages for other programs. FILE may be - for standard output.

    Known secrets are redacted once more. Control characters are escaped for a terminal. In HAR each request
    and its response are one entry on each leg. The host of the entry says which leg and which peer. Only you
    can read the files.

    \b
    Examples:
      mcpmux traffic export captures/ 'since=1h' --har session.har
      mcpmux traffic export leg=upstream --csv - | head
      mcpmux traffic export 'client=claude-ai' --jsonl part.jsonl
    """
    chosen = [(name, convert) for kind, convert in FORMATS.items() if (name := files[kind]) is not None]
    if not chosen:
        raise Mistake("choose at least one of --har FILE, --csv FILE and --jsonl FILE")
    places = Counter(name if name == STDOUT else os.path.realpath(name) for name, _ in chosen)
    place, count = places.most_common(1)[0]
    if count > 1:
        raise Mistake(f"{place}: two formats cannot go to the same place")
    redactor = read_redactor(redact)
    prints = STDOUT in files.values()
    source = CaptureFiles(where, change=lambda record: redact_record(record, redactor), prints=prints)
    counts: Counter[str] = Counter()
    for name, convert in chosen:
        records = source.everything() if name == files["jsonl"] and not source.filter else source.wanted()
        pieces = convert(_counted(records, counts, name))
        if name == STDOUT:
            with click.open_file(STDOUT, "wb") as stdout:
                _write(stdout, pieces)
        else:
            size = write_file(name, pieces, source.files())
            tell(f"{name}: {counts[name]} messages, {bytes_text(size)}")
        if not counts[name] and not source.filter:
            tell("there is no message in it")
    if source.filter and not any(counts.values()):
        source.tell_nothing_fits()
    source.check_read()


def write_file(name: str, pieces: Iterable[str], sources: Sequence[Path]) -> int:
    """Write a file as a whole or not at all, for its owner alone. Returns its number of bytes.

    It is renamed when it is complete. A pipe or a device is written to directly and never replaced.
    Raises Mistake when it is one of `sources`, ClickException when it cannot be written.
    """
    path = Path(name)
    try:
        if path.exists() and any(path.samefile(source) for source in sources if source.exists()):
            raise Mistake(f"{name}: this is one of the files that are read")
        if path.exists() and not path.is_file():
            with path.open("wb", TOGETHER_BYTES) as file:
                return _write(file, pieces)
        with replacing(path, TOGETHER_BYTES) as file:
            return _write(file, pieces)
    except OSError as error:
        raise click.ClickException(f"{name}: cannot write: {reason_of(error)}") from None


def _write(file: IO[bytes], pieces: Iterable[str]) -> int:
    if file.isatty():
        pieces = map(for_screen, pieces)
    size = sum(file.write(piece.encode("utf-8", "replace")) for piece in pieces)
    file.flush()
    return size


def _counted(records: Iterable[Record], counts: Counter[str], name: str) -> Iterator[Record]:
    for record in records:
        counts[name] += record.kind != "start"
        yield record


def redact_record(record: Record, redactor: Redactor) -> Record:
    """Return the message without known secrets in any of its members."""
    names = ("target", "method", "client")
    changes: dict[str, Any] = {name: redactor.clean(getattr(record, name)) for name in names}
    text, message = record.text or "", record.message
    captured = bytes(message) if message is not None else text.encode("utf-8", "replace")
    body, count = redactor.redact(record.method, captured)
    if count:
        changes["redacted"] = (record.redacted or 0) + count
        if message is not None and body[:1] == b"{":
            changes["message"] = Raw(body)
        else:
            changes |= {"message": None, "text": body.decode("utf-8", "replace")}
        if message is not None and record.kind in ("request", "notification"):
            changes["target"] = method_id_target(body)[2]
    return msgspec.structs.replace(record, **changes)
