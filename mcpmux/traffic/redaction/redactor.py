"""Secrets taken out of messages before anything is written down or shown. Pure and total.

A value goes because of the name beside it, its place (the user's paths), or its looks (`secret_patterns`, the
user's own). In its place stands what it was: `"[redacted: authorization]"`. Every other byte stays as it was,
and JSON stays JSON. JSON inside of text is looked through like a message, and a message that is cut or broken
as well as it can be.

Not covered, for it does not show itself: secrets in base64, hexadecimal, compression or another encoding
(besides Basic and Bearer credentials and JWTs), secrets that are split over several values, and those that
have neither a telling name beside them nor well-known looks. Paths and patterns of the user are for these.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from functools import cached_property, lru_cache, partial

import msgspec

from mcpmux.config.traffic import BUILT_IN, Redaction, compile_pattern, parse_path
from mcpmux.protocol.envelope import UNREADABLE
from mcpmux.traffic.redaction.json_walk import JsonWalk, Paths, TooLong
from mcpmux.traffic.redaction.secret_patterns import (
    HINTS,
    MASK,
    SHORTEST,
    Scan,
    Shape,
    hint_of,
    make_label,
    marker,
    scan_for,
    shapes,
)

PATTERN_SECONDS = 0.05  # of a user's pattern on one text; text that takes longer is taken for secret
NESTING = 3  # JSON in text in JSON in text …; below that the text is looked at for the looks of secrets only
LONG_BYTES = 1024  # from here on it is worth asking whether a text is nothing but base64

NAMES_CACHED = 1024
NAME_LENGTH = 256  # characters; longer ones are not remembered

TOO_LONG = marker("too long to look through")

_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_decoder = msgspec.json.Decoder()

_WHOLE_ENDS = (b"}}", b"]}", b'"}')  # of nearly all messages that were not cut
_CUT_URL = re.compile(rb"(?P<kept>:(?:\\{0,2}/){2})(?!\[redacted: )[^\s/?#\"'<>\\]{1,1024}+[\"']?\Z")
"""The beginning of a URL in a message that was cut there: it may have been a user and a password."""
_CUT_MARK = rb"\g<kept>" + marker("url-userinfo").encode()


class RuleSet:
    """Rules made ready for all messages."""

    def __init__(self, rules: Redaction) -> None:
        labels = [label for label in BUILT_IN if label not in rules.skip]
        self._label = make_label(labels, rules.keys)
        self._hides_userinfo = "url-userinfo" in labels
        self._shapes = shapes(labels, rules.keys)
        self._paths = tuple((parse_path(path), path) for path in rules.paths)
        self._patterns = tuple((name, compile_pattern(text)) for name, text in rules.patterns.items())
        # The last name of a path is in every message that has something there.
        names = [[step for step in steps if isinstance(step, str)] for steps, _ in self._paths]
        ends = [each[-1] if each else "" for each in names]
        built_in = [hint for label in labels for hint in HINTS.get(label, ())]
        self._name_hints = frozenset(built_in).union(map(hint_of, (*rules.keys, *ends)))
        self._hints = sorted(self._name_hints.union([MASK], *(shape.hints for shape in self._shapes)))
        # What `leaves_unchanged` goes by: what is found has a `"` in it at its end only, if at all.
        self._is_severable = not any('"' in hint[:-1] for hint in self._hints)
        self._names = lru_cache(NAMES_CACHED)(self.redact_text)

    def redact(self, method: str | None, data: bytes) -> tuple[bytes, int]:
        """The message without secrets, and how many were replaced; the same bytes when there were none.

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
        """Whether one scan shows that `redact` would change none of them. It costs less than one for each.

        `joined`: all of them, with any byte between. What stands between two `"` in one of them may be left
        out there if it stands so in another one.
        """
        if self._patterns or not self._is_severable:
            return False
        if self._hides_userinfo and not all(map(bytes.endswith, messages, itertools.repeat(_WHOLE_ENDS))):
            return False
        return not self._scan(joined)

    def leaves_text_unchanged(self, joined: str) -> bool:
        """Whether one scan shows that `redact_text` would change none of the texts that are joined."""
        return not self._patterns and not self._scan(joined.encode("utf-8", "surrogatepass"))

    def redact_text(self, text: str) -> tuple[str, int]:
        """The same for text that is no message: a URI, a name, a line of a log."""
        possible = self._possible_shapes(text.encode("utf-8", "surrogatepass"))
        if possible is None:
            return text, 0
        return self._redact_inside(text, possible)

    def redact_name(self, name: str | None) -> str | None:
        """The same for a short text that comes again and again; remembers a bounded number of them."""
        return None if name is None else self.clean(name)

    def clean(self, text: str) -> str:
        """The text without secrets; short ones that come again and again are remembered."""
        return self._names(text)[0] if len(text) <= NAME_LENGTH else self.redact_text(text)[0]

    @cached_property
    def _scan(self) -> Scan:
        return scan_for(self._hints)

    def _possible_shapes(self, data: bytes) -> tuple[Shape, ...] | None:
        """The shapes that may be in the data; None when no rule of any kind can find something in it."""
        numbers = self._scan(data)
        if not numbers and not self._patterns:
            return None
        found = {self._hints[number] for number in numbers}
        if MASK in found:
            return self._shapes
        possible = tuple(shape for shape in self._shapes if not found.isdisjoint(shape.hints))
        return possible if possible or self._patterns or not found.isdisjoint(self._name_hints) else None

    def _redact(
        self, method: str | None, data: bytes, paths: Paths, possible: Sequence[Shape], nesting: int = 0
    ) -> tuple[bytes, int]:
        """`redact` with these paths and shapes; `nesting`: how many texts are around the data."""
        sound = _is_json(data)
        total = 0
        if sound or data.lstrip()[:1] in (b"{", b"["):
            clean = partial(self._redact_inside, possible=possible, nesting=nesting)
            try:
                data, total = JsonWalk(data, method, paths, self._label, clean).run()
            except TooLong:
                return json.dumps(TOO_LONG).encode(), 1
        if sound:
            return data, total
        text, count = self._redact_plain(data.replace(b"\x00", b"").decode("utf-8", "replace"), possible)
        return (text.encode("utf-8", "replace") if count else data), total + count

    def _redact_inside(self, text: str, possible: Sequence[Shape], nesting: int = 0) -> tuple[str, int]:
        """See `json_walk.Clean`. JSON in the text is looked through like a message."""
        if nesting < NESTING and text.lstrip()[:1] in ("{", "["):
            data = text.encode("utf-8", "surrogatepass")
            if _is_json(data):
                found, count = self._redact(None, data, (), possible, nesting + 1)
                return (found.decode("utf-8", "surrogatepass"), count) if count else (text, 0)
        return self._redact_plain(text, possible)

    def _redact_plain(self, text: str, possible: Sequence[Shape]) -> tuple[str, int]:
        count = 0
        if possible and len(text) >= SHORTEST and not (len(text) >= LONG_BYTES and _is_base64(text)):
            for shape in possible:
                text, found = shape.replace_in(text)
                count += found
        for name, pattern in self._patterns:
            try:
                text, found = pattern.subn(marker(name), text, timeout=PATTERN_SECONDS)
            except TimeoutError:
                return marker(f"{name} took too long"), count + 1
            count += found
        return text, count


def _is_base64(text: str) -> bool:
    try:
        return not text.rstrip("=").encode("ascii").translate(None, _BASE64)
    except UnicodeEncodeError:
        return False


def _is_json(data: bytes) -> bool:
    try:
        _decoder.decode(data)
    except UNREADABLE:
        # What some parsers take: NaN, halves of surrogate pairs, numbers that are too large.
        if data.lstrip()[:1] not in (b"{", b"["):
            return False
        try:
            json.loads(data.decode("utf-8", "surrogatepass"))
        except (ValueError, RecursionError):
            return False
    return True


class Redactor:
    """Used for all messages, by any thread; one message meets one set of rules.

    `current`: the present rules. `redact` and all that is here besides are methods of these.
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
        self.redact_name = current.redact_name
        self.clean = current.clean
