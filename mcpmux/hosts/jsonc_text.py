"""Edit JSON with comments as text: put one member into an object or remove it, and keep all other text.

Only the member itself and the commas around it are written. Text between tokens, comments included,
is never touched. No maintained Python library does this; the reader
of configurations already knows the grammar, so this module only finds positions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from mcpmux.config.reading import parse_jsonc
from mcpmux.errors import KeyPath

_TOKEN = re.compile(
    r'"(?:\\.|[^"\\])*"|//[^\n]*?(?=\r?\n|\Z)|/\*.*?\*/|[{}\[\],:]|[^\s{}\[\],:"/]+', re.DOTALL
)
_COMMENTS = ("//", "/*")
_INDENT = 2

Path = tuple[str, ...]


def parse(text: str) -> Any:
    """Return the document; an empty one is an object. Raises ValueError."""
    return parse_jsonc(text) if text.strip() else {}


def put(text: str, path: Path, entry: Mapping[str, Any]) -> str:
    """Return the text with `entry` at `path`: after the last member, or instead of the existing one."""
    line_end = "\r\n" if "\r\n" in text else "\n"
    if not text.strip():
        return json.dumps(_nest(path, entry), indent=_INDENT, ensure_ascii=False) + "\n"
    objects = _find_objects(text)
    first = next(iter(objects[()].members.values()), None)
    unit = (None if first is None else _indent_of(text, first.start)) or " " * _INDENT
    depth = next(depth for depth in reversed(range(len(path))) if path[:depth] in objects)
    key, value = path[depth], _nest(path[depth + 1 :], entry)
    member = objects[path[:depth]].members.get(key)
    if member is None:
        return _insert(text, objects[path[:depth]], key, value, unit, line_end)
    indent = _indent_of(text, member.start)
    written = json.dumps(value, ensure_ascii=False)
    if indent is not None:
        written = _format(value, indent, unit, line_end)
    return text[: member.value_start] + written + text[member.value_end :]


def remove(text: str, path: Path) -> str:
    """Return the text without the member at `path`, which must exist."""
    members = _find_objects(text)[path[:-1]].members
    member = members[path[-1]]
    end = member.value_end if member.comma is None else member.comma + 1
    text = text[: member.gap_start] + text[end:]
    commas = [other.comma for other in members.values() if other.start < member.start]
    if member.comma is None and commas and commas[-1] is not None:  # it would be the last token
        text = text[: commas[-1]] + text[commas[-1] + 1 :]
    return text


# Positions.


def find_starts(text: str) -> dict[KeyPath, int]:
    """Return the path of each member of objects that are not in a list -> where its text begins."""
    objects = _find_objects(text).items()
    return {(*path, key): member.start for path, inside in objects for key, member in inside.members.items()}


@frozen
class _Member:
    """`start`: of the name. `gap_start`: end of the token or comment before."""

    gap_start: int
    start: int
    value_start: int
    value_end: int
    comma: int | None


@frozen
class _Object:
    """From its `{` at `start` to its `}` at `close`. `last`: the end of the token or comment before that.

    Of several members with one name the last one counts.
    """

    start: int
    last: int
    close: int
    members: dict[str, _Member] = field(factory=dict)


def _find_objects(text: str) -> dict[Path, _Object]:
    """Return the objects in a valid document that are not in a list, by their path. Raises ValueError."""
    ends, tokens = 0, list[tuple[str, int, int, int]]()  # each with its start, its end, and the gap before it
    for match in _TOKEN.finditer(text):
        if not match[0].startswith(_COMMENTS):
            tokens.append((match[0], match.start(), match.end(), ends))
        ends = match.end()
    objects: dict[Path, _Object] = {}

    def read(at: int, path: Path | None) -> int:
        """Read the value that begins with a token, and return the number of the token after it."""
        opening, start, _, _ = tokens[at]
        at += 1
        if opening not in "{[":
            return at
        members: dict[str, _Member] = {}
        while tokens[at][0] not in "}]":
            if opening == "[" or path is None:
                at = read(at, None)
                continue
            name, name_start, _, gap = tokens[at]
            key = json.loads(name)
            if members.pop(key, None) is not None:
                for inner in [inner for inner in objects if inner[: len(path) + 1] == (*path, key)]:
                    del objects[inner]
            value, at = at + 2, read(at + 2, (*path, key))
            has_comma = tokens[at][0] == ","
            comma = tokens[at][1] if has_comma else None
            members[key] = _Member(gap, name_start, tokens[value][1], tokens[at - 1][2], comma)
            at += has_comma
        if opening == "{" and path is not None:
            objects[path] = _Object(start, tokens[at][3], tokens[at][1], members)
        return at + 1

    if not tokens or tokens[0][0] != "{":
        raise ValueError("the text is no object")
    read(0, ())
    return objects


def _indent_of(text: str, at: int) -> str | None:
    """Return the white space before the first token of a line; None for other tokens."""
    indent = text[text.rfind("\n", 0, at) + 1 : at]
    return indent if not indent.strip() and "\n" in text[:at] else None


# Writing.


def _nest(path: Path, entry: Any) -> Any:
    for key in reversed(path):
        entry = {key: entry}
    return entry


def _format(value: Any, indent: str, unit: str, line_end: str) -> str:
    lines = json.dumps(value, indent=unit, ensure_ascii=False).split("\n")
    return (line_end + indent).join(lines)


def _insert(text: str, found: _Object, key: str, value: Any, unit: str, line_end: str) -> str:
    """Return the text with a new last member of an object. `unit`: the indent of each level."""
    last = list(found.members.values())[-1] if found.members else None
    is_on_one_line = "\n" not in text[found.start : found.close]
    if last is not None and is_on_one_line:
        member = f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
    else:
        line = text[text.rfind("\n", 0, found.start) + 1 : found.start]
        outer = line[: len(line) - len(line.lstrip())]
        indent = (_indent_of(text, last.start) if last is not None else None) or outer + unit
        member = f"{line_end}{indent}{json.dumps(key)}: {_format(value, indent, unit, line_end)}"
        if is_on_one_line:
            return f"{text[: found.last]}{member}{line_end}{outer}{text[found.close :]}"
    if last is None:
        return text[: found.last] + member + text[found.last :]
    if last.comma is not None:
        return text[: found.last] + member + "," + text[found.last :]
    head = text[: last.value_end] + "," + text[last.value_end : found.last]
    return head + member + text[found.last :]
