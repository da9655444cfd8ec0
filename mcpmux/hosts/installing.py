"""Install mcpmux in the file of a host app, and remove it without a trace.

| when mcpmux is removed | result |
| --- | --- |
| the file is as mcpmux left it | the backup is restored, byte by byte; without one the file is removed |
| the file was changed otherwise | only the entry is removed, servers that are in the backup and not in it
  are put back, and the backup stays |

A change is planned first, so that it can be shown, and made after that. Of the file's contents
only the entry is shown.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import unified_diff
from itertools import islice
from pathlib import Path
from textwrap import dedent
from typing import Any, Final

from attrs import frozen

from mcpmux.errors import ConfigError
from mcpmux.files import PRIVATE, read_text, remove_file, replace_text, short_path
from mcpmux.hosts.document import parse, put, remove
from mcpmux.hosts.host import HOSTS, Host, Machine, Place, find_places
from mcpmux.protocol.envelope import value_at

NAME: Final = "mcpmux"
BACKUP_SUFFIX: Final = ".before-mcpmux"

_GOOSE_TIMEOUT = 300  # seconds, as Goose itself writes it
_EMPTY = ("env", "envs", "env_keys", "headers")


@frozen
class Change:
    """A planned change of a file. None means no file. `backup`: text to keep beside it, if not None.

    `is_shown`: the previous entry is one of ours, so that its text may be shown. `moved`: names of servers
    that it takes out of the file. `returned`: of those that it puts back.
    """

    place: Place
    before: str | None
    after: str | None
    backup: str | None = None
    is_restored: bool = False
    is_shown: bool = True
    moved: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()

    @property
    def is_none(self) -> bool:
        """Whether there is nothing to do."""
        return self.before == self.after


def find_place(machine: Machine, host: str) -> Place:
    """Return the file in which mcpmux is installed: that of the project if given, else the user's.

    Raises ConfigError if the host app has no such file, or is not on this machine.
    """
    places = list(find_places(machine, [host]))
    title = HOSTS[host].title
    if machine.project is not None:
        inside = [place for place in places if place.project is not None]
        if not inside:
            raise ConfigError([f"{title} has no file for a project"])
        return inside[0]
    place = next((place for place in places if place.path.exists()), places[0])
    if not place.path.parent.is_dir():
        raise ConfigError([f"{title} was not found: there is no folder {place.path.parent}"])
    return place


def plan_install(place: Place, command: Sequence[str], moved: Sequence[str] = ()) -> Change:
    """Plan to put mcpmux into the file as a server that is started by `command`. Raises ConfigError.

    `moved`: names of servers that are taken out of the file, as mcpmux has them.
    """
    host, old_text = place.host, read_text(place.path)
    moved = [name for name in moved if name != NAME]  # the new entry takes its place
    old = _find_entry(place, old_text)
    after = _put(place, _without(place, old_text or "", moved), make_entry(host, command))
    backup = old_text
    if old is not None:
        first = read_text(backup_of(place.path))
        if first is not None and _is_made_of(place, old_text, first, old):
            backup = first  # from before the first installation
        elif old_text == _put(place, "", old):
            backup = None  # mcpmux made the file
    return Change(place, old_text, after, backup, is_shown=_is_ours(host, old), moved=tuple(moved))


def plan_uninstall(place: Place) -> Change:
    """Plan to remove mcpmux from the file. Raises ConfigError."""
    old_text = read_text(place.path)
    entry = _find_entry(place, old_text)
    if old_text is None or entry is None:
        return Change(place, old_text, old_text)
    backup, is_shown = read_text(backup_of(place.path)), _is_ours(place.host, entry)
    returned: tuple[str, ...] = ()
    with suppress(ConfigError):  # from a damaged backup
        returned = _missing(place, old_text, backup or "")
        # Exactly the backup with the entry put in: no other change would be lost.
        if backup is not None and _is_made_of(place, old_text, backup, entry):
            return Change(place, old_text, backup, is_restored=True, is_shown=is_shown, returned=returned)
    if backup is None and _put(place, "", entry) == old_text:
        return Change(place, old_text, None, is_shown=is_shown)
    after = _without(place, old_text, [NAME])
    for name in returned:
        server = _servers_in(place, backup)[name]
        after = put(after, place.host.format, (*place.host.servers, name), server)
    return Change(place, old_text, after, is_shown=is_shown, returned=returned)


def make(change: Change) -> None:
    """Write the file, its backup first. Raises ConfigError."""
    path, backup = change.place.path, backup_of(change.place.path)
    if change.backup is not None:
        mode = PRIVATE
        with suppress(OSError):
            mode = stat.S_IMODE(path.stat().st_mode)
        replace_text(backup, change.backup, read_text(backup), mode)
    if change.after is not None:
        replace_text(path, change.after, change.before)
    else:
        remove_file(path, change.before)
    if change.is_restored:
        remove_file(backup, change.after)


def backup_of(path: Path) -> Path:
    """Return the path of the backup, the file from before the first installation."""
    return path.with_name(path.name + BACKUP_SUFFIX)


def describe(change: Change) -> Iterator[str]:
    """Yield the file of the change, then the entry of mcpmux with lines that go (`-`) and come (`+`).

    Nothing else of the file is shown. Of servers that are moved only the names are, as their entries may hold
    secrets.
    """
    old, new = (_entry_lines(change.place, text) for text in (change.before, change.after))
    yield f"{short_path(change.place.path)}:"
    if old and not change.is_shown:
        yield f"- an entry `{NAME}` that mcpmux did not make"
        old = []
    for line in islice(unified_diff(old, new, n=len(old), lineterm=""), 3, None):  # without a head
        yield f"{line[0]} {line[1:]}"
    yield from (f"- the server `{name}`, which mcpmux has" for name in change.moved)
    yield from (f"+ the server `{name}`, as it was" for name in change.returned)


def _entry_lines(place: Place, text: str | None) -> list[str]:
    """Return the entry of mcpmux in a file, as mcpmux would write it into an empty one."""
    entry, format_ = _find_entry(place, text), place.host.format
    if entry is None:
        return []
    lines = put("", format_, (NAME,) if format_ == "json" else _path_of(place.host), entry).splitlines()
    inside = {"json": lines[1:-1], "yaml": lines[1:], "toml": lines}[format_]
    return dedent("\n".join(inside)).splitlines()


def make_entry(host: Host, command: Sequence[str]) -> dict[str, Any]:
    """Return the server in the host app's form."""
    program, *args = command
    if host.name == "goose":
        return {
            "enabled": True,
            "type": "stdio",
            "name": NAME,
            "description": "All MCP servers behind mcpmux",
            "cmd": program,
            "args": args,
            "envs": {},
            "env_keys": [],
            "timeout": _GOOSE_TIMEOUT,
        }
    kind = {"type": host.command_type} if host.command_type else {}
    return {**kind, "command": program, "args": args}


def describe_entry(host: Host, url: str) -> str | None:
    """Return the text to put into the host app's file for mcpmux at a URL; None where it takes no URL."""
    if host.url_member is None:
        return None
    kind = {"type": host.url_type} if host.url_type else {}
    more = {"enabled": True, "name": NAME, "timeout": _GOOSE_TIMEOUT} if host.name == "goose" else {}
    entry = {**kind, host.url_member: url, **more}
    return put("", host.format, _path_of(host), entry)


def _path_of(host: Host) -> tuple[str, ...]:
    return (*host.servers, NAME)


def _find_entry(place: Place, text: str | None) -> Mapping[str, Any] | None:
    entry = _servers_in(place, text).get(NAME)
    return entry if isinstance(entry, Mapping) else None


def _servers_in(place: Place, text: str | None) -> Mapping[str, Any]:
    try:
        servers = value_at(parse(text or "", place.host.format), place.host.servers)
    except ConfigError as error:
        raise ConfigError(error.found, str(place.path)) from None
    return servers if isinstance(servers, Mapping) else {}


def _missing(place: Place, text: str | None, backup: str) -> tuple[str, ...]:
    """Return the names of the servers that are in the backup, and not in the text."""
    return tuple(name for name in _servers_in(place, backup) if name not in {NAME, *_servers_in(place, text)})


def _is_made_of(place: Place, text: str | None, backup: str, entry: Mapping[str, Any]) -> bool:
    """Return whether a text is the backup with the entry put in, and perhaps with servers taken out."""
    return _put(place, _without(place, backup, _missing(place, text, backup)), entry) == text


def _without(place: Place, text: str, names: Iterable[str]) -> str:
    """Return the text without the servers of these names. Raises ConfigError."""
    for name in names:
        text = remove(text, place.host.format, (*place.host.servers, name))
    return text


def _put(place: Place, text: str, entry: Mapping[str, Any]) -> str:
    try:
        return put(text, place.host.format, _path_of(place.host), entry)
    except ConfigError as error:
        raise ConfigError(error.found, str(place.path)) from None


def _is_ours(host: Host, entry: Mapping[str, Any] | None) -> bool:
    """Return whether the entry only has members that mcpmux writes, and so no secret."""
    if entry is None:
        return True
    return entry.keys() <= make_entry(host, ["x"]).keys() and not any(entry.get(key) for key in _EMPTY)
