"""`mcpmux top`: a running mcpmux on the terminal, as it works. `screen` is its screen, which needs urwid.

Promises: bounded in memory. Texts of strangers are made printable where a cell is shown.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import click
import msgspec

from mcpmux.cli.admin import ctl
from mcpmux.cli.admin.client import AdminClient, admin_options
from mcpmux.cli.console import Columns, is_screen, member, show_items
from mcpmux.cli.options import json_option
from mcpmux.cli.process import Mistake, run, until_interrupted
from mcpmux.cli.traffic.messages import STATUS_STYLES, body_lines, body_of, message_line
from mcpmux.cli.traffic.source import complete_filter, filter_help, read_filter
from mcpmux.format import bytes_text, rate_text
from mcpmux.traffic.admin.view import Message
from mcpmux.traffic.reading.filters import LIVE_NAMES
from mcpmux.traffic.reading.stats import CLIENTS
from mcpmux.traffic.reading.summary import Targets
from mcpmux.traffic.record import MICROS, rfc3339

EXCHANGES_LIMIT = 500  # that are shown, the newest; as many as one answer has

Item = Mapping[str, Any]
Line = tuple[str, str]
"""Printable text and its style."""


def measured(upstreams: Sequence[Item], stats: Item) -> list[Item]:
    """Return rows for UPSTREAMS: clients as a whole, then each upstream with its part of `/api/stats`."""
    seconds = stats.get("seconds", 1.0)
    facts = {row["upstream"]: {**row, "rate": row["count"] / seconds} for row in stats.get("upstreams", ())}
    nothing = {"rate": 0.0}
    return [
        {**facts.get("", nothing), "name": CLIENTS},
        *({**facts.get(upstream["name"], nothing), **upstream} for upstream in upstreams),
    ]


def _state(heading: str) -> Callable[[Item], Any]:
    """Return the cell of `mcpmux ctl status`; None of clients as a whole, which have no state."""
    return lambda row: ctl.COLUMNS[heading](row) if "state" in row else None


def _errors(row: Item) -> Any:
    errors = row.get("errors")
    return (f"{errors} {errors / row['count']:.1%}", "red") if errors else None


def _subscriptions(sessions: Sequence[Item]) -> int:
    return sum(len(session["subscriptions"]) + session["more_subscriptions"] for session in sessions)


UPSTREAMS: Columns = {
    "NAME": member("name"),
    "STATE": _state("STATE"),
    "RATE": member("rate", rate_text),
    "P50": member("p50", ctl.milliseconds),
    "P95": member("p95", ctl.milliseconds),
    "ERRORS": _errors,
    "IN FLIGHT": _state("IN FLIGHT"),
    "SESSIONS": _state("SESSIONS"),
    "SUBSCRIPTIONS": member("sessions", _subscriptions),
    "DETAILS": _state("DETAILS"),
}
"""Of each row that `measured` returns."""

NAME_COLUMNS: Columns = {
    "NAME": member("name"),
    "METHOD": member("method"),
    "RATE": member("rate", rate_text),
    "P50": member("p50", ctl.milliseconds),
    "P95": member("p95", ctl.milliseconds),
    "LONGEST": member("most", ctl.milliseconds),
    "ERRORS": _errors,
}
"""Of each of the `names` of `/api/stats`, with its `rate`."""

NUMBERS = frozenset((*UPSTREAMS, *NAME_COLUMNS)) - {"NAME", "STATE", "METHOD", "DETAILS"}

SORTS = {"RATE": "rate", "P50": "p50", "P95": "p95", "ERRORS": "errors", "IN FLIGHT": "in_flight"}
"""Headings by which rows can be sorted -> the member."""

TABLES: Mapping[str, tuple[Columns, str]] = {
    "upstream": (UPSTREAMS, "DETAILS"),
    "name": (NAME_COLUMNS, "METHOD"),
}
"""The columns of each upper table, and the one that takes the room that is left."""


def ordered(rows: Sequence[Item], heading: str | None) -> list[Item]:
    """Return the rows in the configured order, or by a number, highest first. Clients come before all."""
    if heading is None:
        return list(rows)
    member = SORTS[heading]
    return sorted(rows, key=lambda row: (row["name"] != CLIENTS, -(row.get(member) or 0)))


def upstream_lines(row: Item) -> list[Line]:
    """Return all facts about an upstream, with its sessions and subscriptions."""
    return [(line, "") for line in body_lines(msgspec.json.encode(row), full=True)]


class Exchanges:
    """The newest exchanges, from their list and the events of their stream."""

    def __init__(self) -> None:
        self._rows: dict[int, Item] = {}

    def begin(self, rows: Sequence[Item]) -> None:
        """Forget all, and take those of a list."""
        self._rows = {row["row"]: row for row in rows}

    def change(self, event: Item) -> None:
        """Take an event `rows`."""
        self._rows.update((row["row"], row) for row in event["rows"])
        for number in event["gone"]:
            self._rows.pop(number, None)
        for number in sorted(self._rows)[:-EXCHANGES_LIMIT]:
            del self._rows[number]

    def newest_first(self) -> list[Item]:
        return [self._rows[number] for number in sorted(self._rows, reverse=True)]


def _status(row: Item) -> tuple[str, str]:
    status, code = row["status"], row.get("code")
    style = STATUS_STYLES.get(status, "" if status == "note" else "red")
    return (status if code is None else f"{status} {code}"), style


EXCHANGES: Columns = {
    "TIME": lambda row: time_of(row["at"]),
    "STATUS": _status,
    "DURATION": member("ms", ctl.milliseconds),
    "REQUEST": lambda row: request_of(row),
    "UPSTREAM": member("upstreams", ", ".join),
    "CLIENT": lambda row: row.get("client") or (row["peer"] if row["leg"] == "client" else None),
}
"""Of each row of `/api/exchanges`."""


def time_of(at: float) -> str:
    """Return the time of day in UTC, of milliseconds since 1970."""
    return rfc3339(round(at * MICROS / 1000))[11:23]


def request_of(row: Item) -> str:
    """Return the method of a row and what it is about."""
    return " ".join(filter(None, (row.get("method") or row["kind"], row.get("target"))))


class _Detail(msgspec.Struct):
    messages: list[Message]


def exchange_lines(answer: bytes) -> Iterator[Line]:
    """Yield all messages of `/api/exchanges/{row}` in their order. Raises msgspec.MsgspecError."""
    fill = Targets().fill
    for message in msgspec.json.decode(answer, type=_Detail).messages:
        record = fill(message.record)
        yield click.unstyle(message_line(record)), "bold"
        for line in body_lines(body_of(record), full=True):
            yield f"  {line}", ""
        if message.cut:
            yield f"  … it has {bytes_text(record.size)}, the rest is left out here", "yellow"
        yield "", ""


def held_lines(held: Sequence[Item]) -> Iterator[Line]:
    """Yield the first held exchange, about which a person decides, and how many wait behind it."""
    for first in held[:1]:
        then = "then it is refused" if first["at_timeout"] == "refuse" else "then it goes on"
        yield f"held by {first['by']} for {first['seconds']:.0f} s more, {then}", "bold"
        if first["reason"]:
            yield first["reason"], ""
        for line in body_lines(msgspec.json.encode(first["message"]), full=True):
            yield line, ""
    yield f"{max(0, len(held) - 1)} more are held" if held else "no exchange is held", "yellow"


STATS = "/api/stats?window=60&slots=1&most=2000"
"""The measured part: the last minute, or as much as mcpmux can look at while it works."""


@click.command(epilog=filter_help())
@click.argument("wanted", nargs=-1, metavar="[FILTER]...", shell_complete=complete_filter)
@click.option("--once", is_flag=True, help="Print one table of upstreams, as away from a terminal.")
@click.option(
    "--by",
    type=click.Choice([*TABLES]),
    default="upstream",
    help="What has a row: an upstream, or a tool, resource or prompt, of which Enter opens the longest call.",
)
@json_option(help="Print each row of that table as JSON, one on each line.")
@admin_options
def top(admin: AdminClient, wanted: tuple[str, ...], once: bool, by: str, as_json: bool) -> None:
    """Show upstreams and exchanges of a running mcpmux as they happen, until `q`.

    Rates, percentiles and errors are of the last minute, or of its newest 2,000 exchanges. The row (clients)
    is what clients saw as a whole. FILTER says which exchanges are shown. Enter opens an exchange with its
    messages on both legs, or an upstream with its sessions and subscriptions. `h` shows exchanges that wait
    for a person, to let them go or to refuse them. The keys stand at the bottom.

    The admin listener is found as by `mcpmux ctl`.

    \b
    Examples:
      mcpmux top -c mcpmux.toml
      mcpmux top --url 'http://127.0.0.1:8490/?token=…' 'status!=ok'
      mcpmux top --once --by name -c mcpmux.toml
      mcpmux top --json | jq 'select(.p95 > 100).name'
    """
    text = " ".join(wanted)
    read_filter(text, names=LIVE_NAMES)
    once = once or as_json or not is_screen() or not sys.stdin.isatty() or os.environ.get("TERM") == "dumb"
    if once and text:
        raise Mistake(
            "a table shows upstreams; a filter is for exchanges, which `mcpmux traffic tail` prints"
        )
    look = partial(look_at, admin, by)
    rows = run(look)  # reports a wrong place or token before the terminal changes
    if once:
        show_items(rows, as_json, TABLES[by][0], NUMBERS)
        return
    try:
        from mcpmux.cli.top.screen import show_live  # not at the top: urwid is large
    except ModuleNotFoundError:
        raise Mistake(
            "the screen needs the library urwid: pip install 'mcpmux[top]'; or take --once"
        ) from None
    with until_interrupted():
        run(show_live, admin, text, look, by)


async def look_at(admin: AdminClient, by: str = "upstream") -> list[Item]:
    """Return the present state of the upstreams, or the names in `/api/stats`. Raises McpmuxError."""
    stats = await admin.ask("GET", STATS)
    if by == "name":
        return [{**row, "rate": row["count"] / stats["seconds"]} for row in stats["names"]]
    upstreams = await admin.ask("GET", "/api/upstreams")
    return measured(upstreams["upstreams"], stats)
