"""`mcpmux ps` and `mcpmux stop`: the mcpmux that host apps of this user share."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import click
import trio

from mcpmux.app.sharing import LOOK_SECONDS, SharedPlace, Welcome, ask, socket_folder
from mcpmux.cli.completion import complete_file
from mcpmux.cli.console import Columns, member, show_items, tell
from mcpmux.cli.options import DEFAULT_FILE, json_option, quiet_option
from mcpmux.cli.process import run
from mcpmux.errors import RemoteProtocolError
from mcpmux.files import short_path
from mcpmux.traffic.record import second_of

STOP_SECONDS = 15.0  # for calls in flight, and for the servers to end

COLUMNS: Columns = {
    "FILE": member("file", short_path),
    "PID": member("pid"),
    "CLIENTS": member("clients"),
    "SINCE": lambda mux: f"{second_of(int(mux['started']))}Z",
    "VERSION": member("version"),
    "LOG": member("log", short_path),
}


@click.command()
@json_option(help="Print one JSON object for each, one per line.")
@quiet_option
def ps(as_json: bool) -> None:
    """List the mcpmux that host apps share: one for each configuration file.

    `mcpmux serve FILE --stdio --share` starts it, and it ends a minute after its last host app.
    """
    found = [
        {name: getattr(welcome, name) for name in ("file", "pid", "clients", "started", "version", "log")}
        for welcome in run(find_all)
    ]
    if not found and not as_json:
        tell("no mcpmux is shared at the moment")
        return
    show_items(found, as_json, COLUMNS, {"PID", "CLIENTS"})


async def find_all() -> list[Welcome]:
    """Return the state of every shared mcpmux of this user."""
    found = []
    for socket in sorted(socket_folder().glob("*.sock")):
        with suppress(RemoteProtocolError):
            if (welcome := await ask(socket, "status")) is not None:
                found.append(welcome)
    return sorted(found, key=lambda welcome: welcome.file)


@click.command()
@click.argument("config", default=DEFAULT_FILE, shell_complete=complete_file)
@quiet_option
def stop(config: str) -> None:
    """Stop the mcpmux that host apps share for CONFIG. Calls in flight are answered first.

    Host apps lose their connection, and start it anew when they connect again.
    """
    welcome = run(stop_at, SharedPlace.of(Path(config)))
    if welcome is None:
        tell(f"no mcpmux is shared for {config}")
        raise click.exceptions.Exit(1)
    tell(f"stopped, with {welcome.clients} clients" if welcome.clients else "stopped")


async def stop_at(place: SharedPlace) -> Welcome | None:
    """Stop the shared mcpmux, and wait for its end. Return its last state; None if there is none."""
    welcome = await ask(place.socket, "stop")
    with trio.move_on_after(STOP_SECONDS):
        while welcome is not None and place.socket.exists():  # noqa: ASYNC110 - another process removes it
            await trio.sleep(LOOK_SECONDS)
    return welcome
