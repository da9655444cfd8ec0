"""From a source on the command line to a Config, or to the list of everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs
from cattrs import Converter

from mcpmux.config.layout import UPSTREAMS, Entry, Layout, lay_out
from mcpmux.config.model import NO_UPSTREAM, Config, Settings, Upstream, find_conflicts
from mcpmux.config.report import ELSEWHERE, Report, closest
from mcpmux.config.source import load_source, parse_source
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
