"""`mcpmux ctl`: show and control a running mcpmux over its admin listener."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import click

from mcpmux.cli.admin.client import AdminClient, admin_options, complete_upstream
from mcpmux.cli.console import Columns, member, show_items, state_cell, tell
from mcpmux.cli.main import Group
from mcpmux.cli.options import json_option
from mcpmux.cli.process import run
from mcpmux.errors import ConfigError
from mcpmux.format import time_text
from mcpmux.printable import printable
from mcpmux.traffic.record import second_of


def milliseconds(number: float) -> str:
    """Return a time in milliseconds, for people."""
    return time_text(number / 1000)


COLUMNS: Columns = {
    "NAME": member("name"),
    "STATE": lambda up: state_cell(up.get("state")),
    "SINCE": member("since"),
    "RESTARTS": lambda up: up.get("restarts", 0),
    "SESSIONS": lambda up: len(up.get("sessions", ())) + int(up.get("more_sessions", 0)),
    "IN FLIGHT": lambda up: up.get("in_flight", 0),
    "REVISION": member("revision"),
    "DETAILS": lambda up: up.get("trouble") or up.get("target") or "",
}
"""Of each of `/api/upstreams`. The last column says what is wrong."""


def _told(key: str, form: Callable[[Any], Any] = lambda value: value) -> Callable[[Mapping[str, Any]], Any]:
    """Return what makes a cell of a replica's own report: None for a replica that is silent or gone."""
    cell = member(key, form)
    return lambda replica: None if replica.get("state") in ("silent", "gone") else cell(replica)


REPLICAS: Columns = {
    "NAME": member("name"),
    "STATE": lambda replica: state_cell(replica.get("state")),
    "ID": member("id"),
    "VERSION": member("version"),
    "SINCE": _told("since", lambda seconds: f"{second_of(int(seconds))}Z"),
    "OTHERS": _told("others"),
    "OWNED": _told("owned"),
    "SESSIONS": _told("sessions"),
    "TAKEN OVER": _told("taken_over"),
    "HANDED OVER": _told("handed_over"),
    "HANDED IN": _told("handed_in"),
    "COMMANDS": _told("commands"),
    "LAG": _told("lag_ms", milliseconds),
    "WAITING": _told("events_waiting"),
    "LEASE": _told("lease_seconds", "{:.1f} s".format),
    "DETAILS": lambda replica: replica.get("trouble") or replica.get("url"),
}
"""Of each of `/api/replicas`. The last column says what is wrong."""


@click.group(cls=Group)
def ctl() -> None:
    """Show and control a running mcpmux over its admin listener.

    A running mcpmux of yours is found by its configuration file. For one of another user or machine, the file
    has the address and the token (`[admin]` with `port` and `token`), or they are in --url and --token, or in
    MCPMUX_ADMIN_URL and MCPMUX_ADMIN_TOKEN.

    \b
    Examples:
      mcpmux ctl status
      mcpmux ctl status --cluster -c my-mux.toml
      mcpmux ctl restart search
      mcpmux ctl reload --url 'http://127.0.0.1:8490/?token=…'
    """


@ctl.command()
@click.option("--cluster", is_flag=True, help="Show the replicas of the cluster, as this one sees them.")
@json_option(help="Print one JSON object per upstream or replica, one per line.")
@admin_options
def status(admin: AdminClient, cluster: bool, as_json: bool) -> None:
    """Show the state of every upstream, or of every replica. The exit code is 0 even if some are down."""
    if cluster:
        replicas = run(admin.ask, "GET", "/api/replicas")["replicas"]
        if not replicas:
            raise click.ClickException(
                f"{admin.origin.url} is alone: there is no [cluster] in its configuration"
            )
        show_items(replicas, as_json, REPLICAS, {*REPLICAS} - {"NAME", "STATE", "ID", "VERSION", "SINCE"})
        return
    upstreams = run(admin.ask, "GET", "/api/upstreams")["upstreams"]
    show_items(upstreams, as_json, COLUMNS, {"RESTARTS", "SESSIONS", "IN FLIGHT"})
    tell_pending(run(admin.ask, "GET", "/api/control")["pending"])


def tell_pending(settings: Sequence[str]) -> None:
    """Print on stderr which settings do not take effect yet."""
    if settings:
        tell(f"takes effect at the next start: {', '.join(settings)}")


@ctl.command()
@admin_options
def reload(admin: AdminClient) -> None:
    """Read the configuration file again. Only what changed is restarted."""
    answer = run(admin.ask, "POST", "/api/reload")
    if "problems" in answer:
        raise ConfigError(answer["problems"])
    for part, names in answer["changed"].items():
        if part != "pending":
            click.echo(f"{part}: {', '.join(names)}")
    if not answer["changed"]:
        click.echo("nothing has changed since it was last read")
    tell_pending(answer["pending"])


ACTIONS = {
    "enable": ("enabled", "Enable an upstream that was disabled, drained or switched off in the file."),
    "disable": ("disabled", "Disable an upstream, as if it were not configured. Work in flight is finished."),
    "drain": ("drained", "Send an upstream nothing more. It stays connected until `enable` or `restart`."),
    "restart": ("restarted", "Restart an upstream. Work in flight is finished in the old session."),
}
"""What can be done to one upstream -> what is printed then, and the help."""


def _add_action(action: str, done: str, about: str) -> None:
    @ctl.command(action, help=about)
    @click.argument("upstream", metavar="UPSTREAM", shell_complete=complete_upstream)
    @admin_options
    def act(admin: AdminClient, upstream: str) -> None:
        run(admin.ask, "POST", f"/api/upstreams/{quote(upstream, safe='')}/{action}")
        click.echo(f"{printable(upstream)}: {done}")


for name, (done, about) in ACTIONS.items():
    _add_action(name, done, about)
