"""Lists as tables: which columns show what of an item. Cells are one printable line each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rich.table import Table

from mcpmux.cli.console import make_table
from mcpmux.printable import printable
from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import decode_any, text_of
from mcpmux.protocol.raw_json import Fields


class Kind(NamedTuple):
    """A kind of thing that servers have. `columns`: heading and how to get the cell's text."""

    method: str
    heading: str
    columns: dict[str, Callable[[Fields], str]]


def fill_table(kind: Kind, items: Sequence[Fields]) -> Table:
    """The items as rows."""
    table = make_table(list(kind.columns))
    for item in items:
        table.add_row(*(printable(text(item)) for text in kind.columns.values()))
    return table


def _member(key: str) -> Callable[[Fields], str]:
    return lambda item: text_of(item.get(key)) or ""


def _title(item: Fields) -> str:
    return text_of(item.get("title")) or text_of(item.get("name")) or ""


def _description(item: Fields) -> str:
    """The first line; models read more, tables show less."""
    lines = (text_of(item.get("description")) or "").strip().split("\n")
    return lines[0].strip()


def _tool_arguments(item: Fields) -> str:
    """`needed [optional]`, as the input schema has them."""
    schema = _decoded(item, "inputSchema", dict)
    required, properties = schema.get("required"), schema.get("properties")
    needed = required if isinstance(required, list) else []
    names = properties if isinstance(properties, dict) else {}
    return " ".join(name if name in needed else f"[{name}]" for name in names)


def _prompt_arguments(item: Fields) -> str:
    arguments = [entry for entry in _decoded(item, "arguments", list) if isinstance(entry, dict)]
    return " ".join(
        str(entry.get("name")) if entry.get("required") is True else f"[{entry.get('name')}]"
        for entry in arguments
    )


def _decoded(item: Fields, key: str, kind: type) -> Any:
    """The member when it is of that kind, else an empty one."""
    value = decode_any(item.get(key, b"null"))
    return value if isinstance(value, kind) else kind()


KINDS = {
    "resources": Kind(
        m.RESOURCES_LIST,
        "Resources",
        {
            "URI": _member("uri"),
            "TITLE": _title,
            "TYPE": _member("mimeType"),
            "DESCRIPTION": _description,
        },
    ),
    "templates": Kind(
        m.TEMPLATES_LIST,
        "Resource templates",
        {
            "URI TEMPLATE": _member("uriTemplate"),
            "TITLE": _title,
            "TYPE": _member("mimeType"),
            "DESCRIPTION": _description,
        },
    ),
    "tools": Kind(
        m.TOOLS_LIST,
        "Tools",
        {"NAME": _member("name"), "ARGUMENTS": _tool_arguments, "DESCRIPTION": _description},
    ),
    "prompts": Kind(
        m.PROMPTS_LIST,
        "Prompts",
        {"NAME": _member("name"), "ARGUMENTS": _prompt_arguments, "DESCRIPTION": _description},
    ),
}
