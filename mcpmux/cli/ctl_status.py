"""The table of `mcpmux ctl status`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from mcpmux.cli.console import make_table
from mcpmux.printable import printable

STYLES = {
    "ready": "green",
    "disabled": "dim",
    "connecting": "yellow",
    "draining": "yellow",
    "drained": "yellow",
}
NUMBERS = ("RESTARTS", "SESSIONS", "IN FLIGHT")


def fill_table(upstreams: Sequence[dict[str, Any]]) -> Table:
    """One row each, of what `/api/upstreams` tells; the last column says what is wrong."""
    headings = ["NAME", "STATE", "SINCE", *NUMBERS, "REVISION", "DETAILS"]
    table = make_table(headings, right_aligned=set(NUMBERS))
    for each in upstreams:
        state = str(each.get("state"))
        sessions = len(each.get("sessions", ())) + int(each.get("more_sessions", 0))
        table.add_row(
            printable(str(each.get("name"))),
            Text(printable(state), style=STYLES.get(state, "red")),
            printable(str(each.get("since") or "-")),
            str(each.get("restarts", 0)),
            str(sessions),
            str(each.get("in_flight", 0)),
            printable(str(each.get("revision") or "-")),
            printable(str(each.get("trouble") or each.get("target") or "")),
        )
    return table
