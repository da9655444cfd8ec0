"""`mcpmux top`: a running mcpmux on the terminal, as it works."""

from __future__ import annotations

import os
import sys
from functools import partial

import click

from mcpmux.cli.admin_client import AdminClient
from mcpmux.cli.console import is_screen, show_items
from mcpmux.cli.ctl import admin_options
from mcpmux.cli.process import Mistake, run
from mcpmux.cli.top_model import NUMBERS, UPSTREAMS, Item, measured
from mcpmux.cli.traffic_source import filter_help, read_filter
from mcpmux.traffic.reading.filters import LIVE_NAMES

STATS = "/api/stats?window=60&slots=1&most=2000"
"""What is measured: the last minute, or no more than mcpmux can look at while it works."""


@click.command(epilog=filter_help())
@click.argument("wanted", nargs=-1, metavar="[FILTER]...")
@click.option("--once", is_flag=True, help="Print one table of upstreams, as away from a terminal.")
@admin_options
def top(admin: AdminClient, wanted: tuple[str, ...], once: bool) -> None:
    """Show upstreams and exchanges of a running mcpmux as they happen, until `q`.

    Rates, percentiles and errors are of the last minute, or of its newest 2,000 exchanges. The row (clients)
    is what clients saw as a whole. FILTER says which exchanges are shown. Enter opens an exchange with its
    messages on both legs, or an upstream with its sessions and subscriptions. The keys stand at the bottom.

    The admin listener is found as by `mcpmux ctl`.

    \b
    Examples:
      mcpmux top -c mcpmux.toml
      mcpmux top --url 'http://127.0.0.1:8490/?token=…' 'status!=ok'
      mcpmux top --once -c mcpmux.toml
    """
    text = " ".join(wanted)
    read_filter(text, names=LIVE_NAMES)
    once = once or not is_screen() or not sys.stdin.isatty() or os.environ.get("TERM") == "dumb"
    if once and text:
        raise Mistake(
            "a table shows upstreams; a filter is for exchanges, which `mcpmux traffic tail` prints"
        )
    look = partial(look_at, admin)
    rows = run(look)  # what is wrong with the place or the token is told before the terminal changes
    if once:
        show_items(rows, False, UPSTREAMS, NUMBERS)
        return
    try:
        from mcpmux.cli.top_live import show_live  # not at the top: urwid is large
    except ModuleNotFoundError:
        raise Mistake(
            "the screen needs the library urwid: pip install 'mcpmux[top]'; or take --once"
        ) from None
    run(show_live, admin, text, look)


async def look_at(admin: AdminClient) -> list[Item]:
    """The upstreams as they are now. Raises McpmuxError."""
    upstreams = await admin.ask("GET", "/api/upstreams")
    stats = await admin.ask("GET", STATS)
    return measured(upstreams["upstreams"], stats)
