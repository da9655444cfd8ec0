"""Edit YAML as text: put one entry into a block mapping or remove it, and keep all other lines.

PyYAML gives the positions, and only the lines of the entry are written. A library that keeps comments, as
ruamel.yaml does, still writes the whole file anew, with other quotes, indents and line breaks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcpmux.errors import ConfigError
from mcpmux.hosts.jsonc_text import Path

try:
    import yaml
except ModuleNotFoundError:
    raise ConfigError(["files of Goose need the library PyYAML: pip install 'mcpmux[goose]'"]) from None

_INDENT = 2
_WIDE = 10**6  # columns; no line is folded


def parse(text: str) -> Any:
    """Return the document; an empty one is a mapping. Raises ValueError with the position, without quotes."""
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an impossible date
        mark = getattr(error, "problem_mark", None)
        where = f"at line {mark.line + 1}, column {mark.column + 1}" if mark is not None else "somewhere"
        raise ValueError(where) from None
    return {} if document is None else document


def put(text: str, path: Path, entry: Mapping[str, Any]) -> str:
    """Return the text with `entry` at `path`, of two keys: behind the last one, or instead of the old one."""
    outer, name = path
    lines = text.splitlines(keepends=True)
    line_end = "\r\n" if "\r\n" in text else "\n"
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += line_end
    place = _find(text, outer)
    if place is None:
        return "".join(lines) + _format({outer: {name: entry}}, "", line_end)
    key, value = place
    if not _is_block(value) or not value.value:
        return _put_first(lines, place, {name: entry}, line_end)
    indent = " " * value.value[0][0].start_mark.column
    new = _format({name: entry}, indent, line_end)
    for inner, inside in value.value:
        if inner.value == name:
            start, end = inner.start_mark.line, _last_line(inner, inside) + 1
            return "".join([*lines[:start], new, *lines[end:]])
    end = _last_line(key, value) + 1
    return "".join([*lines[:end], new, *lines[end:]])


def remove(text: str, path: Path) -> str:
    """Return the text without the lines of the entry at `path`, which must exist."""
    outer, name = path
    found = _find(text, outer)
    lines = text.splitlines(keepends=True)
    for key, value in found[1].value if found is not None and _is_block(found[1]) else ():
        if key.value == name:
            del lines[key.start_mark.line : _last_line(key, value) + 1]
    return "".join(lines)


Entry = tuple[Any, Any]
"""The node of a key, and that of its value."""


def _find(text: str, outer: str) -> Entry | None:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is None:
        return None
    if not _is_block(root):
        raise ValueError("the text is no block of keys")
    return next(((key, value) for key, value in root.value if key.value == outer), None)


def _is_block(node: Any) -> bool:
    return isinstance(node, yaml.MappingNode) and not node.flow_style


def _put_first(lines: list[str], found: Entry, entries: Any, line_end: str) -> str:
    """Return the lines with the first entry of a mapping that is empty: `{}`, or no text."""
    key, value = found
    if isinstance(value, yaml.MappingNode) and value.value:
        raise ValueError("the entries are in braces")
    number = key.start_mark.line
    line = lines[number]
    if isinstance(value, yaml.MappingNode):
        start, end = value.start_mark, value.end_mark
        if start.line != number or end.line != number:
            raise ValueError("the braces are on another line")
        line = line[: start.column].rstrip() + line[end.column :]
    new = _format(entries, " " * (key.start_mark.column + _INDENT), line_end)
    return "".join([*lines[:number], line, new, *lines[number + 1 :]])


def _last_line(key: Any, value: Any) -> int:
    """Return the number of the last line of a key or its value."""
    # PyYAML's end of a block is behind the comments that follow it, so the last value counts.
    last: int = key.end_mark.line
    if isinstance(value, yaml.CollectionNode) and not value.flow_style:
        for each in value.value:
            inner = each if isinstance(each, tuple) else (each, each)
            last = max(last, _last_line(*inner))
        return last
    end: int = value.end_mark.line
    is_behind: bool = value.end_mark.column == 0 and end > value.start_mark.line  # of a block of text
    return max(last, end - is_behind)


def _format(value: Any, indent: str, line_end: str) -> str:
    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, indent=_INDENT, width=_WIDE)
    return "".join(f"{indent}{line}{line_end}" for line in text.splitlines())
