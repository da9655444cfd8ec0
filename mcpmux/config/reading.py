"""From a document to a Config, or to a list of everything that is wrong with it.

A file is TOML, or JSON with comments and trailing commas as host apps keep it. The types of the fields say
what is accepted: a scalar, `X | None`, `tuple[X, ...]`, a mapping, or a class of ours. No value is coerced,
text is not a list, and an unknown key is a mistake. Environment variables are expanded in the values that
are read, and nowhere else.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cache
from itertools import chain
from pathlib import Path
from types import GenericAlias, NoneType, UnionType
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, Union, get_args, get_origin

import attrs
from cattrs import AttributeValidationNote, BaseValidationError, Converter, ForbiddenExtraKeysError

from mcpmux.config.auth import AccessRule
from mcpmux.config.expansion import Secret, expand, read_env_file
from mcpmux.config.intercept import Intercept
from mcpmux.config.layout import (
    MCPMUX,
    UPSTREAMS,
    Document,
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
    closest,
    invalid_value,
    suggest,
)
from mcpmux.config.scalars import Filled, Scalar
from mcpmux.config.views import View
from mcpmux.errors import ConfigError, KeyPath, Problem
from mcpmux.files import CONFIG_BYTES, read_named_file

STANDARD_INPUT = "-"
ENV_FILE = "env_file"

Hook: TypeAlias = Callable[[Any, Any], Any]

_JSON_SUFFIXES = {".json", ".jsonc"}
_TOML_POSITION = re.compile(r"(.*?)(?: \(at (?:line (\d+), column (\d+)|end of document)\))?", re.DOTALL)
# A token without an end takes all of the rest, so that a text is walked over once.
_STRING = r'"(?:\\.|[^"\\])*+"?'
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/|(?P<open>/\*.*)", re.DOTALL)
_TRAILING_COMMA = re.compile(rf"{_STRING}|[\[{{]\s*,|,(?=\s*[}}\]])", re.DOTALL)

_NESTING_LIMIT = 64  # of tables and lists; Python ends at some hundred calls inside of each other
_VALUES_LIMIT = 2_000_000  # in all tables and lists; a file of CONFIG_BYTES has fewer unless it means harm
TOO_DEEP = f"it is nested deeper than {_NESTING_LIMIT} levels, or has more than {_VALUES_LIMIT} values"

_KEY_PARTS_LIMIT = 64  # of one dotted key: the memory for it grows with their square
_KEYS_LIMIT = 200_000  # parts of keys, and values in one line: tomllib takes up to 1 kB for each
_PART = r"""(?:[\w-]++|"(?:\\.|[^"\\\n])*+"?|'[^'\n]*+'?)"""
TOML_KEY_PART = re.compile(_PART, re.DOTALL)
# Patterns of a key with its dots, and of what has no keys in it: a text of several lines, a comment.
TOML_KEY = rf"{_PART}(?:[ \t]*+\.[ \t]*+{_PART})*+"
TOML_SKIPPED = (
    r'''"""(?:\\.|(?!""")[^\\])*+(?:"{3,5}+)?|#[^\n]*+|'''
    r"""'''(?:(?!''').)*+(?:'{3,5}+)?"""
)
_TOML_TOKEN = re.compile(rf"{TOML_SKIPPED}|(?P<key>{TOML_KEY})", re.DOTALL)
"""A string of several lines, a comment, or a key with its dots; texts and numbers look like one."""


def read_table(document: Mapping[str, Any], environ: Mapping[str, str], origin: str) -> Config:
    """Return the configuration in a document of ours. `origin` names it in messages. See `read_entries`."""
    entries, problems = lay_out(document)
    return read_entries(entries, document, (), environ, origin, problems)


def read_entries(
    entries: Sequence[Entry],
    raw_settings: object,
    path: KeyPath,
    environ: Mapping[str, str],
    origin: str = "",
    problems: Sequence[Problem] = (),
    notes: Sequence[str] = (),
) -> Config:
    """Return the configuration with these servers, and with the settings that are at `path` in the document.

    `environ` has the variables for `${VAR}`. `problems`: with the layout of the document `origin`. A disabled
    upstream with mistakes is left out. An upstream that refers to what is not there becomes `Missing`, and
    stops no other; so does an entry of a host app that cannot be read. Raises ConfigError with all other
    mistakes at once.
    """
    all_problems = list(problems)
    if not problems and all(entry.is_disabled for entry in entries):
        keys = [key.lower() for key in _keys(raw_settings) if key != UPSTREAMS]
        # There will be a mistake about a misspelt key of the upstreams, which is enough.
        if not any(ELSEWHERE.get(key) == UPSTREAMS or closest(key, {UPSTREAMS}) for key in keys):
            all_problems.append(Problem((), NO_UPSTREAM))
    folder = Path(origin).parent
    variables, lost = _read_variables(raw_settings, environ, folder)
    environ = {**environ, **_revealed(variables)}
    settings, mistakes = structure(Settings if path else Document, raw_settings, environ)
    all_problems += [mistake.under(*path) for mistake in mistakes]
    upstreams: list[Upstream] = []
    for entry in entries:
        upstream, mistakes = _read_upstream(entry, environ, folder, lost)
        if upstream is not None:
            upstreams.append(upstream)
        elif not entry.is_disabled:
            all_problems += [mistake.under(*entry.path) for mistake in mistakes]
    paths = {entry.name: entry.path for entry in entries}
    all_problems += [problem.under(*paths[name]) for name, problem in find_conflicts(upstreams)]
    if not problems:
        sound = settings if settings is not None else _sound_settings(raw_settings, environ)
        enabled = [upstream for upstream in upstreams if upstream.enabled]
        prefixes = {upstream.prefix: upstream.name for upstream in upstreams}
        misnamed = (*find_misnamed(sound, list(paths), prefixes), *find_dead_targets(sound.access, enabled))
        all_problems += [problem.under(*path) for problem in misnamed]
    lost = [problem.under(*path) for problem in lost]
    if all_problems:
        raise ConfigError([*all_problems, *lost], origin)
    told_of = (*notes, *map(str, lost))
    return Config(upstreams=tuple(upstreams), notes=told_of, **attrs.asdict(settings, recurse=False))


def _keys(raw: object) -> list[str]:
    return list(raw) if isinstance(raw, Mapping) else []


def _read_upstream(
    entry: Entry, environ: Mapping[str, str], folder: Path, lost: Sequence[Problem]
) -> tuple[Upstream | None, list[Problem]]:
    """Return the upstream of an entry, or None and its mistakes.

    `lost`: what is wrong with the file that has variables for all upstreams.
    """
    mistakes: list[Problem] = []
    variables, missing = _read_variables(entry.raw, environ, folder)
    table = None
    if entry.is_foreign:
        _, own_mistakes = structure(UpstreamSettings, entry.settings, environ)
        mistakes += [mistake.under(MCPMUX) for mistake in own_mistakes if not mistake.is_lack]
    if entry.reason is not None:
        missing.append(Problem((), entry.reason))
    else:
        for key, text in find_clashes(entry.raw) if isinstance(entry.raw, Mapping) else ():
            is_theirs = entry.is_foreign and key not in _keys(entry.settings)
            (missing if is_theirs else mistakes).append(Problem((), text))
        table, own_mistakes = structure(UpstreamTable, entry.raw, {**environ, **_revealed(variables)})
        for mistake in own_mistakes:
            (missing if mistake.is_lack or entry.is_foreign else mistakes).append(mistake)
    if mistakes:
        return None, mistakes
    if table is None or missing:
        target = Missing("; ".join(map(str, (*missing, *lost))))
        return Upstream(name=entry.name, target=target, enabled=not entry.is_disabled), []
    return make_upstream(table, entry.name, not entry.is_disabled, variables), []


def _read_variables(
    raw: object, environ: Mapping[str, str], folder: Path
) -> tuple[Mapping[str, Secret], list[Problem]]:
    """Return the variables in the file that the `env_file` of a table names, relative to `folder`."""
    if not isinstance(raw, Mapping) or ENV_FILE not in raw:
        return {}, []
    path, _ = structure(Filled, raw[ENV_FILE], environ)  # its mistakes are found with those of the table
    try:
        return read_env_file(str(folder / path)) if path is not None else {}, []
    except NoValue as problem:
        return {}, [Problem((ENV_FILE,), str(problem))]


def _revealed(variables: Mapping[str, Secret]) -> dict[str, str]:
    return {name: secret.reveal() for name, secret in variables.items()}


def _sound_settings(raw: object, environ: Mapping[str, str]) -> Settings:
    """Read settings with mistakes: without invalid ones, and with None for an invalid rule or view."""
    table = raw if isinstance(raw, Mapping) else {}
    types = {name: value.type for name, value in attrs.fields_dict(attrs.resolve_types(Settings)).items()}
    values = {name: structure(types[name], table[name], environ)[0] for name in types if name in table}
    for key, kind in (("access", AccessRule), ("intercept", Intercept)):
        if isinstance(rules := table.get(key), list):
            values[key] = tuple(structure(kind, rule, environ)[0] for rule in rules)
    if isinstance(views := table.get("views", {}), Mapping):
        values["views"] = {name: structure(View, view, environ)[0] for name, view in views.items()}
    else:
        values.pop("listeners", None)  # which may name some
    return Settings(**{name: value for name, value in values.items() if value is not None})


# From parsed tables to attrs values. cattrs walks through types and tables and gathers every mistake. Our
# hooks are stricter than its own: no value is coerced, text is no list, and null is the value of no key.

_CONVERTER: Final = Converter(detailed_validation=True, forbid_extra_keys=True)
_ENVIRON: Final = ContextVar[Mapping[str, str] | None]("environ")


def structure(type_: Any, raw: object, environ: Mapping[str, str] | None = None) -> tuple[Any, list[Problem]]:
    """Return the value of that type for `raw`, or None and all problems.

    `environ` has the variables for `${VAR}`, which is text like any other without them.
    """
    token = _ENVIRON.set(environ)
    try:
        return _CONVERTER.structure(raw, type_), []
    except (InvalidValue, BaseValidationError) as error:
        return None, list(_problems_in(error, ()))
    finally:
        _ENVIRON.reset(token)


def _problems_in(error: Exception, path: KeyPath) -> Iterator[Problem]:
    for note in getattr(error, "__notes__", ()):  # the steps to the value that the error is about
        path = (*path, note.name if isinstance(note, AttributeValidationNote) else note.index)
    if isinstance(error, BaseValidationError):
        for inner in error.exceptions:
            yield from _problems_in(inner, path)
    elif isinstance(error, ForbiddenExtraKeysError):
        keys = {*attrs.fields_dict(error.cl), *_ignored_keys(error.cl)}
        yield from (Problem((*path, key), suggest(key, keys)) for key in sorted(error.extra_fields))
    elif isinstance(error, KeyError):
        yield Problem(path, "expected a value, the key is missing")
    elif isinstance(error, InvalidValue):
        yield Problem(path, str(error), is_lack=isinstance(error, NoValue))
    else:
        raise error


def _ignored_keys(cls: type) -> Collection[str]:
    return getattr(cls, "ignored_keys", ())


def _expanded(raw: Any) -> Any:
    environ = _ENVIRON.get()
    return expand(raw, environ) if environ is not None and isinstance(raw, str) else raw


def _expect(kind: type, words: str, raw: Any) -> Any:
    if not isinstance(raw, kind):
        raise invalid_value(words, raw)
    return raw


def find_scalar(type_: Any) -> tuple[Any, Scalar | None]:
    """Return the type without `| None`, and its scalar."""
    if _is_optional(type_):
        (type_,) = (arg for arg in get_args(type_) if arg is not NoneType)
    metadata = type_.__metadata__ if get_origin(type_) is Annotated else ()
    return type_, next((item for item in metadata if isinstance(item, Scalar)), None)


def _is_optional(type_: Any) -> bool:
    return get_origin(type_) in (Union, UnionType)


def _is_of(origin: Any) -> Callable[[Any], bool]:
    return lambda type_: get_origin(type_) is origin


@_CONVERTER.register_structure_hook_factory(attrs.has)
def _table_hook(cls: type) -> Hook:
    make = cache(_CONVERTER.gen_structure_attrs_fromdict)  # compiles code: only for tables that there are

    def read(raw: Any, _: Any) -> Any:
        if isinstance(raw, str) and cls in LISTENER_KEYS:
            return parse_listener(cls, _expanded(raw))
        table = _expect(Mapping, "a table", raw)
        return make(cls)({key: table[key] for key in table if key not in _ignored_keys(cls)}, cls)

    return read


@_CONVERTER.register_structure_hook_factory(_is_of(tuple))
def _list_hook(type_: Any) -> Hook:
    items: Any = GenericAlias(list, get_args(type_)[:1])
    return lambda raw, _: tuple(_CONVERTER.structure(_expect(list, "a list", raw), items))


@_CONVERTER.register_structure_hook_factory(_is_of(Mapping))
def _mapping_hook(type_: Any) -> Hook:
    members: Any = GenericAlias(dict, get_args(type_))
    return lambda raw, _: _CONVERTER.structure(_expect(Mapping, "a table", raw), members)


@_CONVERTER.register_structure_hook_factory(lambda type_: find_scalar(type_)[1] is not None)
def _scalar_hook(type_: Any) -> Hook:
    scalar = find_scalar(type_)[1]
    assert scalar is not None

    def read(raw: Any, _: Any) -> Any:
        value = _expanded(raw)
        try:
            return scalar.read(value)
        except InvalidValue as mistake:
            if value == raw:
                raise
            raise NoValue(str(mistake)) from None  # what a variable has is no mistake of the file

    return read


@_CONVERTER.register_structure_hook_factory(_is_optional)
def _optional_hook(type_: Any) -> Hook:
    # Optional means that the key may be absent. null is not a value of any key.
    return _CONVERTER.get_structure_hook(find_scalar(type_)[0])


# From the name of a file to a table.


class SourceDocument(NamedTuple):
    """A document that was read. `origin`: its name in messages."""

    origin: str
    is_json: bool
    table: Mapping[str, Any]
    text: str


def read_document(name: str, stdin: Callable[[], bytes]) -> SourceDocument:
    """Read the file `name`, or `stdin()` for "-".

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
            return SourceDocument(origin, is_json, table, text)
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

    An alias of YAML counts at each use, as it may double the size of the document.
    """
    level, left = [document], _VALUES_LIMIT
    for _ in range(_NESTING_LIMIT):
        containers = [container for container in level if isinstance(container, dict | list)]
        inside = [
            container.values() if isinstance(container, dict) else container for container in containers
        ]
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
            parts = len(TOML_KEY_PART.findall(match["key"]))
            left -= parts
            if parts > _KEY_PARTS_LIMIT or left < 0:
                raise ValueError(f"too many keys (at line {text.count(chr(10), 0, match.start()) + 1})")
    return tomllib.loads(text)


def parse_jsonc(text: str) -> Any:
    """Return the JSON value in `text`, which may have comments and trailing commas.

    Both are replaced by spaces first, so the positions in a syntax error are those of the file.
    Raises json.JSONDecodeError, and ValueError for a number that is too long to read.
    """
    return json.loads(_TRAILING_COMMA.sub(_blank, _COMMENT.sub(_blank, text)))


def _blank(match: re.Match[str]) -> str:
    """Return spaces of the same length, with the line breaks.

    A string stays, as do a leading comma and a comment without an end.
    """
    token = match[0]
    return token if token[0] in '"[{' or match.lastgroup == "open" else re.sub(r"[^\n]", " ", token)
