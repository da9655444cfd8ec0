"""Which parts a document has: the servers, wherever they stand, and our settings.

Our own layout has `upstreams` beside the settings; a host app's file has its servers where it keeps
them and the settings in a top-level `"mcpmux"` object.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from attrs import frozen

from mcpmux.config.document import UpstreamTable
from mcpmux.config.host_files import HostEntry, find_misspelled, find_servers
from mcpmux.config.naming import derive_name, derive_names, is_name
from mcpmux.config.report import KeyPath, Report, sort_of
from mcpmux.config.source import Document

UPSTREAMS = "upstreams"
MCPMUX = "mcpmux"
SCHEMA = "$schema"  # names the JSON Schema for editors


@frozen(repr=False)
class Entry:
    """One server in the document, before it is looked into."""

    path: KeyPath
    name: str
    table: type[UpstreamTable] | type[HostEntry]
    raw: object

    @property
    def is_disabled(self) -> bool:
        return isinstance(self.raw, Mapping) and self.table.is_disabled(self.raw)


@frozen(repr=False)
class Layout:
    """The parts of a document. `other_keys` stand beside the settings and are no settings."""

    entries: tuple[Entry, ...]
    settings: object
    settings_path: KeyPath = ()
    other_keys: Collection[str] = ()


def lay_out(document: Document, report: Report) -> Layout:
    """The parts of the document; mistakes about the outermost tables go to the report."""
    if document.is_json and any(find_servers(document.table)):
        return _lay_out_host_file(document.table, report)
    return _lay_out_own(document.table, report)


def _lay_out_own(table: Mapping[str, Any], report: Report) -> Layout:
    path: KeyPath = (UPSTREAMS,)
    entries = [
        Entry((*path, name), name, UpstreamTable, raw)
        for name, raw in _items(table.get(UPSTREAMS, {}), path, report)
    ]
    for entry in entries:
        if not is_name(entry.name):
            suggestion = derive_name(entry.name)
            report.add(
                entry.path,
                f'expected a name of a-z, 0-9, "." and "-" such as `{suggestion}`, at most 32 characters',
            )
    other_keys = {UPSTREAMS, SCHEMA}
    settings = {key: value for key, value in table.items() if key not in other_keys}
    return Layout(tuple(entries), settings, (), other_keys)


def _lay_out_host_file(table: Mapping[str, Any], report: Report) -> Layout:
    for key in find_misspelled(table):
        report.add((key,), f"unknown key; did you mean `{MCPMUX}`?")
    servers = [
        ((*place, key), raw)
        for place, found in find_servers(table)
        for key, raw in _items(found, place, report)
    ]
    names = derive_names([path[-1] for path, _ in servers])
    entries = [Entry(path, name, HostEntry, raw) for name, (path, raw) in zip(names, servers, strict=True)]
    return Layout(tuple(entries), table.get(MCPMUX, {}), (MCPMUX,))


def _items(table: object, path: KeyPath, report: Report) -> Iterator[tuple[str, object]]:
    if isinstance(table, Mapping):
        yield from table.items()
    else:
        report.add(path, f"expected a table of upstreams, got {sort_of(table)}")
