"""From a source on the command line to a Config, or to the list of everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import attrs
from attrs import frozen
from cattrs import Converter

from mcpmux.config.document import UpstreamTable
from mcpmux.config.host_files import HostEntry, find_misspelled, find_servers
from mcpmux.config.model import NO_UPSTREAM, Config, Settings, Upstream, find_conflicts
from mcpmux.config.report import ELSEWHERE, KeyPath, Report, closest, sort_of
from mcpmux.config.scalars import derive_name, derive_names, is_name
from mcpmux.config.source import Document, load_source, parse_source
from mcpmux.config.structuring import make_converter, structure


def read_config(source: str, environ: Mapping[str, str], stdin: Callable[[], str]) -> Config:
    """The configuration in the file `source`, or in the text of `stdin()` for "-".

    `environ` is what `${VAR}` is taken from. A disabled upstream never stops anything: if there are
    mistakes in it, it is left out. Raises ConfigError with every other mistake at once.
    """
    document = parse_source(load_source(source, stdin))
    report = Report(document.origin)
    converter = make_converter(environ)
    layout = lay_out(document, report)
    nothing = not report.problems and all(entry.is_disabled for entry in layout.entries)
    if nothing and not _is_misspelled(layout):
        report.add((), NO_UPSTREAM)
    settings = structure(
        converter, layout.settings, Settings, layout.settings_path, report, also_known=layout.other_keys
    )
    upstreams = _read_upstreams(layout.entries, converter, report)
    report.raise_if_any()
    assert settings is not None
    return Config(upstreams=upstreams, **attrs.asdict(settings, recurse=False))


def _is_misspelled(layout: Layout) -> bool:
    """Whether it is told that the table of the upstreams is called otherwise."""
    keys = layout.settings if isinstance(layout.settings, Mapping) else ()
    return any(
        ELSEWHERE.get(str(key).lower()) == UPSTREAMS or closest(str(key).lower(), {UPSTREAMS}) for key in keys
    )


def _read_upstreams(entries: Sequence[Entry], converter: Converter, report: Report) -> tuple[Upstream, ...]:
    """The upstreams without mistakes; the mistakes, also those of one with another, go to the report."""
    unheeded = Report(report.origin)
    read = [_read_upstream(entry, converter, unheeded if entry.is_disabled else report) for entry in entries]
    upstreams = tuple(upstream for upstream in read if upstream is not None)
    paths = {entry.name: entry.path for entry in entries}
    for name, text in find_conflicts(upstreams):
        report.add(paths[name], text)
    return upstreams


def _read_upstream(entry: Entry, converter: Converter, report: Report) -> Upstream | None:
    clashes = list(entry.table.find_clashes(entry.raw)) if isinstance(entry.raw, Mapping) else []
    for text in clashes:
        report.add(entry.path, text)
    table = structure(converter, entry.raw, entry.table, entry.path, report)
    return None if table is None or clashes else table.build(entry.name, enabled=not entry.is_disabled)


# Which parts a document has: the servers, wherever they stand, and our settings.
#
# Our own layout has `upstreams` beside the settings; a host app's file has its servers where it keeps them
# and the settings in a top-level `"mcpmux"` object.

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
