"""Let clients search tools instead of listing them: two tools stand for all others of a view. Pure.

`find_tools` returns the tools that fit a question best, as a list would show them; `call_tool` calls one. The
ranking is BM25 of SQLite's full text search, over words without their endings (porter) in names, titles,
descriptions and parameters. The only module that knows SQLite.

Source: "Tools" of 2026-07-28; "Tasks" of 2025-11-25 (`execution.taskSupport`); "Visibility" of the extension
MCP Apps, 2026-01-26.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from mcpmux.errors import McpmuxError
from mcpmux.protocol.call import META
from mcpmux.protocol.envelope import (
    EMPTY_OBJECT,
    decode_fields,
    first_byte,
    members_of,
    raw,
    text_of,
    value_at,
    value_of,
)
from mcpmux.protocol.raw_json import Fields, Raw

FIND_TOOLS: Final = "find_tools"
CALL_TOOL: Final = "call_tool"

USUAL: Final = 5  # tools that are returned for a question by default
MOST: Final = 20
QUERY_LENGTH: Final = 2000  # characters of one question that are used
QUERY_WORDS: Final = 64  # words of a question that are searched for
TEXT_LIMIT: Final = 8192  # characters of a description, or of all parameters, of one tool

_FIND: Final[Mapping[str, Any]] = {
    "name": FIND_TOOLS,
    "title": "Find tools",
    "description": "Find tools by what they do. Gives the best matches with their input schemas; call them "
    f"with {CALL_TOOL}. Look here before you say that something cannot be done.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What the tool is to do, in a few words"},
            "limit": {"type": "integer", "minimum": 1, "maximum": MOST, "default": USUAL},
        },
        "required": ["query"],
        "additionalProperties": False,
    },
    "annotations": {"readOnlyHint": True, "openWorldHint": False},
}
_CALL: Final[Mapping[str, Any]] = {
    "name": CALL_TOOL,
    "title": "Call a tool",
    "description": f"Call a tool that {FIND_TOOLS} has given.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "The tool's name"},
            "arguments": {"type": "object", "description": "As the tool's inputSchema wants them"},
        },
        "required": ["name"],
        "additionalProperties": False,
    },
}
SHOWN: Final = raw([_FIND, _CALL])
SHOWN_WITH_TASKS: Final = raw([_FIND, {**_CALL, "execution": {"taskSupport": "optional"}}])
"""For legacy clients, which decide themselves to make a task; for others the server decides."""


def is_for_models(tool: Fields) -> bool:
    """Return whether a model may see a tool, as a list has it: some are only for their server's app."""
    visibility = value_at(value_of(members_of(tool.get(META)).get("ui")), ("visibility",))
    return not isinstance(visibility, list) or "model" in visibility


class BadQuestion(McpmuxError):
    """One of the two tools does not take these arguments; the text names those that it takes."""


def read_question(arguments: Raw) -> tuple[str, int]:
    """Return the query and the limit in the arguments of `find_tools`. Raises BadQuestion."""
    members = _members(arguments, FIND_TOOLS, ("query", "limit"))
    query, limit = text_of(members.get("query")), value_of(members.get("limit", raw(USUAL)))
    if not query or not query.strip():
        raise BadQuestion(f"{FIND_TOOLS} needs a `query`: what the tool is to do, in a few words")
    if isinstance(limit, float) and limit.is_integer():  # an integer in JSON Schema, as `inputSchema` says
        limit = int(limit)
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MOST:
        raise BadQuestion(f"`limit` of {FIND_TOOLS} must be a whole number from 1 to {MOST}")
    return query, limit


def read_call(arguments: Raw) -> Fields:
    """Return `name` and, if given, `arguments` in the arguments of `call_tool`. Raises BadQuestion."""
    members = _members(arguments, CALL_TOOL, ("name", "arguments"))
    if text_of(members.get("name")) is None:
        raise BadQuestion(f"{CALL_TOOL} needs a `name`, as {FIND_TOOLS} gives it")
    if first_byte(members.get("arguments", EMPTY_OBJECT)) not in (b"{", b"n"):  # null is accepted, too
        raise BadQuestion(f"`arguments` of {CALL_TOOL} must be an object")
    return members


def _members(arguments: Raw, tool: str, known: Sequence[str]) -> Fields:
    try:
        members = decode_fields(arguments)
    except ValueError:
        raise BadQuestion(f"the arguments of {tool} must be an object") from None
    for key in members:
        if key not in known:
            raise BadQuestion(f"{tool} has no parameter {key!r}; it takes {' and '.join(known)}")
    return members


# Full text

_WEIGHTS: Final = (2.0, 1.0, 1.0, 0.5)  # of the columns: name, title, description, parameters
_WORD: Final = re.compile(r"[^\W_]+")
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})")
_EMPTY: Final = (
    "a about all an and any are as at be by can do does for from has have how i in into is it its me my of "
    "on or our so some that the their them then there these this to tool tools up use want was we what when "
    "where which who whose with you your"
)
# They have no meaning for the search, though few tools may have them, which would make them weigh much.
_EMPTY_WORDS: Final = frozenset(_EMPTY.split())


class Index:
    """Tools that can be searched, by their positions. Adding a hundred of usual size takes milliseconds."""

    def __init__(self, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        """`tools`: as a list has them."""
        import sqlite3

        self._count = 0
        self._texts = sqlite3.connect(":memory:")
        self._texts.execute(
            "CREATE VIRTUAL TABLE tools USING fts5(name, title, about, takes, tokenize = porter)"
        )
        self.add(tools)

    def add(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """Add tools behind the existing ones."""
        rows = ((place, *map(_spaced, _texts_of(tool))) for place, tool in enumerate(tools, self._count))
        self._texts.executemany(
            "INSERT INTO tools (rowid, name, title, about, takes) VALUES (?, ?, ?, ?, ?)", rows
        )
        self._count += len(tools)

    def __len__(self) -> int:
        return self._count

    def find(self, question: str, most: int) -> list[int]:
        """Return the positions of the tools that fit a question, at most `most`, the best one first."""
        words = list(dict.fromkeys(_WORD.findall(_spaced(question[:QUERY_LENGTH]).lower())))
        # A question of empty words only is searched for all the same.
        words = [word for word in words if word not in _EMPTY_WORDS][:QUERY_WORDS] or words[:QUERY_WORDS]
        if not words:
            return []
        # In quotes every word is a plain term: outside of them FTS5 has operators, such as NEAR.
        expression = " OR ".join(f'"{word}"' for word in words)
        query = "SELECT rowid FROM tools WHERE tools MATCH ? ORDER BY bm25(tools, ?, ?, ?, ?), rowid LIMIT ?"
        return [place for (place,) in self._texts.execute(query, (expression, *_WEIGHTS, most))]


def _spaced(text: str) -> str:
    """Return a text with words in CamelCase also split."""
    # So that each part can be found.
    spaced = _HUMP.sub(" ", text)
    return text if spaced == text else f"{text} {spaced}"


def _texts_of(tool: Mapping[str, Any]) -> tuple[str, str, str, str]:
    name, title, about = (_text(tool.get(key)) for key in ("name", "title", "description"))
    takes, left = [], TEXT_LIMIT
    for text in _parameters(tool.get("inputSchema")):
        takes.append(text[:left])
        left -= len(text) + 1
        if left <= 0:
            break
    return name, title, about, " ".join(takes)


def _parameters(schema: Any) -> Iterator[str]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    for name, parameter in properties.items() if isinstance(properties, dict) else ():
        yield name
        if isinstance(parameter, dict):
            yield _text(parameter.get("description"))
            choices = parameter.get("enum")
            yield from map(_text, choices if isinstance(choices, list) else ())


def _text(value: Any) -> str:
    return value[:TEXT_LIMIT] if isinstance(value, str) else ""
