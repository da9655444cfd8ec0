"""From the name of a file to a Config, or to a list of everything that is wrong with it.

A file is TOML, or JSON with comments and trailing commas as host apps keep it.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from attrs import frozen
from cattrs import Converter

from mcpmux.config.layout import UPSTREAMS, Entry, Layout, lay_out
from mcpmux.config.model import NO_UPSTREAM, Config, Settings, Upstream, find_conflicts
from mcpmux.config.report import ELSEWHERE, Report, closest
from mcpmux.config.structuring import make_converter, structure
from mcpmux.errors import ConfigError

STANDARD_INPUT = "-"

_JSON_SUFFIXES = {".json", ".jsonc"}
_TOML_POSITION = re.compile(r"(.*?)(?: \(at (?:line (\d+), column (\d+)|end of document)\))?", re.DOTALL)
_STRING = r'"(?:\\.|[^"\\])*"'
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/", re.DOTALL)
_TRAILING_COMMA = re.compile(rf"{_STRING}|[\[{{]\s*,|,(?=\s*[}}\]])", re.DOTALL)


def read_config(source: str, environ: Mapping[str, str], stdin: Callable[[], str]) -> Config:
    """The configuration in the file `source`, or in the text that `stdin()` returns for "-".

    `environ` has the variables for `${VAR}`. A disabled upstream with mistakes is left out.
    Raises ConfigError with all other mistakes at once.
    """
    document = parse_source(load_source(source, stdin))
    report = Report(document.origin)
    converter = make_converter(environ)
    layout = lay_out(document.table, report, is_json=document.is_json)
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
    """Whether there will be a mistake about the key of the upstreams."""
    keys = layout.settings if isinstance(layout.settings, Mapping) else ()
    return any(
        ELSEWHERE.get(str(key).lower()) == UPSTREAMS or closest(str(key).lower(), {UPSTREAMS}) for key in keys
    )


def _read_upstreams(entries: Sequence[Entry], converter: Converter, report: Report) -> tuple[Upstream, ...]:
    """The upstreams without mistakes. Mistakes go to `report`, also those of one upstream with another."""
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


# From the name of a file to a table: which format it has, and whether it is well-formed.


@frozen(repr=False)
class Source:
    """The text of a configuration and its name in messages. The text may hold secrets."""

    origin: str
    text: str

    @property
    def is_json(self) -> bool:
        """Whether the text is JSON. TOML begins neither with `{` nor with a `//` comment."""
        starts_as_json = self.text.lstrip()[:1] in ("{", "/")
        return starts_as_json or Path(self.origin).suffix.lower() in _JSON_SUFFIXES


@frozen(repr=False)
class Document:
    """A parsed source: its outermost table, and whether it was JSON."""

    origin: str
    table: Mapping[str, Any]
    is_json: bool


def load_source(name: str, stdin: Callable[[], str]) -> Source:
    """The text of the file `name`, or of `stdin()` for "-". Raises ConfigError if it cannot be read."""
    if name == STANDARD_INPUT:
        return Source("standard input", stdin().removeprefix("\ufeff"))
    try:
        return Source(name, Path(name).read_bytes().decode("utf-8-sig"))
    except OSError as error:
        problem = f"{name}: cannot read the file: {error.strerror}"
    except UnicodeDecodeError as error:
        problem = f"{name}: expected UTF-8 text, byte {error.start + 1} of the file is none"
    except ValueError:  # a NUL in the name
        problem = "expected the name of a file"
    raise ConfigError([problem])


def parse_source(source: Source) -> Document:
    """The document in the text. Raises ConfigError with line and column of a syntax error."""
    where = reason = ""
    table: Any = None
    try:
        table = parse_jsonc(source.text) if source.is_json else tomllib.loads(source.text)
    except json.JSONDecodeError as error:
        where, reason = f":{error.lineno}:{error.colno}", error.msg
    except tomllib.TOMLDecodeError as error:
        where, reason = _locate(str(error), source.text)
    except (ValueError, RecursionError):
        reason = "a number is too long or the nesting too deep"
    if reason:
        reason = f"invalid {'JSON' if source.is_json else 'TOML'}: {reason}"
    elif not isinstance(table, Mapping):
        reason = "expected an object"
    if reason:
        raise ConfigError([f"{source.origin}{where}: {reason}"])
    return Document(source.origin, table, source.is_json)


def parse_jsonc(text: str) -> Any:
    """The JSON value in `text`, which may have comments and trailing commas.

    Both are replaced by spaces first, so the positions in a syntax error are those of the file.
    Raises json.JSONDecodeError, and ValueError for a number that is too long to read.
    """
    return json.loads(_TRAILING_COMMA.sub(_blank, _COMMENT.sub(_blank, text)))


def _blank(match: re.Match[str]) -> str:
    """Spaces of the same length, with the line breaks. A string stays, and so does a comma after nothing."""
    token = match[0]
    return token if token[0] in '"[{' else re.sub(r"[^\n]", " ", token)


def _locate(message: str, text: str) -> tuple[str, str]:
    """Position and reason from the message of a TOMLDecodeError; before Python 3.14 they are only there."""
    match = _TOML_POSITION.fullmatch(message)
    assert match is not None
    lines = text.split("\n")
    line, column = match[2] or len(lines), match[3] or len(lines[-1]) + 1
    return f":{line}:{column}", match[1]
