"""`mcpmux install` and `mcpmux uninstall`: mcpmux as a server of a host app."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from mcpmux.cli.console import tell
from mcpmux.cli.moving_in import HOST
from mcpmux.cli.options import DEFAULT_FILE, PATH, Decorator
from mcpmux.cli.process import Mistake
from mcpmux.config.reading import read_document
from mcpmux.hosts.host import HOSTS, Machine, this_machine
from mcpmux.hosts.installing import (
    Change,
    backup_of,
    describe,
    find_place,
    make,
    plan_install,
    plan_uninstall,
)
from mcpmux.hosts.reference import variables_in
from mcpmux.printable import printable

yes_option: Decorator = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
dry_run_option: Decorator = click.option("--dry-run", is_flag=True, help="Only show what would change.")
project_option: Decorator = click.option(
    "--project", type=PATH, metavar="DIR", help="Use the host app's file for this project."
)


@click.command()
@click.argument("host", type=HOST, metavar="HOST")
@click.argument("file", type=PATH, default=DEFAULT_FILE)
@project_option
@yes_option
@dry_run_option
def install(host: str, file: Path, project: Path | None, yes: bool, dry_run: bool) -> None:
    """Make mcpmux, with the configuration FILE, a server of a host app.

    HOST is claude-desktop, claude-code, cursor, vscode, windsurf, zed, codex, gemini, goose or cline. FILE is
    mcpmux.toml by default. The change is shown before it is made. The host app's file is kept beside the new
    one, and everything else in it stays as it is, with its comments.

    \b
    Examples:
      mcpmux install cursor
      mcpmux install claude-desktop ~/mcpmux.toml --yes
      mcpmux install vscode --project . --dry-run
    """
    file = Path(os.path.abspath(file.expanduser()))  # noqa: PTH100  # without `..`
    if not file.is_file():
        raise Mistake(f"{file}: there is no such file; `mcpmux import --write` makes one")
    place = find_place(_machine(project), host)
    change = plan_install(place, [*find_command(), "serve", str(file), "--stdio"])
    title = HOSTS[host].title
    if change.is_none:
        click.echo(f"mcpmux is a server of {title} already")
        return
    if not _carry_out(change, yes=yes, dry_run=dry_run):
        return
    click.echo(f"mcpmux is a server of {title} now; restart it, and remove the servers that mcpmux has")
    if change.backup is not None:
        tell(f"the file as it was: {backup_of(place.path)}")
    _, _, document = read_document(str(file), lambda: b"")
    if names := list(dict.fromkeys(variables_in(document))):
        tell(f"{title} has to be started with these variables, or an `env_file` has them: {', '.join(names)}")


@click.command()
@click.argument("host", type=HOST, metavar="HOST")
@project_option
@yes_option
@dry_run_option
def uninstall(host: str, project: Path | None, yes: bool, dry_run: bool) -> None:
    """Undo `mcpmux install`.

    If nothing else in the host app's file has changed since, it becomes what it was, byte by byte. Otherwise
    only the entry of mcpmux goes.

    \b
    Example:
      mcpmux uninstall cursor
    """
    place = find_place(_machine(project), host)
    change = plan_uninstall(place)
    title = HOSTS[host].title
    if change.is_none:
        click.echo(f"mcpmux is no server of {title}")
        return
    if not _carry_out(change, yes=yes, dry_run=dry_run):
        return
    click.echo(f"mcpmux is no server of {title} any more")
    if not change.is_restored and backup_of(place.path).exists():
        tell(f"the file has changed since, so its backup was not used: {backup_of(place.path)}")


def _machine(project: Path | None) -> Machine:
    machine = this_machine(os.environ, project)
    return machine if project is not None else Machine(machine.platform, machine.home, machine.environ)


def _carry_out(change: Change, *, yes: bool, dry_run: bool) -> bool:
    """Show the change and make it, if it is wanted. Raises ConfigError, click.Abort."""
    for line in describe(change):
        click.echo(printable(line))
    if dry_run:
        return False
    if not yes:
        click.confirm("Change the file?", abort=True)
    make(change)
    return True


def find_command() -> list[str]:
    """How to start this mcpmux from anywhere: host apps do not know the shell's search path."""
    name = "mcpmux.exe" if sys.platform == "win32" else "mcpmux"
    program = Path(sys.executable).with_name(name)
    return [str(program)] if program.is_file() else [sys.executable, "-m", "mcpmux"]
