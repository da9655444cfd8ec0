"""Read a file to a Config. The servers in a file of a host app are translated first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcpmux.config import Config
from mcpmux.config.layout import MCPMUX, UPSTREAMS, Entry, items_of
from mcpmux.config.reading import read_document, read_entries, read_table
from mcpmux.config.report import closest
from mcpmux.config.scalars import derive_names
from mcpmux.errors import ConfigError, Problem
from mcpmux.protocol.envelope import value_at

if TYPE_CHECKING:
    from mcpmux.hosts.host import Host


def read_config(source: str, environ: Mapping[str, str], stdin: Callable[[], bytes]) -> Config:
    """Return the configuration in the file `source`, or in the result of `stdin()` for "-".

    `environ` has the variables for `${VAR}`. Raises ConfigError; see `config.reading.read_entries`.
    """
    document = read_document(source, stdin)
    try:
        return read_mapping(document.table, environ, document.origin, is_json=document.is_json)
    except ConfigError as error:
        from mcpmux.hosts.document import with_lines  # not at the top: only a mistake needs it

        mistakes = with_lines(error, document)
    raise mistakes  # not in the block above, which would keep the error there beside it


def read_mapping(
    document: Mapping[str, Any], environ: Mapping[str, str], origin: str, *, is_json: bool = True
) -> Config:
    """Return the configuration in a decoded document, see `read_config`.

    `origin` names the document in messages, and shows which host app's file it is.
    """
    forms = [] if UPSTREAMS in document else list(_find_forms(document, is_json=is_json))
    if not forms:
        return read_table(document, environ, origin)
    # Not at the top: most users have a file of mcpmux's own.
    from mcpmux.hosts.entry import find_servers
    from mcpmux.hosts.host import Place, recognize, this_machine

    problems, notes, machine = list[Problem](), list[str](), this_machine(environ)
    for key in document:  # all other keys belong to the host app
        if key != MCPMUX and closest(key.lower(), [MCPMUX], 0.8):
            problems.append(Problem((key,), f"unknown key; did you mean `{MCPMUX}`?"))
    own_place, servers = recognize(Path(origin), machine), []
    for path, host, inside in forms:
        problems += items_of(inside[path[-1]], path)[1]
        place = (
            own_place
            if own_place is not None and own_place.host.servers == path
            else Place(host, Path(origin))
        )
        servers += [
            ((*path, server.name), server)
            for server in find_servers(place, inside, machine)
            if server.place.project in (None, place.project, machine.project)
        ]
    names = derive_names([server.name for _, server in servers])
    entries = [
        Entry(path, name, server.table, not server.enabled, True, server.settings, server.reason)
        for name, (path, server) in zip(names, servers, strict=True)
    ]
    for path, server in servers:
        notes += [str(Problem(path, note)) for note in server.notes if server.enabled]
    return read_entries(entries, document.get(MCPMUX, {}), (MCPMUX,), environ, origin, problems, notes)


def _find_forms(
    document: Mapping[str, Any], *, is_json: bool
) -> Iterator[tuple[tuple[str, ...], Host, Mapping[str, Any]]]:
    """Yield the key path of servers, the host app that keeps them there, and the table around them."""
    from mcpmux.hosts.host import FORMS

    for path, host in FORMS:
        inside = value_at(document, path[:-1])
        if (host.format == "json") is is_json and isinstance(inside, Mapping) and path[-1] in inside:
            yield path, host, inside
