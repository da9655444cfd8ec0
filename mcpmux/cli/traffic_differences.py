"""What a replay found, for people."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click
from rich.text import Text

from mcpmux.cli.console import make_table, show_heading, show_table, tell
from mcpmux.cli.traffic_lines import format_ms
from mcpmux.printable import printable
from mcpmux.traffic.replay.difference import Difference, show_path
from mcpmux.traffic.replay.questions import KINDS
from mcpmux.traffic.replay.report import PERCENTILES, STATUSES, Outcome, Report, Status, count_text

REQUESTS_SHOWN = 20
DIFFERENCES_SHOWN = 5  # of one request
REASONS_SHOWN = 10
VALUE_LENGTH = 60  # characters of a value in a difference
NOT_COMPARED: tuple[Status, ...] = ("skipped", "unchecked", "failed")
_RARE: tuple[Status, ...] = ("unasked", "unchecked")
_STYLES = {"different": "red", "failed": "red", "same": "green"}


def show_report(report: Report) -> None:
    """The tables, and each difference."""
    total = report.counts()
    columns = [status for status in STATUSES if status not in _RARE or total[status]]
    headings = [status.upper() for status in columns]
    table = make_table(["METHOD", *headings], frozenset(headings))
    for method, counts in report.by_method().items():
        cells = (Text(str(counts[s] or "-"), style=_STYLES.get(s, "") if counts[s] else "") for s in columns)
        table.add_row(printable(method), *cells)
    show_table(table)
    _show_latency(report)
    _show_reasons(report)
    _show_differences(report.different())
    click.echo()
    click.echo(count_text((status, total[status]) for status in STATUSES if total[status]))


def _show_latency(report: Report) -> None:
    latency = report.latency()
    if not latency:
        return
    names = list(PERCENTILES)
    headings = ["METHOD", *(f"{name.upper()} {when}" for name in names for when in ("THEN", "NOW"))]
    table = make_table(headings, frozenset(headings[1:]))
    for method, both in latency.items():
        cells = [
            "-" if (value := histogram.percentile(PERCENTILES[name])) is None else format_ms(value)
            for name in names
            for histogram in both
        ]
        table.add_row(printable(method), *cells)
    click.echo()
    show_heading("Latency")
    show_table(table)


def _show_reasons(report: Report) -> None:
    for status in NOT_COMPARED:
        reasons = report.reasons(status).most_common()
        for reason, count in reasons[:REASONS_SHOWN]:
            tell(f"{status}: {count}: {reason}")
        if len(reasons) > REASONS_SHOWN:
            tell(f"{status}: {len(reasons) - REASONS_SHOWN} more reasons; --json has them all")
    for (kind, method), count in report.questions.items():
        tell(f"question of the server: {count}: {method}: {KINDS[kind]}")
    if report.left_out:
        tell(f"not part of any request: {count_text(report.left_out.items())}")


def _show_differences(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes[:REQUESTS_SHOWN]:
        turn = outcome.turn
        click.echo()
        where = f"exchange {turn.exchange}, {outcome.client}" if turn.exchange else outcome.client
        show_heading(f"{turn.method} {turn.target or ''}".rstrip() + f" ({where})")
        for difference in outcome.differences[:DIFFERENCES_SHOWN]:
            click.echo(printable(f"  {_line(difference)}"))
        if len(outcome.differences) > DIFFERENCES_SHOWN:
            click.echo(f"  … {len(outcome.differences) - DIFFERENCES_SHOWN} more; --json has them all")
    if len(outcomes) > REQUESTS_SHOWN:
        click.echo(f"\n… {len(outcomes) - REQUESTS_SHOWN} more requests; --json has them all")


def _line(difference: Difference) -> str:
    path = show_path(difference.path)
    if difference.kind == "added":
        return f"{path}: new: {_short(difference.now)}"
    if difference.kind == "removed":
        return f"{path}: gone: {_short(difference.captured)}"
    word = "order: " if difference.kind == "moved" else ""
    return f"{path}: {word}{_short(difference.captured)} → {_short(difference.now)}"


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= VALUE_LENGTH else text[: VALUE_LENGTH - 1] + "…"
