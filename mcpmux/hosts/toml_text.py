"""Edit TOML as text: put a table at the end of a file, or remove one, and keep all other text.

A table begins with its header, `[upstreams.docs]`, and ends with its last value: comments above
the next header belong to that. tomlkit would count them as the end of the previous table, move them when one
is added and lose them when one is removed.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from mcpmux.config.reading import TOML_KEY, TOML_KEY_PART, TOML_SKIPPED, parse_toml
from mcpmux.errors import KeyPath

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_TOKEN = re.compile(
    rf"^[ \t]*+(?P<open>\[\[?)[ \t]*+(?P<table>{TOML_KEY})[ \t]*+(?P<close>\]\]?)|"
    rf"^[ \t]*+(?P<key>{TOML_KEY})[ \t]*+=|{TOML_SKIPPED}|{TOML_KEY}|[\[\]{{}}]",
    re.DOTALL | re.MULTILINE,
)
"""A header, a key with its `=`, or in values and between: a comment, a text or the like, a bracket."""
_VALUE_LINE = re.compile(r"[ \t]*[^\s#]")

Path = tuple[str, ...]


def parse(text: str) -> Any:
    """Return the document. Raises ValueError."""
    return parse_toml(text)


def put(text: str, path: Path, entry: Mapping[str, Any]) -> str:
    """Return the text with `entry` as the table at `path`: at the end, or instead of the existing one."""
    new = format_table(path, entry)
    line_end = "\r\n" if "\r\n" in text else "\n"
    new = new.replace("\n", line_end)
    if tables := list(_find_tables(text, path)):
        (start, end), *others = tables
        for other_start, other_end in reversed(others):
            text = text[:other_start] + text[other_end:]
        return text[:start] + new + text[end:]
    if text and not text.endswith("\n"):
        text += line_end
    return text + (line_end if text.strip() else "") + new


def remove(text: str, path: Path) -> str:
    """Return the text without the table at `path` and its subtables, each with the empty line above it."""
    for start, end in reversed(list(_find_tables(text, path))):
        head = text[:start]
        for line_end in ("\r\n", "\n"):
            if head.endswith(line_end * 2):
                head = head.removesuffix(line_end)
                break
        text = head + text[end:]
    return text


def _find_tables(text: str, path: Path) -> Iterator[tuple[int, int]]:
    """Yield the lines of each table: from its header to behind the line end of its last value."""
    headers = [key for key in _find_keys(text) if key[3]]
    for index, (start, header_end, name, _) in enumerate(headers):
        if name[: len(path)] == path:
            limit = headers[index + 1][0] if index + 1 < len(headers) else len(text)
            yield start, _find_end(text, header_end, limit)


def find_starts(text: str) -> dict[KeyPath, int]:
    """Return the path of each table and key in a document -> where its text begins."""
    starts: dict[KeyPath, int] = {}
    for start, _, path, _ in _find_keys(text):
        for length in range(1, len(path) + 1):
            starts.setdefault(path[:length], start)
    return starts


def _find_keys(text: str) -> Iterator[tuple[int, int, KeyPath, bool]]:
    """Yield (start, end, path, whether it is a header) of each header, and of keys at the start of a line."""
    table: KeyPath = ()
    last: dict[KeyPath, int] = {}  # the index of the last table of each `[[array]]`
    depth = 0  # of brackets in a value, where no header can be
    for match in _TOKEN.finditer(text):
        opening, name = match["open"], match["table"] or match["key"]
        if name is None or depth:
            depth += len(opening) - len(match["close"]) if opening else 0
            depth += (match[0] in ("[", "{")) - (match[0] in ("]", "}"))
            continue
        parts = [_key_of(part) for part in TOML_KEY_PART.findall(name)]
        path: KeyPath = () if opening else table
        for part in parts[:-1]:
            path = (*path, part)
            if opening and path in last:
                path = (*path, last[path])
        path = (*path, parts[-1])
        if opening == "[[":
            last[path] = last.get(path, -1) + 1
            path = (*path, last[path])
        table = path if opening else table
        yield match.start(), match.end(), path, bool(opening)


def _key_of(part: str) -> str:
    return str(tomllib.loads(f"key = {part}")["key"]) if part[0] in "\"'" else part


def _find_end(text: str, start: int, limit: int) -> int:
    """Return the end of the last line that is neither empty nor a comment."""
    end = at = _next_line(text, start, limit)
    while at < limit:
        following = _next_line(text, at, limit)
        if _VALUE_LINE.match(text, at, following):
            end = following
        at = following
    return end


def _next_line(text: str, at: int, limit: int) -> int:
    newline = text.find("\n", at, limit)
    return limit if newline < 0 else newline + 1


# Values as text.


def format_table(path: Path, table: Mapping[str, Any]) -> str:
    """Return a table with its header, one key on a line; tables in it are inline."""
    lines = [f"[{'.'.join(map(format_key, path))}]"]
    lines += [f"{format_key(key)} = {format_value(value)}" for key, value in table.items()]
    return "\n".join(lines) + "\n"


def format_key(key: str) -> str:
    """Return a key, quoted if necessary."""
    return key if _BARE.fullmatch(key) else _format_text(key)


def format_value(value: Any) -> str:
    """Return a text, a number, a boolean, a list or an inline table as TOML."""
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{format_key(key)} = {format_value(member)}" for key, member in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(format_value, value))}]"
    return _format_text(value) if isinstance(value, str) else json.dumps(value)


def _format_text(text: str) -> str:
    # JSON's form is valid TOML, except that DEL must be escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
