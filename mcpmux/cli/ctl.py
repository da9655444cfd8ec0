"""`mcpmux ctl`: how a running mcpmux is, and what it is to do, over its admin listener."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from mcpmux.cli.console import show_json, show_table, tell
from mcpmux.cli.ctl_remote import Remote, find_remote
from mcpmux.cli.ctl_status import fill_table
from mcpmux.cli.lazy import Commands
from mcpmux.cli.options import quiet_option
from mcpmux.cli.running import run
from mcpmux.errors import ConfigError
from mcpmux.printable import printable
from mcpmux.protocol.envelope import raw

Command = Callable[..., None]


def remote_options(command: Command) -> Command:
    """Which mcpmux is meant; the command gets it as `remote`."""

    def find(
        *args: Any, config: str | None, url: str | None, token: str | None, ca: str | None, **more: Any
    ) -> None:
        command(*args, remote=find_remote(config, url, token, ca), **more)

    find.__doc__ = command.__doc__
    find.__name__ = command.__name__
    for option in (
        quiet_option,
        click.option("--ca", metavar="FILE", help="Authority of an https listener's certificate."),
        click.option("--token", envvar="MCPMUX_ADMIN_TOKEN", help="Its token, or MCPMUX_ADMIN_TOKEN."),
        click.option("--url", envvar="MCPMUX_ADMIN_URL", metavar="URL", help="Its admin listener."),
        click.option("-c", "--config", metavar="FILE", help="The file that mcpmux was started with."),
    ):
        find = option(find)
    return find


@click.group(cls=Commands)
def ctl() -> None:
    """See and steer a running mcpmux over its admin listener.

    The listener and its token are found in the configuration file (`[admin]` with `port` and `token`), or
    given with --url and --token, or in MCPMUX_ADMIN_URL and MCPMUX_ADMIN_TOKEN.

    \b
    Examples:
      mcpmux ctl status -c mcpmux.toml
      mcpmux ctl restart search -c mcpmux.toml
      mcpmux ctl reload --url 'http://127.0.0.1:8490/?token=…'
    """


@ctl.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line and upstream.")
@remote_options
def status(remote: Remote, as_json: bool) -> None:
    """Say how every upstream is. Exit code 0 also when some are down."""
    upstreams, pending = run(_status, remote)
    if as_json:
        for each in upstreams:
            show_json(raw(each))
    else:
        show_table(fill_table(upstreams))
    if pending:
        tell(f"takes effect when mcpmux is started again: {', '.join(pending)}")


async def _status(remote: Remote) -> tuple[list[dict[str, Any]], list[str]]:
    with remote:
        upstreams = await remote.ask("GET", "/api/upstreams")
        control = await remote.ask("GET", "/api/control")
        return upstreams["upstreams"], control["pending"]


@ctl.command()
@remote_options
def reload(remote: Remote) -> None:
    """Read the configuration file again; only what changed is restarted."""
    answer = run(_ask, remote, "/api/reload")
    if "problems" in answer:
        raise ConfigError(answer["problems"])
    for part, names in answer["changed"].items():
        if part != "pending":
            click.echo(f"{part}: {', '.join(names)}")
    if not answer["changed"]:
        click.echo("nothing has changed")
    if answer["pending"]:
        tell(f"takes effect when mcpmux is started again: {', '.join(answer['pending'])}")


async def _ask(remote: Remote, path: str) -> dict[str, Any]:
    with remote:
        return await remote.ask("POST", path)


def add_action(action: str, done: str, about: str) -> None:
    """The command for something that is done to one upstream."""

    def act(remote: Remote, upstream: str) -> None:
        run(_ask, remote, remote.path("api", "upstreams", upstream, action))
        click.echo(f"{printable(upstream)}: {done}")

    with_upstream = click.argument("upstream", metavar="UPSTREAM")(remote_options(act))
    ctl.add_command(click.command(action, help=about)(with_upstream))


add_action(
    "enable", "enabled", "Take an upstream in again that was disabled, drained or switched off in the file."
)
add_action(
    "disable",
    "disabled",
    "Take an upstream out, as if it were not configured; what it has in flight is finished.",
)
add_action(
    "drain",
    "is given nothing more to do",
    "Give an upstream nothing more to do; it stays connected. `enable` or `restart` end that.",
)
add_action(
    "restart",
    "restarted",
    "Begin anew with an upstream; what it has in flight is finished by the session of now.",
)
