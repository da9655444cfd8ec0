"""Make one configuration of the servers of all host apps: `mcpmux import`.

All files of host apps on a machine are read: `look_around`. `gather` makes one list of upstreams of their
servers. Servers are the same when their tables are equal. Different servers with one name get that of the
host app in addition: `search-cursor`, `search-codex`. A server is enabled if it is in one of the host apps.
`render` writes the list as TOML, with comments about the origin of each upstream.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from mcpmux.config import Missing
from mcpmux.config.expansion import REFERENCE
from mcpmux.config.layout import UPSTREAMS, Entry
from mcpmux.config.reading import read_entries
from mcpmux.config.scalars import derive_name, derive_names
from mcpmux.errors import ConfigError
from mcpmux.files import read_text
from mcpmux.hosts.document import parse
from mcpmux.hosts.entry import Found, Table, find_servers, is_mcpmux
from mcpmux.hosts.host import Machine, Place, find_places
from mcpmux.hosts.reference import variables_in
from mcpmux.hosts.secrecy import Vault
from mcpmux.hosts.toml_text import format_table
from mcpmux.printable import printable


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


STAND_IN = "https://placeholder.invalid"  # for a variable that is not set: valid as a text and as a URL


@frozen
class Gathered:
    """A future upstream, and its places, the first one first. `table` has secrets in it."""

    name: str
    table: Table
    enabled: bool
    sources: tuple[Found, ...]

    def __repr__(self) -> str:
        return f"<Gathered {self.name} from {len(self.sources)}>"


def refuse_invalid(found: Found, environ: Mapping[str, str]) -> Found:
    """Return the server, with a reason if our configuration does not or must not accept its table."""
    if found.reason is not None:
        return found
    if is_mcpmux(found.table):
        return evolve(found, table={}, reason="it is mcpmux itself")
    # With stand-ins, a variable that is not set here is no reason to leave the server out.
    variables = {**dict.fromkeys(variables_in(found.table), STAND_IN), **environ}
    try:
        json.dumps(found.table, ensure_ascii=False).encode()
        entry = Entry((), derive_name(found.name), found.table, is_disabled=False)
        (upstream,) = read_entries([entry], {}, (), variables).upstreams
    except UnicodeEncodeError:
        return evolve(found, table={}, reason="it has text that is no Unicode")
    except ConfigError as error:
        return evolve(found, table={}, reason="; ".join(map(str, error.found)))
    lacks = (upstream.target.reason,) if isinstance(upstream.target, Missing) else ()
    return evolve(found, notes=(*found.notes, *lacks))


def gather(all_found: Iterable[Found]) -> list[Gathered]:
    """Return the upstreams of all servers without a `reason`, in order of their first places."""
    same: dict[str, list[Found]] = {}
    for server in all_found:
        if server.reason is None:
            key = json.dumps([derive_name(server.name), server.table], sort_keys=True)
            same.setdefault(key, []).append(server)
    groups = list(same.values())
    bases = Counter(derive_name(group[0].name) for group in groups)
    names = []
    for group in groups:
        base = derive_name(group[0].name)
        names.append(f"{base}-{group[0].place.host.name}" if bases[base] > 1 else group[0].name)
    return [
        Gathered(name, group[0].table, any(server.enabled for server in group), tuple(group))
        for name, group in zip(derive_names(names), groups, strict=True)
    ]


def likeness_of(table: Mapping[str, Any]) -> str:
    """Return a text that is the same for tables of one server, however their secrets are kept.

    Time limits and other settings of mcpmux do not count.
    """
    parts = [table.get(key) or None for key in ("command", "args", "cwd", "url", "env", "headers")]
    return REFERENCE.sub("${}", json.dumps(parts, sort_keys=True, default=str))


def find_present(servers: Iterable[Gathered], tables: Mapping[str, Table]) -> list[Gathered]:
    """Return the servers that a configuration has. `tables`: its upstreams, by name.

    Secrets are not compared, so servers may differ in these alone: an upstream is one of them, that of its
    name if there is one.
    """
    kinds = {name: likeness_of(table) for name, table in tables.items()}
    present: list[Gathered] = []
    left = list(servers)
    for by_name in (True, False):
        for server in tuple(left):
            kind = likeness_of(Vault(None).clear(server.name, server.table))
            names = {server.name, *(derive_name(source.name) for source in server.sources)}
            fitting = (name for name in kinds if kinds[name] == kind and (not by_name or name in names))
            if (name := next(fitting, None)) is not None:
                del kinds[name]
                left.remove(server)
                present.append(server)
    return present


def upstreams_in(document: Mapping[str, Any]) -> dict[str, Table]:
    """Return the tables of the upstreams in a configuration, by name, with their references unresolved."""
    upstreams = document.get(UPSTREAMS)
    tables = upstreams.items() if isinstance(upstreams, Mapping) else ()
    return {name: dict(table) for name, table in tables if isinstance(table, Mapping)}


def find_new(servers: Iterable[Gathered], tables: Mapping[str, Table]) -> list[Gathered]:
    """Return the servers that a configuration lacks, under names that are free there.

    `tables`: its upstreams, by name.
    """
    servers = list(servers)
    present = find_present(servers, tables)
    new_servers = [server for server in servers if server not in present]
    names = derive_names([*tables, *(server.name for server in new_servers)])[len(tables) :]
    return [evolve(server, name=name) for server, name in zip(new_servers, names, strict=True)]


_HEAD = """\
# Written by `mcpmux import`. The files of the host apps were not changed.
# Check it with `mcpmux check`, and put mcpmux into a host app with `mcpmux install`.
"""


def render(servers: Sequence[tuple[Gathered, Table]], before: str = _HEAD) -> str:
    """Return the text of the file: `before`, and each upstream with its table, without secrets.

    Raises ConfigError when no table can follow `before`.
    """
    parts = [before]
    for server, table in servers:
        comments = [
            f"{source.place.host.title}, {source.name}: {source.place.path}"
            + (f" (project {source.place.project})" if source.place.project is not None else "")
            for source in server.sources
        ]
        comments += dict.fromkeys(note for source in server.sources for note in source.notes)
        shown = table if server.enabled else {"enabled": False, **table}
        lines = "".join(f"# {printable(comment)}\n" for comment in comments)
        parts.append(lines + format_table((UPSTREAMS, server.name), shown))
    text = "\n".join(parts)
    try:
        tables = upstreams_in(parse(text, "toml"))
    except ConfigError:
        tables = {}
    if any(server.name not in tables for server, _ in servers):
        raise ConfigError(["new upstreams cannot be put behind its text"])
    return text
