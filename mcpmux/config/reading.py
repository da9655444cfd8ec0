"""From a document to a Config, or to a list of everything that is wrong with it.

A file is TOML, or JSON with comments and trailing commas as host apps keep it. The types of the fields say
what is accepted: a scalar, `X | None`, `tuple[X, ...]`, a mapping, or a class of ours. Nothing is coerced,
text is not a list, and an unknown key is a mistake. Environment variables are expanded in the values that
are read, and nowhere else.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import attrs

from mcpmux.config.expansion import Secret, expand, read_env_file
from mcpmux.config.file import CONFIG_BYTES, read_named_file
from mcpmux.config.layout import (
    MCPMUX,
    SCHEMA,
    UPSTREAMS,
    Entry,
    UpstreamSettings,
    UpstreamTable,
    find_clashes,
    lay_out,
    make_upstream,
)
from mcpmux.config.listener import LISTENER_KEYS, parse_listener
from mcpmux.config.model import (
    NO_UPSTREAM,
    Config,
    Missing,
    Settings,
    Upstream,
    find_conflicts,
    find_dead_targets,
    find_misnamed,
)
from mcpmux.config.report import (
    ELSEWHERE,
    InvalidValue,
    NoValue,
    Report,
    closest,
    invalid_value,
    suggest,
)
from mcpmux.config.scalars import Filled, Scalar
from mcpmux.errors import ConfigError, KeyPath, Problem

STANDARD_INPUT = "-"
ENV_FILE = "env_file"

_JSON_SUFFIXES = {".json", ".jsonc"}
_TOML_POSITION = re.compile(r"(.*?)(?: \(at (?:line (\d+), column (\d+)|end of document)\))?", re.DOTALL)
# What has no end takes all of the rest, so that a text is walked over once.
_STRING = r'"(?:\\.|[^"\\])*+"?'
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/|(?P<open>/\*.*)", re.DOTALL)
_TRAILING_COMMA = re.compile(rf"{_STRING}|[\[{{]\s*,|,(?=\s*[}}\]])", re.DOTALL)

_NESTING_LIMIT = 64  # of tables and lists; Python ends at some hundred calls inside of each other
_VALUES_LIMIT = 2_000_000  # in all tables and lists; a file of CONFIG_BYTES has fewer unless it means harm
TOO_DEEP = f"it is nested deeper than {_NESTING_LIMIT} levels, or has more than {_VALUES_LIMIT} values"

_KEY_PARTS_LIMIT = 64  # of one dotted key: the memory for it grows with their square
_KEYS_LIMIT = 200_000  # parts of keys, and values in one line: tomllib takes up to 1 kB for each
_PART = r"""(?:[\w-]++|"(?:\\.|[^"\\\n])*+"?|'[^'\n]*+'?)"""
_KEY_PART = re.compile(_PART, re.DOTALL)
_TOML_TOKEN = re.compile(
    r'''"""(?:\\.|(?!""")[^\\])*+(?:"{3,5}+)?|#[^\n]*+|'''
    r"""'''(?:(?!''').)*+(?:'{3,5}+)?|"""
    rf"(?P<key>{_PART}(?:[ \t]*+\.[ \t]*+{_PART})*+)",
    re.DOTALL,
)
"""A string of several lines, a comment, or a key with its dots; texts and numbers look like one."""


def read_table(document: Mapping[str, Any], environ: Mapping[str, str], origin: str) -> Config:
    """The configuration in a document of ours. `origin` names it in messages. See `read_entries`."""
    report = Report(origin)
    return read_entries(lay_out(document, report), document, (), environ, report)


def read_entries(
    entries: Sequence[Entry],
    raw_settings: object,
    path: KeyPath,
    environ: Mapping[str, str],
    report: Report,
    notes: Sequence[str] = (),
) -> Config:
    """The configuration with these servers, and with the settings that are at `path` in the document.

    `environ` has the variables for `${VAR}`. A disabled upstream with mistakes is left out. An upstream that
    refers to what is not there becomes `Missing`, and stops no other; so does an entry of a host app that
    cannot be read. Raises ConfigError with all other mistakes at once, and those that the `report` has.
    """
    unheeded, is_laid_out = Report(""), not report.problems
    if is_laid_out and all(entry.is_disabled for entry in entries):
        keys = [key.lower() for key in _keys(raw_settings) if key != UPSTREAMS]
        # There will be a mistake about a misspelt key of the upstreams, which says enough.
        if not any(ELSEWHERE.get(key) == UPSTREAMS or closest(key, {UPSTREAMS}) for key in keys):
            report.add((), NO_UPSTREAM)
    folder, lost = Path(report.origin).parent, Report("", path)
    environ = {**environ, **_revealed(_read_variables(raw_settings, environ, folder, lost))}
    settings = Reader(environ, report).read(Settings, raw_settings, path)
    upstreams: list[Upstream] = []
    for entry in entries:
        heeding = (unheeded if entry.is_disabled else report).part(entry.path)
        upstream = _read_upstream(entry, environ, folder, heeding, lost.problems)
        if upstream is not None:
            upstreams.append(upstream)
    paths = {entry.name: entry.path for entry in entries}
    for name, problem in find_conflicts(upstreams):
        report.problems.append(problem.under(*paths[name]))
    if is_laid_out:
        told = settings if settings is not None else _sound_settings(raw_settings, path, environ)
        enabled = [each for each in upstreams if each.enabled]
        prefixes = {each.prefix: each.name for each in upstreams}
        found = (*find_misnamed(told, list(paths), prefixes), *find_dead_targets(told.access, enabled))
        report.problems += [problem.under(*path) for problem in found]
    if report.problems:
        report.problems += lost.problems
    report.raise_if_any()
    told_of = (*notes, *map(str, lost.problems))
    return Config(upstreams=tuple(upstreams), notes=told_of, **attrs.asdict(settings, recurse=False))


def _keys(raw: object) -> list[str]:
    return list(raw) if isinstance(raw, Mapping) else []


def _read_upstream(
    entry: Entry, environ: Mapping[str, str], folder: Path, report: Report, lost: Sequence[Problem]
) -> Upstream | None:
    """Return the upstream of an entry; None if the report got mistakes.

    `lost`: what is wrong with the file that has variables for all upstreams.
    """
    before, missing = len(report.problems), Report("")
    mistakes = missing if entry.is_foreign else report
    variables = _read_variables(entry.raw, environ, folder, missing)
    table = None
    if entry.is_foreign:
        Reader(environ, report, Report("")).read(UpstreamSettings, entry.settings, (MCPMUX,))
    if entry.reason is not None:
        missing.add((), entry.reason)
    else:
        for key, text in find_clashes(entry.raw) if isinstance(entry.raw, Mapping) else ():
            (report if key in _keys(entry.settings) else mistakes).add((), text)
        environ = {**environ, **_revealed(variables)}
        table = Reader(environ, mistakes, missing).read(UpstreamTable, entry.raw, ())
    if len(report.problems) > before:
        return None
    if table is None or missing.problems:
        target = Missing("; ".join(map(str, (*missing.problems, *lost))))
        return Upstream(name=entry.name, target=target, enabled=not entry.is_disabled)
    return make_upstream(table, entry.name, not entry.is_disabled, variables)


def _read_variables(
    raw: object, environ: Mapping[str, str], folder: Path, report: Report
) -> Mapping[str, Secret]:
    """Return the variables in the file that the `env_file` of a table names, relative to `folder`."""
    if not isinstance(raw, Mapping) or ENV_FILE not in raw:
        return {}
    # The table with its mistakes is read later; here only the file counts.
    path = Reader(environ, Report("")).read(Filled, raw[ENV_FILE], ())
    try:
        return read_env_file(str(folder / path)) if path is not None else {}
    except NoValue as problem:
        report.add((ENV_FILE,), str(problem))
        return {}


def _revealed(variables: Mapping[str, Secret]) -> dict[str, str]:
    return {name: secret.reveal() for name, secret in variables.items()}


def _sound_settings(raw: object, path: KeyPath, environ: Mapping[str, str]) -> Settings:
    """The settings, in which there are mistakes, with None in the place of what has them."""
    reader, values = Reader(environ, Report("")), {}
    for name, field in attrs.fields_dict(attrs.resolve_types(Settings)).items():
        if isinstance(raw, Mapping) and name in raw:
            values[name] = reader.read_sound(field.type, raw[name], (*path, name))
            if isinstance(values[name], dict):
                values[name].pop(None, None)  # a key that is no name
    if values.get("views", {}) is None:
        values.pop("listeners", None)  # which may name some
    return Settings(**{name: value for name, value in values.items() if value is not None})


# From parsed tables to attrs values.


def find_scalar(type_: Any) -> tuple[Any, Scalar | None]:
    """The type without `| None`, and its scalar."""
    # Optional means that the key may be absent. null is not a value of any key.
    if get_origin(type_) in (Union, UnionType):
        (type_,) = (arg for arg in get_args(type_) if arg is not NoneType)
    metadata = type_.__metadata__ if get_origin(type_) is Annotated else ()
    return type_, next((item for item in metadata if isinstance(item, Scalar)), None)


class Reader:
    """Reads the values of one document. `environ` has the variables for `${VAR}`.

    `missing`: gets what is no mistake of the document but not there. Default: the report, too.
    """

    def __init__(self, environ: Mapping[str, str], report: Report, missing: Report | None = None) -> None:
        self._environ = environ
        self._report = report
        self._missing = report if missing is None else missing

    def read(self, type_: Any, raw: object, path: KeyPath) -> Any:
        """The value of that type for `raw`, which is at `path`; None if one of the reports got something."""
        before = self._count()
        try:
            value = self._read(type_, raw, path)
        except NoValue as lack:
            self._missing.add(path, str(lack))
        except InvalidValue as mistake:
            self._report.add(path, str(mistake))
        return value if self._count() == before else None

    def _count(self) -> int:
        return len(self._report.problems) + len(self._missing.problems)

    def read_sound(self, type_: Any, raw: object, path: KeyPath) -> Any:
        """The same with None in the place of items of lists and mappings that have mistakes."""
        try:
            return self._read(type_, raw, path)
        except InvalidValue:
            return None

    def _read(self, type_: Any, raw: Any, path: KeyPath) -> Any:
        type_, scalar = find_scalar(type_)
        written = raw
        if isinstance(raw, str):
            raw = expand(raw, self._environ)
        if scalar is not None:
            try:
                return scalar.read(raw)
            except InvalidValue as mistake:
                if raw == written:
                    raise
                raise NoValue(str(mistake)) from None  # what a variable has is no mistake of the file
        if get_origin(type_) is tuple:
            if not isinstance(raw, list):
                raise invalid_value("a list", raw)
            item_type = get_args(type_)[0]
            return tuple(self.read(item_type, item, (*path, index)) for index, item in enumerate(raw))
        if isinstance(raw, str) and type_ in LISTENER_KEYS:
            return parse_listener(type_, raw)
        if not isinstance(raw, Mapping):
            raise invalid_value("a table", raw)
        if get_origin(type_) is not Mapping:
            return self._read_table(type_, raw, path)
        key_type, value_type = get_args(type_)
        return {
            self.read(key_type, key, (*path, key)): self.read(value_type, value, (*path, key))
            for key, value in raw.items()
        }

    def _read_table(self, cls: type, raw: Mapping[str, Any], path: KeyPath) -> Any:
        before = self._count()
        values: dict[str, Any] = {}
        fields = {field.name: field for field in attrs.fields(attrs.resolve_types(cls))}
        for name, field in fields.items():
            if name in raw:
                values[name] = self.read(field.type, raw[name], (*path, name))
            elif field.default is attrs.NOTHING:
                self._report.add((*path, name), "expected a value, the key is missing")
        known = {*fields, UPSTREAMS, SCHEMA} if cls is Settings and not path else {*fields}
        for key in sorted(raw.keys() - known - getattr(cls, "ignored_keys", set())):
            self._report.add((*path, key), suggest(key, known))
        return cls(**values) if self._count() == before else None


# From the name of a file to a table.


def read_document(name: str, stdin: Callable[[], bytes]) -> tuple[str, bool, Mapping[str, Any]]:
    """The file `name`, or what `stdin()` returns for "-": its name in messages, if it is JSON, and its table.

    Text is JSON by its suffix, or if it begins as TOML cannot: with `{` or a `//` comment. Raises ConfigError
    if it cannot be read, with line and column of a syntax error.
    """
    if "\0" in name:
        raise ConfigError(["expected the name of a file"])
    origin = "standard input" if name == STANDARD_INPUT else name
    text, is_json = "", Path(origin).suffix.lower() in _JSON_SUFFIXES
    try:
        data = stdin() if name == STANDARD_INPUT else read_named_file(name)
        if len(data) > CONFIG_BYTES:  # `stdin` may have returned one byte more than that
            raise ConfigError([f"it has more than {CONFIG_BYTES} bytes"], origin)
        text = data.decode("utf-8-sig")
        is_json = is_json or text.lstrip()[:1] in ("{", "/")
        table: Any = parse_jsonc(text) if is_json else parse_toml(text)
        if not isinstance(table, Mapping):
            problem = "expected an object"
        elif not is_bounded(table):
            problem = TOO_DEEP
        else:
            return origin, is_json, table
    except OSError as error:
        problem = f"cannot read the file: {error.strerror}"
    except UnicodeDecodeError as error:
        problem = f"not UTF-8 at byte {error.start + 1}"
    except json.JSONDecodeError as error:
        origin += f":{error.lineno}:{error.colno}"
        problem = f"invalid JSON: {error.msg}"
    except tomllib.TOMLDecodeError as error:
        match = _TOML_POSITION.fullmatch(str(error))  # before Python 3.14 the position is only there
        assert match is not None
        lines = text.split("\n")
        line, column = match[2] or len(lines), match[3] or len(lines[-1]) + 1
        origin += f":{line}:{column}"
        problem = f"invalid TOML: {match[1]}"
    except (ValueError, RecursionError):
        kind = "JSON" if is_json else "TOML"
        problem = f"invalid {kind}: a number is too long, the nesting too deep, or there are too many keys"
    raise ConfigError([problem], origin)


def is_bounded(document: object) -> bool:
    """Return whether a document can be walked through: it is not too deep, and has not too many values.

    An alias of YAML counts as often as it is used, as it may double what it stands for.
    """
    level, left = [document], _VALUES_LIMIT
    for _ in range(_NESTING_LIMIT):
        containers = [each for each in level if isinstance(each, dict | list)]
        inside = [each.values() if isinstance(each, dict) else each for each in containers]
        left -= sum(map(len, inside))
        if left < 0 or not inside:
            return left >= 0
        level = [*chain.from_iterable(inside)]
    return False


def parse_toml(text: str) -> dict[str, Any]:
    """Return the table in a document of TOML.

    Raises tomllib.TOMLDecodeError, and ValueError for a document that would take tomllib too much memory.
    """
    left = _KEYS_LIMIT
    for match in _TOML_TOKEN.finditer(text):
        if match["key"] is not None:
            parts = len(_KEY_PART.findall(match["key"]))
            left -= parts
            if parts > _KEY_PARTS_LIMIT or left < 0:
                raise ValueError(f"too many keys (at line {text.count(chr(10), 0, match.start()) + 1})")
    return tomllib.loads(text)


def parse_jsonc(text: str) -> Any:
    """The JSON value in `text`, which may have comments and trailing commas.

    Both are replaced by spaces first, so the positions in a syntax error are those of the file.
    Raises json.JSONDecodeError, and ValueError for a number that is too long to read.
    """
    return json.loads(_TRAILING_COMMA.sub(_blank, _COMMENT.sub(_blank, text)))


def _blank(match: re.Match[str]) -> str:
    """Return spaces of the same length, with the line breaks.

    A string stays, as do a comma after nothing and a comment without an end.
    """
    token = match[0]
    return token if token[0] in '"[{' or match.lastgroup == "open" else re.sub(r"[^\n]", " ", token)
