"""Replace secrets in messages before they are stored or shown. Pure and total.

A value is replaced because of the name beside it, its place (the user's paths), or its form
(`secret_patterns`, the user's own), by a marker: `"[redacted: authorization]"`. Every other byte stays, and
JSON stays JSON. JSON inside of text is searched like a message, and a message that is cut or broken
as well as possible. The work on one is bounded by TOKEN_LIMIT.

Not covered, as they have no marks: secrets in base64, hexadecimal, compression or another encoding
(besides Basic and Bearer credentials and JWTs), secrets that are split over several values, and those that
have neither a telling name beside them nor a well-known form. Paths and patterns of the user are for these.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache, partial
from typing import TypeVar

import msgspec

from mcpmux.config.traffic import BUILT_IN, DEEP, ONE, Redaction, Step, compile_pattern, parse_path
from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import UNREADABLE
from mcpmux.traffic.redaction.secret_patterns import (
    HEADER_NAMES,
    MARKER,
    MASK,
    NAMES,
    SHORTEST,
    Label,
    Scan,
    Shape,
    fold,
    hint_of,
    make_label,
    marker,
    scan_for,
    shapes,
)

TOKEN_LIMIT = 200_000  # half a second of work; a message with more tokens is replaced as a whole

NESTING = 3  # JSON in text in JSON in text …; deeper text is only searched for the forms of secrets
LONG_BYTES = 1024  # from here on it is worth testing whether a text is only base64

NAMES_CACHED = 1024
NAME_LENGTH = 256  # characters; longer ones are not remembered

TOO_LONG = marker("too long to look through")

_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_decoder = msgspec.json.Decoder()

_WHOLE_ENDS = (b"}}", b"]}", b'"}')  # of nearly all complete messages
# The beginning of a URL in a message that was cut there: it may have been a user and a password.
_CUT_URL = re.compile(rb"(?P<kept>:(?:\\{0,2}/){2})(?!\[redacted: )[^\s/?#\"'<>\\]{1,1024}+[\"']?\Z")
_CUT_MARK = rb"\g<kept>" + marker("url-userinfo").encode()

_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[{}\[\],]|[^\s"{}\[\],:]++', re.DOTALL)
_ENVELOPE = frozenset({"jsonrpc", "id", "method", "params", "result", "error"})
_LITERALS = frozenset({b"null", b"true", b"false"})
_SCHEMAS = frozenset({"inputSchema", "outputSchema", "requestedSchema"})
_PAIR_NAMES = frozenset({"name", "key", "header"})
# Words in the schema of a secret with harmless values; defaults and examples may be secrets.
_SCHEMA_WORDS = frozenset(
    {"type", "title", "description", "format", "pattern", "minLength", "maxLength", "minimum", "maximum"}
    | {"$ref", "readOnly", "writeOnly", "deprecated", "required", "items", "anyOf", "oneOf", "allOf"}
)


Text = TypeVar("Text", str, str | None)
Paths = Sequence[tuple[tuple[Step, ...], str]]  # places of secrets, each with its label
Clean = Callable[[str], tuple[str, int]]  # returns a text without secrets, and how many were replaced


def in_text(token: bytes) -> str:
    """Return the string of a JSON token; of a broken one its characters."""
    inside = token[1:-1] if token.endswith(b'"') and len(token) > 1 else token[1:]
    try:
        if b"\\" in token:
            return str(json.loads(token, strict=False))
        return inside.decode("utf-8", "surrogatepass")
    except ValueError:
        return inside.decode("utf-8", "replace")


class _Frame(msgspec.Struct):
    """An open object or array, and the state of its present member.

    `at`: the member's name or number, None before a name. `label`: the rule that makes its value a secret.
    `named`: the rule for the member `value`, which is at `value`. `strict`: the rule for values beside no
    known word of schemas. `paths`: those that may lead into it, each with the steps that may be next.
    """

    is_object: bool
    at: str | int | None
    paths: Sequence[tuple[tuple[Step, ...], str, set[int]]]
    schema: bool = False
    strict: str | None = None
    label: str | None = None
    named: str | None = None
    value: tuple[int, int] | None = None


class JsonWalk:
    """One walk over one message. `paths` and `label` find secrets by place and name, `clean` inside texts.

    It knows the place of a value: the name beside it, its path, the schema it belongs to. Every member of an
    object is searched, also one whose name comes twice.
    """

    def __init__(self, data: bytes, method: str | None, paths: Paths, label: Label, clean: Clean) -> None:
        self._count = 0
        self._data = data
        self._method = method
        self._label = label
        self._clean = clean
        self._beginnings = [(steps, label, {0}) for steps, label in paths]
        self._frames = [_Frame(False, None, ())]  # the first one is around the whole message
        self._spans: list[tuple[int, int, bytes]] = []  # start, end, and replacement
        self._all_tokens = _TOKEN.finditer(data)
        self._tokens = itertools.islice(self._all_tokens, TOKEN_LIMIT)

    def run(self) -> tuple[bytes, int]:
        """Return the data without secrets, and how many were replaced."""
        for match in self._tokens:
            token = match[0]
            if token in b"{[":
                self._open(token == b"{", match.start())
            elif token in b"]}":
                self._close()
            elif token == b",":
                frame = self._frames[-1]
                if frame.is_object:
                    frame.at = frame.label = None
                elif isinstance(frame.at, int):
                    frame.at += 1
            else:
                self._value(token, match.start(), match.end())
        # More tokens than the limit: an unsearched rest must not pass, so the whole is replaced.
        if next(self._all_tokens, None) is not None:
            return json.dumps(TOO_LONG).encode(), 1
        while len(self._frames) > 1:
            self._close()
        parts, at = [], 0
        for start, end, new in sorted(self._spans, key=lambda span: (span[0], -span[1])):
            if start >= at:  # else it is inside of a replaced one
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

    def _open(self, is_object: bool, start: int) -> None:
        frame = self._frames[-1]
        schema = frame.schema or (frame.at in _SCHEMAS and self._begins_schema())
        strict = frame.strict
        label = self._path_label()
        if label is None and frame.label is not None:
            if schema and is_object:
                strict = frame.label
            elif frame.strict is None or not self._is_schema_word(frame):
                label = frame.label
        if label is None:
            paths = self._beginnings
            if len(self._frames) > 1:
                paths = [
                    (steps, label, after)
                    for steps, label, next_steps in frame.paths
                    if (after := steps_after(steps, next_steps, frame.at))
                ]
            self._frames.append(_Frame(is_object, None if is_object else 0, paths, schema, strict))
            return
        depth, end = 1, len(self._data)  # which may be cut inside of the object or array
        for match in self._tokens:
            depth += (match[0] in b"{[") - (match[0] in b"]}")
            if not depth:
                end = match.end()
                break
        self._replace(start, end, marker(label))

    def _begins_schema(self) -> bool:
        match [frame.at for frame in self._frames[1:]]:
            case ["result", "tools", _, "inputSchema" | "outputSchema"]:
                return self._method in (m.TOOLS_LIST, None)
            case ["params", "requestedSchema"]:
                return self._method in (m.ELICIT, None)
            case ["result", "inputRequests", _, _, "requestedSchema"]:
                return True
        return False

    def _close(self) -> None:
        if len(self._frames) > 1:
            frame = self._frames.pop()
            if frame.named is not None and frame.value is not None:
                self._replace(*frame.value, marker(frame.named))

    def _value(self, token: bytes, start: int, end: int) -> None:
        frame = self._frames[-1]
        is_text = token[:1] == b'"'
        if frame.is_object and frame.at is None:  # the name of a member
            name = in_text(token) if is_text else token.decode("utf-8", "replace")
            frame.at = name
            if len(self._frames) > 2 or name not in _ENVELOPE:
                frame.label = self._label(name)
            self._replace_in(name, start, end)
            return
        label = self._path_label()
        if label is None and token not in _LITERALS:
            label = frame.label
            if label is None and frame.strict is not None and not self._is_schema_word(frame):
                label = frame.strict
        text = in_text(token) if is_text else token.decode("ascii", "replace")
        if label is not None and text and not (is_text and MARKER.fullmatch(text)):
            self._replace(start, end, marker(label))
        elif token not in _LITERALS:
            self._replace_in(text, start, end)
        if is_text and len(self._frames) > 1:
            self._note_pair(frame, text, start, end)

    def _is_schema_word(self, frame: _Frame) -> bool:
        """Return whether a value in the schema of a secret is beside a word with harmless values."""
        return (frame.at if frame.is_object else self._frames[-2].at) in _SCHEMA_WORDS

    def _note_pair(self, frame: _Frame, text: str, start: int, end: int) -> None:
        """Recognise `{"name": "Authorization", "value": …}`, `["Cookie", …]` and `["--password", …]`."""
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
        frame = self._frames[-1]
        for steps, label, next_steps in frame.paths:
            if len(steps) in steps_after(steps, next_steps, frame.at):
                return label
        return None


def steps_after(steps: Sequence[Step], next_steps: set[int], place: str | int | None) -> set[int]:
    """Return the steps of a path that may be next behind a place; one is the end if the path leads there.

    `next_steps`: those that may be next before it. Steps after DEEP may begin at every depth.
    """
    reached = set()
    for step in next_steps:
        if step == len(steps):
            continue
        if steps[step] is DEEP:
            reached.add(step)
            step += 1
        if steps[step] in (ONE, place):
            reached.add(step + 1)
    return reached


class RuleSet:
    """Rules, prepared for all messages."""

    def __init__(self, rules: Redaction) -> None:
        labels = [label for label in BUILT_IN if label not in rules.skip]
        self._label = make_label(labels, rules.keys)
        self._hides_userinfo = "url-userinfo" in labels
        self._shapes = shapes(labels, rules.keys)
        self._paths = tuple((parse_path(path), path) for path in rules.paths)
        self._patterns = tuple((name, compile_pattern(text)) for name, text in rules.patterns.items())
        # A message with a value at a path contains the last name of the path.
        ends = [next((step for step in steps[::-1] if isinstance(step, str)), "") for steps, _ in self._paths]
        built_in = [hint for label, _, hints in NAMES if label in labels for hint in hints.split()]
        self._name_hints = frozenset(built_in).union(map(hint_of, (*rules.keys, *ends)))
        self._hints = sorted(self._name_hints.union([MASK], *(shape.hints for shape in self._shapes)))
        # For `leaves_unchanged`: every hint has a `"` at its end only, if at all.
        self._is_severable = not any('"' in hint[:-1] for hint in self._hints)
        self._names = lru_cache(NAMES_CACHED)(self.redact_text)

    def redact(self, method: str | None, data: bytes) -> tuple[bytes, int]:
        """Return the message without secrets, and how many were replaced; the same bytes without any.

        `method`: its own, or that of the request that it answers; None when it is not known.
        """
        whole, cut = data, 0
        if self._hides_userinfo and not data.endswith(_WHOLE_ENDS):
            whole, cut = _CUT_URL.subn(_CUT_MARK, data)
        possible = self._possible_shapes(whole)
        if possible is None:
            return whole, cut
        clean, count = self._redact(method, whole, self._paths, possible)
        return clean, count + cut

    def leaves_unchanged(self, messages: Sequence[bytes], joined: bytes) -> bool:
        """Return whether one scan shows that `redact` would change none of them, for less than one scan each.

        `joined`: all of them, with any byte between. A piece between two `"` in one of them may be left
        out there if it is in another one in the same way.
        """
        if self._patterns or not self._is_severable:
            return False
        # A cut message may end within a URL, which `redact` treats separately.
        if self._hides_userinfo and not all(map(bytes.endswith, messages, itertools.repeat(_WHOLE_ENDS))):
            return False
        return not self._scan(joined)

    def leaves_text_unchanged(self, joined: str) -> bool:
        """Return whether one scan shows that `redact_text` would change none of the joined texts."""
        return not self._patterns and not self._scan(joined.encode("utf-8", "surrogatepass"))

    def redact_text(self, text: str) -> tuple[str, int]:
        """Redact other text: a URI, a name, a line of a log. Return it, and the number replaced."""
        possible = self._possible_shapes(text.encode("utf-8", "surrogatepass"))
        if possible is None:
            return text, 0
        return self._redact_inside(possible, 0, text)

    def clean(self, text: Text) -> Text:
        """Return the text without secrets, or None. Remembers a bounded number of short, frequent ones."""
        if text is None:
            return None
        return self._names(text)[0] if len(text) <= NAME_LENGTH else self.redact_text(text)[0]

    @cached_property
    def _scan(self) -> Scan:
        return scan_for(self._hints)

    def _possible_shapes(self, data: bytes) -> tuple[Shape, ...] | None:
        """Return the shapes that may be in the data; None when no rule can find anything in it."""
        numbers = self._scan(data)
        if not numbers and not self._patterns:
            return None
        hints = {self._hints[number] for number in numbers}
        if MASK in hints:
            return self._shapes
        possible = tuple(shape for shape in self._shapes if not hints.isdisjoint(shape.hints))
        return possible if possible or self._patterns or not hints.isdisjoint(self._name_hints) else None

    def _redact(
        self, method: str | None, data: bytes, paths: Paths, possible: Sequence[Shape], nesting: int = 0
    ) -> tuple[bytes, int]:
        """Redact with these paths and shapes; `nesting`: the number of texts around the data."""
        sound = _is_json(data)
        total = 0
        if sound or data.lstrip()[:1] in (b"{", b"["):
            clean = partial(self._redact_inside, possible, nesting)
            data, total = JsonWalk(data, method, paths, self._label, clean).run()
        if sound:
            return data, total
        text, count = self._redact_plain(data.replace(b"\x00", b"").decode("utf-8", "replace"), possible)
        return (text.encode("utf-8", "replace") if count else data), total + count

    def _redact_inside(self, possible: Sequence[Shape], nesting: int, text: str) -> tuple[str, int]:
        """Redact a text inside a message, see Clean. JSON in the text is searched like a message."""
        if nesting < NESTING and text.lstrip()[:1] in ("{", "["):
            data = text.encode("utf-8", "surrogatepass")
            if _is_json(data):
                redacted, count = self._redact(None, data, (), possible, nesting + 1)
                return (redacted.decode("utf-8", "surrogatepass"), count) if count else (text, 0)
        return self._redact_plain(text, possible)

    def _redact_plain(self, text: str, possible: Sequence[Shape]) -> tuple[str, int]:
        count = 0
        if possible and len(text) >= SHORTEST and not (len(text) >= LONG_BYTES and _is_base64(text)):
            for shape in possible:
                text, replaced = shape.replace_in(text)
                count += replaced
        for name, pattern in self._patterns:
            data, replaced = pattern.subn(marker(name).encode(), text.encode("utf-8", "surrogatepass"))
            if replaced:
                text, count = data.decode("utf-8", "surrogatepass"), count + replaced
        return text, count


def _is_base64(text: str) -> bool:
    return text.isascii() and not text.rstrip("=").encode().translate(None, _BASE64)


def _is_json(data: bytes) -> bool:
    try:
        _decoder.decode(data)
    except UNREADABLE:  # some parsers accept NaN, lone surrogates, and numbers that are too large
        try:
            return isinstance(json.loads(data.decode("utf-8", "surrogatepass")), (dict, list))
        except (ValueError, RecursionError):
            return False
    return True


class Redactor:
    """Redacts all messages, in any thread; one message is redacted by one set of rules.

    `current`: the present rules. `redact` and the other members here are methods of these.
    """

    def __init__(self, rules: Redaction | None = None) -> None:
        self._rules: Redaction | None = None
        self.adopt(rules or Redaction())

    def adopt(self, rules: Redaction) -> None:
        """Use these rules from the next message on."""
        if rules == self._rules:
            return
        self._rules = rules
        self.current = current = RuleSet(rules)
        self.redact = current.redact
        self.redact_text = current.redact_text
        self.clean = current.clean
