"""A source on the command line to a parsed document: which file, which format, is it well-formed."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from mcpmux.errors import ConfigError

# JSON as host apps keep it: with comments and trailing commas.
#
# Both are blanked out in place, so the positions in a syntax error are those of the file.

_STRING = r'"(?:\\.|[^"\\])*"'
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/", re.DOTALL)
_TRAILING_COMMA = re.compile(rf"{_STRING}|[\[{{]\s*,|,(?=\s*[}}\]])", re.DOTALL)


def parse_jsonc(text: str) -> Any:
    """The JSON value in `text`. Raises json.JSONDecodeError, ValueError for a number too long to read."""
    return json.loads(_TRAILING_COMMA.sub(_blank, _COMMENT.sub(_blank, text)))


def _blank(match: re.Match[str]) -> str:
    """Spaces of the same length, line breaks kept; a string stays, and so does a comma after nothing."""
    token = match[0]
    return token if token[0] in '"[{' else re.sub(r"[^\n]", " ", token)


STANDARD_INPUT = "-"

_JSON_SUFFIXES = {".json", ".jsonc"}
_TOML_POSITION = re.compile(r"(.*?)(?: \(at (?:line (\d+), column (\d+)|end of document)\))?", re.DOTALL)


@frozen(repr=False)
class Source:
    """The text of a configuration and what to call it in messages. The text may hold secrets."""

    origin: str
    text: str

    @property
    def is_json(self) -> bool:
        """Whether the text is JSON and not TOML, which starts neither with `{` nor with a `//` comment."""
        starts_as_json = self.text.lstrip()[:1] in ("{", "/")
        return starts_as_json or Path(self.origin).suffix.lower() in _JSON_SUFFIXES


@frozen(repr=False)
class Document:
    """A parsed source: its outermost table, and whether it was JSON."""

    origin: str
    table: Mapping[str, Any]
    is_json: bool


def load_source(name: str, stdin: Callable[[], str]) -> Source:
    """The text of the file `name`, or of `stdin()` for "-". Raises ConfigError when there is none."""
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
    parse = _parse_json if source.is_json else _parse_toml
    position, problem, table = parse(source.text)
    if not problem and not isinstance(table, Mapping):
        problem = "expected an object"
    if problem:
        raise ConfigError([f"{source.origin}{position}: {problem}"])
    return Document(source.origin, table, source.is_json)


def _parse_json(text: str) -> tuple[str, str, Any]:
    """(":line:column" of a mistake, the mistake or "", the value)."""
    try:
        return "", "", parse_jsonc(text)
    except json.JSONDecodeError as error:
        return f":{error.lineno}:{error.colno}", f"invalid JSON: {error.msg}", None
    except (ValueError, RecursionError):
        return "", "invalid JSON: a number is too long or the nesting too deep", None


def _parse_toml(text: str) -> tuple[str, str, Any]:
    """(":line:column" of a mistake, the mistake or "", the table)."""
    try:
        return "", "", tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return *_locate(str(error), text), None
    except (ValueError, RecursionError):
        return "", "invalid TOML: a number is too long or the nesting too deep", None


def _locate(message: str, text: str) -> tuple[str, str]:
    """Position and reason out of the message of a TOMLDecodeError; before Python 3.14 they are only there."""
    match = _TOML_POSITION.fullmatch(message)
    assert match is not None
    lines = text.split("\n")
    line, column = match[2] or len(lines), match[3] or len(lines[-1]) + 1
    return f":{line}:{column}", f"invalid TOML: {match[1]}"
