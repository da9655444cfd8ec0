"""Read all files of host apps on a machine: their servers, and the files that cannot be read."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen

from mcpmux.errors import ConfigError
from mcpmux.files import read_text
from mcpmux.hosts.document import parse
from mcpmux.hosts.entry import Found, find_servers
from mcpmux.hosts.gathering import refuse_invalid
from mcpmux.hosts.place import Machine, Place, find_places


@frozen
class Unread:
    """An existing file that cannot be read, and why."""

    place: Place
    reason: str


def look_around(machine: Machine, hosts: Iterable[str]) -> tuple[list[Found], list[Unread]]:
    """Return every server in the files of these hosts, and the files that could not be read."""
    entries: list[Found] = []
    unread: list[Unread] = []
    for place in find_places(machine, hosts):
        try:
            text = read_text(place.path)
            if text is None or not text.strip():
                continue
            servers = find_servers(place, parse(text, place.host.format), machine)
            entries += [refuse_invalid(server, machine.environ) for server in servers]
        except ConfigError as error:
            unread.append(Unread(place, "; ".join(map(str, error.found))))
    return entries, unread
