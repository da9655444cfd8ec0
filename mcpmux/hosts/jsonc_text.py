"""Edit JSON with comments as text: put one member into an object or remove it, and keep all other text.

Only the member itself and the commas around it are written. Text between tokens, comments included,
is never touched. No maintained Python library does this; the reader
of configurations already knows the grammar, so this module only finds positions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import field, frozen

from mcpmux.config.reading import parse_jsonc
from mcpmux.errors import KeyPath

_TOKEN = re.compile(
    r'"(?:\\.|[^"\\])*"|//[^\n]*?(?=\r?\n|\Z)|/\*.*?\*/|[{}\[\],:]|[^\s{}\[\],:"/]+', re.DOTALL
)
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
    object_ = _read_object(text)
    unit = _indent_of(text, object_.members[0].start) if object_.members else None
    for depth, key in enumerate(path):
        member = object_.find(key)
        value = _nest(path[depth + 1 :], entry)
        if member is None:
            new = _Writing(text, line_end, unit or " " * _INDENT)
            return new.insert(object_, key, value)
        if member.inside is None or depth == len(path) - 1:
            indent = _indent_of(text, member.start)
            written = json.dumps(value, ensure_ascii=False)
            if indent is not None:
                written = _format(value, indent, unit or " " * _INDENT, line_end)
            return text[: member.value_start] + written + text[member.value_end :]
        object_ = member.inside
    raise AssertionError("a path has a key")


def remove(text: str, path: Path) -> str:
    """Return the text without the member at `path`, which must exist."""
    object_: _Object | None = _read_object(text)
    for key in path[:-1]:
        member = object_.find(key) if object_ is not None else None
        object_ = member.inside if member is not None else None
    member = object_.find(path[-1]) if object_ is not None else None
    if object_ is None or member is None:
        return text
    start, end = member.gap_start, member.value_end
    if member.comma is not None:
        end = member.comma + 1
    text = text[:start] + text[end:]
    index = object_.members.index(member)
    if member.comma is None and index > 0:  # else the comma before it would be the last token
        comma = object_.members[index - 1].comma
        assert comma is not None
        text = text[:comma] + text[comma + 1 :]
    return text


# Positions.


def find_starts(text: str) -> dict[KeyPath, int]:
    """Return the path of each member of objects that are not in a list -> where its text begins."""
    starts: dict[KeyPath, int] = {}
    objects: list[tuple[KeyPath, _Object]] = [((), _read_object(text))]
    for path, object_ in objects:  # which grows
        for member in object_.members:
            starts[*path, member.key] = member.start
            if member.inside is not None:
                objects.append(((*path, member.key), member.inside))
    return starts


@frozen
class _Member:
    """`start`: of the name. `gap_start`: end of the token or comment before. `inside`: an object value."""

    key: str
    gap_start: int
    start: int
    value_start: int
    value_end: int
    comma: int | None
    inside: _Object | None


@frozen
class _Object:
    """From its `{` at `start` to its `}` at `close`. `last`: the end of the token or comment before that."""

    start: int
    last: int
    close: int
    members: list[_Member] = field(factory=list)

    def find(self, key: str) -> _Member | None:
        """Return the last member of that name, which is the one that counts, or None."""
        return next((member for member in reversed(self.members) if member.key == key), None)


class _Tokens:
    """Walks over tokens. `end`: that of the last one read, comments included."""

    def __init__(self, text: str) -> None:
        self._matches: Iterator[re.Match[str]] = _TOKEN.finditer(text)
        self.end = 0
        self.gap = 0
        self.match = self._read()

    def _read(self) -> re.Match[str] | None:
        for match in self._matches:
            if match[0][:2] not in ("//", "/*"):
                self.gap = self.end
                return match
            self.end = match.end()
        return None

    def take(self) -> re.Match[str]:
        """Return the present token, and go on to the next one."""
        match = self.match
        if match is None:
            raise ValueError("the text ends too early")
        self.end = match.end()
        self.match = self._read()
        return match


def _read_object(text: str) -> _Object:
    """Return the outermost object. Raises ValueError."""
    tokens = _Tokens(text)
    if tokens.match is None or tokens.match[0] != "{":
        raise ValueError("the text is no object")
    return _read_members(tokens)


def _read_members(tokens: _Tokens) -> _Object:
    start = tokens.take().start()
    members: list[_Member] = []
    while tokens.match is not None and tokens.match[0] != "}":
        gap = tokens.gap
        name = tokens.take()
        tokens.take()  # the colon
        value_start, value_end, inside = _read_value(tokens)
        has_comma = tokens.match is not None and tokens.match[0] == ","
        comma = tokens.take().start() if has_comma else None
        key = json.loads(name[0])
        members.append(_Member(key, gap, name.start(), value_start, value_end, comma, inside))
    last = tokens.gap
    return _Object(start, last, tokens.take().start(), members)


def _read_value(tokens: _Tokens) -> tuple[int, int, _Object | None]:
    if tokens.match is not None and tokens.match[0] == "{":
        inside = _read_members(tokens)
        return inside.start, inside.close + 1, inside
    first = last = tokens.take()
    depth = int(first[0] == "[")
    while depth:
        last = tokens.take()
        depth += (last[0] in "[{") - (last[0] in "]}")
    return first.start(), last.end(), None


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


@frozen
class _Writing:
    """The text, its line ends, and the indent of each level."""

    text: str
    line_end: str
    unit: str

    def insert(self, found: _Object, key: str, value: Any) -> str:
        """Return the text with a new last member of an object."""
        text, last = self.text, found.members[-1] if found.members else None
        is_on_one_line = "\n" not in text[found.start : found.close]
        if last is not None and is_on_one_line:
            member = f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
        else:
            outer = _line_indent(text, found.start)
            indent = (_indent_of(text, last.start) if last is not None else None) or outer + self.unit
            written = _format(value, indent, self.unit, self.line_end)
            member = f"{self.line_end}{indent}{json.dumps(key)}: {written}"
            if is_on_one_line:
                return f"{text[: found.last]}{member}{self.line_end}{outer}{text[found.close :]}"
        if last is None:
            return text[: found.last] + member + text[found.last :]
        if last.comma is not None:
            return text[: found.last] + member + "," + text[found.last :]
        head = text[: last.value_end] + "," + text[last.value_end : found.last]
        return head + member + text[found.last :]


def _line_indent(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip())]
