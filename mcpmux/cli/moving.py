"""`mcpmux import`, `install` and `uninstall`: servers of host apps, and mcpmux as a server of one."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from mcpmux.cli.console import Columns, member, show_items, tell
from mcpmux.cli.options import DEFAULT_FILE, PATH, Decorator, json_option
from mcpmux.cli.process import Mistake
from mcpmux.cli.servers import tell_unset
from mcpmux.config.reading import read_document
from mcpmux.errors import ConfigError
from mcpmux.files import read_text, replace_private, replace_text, short_path
from mcpmux.hosts.document import parse
from mcpmux.hosts.entry import Found, Table
from mcpmux.hosts.host import HOSTS, Machine, this_machine
from mcpmux.hosts.importing import (
    Gathered,
    Unread,
    find_new,
    find_present,
    gather,
    look_around,
    render,
    upstreams_in,
)
from mcpmux.hosts.installing import (
    Change,
    backup_of,
    describe,
    find_place,
    make,
    plan_install,
    plan_uninstall,
)
from mcpmux.hosts.reference import has_reference, variables_in
from mcpmux.hosts.secrecy import Moved, Vault
from mcpmux.printable import printable

HOST = click.Choice(list(HOSTS))

_STYLES = {"taken over": "green", "disabled": "dim", "not taken over": "red", "not read": "red"}
COLUMNS: Columns = {
    "HOST": member("host"),
    "SERVER": member("server"),
    "UPSTREAM": member("upstream"),
    "STATE": lambda row: (row["state"], _STYLES[row["state"]]),
    "FILE": member("file", short_path),
    "DETAILS": lambda row: "; ".join(row.get("details", ())),
}


@click.command("import")
@click.option("--host", "hosts", type=HOST, multiple=True, help="Only this host app. May be repeated.")
@click.option(
    "--project", type=PATH, help="Folder of the project whose files count, too. Default: the current folder."
)
@click.option(
    "--write",
    "file",
    type=PATH,
    is_flag=False,
    flag_value=DEFAULT_FILE,
    help=f"Write a configuration with these servers. Default: {DEFAULT_FILE}.",
)
@click.option("--force", is_flag=True, help="Overwrite the file, in place of adding to it.")
@click.option(
    "--secrets", type=PATH, metavar="DIR", help="Keep secrets in files of this folder, not in variables."
)
@json_option(help="Print one JSON object per server, one per line.")
def import_command(
    hosts: tuple[str, ...],
    project: Path | None,
    file: Path | None,
    force: bool,
    secrets: Path | None,
    as_json: bool,
) -> None:
    """Find the servers of the host apps on this machine, and make one configuration of them.

    Without --write nothing is written. Servers that the file does not have yet are added to it. The files of
    the host apps are never changed. The same server in several host apps is taken over once. If two different
    servers share a name, the host app's name is appended to each.
    Secrets are moved out of the configuration: into environment variables that you set, or with --secrets
    into files that only you can read.

    \b
    Examples:
      mcpmux import
      mcpmux import --write --secrets ~/.config/mcpmux/secrets
      mcpmux import --host cursor --host codex --write my-mux.toml
    """
    if secrets is not None and file is None:
        raise Mistake("--secrets: needs --write")
    machine = this_machine(os.environ, project)
    entries, unread = look_around(machine, hosts or HOSTS)
    gathered = gather(entries)
    show_items(_rows(entries, unread, gathered), as_json, COLUMNS)
    if not entries and not unread:
        tell("no host app on this machine has servers in a file that mcpmux knows")
    vault = Vault(None if secrets is None else _absolute(secrets))
    old_text = None if file is None or force else read_text(file)
    new_servers = gathered if old_text is None else find_new(gathered, upstreams_in(_parsed(file, old_text)))
    servers = [(server, vault.clear(server.name, server.table)) for server in new_servers]
    if file is not None:
        if not gathered:
            raise click.ClickException("there is no server to write")
        _write(file, old_text, servers, vault.moved, force=force)
        present = len(gathered) - len(servers)
        is_there = f"; {present} are in it already" if present else ""
        tell(f"{file}: {len(servers)} upstreams {'written' if old_text is None else 'added'}{is_there}")
    verb = "would be" if file is None else "is"
    for secret in vault.moved:
        where = f"${{{secret.variable}}}, which you have to set"
        if secret.file is not None:
            where = short_path(secret.file)
        tell(f"{secret.upstream}: the secret in its {secret.what} {verb} in {where}")
    set_already = {*machine.environ, *(secret.variable for secret in vault.moved)}
    tell_unset([table for _, table in servers], set_already)
    if file is not None:
        named = "" if file == Path(DEFAULT_FILE) else f" {shlex.quote(str(file))}"
        tell(f"next: `mcpmux check{named}`, then `mcpmux install HOST{named} --replace`")
    elif gathered:
        tell("nothing was written; --write makes a configuration of these servers")


def _rows(found: list[Found], unread: list[Unread], gathered: list[Gathered]) -> Iterator[dict[str, Any]]:
    upstreams = {id(source): server for server in gathered for source in server.sources}
    for entry in found:
        server = upstreams.get(id(entry))
        details = list(entry.notes) if entry.reason is None else [entry.reason]
        if server is not None and server.sources[0] is not entry:
            details.insert(0, f"the same as in {server.sources[0].place.host.title}")
        state = "not taken over" if server is None else "taken over" if entry.enabled else "disabled"
        yield {
            "host": entry.place.host.name,
            "server": entry.name,
            **({} if server is None else {"upstream": server.name}),
            "state": state,
            "file": str(entry.place.path),
            **({} if entry.place.project is None else {"project": str(entry.place.project)}),
            **({"details": details} if details else {}),
        }
    for broken in unread:
        place = broken.place
        yield {
            "host": place.host.name,
            "state": "not read",
            "file": str(place.path),
            "details": [broken.reason],
        }


def _absolute(folder: Path) -> Path:
    absolute = Path(os.path.abspath(folder.expanduser()))  # noqa: PTH100  # without `..`
    if has_reference(str(absolute)) or "}" in str(absolute):
        raise Mistake("--secrets: the name of the folder cannot have ${ or } in it")
    return absolute


def _parsed(file: Path | None, text: str) -> Mapping[str, Any]:
    """Return the configuration in a file to which servers are added. Raises Mistake when it is no TOML."""
    try:
        return parse(text, "toml")
    except ConfigError as error:
        raise Mistake(
            f"{file}: {error.found[0]}, so nothing can be added; --force overwrites the file"
        ) from None


def _write(
    file: Path,
    before: str | None,
    servers: Sequence[tuple[Gathered, Table]],
    moved: list[Moved],
    *,
    force: bool,
) -> None:
    """Write a configuration, or with `before` add servers to that text of it. Raises Mistake."""
    if before is not None and not servers:
        return
    try:
        text = render(servers) if before is None else render(servers, before)
    except ConfigError as error:
        raise Mistake(f"{file}: {error.found[0]}; --force overwrites the file") from None
    old_text = read_text(file)
    kept = [(secret.file, secret.value.reveal()) for secret in moved if secret.file is not None]
    taken = [path for path, value in kept if read_text(path) not in (None, value)]
    if taken and not force:
        raise Mistake(f"{taken[0]}: there is another secret already; --force overwrites it")
    for path, value in kept:
        replace_private(path, value)
    replace_text(file, text, old_text)


# mcpmux as a server of a host app.

yes_option: Decorator = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
dry_run_option: Decorator = click.option("--dry-run", is_flag=True, help="Only show what would change.")
project_option: Decorator = click.option(
    "--project", type=PATH, metavar="DIR", help="Use the host app's file for this project."
)


@click.command()
@click.argument("host", type=HOST, metavar="HOST")
@click.argument("file", type=PATH, default=DEFAULT_FILE)
@project_option
@click.option("--replace", is_flag=True, help="Take the servers that FILE has out of the host app's file.")
@yes_option
@dry_run_option
def install(host: str, file: Path, project: Path | None, replace: bool, yes: bool, dry_run: bool) -> None:
    """Make mcpmux, with the configuration FILE, a server of a host app.

    HOST is claude-desktop, claude-code, cursor, vscode, windsurf, zed, codex, gemini, goose or cline. FILE is
    mcpmux.toml by default. The change is shown before it is made. The host app's file is kept beside the new
    one, and everything else in it stays as it is, with its comments. `mcpmux uninstall` puts back what
    --replace took out.

    \b
    Examples:
      mcpmux install cursor --replace
      mcpmux install claude-desktop ~/mcpmux.toml --yes
      mcpmux install vscode --project . --dry-run
    """
    file = Path(os.path.abspath(file.expanduser()))  # noqa: PTH100  # without `..`
    if not file.is_file():
        raise Mistake(f"{file}: there is no such file; `mcpmux import --write` makes one")
    machine = _machine(project)
    place = find_place(machine, host)
    document = read_document(str(file), lambda: b"").table
    entries, _ = look_around(machine, [host])
    servers = gather(
        entry for entry in entries if (entry.place.path, entry.place.project) == (place.path, place.project)
    )
    present = find_present(servers, upstreams_in(document))
    moved = [source.name for server in present for source in server.sources]
    share = [] if os.name == "nt" else ["--share"]
    command = [*find_command(), "serve", str(file), "--stdio", *share]
    change = plan_install(place, command, moved if replace else ())
    title = HOSTS[host].title
    done = f"added mcpmux to {title}; restart {title}"
    if not _carry_out(change, f"{title} has mcpmux already", done, yes=yes, dry_run=dry_run):
        return
    if moved and not replace:
        tell(f"{title} starts these servers, too; --replace takes them out of its file: {', '.join(moved)}")
    if change.backup is not None:
        tell(f"the file as it was: {short_path(backup_of(place.path))}")
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
    only the entry of mcpmux goes, and servers that have gone since come back.

    \b
    Example:
      mcpmux uninstall cursor
    """
    place = find_place(_machine(project), host)
    change = plan_uninstall(place)
    title = HOSTS[host].title
    done = f"removed mcpmux from {title}; restart {title}"
    if not _carry_out(change, f"{title} does not have mcpmux", done, yes=yes, dry_run=dry_run):
        return
    if not change.is_restored and backup_of(place.path).exists():
        tell(f"the file has changed since, so its backup was not used: {short_path(backup_of(place.path))}")


def _machine(project: Path | None) -> Machine:
    machine = this_machine(os.environ, project)
    return machine if project is not None else Machine(machine.platform, machine.home, machine.environ)


def _carry_out(change: Change, needless: str, done: str, *, yes: bool, dry_run: bool) -> bool:
    """Show the change and make it, if it is wanted; return whether it was made. Raises ConfigError, Abort."""
    if change.is_none:
        click.echo(needless)
        return False
    for line in describe(change):
        click.echo(printable(line))
    if dry_run:
        return False
    if not yes:
        click.confirm("Change the file?", abort=True)
    make(change)
    click.echo(done)
    return True


def find_command() -> list[str]:
    """Return the command that starts this mcpmux, without the shell's search path: host apps lack it."""
    name = "mcpmux.exe" if sys.platform == "win32" else "mcpmux"
    program = Path(sys.executable).with_name(name)
    return [str(program)] if program.is_file() else [sys.executable, "-m", "mcpmux"]
