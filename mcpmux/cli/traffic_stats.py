"""`mcpmux traffic stats`: how much, how fast, how often it went wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime

import click
from rich.table import Table
from rich.text import Text

from mcpmux.cli.console import OUT, is_screen, make_table, show_heading, show_table
from mcpmux.cli.options import quiet_option
from mcpmux.cli.traffic_source import (
    Where,
    filter_help,
    format_ms,
    format_size,
    format_time,
    show_lines,
    where_argument,
)
from mcpmux.printable import printable
from mcpmux.traffic.reading.stats import CLIENTS, PERCENTILES, Group, Histogram, Stats, Timeline

SPARKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 12
BAR_WIDTH = 40
LATENCY_BARS = 12
NAME_LIMIT = 50
ROWS_LIMIT = 40
PIPE_WIDTH = 100  # of the picture, where nobody looks on

_HEADINGS = ["UPSTREAM", "METHOD", "ANSWERS", "ERRORS", "OPEN", "P50", "P90", "P99", "MAX", "SIZE", "LATENCY"]


@click.command(epilog=filter_help())
@where_argument
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with all groups and the timeline.")
@quiet_option
def stats(where: tuple[str, ...], as_json: bool) -> None:
    """Count messages, errors and latencies, per upstream and method.

    In the rows of (clients) are the durations that clients saw, in those of an upstream what it needed by
    itself. Errors are JSON-RPC errors, results of tools with isError, and HTTP statuses from 400. Percentiles
    are at most 1% off. Open are requests whose answer is not in what was read.

    \b
    Examples:
      mcpmux traffic stats
      mcpmux traffic stats captures/ 'method=resources/read since=1h'
      mcpmux traffic stats --json leg=upstream | jq '.groups[] | {upstream, method, latencyMs}'
    """
    source = Where(where)
    found = Stats()
    for record in source.records():
        found.add(record)
    if as_json:
        click.echo(json.dumps(found.as_json()))
    else:
        _show(found)
    source.check_read()


def _show(found: Stats) -> None:
    show_lines([_overview(found)])
    groups = found.groups()
    if groups:
        click.echo()
        show_table(fill_table(groups[:ROWS_LIMIT]))
        if len(groups) > ROWS_LIMIT:
            click.echo(f"… {len(groups) - ROWS_LIMIT} more rows; --json has them all")
    _show_pictures(found)


def _overview(found: Stats) -> str:
    if not found.messages:
        return "no messages"
    span = f"{format_time(found.first or '')} to {format_time(found.last or '')} UTC"
    invalid = f", {found.invalid} invalid" if found.invalid else ""
    return f"{found.messages} messages, {format_size(found.bytes)}{invalid}, {span}"


def fill_table(groups: Sequence[Group]) -> Table:
    """One row each; the last column is the distribution of latencies."""
    table = make_table(_HEADINGS, right_aligned=frozenset(_HEADINGS[2:-1]))
    for group in groups:
        rate = group.error_rate
        errors = f"{group.failures} {rate:.1%}" if group.failures and rate is not None else "-"
        told = [group.latency.percentile(share) for share in PERCENTILES.values()]
        most = group.latency.most if group.latency.count else None
        table.add_row(
            Text(printable(group.upstream[:NAME_LIMIT]), style="dim" if group.upstream == CLIENTS else ""),
            printable(group.method[:NAME_LIMIT]),
            str(group.answers or group.notifications),
            Text(errors, style="red" if group.failures else ""),
            str(group.open or "-"),
            *("-" if value is None else format_ms(value) for value in (*told, most)),
            format_size(group.bytes),
            spark([count for _, count in group.latency.bars(SPARK_WIDTH)]),
        )
    return table


def spark(counts: Sequence[int]) -> str:
    """A picture of numbers: nothing is a blank, what is not nothing shows."""
    most = max(counts, default=0)
    if not most:
        return ""
    return "".join(SPARKS[math.ceil(count / most * 8) - 1] if count else " " for count in counts)


def _show_pictures(found: Stats) -> None:
    upstreams = found.latency(CLIENTS).count == 0
    latency = found.latency() if upstreams else found.latency(CLIENTS)
    if latency.count > 1:
        click.echo()
        show_heading(f"Latency {'of upstreams' if upstreams else 'as clients saw it'}")
        show_lines(latency_lines(latency))
    if len(found.timeline.slots()) > 1:
        click.echo()
        show_heading("Answers over time")
        show_lines(timeline_lines(found.timeline, OUT.width if is_screen() else PIPE_WIDTH))


def latency_lines(latency: Histogram) -> list[str]:
    """A bar for each range of durations, and how many are in it."""
    bars = latency.bars(LATENCY_BARS)
    most = max(count for _, count in bars)
    return [
        f"  ≤ {format_ms(end):>8}  {'█' * math.ceil(count / most * BAR_WIDTH):<{BAR_WIDTH}} {count}"
        for end, count in bars
    ]


def timeline_lines(timeline: Timeline, width: int) -> list[str]:
    """Two rows of sparks, all answers and those that were not ok, with the times of the ends below."""
    slots = timeline.slots()
    most = max(slot.answers for slot in slots)
    failed = [slot.failed for slot in slots]
    room = max(10, width - 4)
    step = math.ceil(len(slots) / room)
    counts = [sum(slot.answers for slot in slots[at : at + step]) for at in range(0, len(slots), step)]
    wrong = [sum(failed[at : at + step]) for at in range(0, len(slots), step)]
    ends = [f"{datetime.fromtimestamp(slot.start, UTC):%Y-%m-%d %H:%M:%S}" for slot in (slots[0], slots[-1])]
    lines = [f"  {spark(counts)}"]
    if any(wrong):
        lines.append(f"  {spark(wrong)}  not ok, {sum(wrong)} in all")
    gap = " " * max(2, len(counts) - len(ends[0]) - len(ends[1]))
    lines.append(f"  {ends[0]}{gap}{ends[1]}")
    return [*lines, f"  at most {most / timeline.width:.1f} a second, in slots of {timeline.width} s"]
