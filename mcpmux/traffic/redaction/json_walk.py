"""Walks JSON as bytes and replaces some of them; all others stay as they are.

Knows where a value stands: the name beside it, its path, the schema it belongs to. Every member of an object
is seen, also one whose name comes twice. JSON that is cut or broken is understood as well as it can be. The
work is bounded by TOKEN_LIMIT.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import islice

import msgspec

from mcpmux.config.traffic import DEEP, ONE, Step
from mcpmux.protocol import method as m
from mcpmux.traffic.redaction.secret_patterns import HEADER_NAMES, MARKER, Label, fold, marker

TOKEN_LIMIT = 200_000  # half a second of work; a message with more than that is not kept

_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[{}\[\],]|[^\s"{}\[\],:]++', re.DOTALL)
_ENVELOPE = frozenset({"jsonrpc", "id", "method", "params", "result", "error"})
_LITERALS = frozenset({b"null", b"true", b"false"})
_PAIR_NAMES = frozenset({"name", "key", "header"})
# What may stand in the schema of a secret; defaults and examples may be secrets.
_SCHEMA_WORDS = frozenset(
    {"type", "title", "description", "format", "pattern", "minLength", "maxLength", "minimum", "maximum"}
    | {"$ref", "readOnly", "writeOnly", "deprecated", "required", "items", "anyOf", "oneOf", "allOf"}
)


Paths = Sequence[tuple[tuple[Step, ...], str]]
"""Places of secrets, each with its label."""

Clean = Callable[[str], tuple[str, int]]
"""Takes a text; gives it without secrets, and how many were replaced."""


class TooLong(Exception):
    """More than TOKEN_LIMIT."""


def in_text(token: bytes) -> str:
    """The string that a JSON token is; of a broken one what stands in it."""
    inside = token[1:-1] if token.endswith(b'"') and len(token) > 1 else token[1:]
    if b"\\" in token:
        try:
            return str(json.loads(token, strict=False))
        except ValueError:
            pass
    try:
        return inside.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return inside.decode("utf-8", "replace")


class _Frame(msgspec.Struct):
    """An object or array that is open, and what is known of its present member.

    `at`: the name or the number of that, None before a name. `label`: the rule that makes its value a secret.
    `named`: the rule for the member `value`, which stands at `value`. `strict`: the rule for what has no
    known word of schemas beside it.
    """

    is_object: bool
    at: str | int | None
    schema: bool = False
    strict: str | None = None
    label: str | None = None
    named: str | None = None
    value: tuple[int, int] | None = None


class JsonWalk:
    """One walk over one message. `paths` and `label` say what is a secret, `clean` looks into texts."""

    def __init__(self, data: bytes, method: str | None, paths: Paths, label: Label, clean: Clean) -> None:
        self._count = 0
        self._data = data
        self._method = method
        self._paths = paths
        self._label = label
        self._clean = clean
        self._frames: list[_Frame] = []
        self._spans: list[tuple[int, int, bytes]] = []  # start, end, and what comes there
        self._all_tokens = _TOKEN.finditer(data)
        self._tokens = islice(self._all_tokens, TOKEN_LIMIT)

    def run(self) -> tuple[bytes, int]:
        """The data without secrets, and how many were replaced. Raises TooLong."""
        for match in self._tokens:
            token = match[0]
            if token in b"{[":
                self._open(token == b"{", match.start())
            elif token in b"]}":
                self._close()
            elif token == b",":
                self._next()
            else:
                self._value(token, match.start(), match.end())
        if next(self._all_tokens, None) is not None:
            raise TooLong
        while self._frames:
            self._close()
        parts, at = [], 0
        for start, end, new in sorted(self._spans, key=lambda span: (span[0], -span[1])):
            if start >= at:  # else it is inside of another one
                parts += [self._data[at:start], new]
                at = end
        return b"".join([*parts, self._data[at:]]) if parts else self._data, self._count

    def _replace(self, start: int, end: int, text: str, count: int = 1) -> None:
        self._count += count
        self._spans.append((start, end, json.dumps(text).encode()))

    def _replace_in(self, text: str, start: int, end: int) -> None:
        clean, count = self._clean(text)
        if count:
            self._replace(start, end, clean, count)

    def _skip_inside(self) -> int:
        """Where the object or array that was opened last ends, or the data that were cut inside of it."""
        depth = 1
        for match in self._tokens:
            depth += (match[0] in b"{[") - (match[0] in b"]}")
            if not depth:
                return match.end()
        return len(self._data)

    def _open(self, is_object: bool, start: int) -> None:
        at = None if is_object else 0
        if not self._frames:
            self._frames.append(_Frame(is_object, at))
            return
        frame = self._frames[-1]
        schema, strict = frame.schema or self._begins_schema(), frame.strict
        label = self._path_label()
        if label is None and frame.label is not None:
            if schema and is_object:
                strict = frame.label
            elif frame.strict is None or not self._is_schema_word(frame):
                label = frame.label
        if label is not None:
            self._replace(start, self._skip_inside(), marker(label))
        else:
            self._frames.append(_Frame(is_object, at, schema, strict))

    def _begins_schema(self) -> bool:
        path = [frame.at for frame in self._frames]
        if path[-1] in ("inputSchema", "outputSchema"):
            return path[:2] == ["result", "tools"] and len(path) == 4 and self._method in (m.TOOLS_LIST, None)
        if path[-1] == "requestedSchema":
            asked = path[:-1] == ["params"] and self._method in (m.ELICIT, None)
            return asked or (path[:2] == ["result", "inputRequests"] and len(path) == 5)
        return False

    def _close(self) -> None:
        frame = self._frames.pop() if self._frames else None
        if frame is not None and frame.named is not None and frame.value is not None:
            self._replace(*frame.value, marker(frame.named))

    def _next(self) -> None:
        if not self._frames:
            return
        frame = self._frames[-1]
        if frame.is_object:
            frame.at = frame.label = None
        elif isinstance(frame.at, int):
            frame.at += 1

    def _value(self, token: bytes, start: int, end: int) -> None:
        """A string, a number or a word; the first string of a member is its name."""
        frame = self._frames[-1] if self._frames else None
        is_text = token[:1] == b'"'
        if frame is not None and frame.is_object and frame.at is None:
            name = in_text(token) if is_text else token.decode("utf-8", "replace")
            frame.at = name
            if len(self._frames) > 1 or name not in _ENVELOPE:
                frame.label = self._label(name)
            self._replace_in(name, start, end)
            return
        label = self._path_label() if frame is not None else None
        if label is None and frame is not None and token not in _LITERALS:
            label = frame.label
            if label is None and frame.strict is not None and not self._is_schema_word(frame):
                label = frame.strict
        text = in_text(token) if is_text else token.decode("ascii", "replace")
        if label is not None and text and not (is_text and MARKER.fullmatch(text)):
            self._replace(start, end, marker(label))
        elif token not in _LITERALS:
            self._replace_in(text, start, end)
        if frame is not None and is_text:
            self._note_pair(frame, text, start, end)

    def _is_schema_word(self, frame: _Frame) -> bool:
        """Whether a value in the schema of a secret stands beside a word that says what is in it."""
        return (frame.at if frame.is_object else self._frames[-2].at) in _SCHEMA_WORDS

    def _note_pair(self, frame: _Frame, text: str, start: int, end: int) -> None:
        """`{"name": "Authorization", "value": …}`, `["Cookie", …]` and `["--password", …]`."""
        if frame.is_object:
            if frame.at == "value" and text and not MARKER.fullmatch(text):
                frame.value = (start, end)
            elif frame.at in _PAIR_NAMES:
                frame.named = self._label(text)
        elif text.startswith("-") or fold(text) in HEADER_NAMES:
            frame.label = self._label(text)
        else:
            frame.label = None

    def _path_label(self) -> str | None:
        places = [frame.at for frame in self._frames] if self._paths else []
        return next((label for steps, label in self._paths if path_matches(steps, places)), None)


def path_matches(steps: Sequence[Step], places: Sequence[str | int | None]) -> bool:
    """Whether the steps lead exactly to the place. Steps after DEEP are looked for from every depth on."""
    reached = {0}  # steps that may be next
    for place in places:
        before, reached = reached, set()
        for step in before - {len(steps)}:
            if steps[step] is DEEP:
                reached.add(step)
                step += 1
            if steps[step] in (ONE, place):
                reached.add(step + 1)
    return len(steps) in reached
