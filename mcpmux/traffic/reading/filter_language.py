"""The filter language: text to terms. Pure.

    filter       = terms, all of which must hold, with blanks between them
    term         = ["!"] key operator value { "|" value }  |  ["!"] flag
    operator     = "="  "!="  "~"  "!~"  ">"  ">="  "<"  "<="
    value        = text with `*` for any text; in "quotes" blanks, `|` and `*` stand for themselves, and `\"`
                   and `\\` for the quote and the backslash

`=` and `~` hold when one of the values fits. `!=` and `!~` hold when there is something and none fits; a `!`
in front of a term is its exact opposite. An empty value stands for nothing there: `upstream=` of a message
without an upstream, `upstream!=` of one that has one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from operator import ge, gt, le, lt
from typing import Any, NamedTuple, TypeAlias

from mcpmux.errors import McpmuxError
from mcpmux.mux.pattern import Glob
from mcpmux.traffic.reading.summary import BAD_HTTP, WORDS, ExchangeSummary, http_words, statuses_of
from mcpmux.traffic.record import Record

OPERATORS = ("!=", "!~", ">=", "<=", "=", "~", ">", "<")
"""Longer ones first."""

TEXT_LIMIT = 10_000  # characters

_HEAD = re.compile(r"(?P<not>!?)(?P<key>[^\s=~<>!|\"*]*)(?P<op>==|!=|!~|>=|<=|=|~|>|<)?")
_PIECE = re.compile(r'[^\s"|*]+|\*|"(?P<quoted>(?:[^"\\]|\\.)*)"', re.DOTALL)
_BLANKS, _WORD = re.compile(r"\s*"), re.compile(r"\S*")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


class FilterError(McpmuxError):
    """A filter that cannot be read. The wrong place is `text[start:end]`."""

    def __init__(self, problem: str, text: str, start: int, end: int) -> None:
        super().__init__(f"{problem}, at character {start + 1} of the filter")
        self.problem = problem
        self.text = text
        self.start = start
        self.end = max(end, start + 1)


class Term(NamedTuple):
    """One condition. A flag has no operator and no values."""

    key: str
    operator: str | None = None
    values: tuple[Glob, ...] = ()
    opposite: bool = False


class Placed(NamedTuple):
    """A term and where it stands in a text: from `start` to `end`, with its key and its values at these."""

    term: Term
    text: str
    start: int
    key: int
    values: int
    end: int

    def error(self, problem: str, start: int | None = None, end: int | None = None) -> FilterError:
        """That something is wrong with the term, from its key to its end if no place is given."""
        return FilterError(problem, self.text, self.key if start is None else start, end or self.end)


def split_terms(text: str) -> list[Placed]:
    """The terms of a filter. Raises FilterError."""
    if len(text) > TEXT_LIMIT:
        raise FilterError(f"the filter is longer than {TEXT_LIMIT} characters", text[:80], 0, 1)
    terms: list[Placed] = []
    at = _after(_BLANKS, text, 0)
    while at < len(text):
        terms.append(_read_term(text, at))
        at = _after(_BLANKS, text, terms[-1].end)
    return terms


def _after(pattern: re.Pattern[str], text: str, start: int) -> int:
    """Where a pattern that matches anywhere ends its match at `start`."""
    found = pattern.match(text, start)
    return found.end() if found is not None else start


def _read_term(text: str, start: int) -> Placed:
    head = _HEAD.match(text, start)
    assert head is not None  # all of it may be absent
    key, sign, opposite = head["key"], head["op"], bool(head["not"])
    at = head.end()
    is_whole = sign is not None or at == len(text) or text[at].isspace()
    if not key or not is_whole:
        problem = "expected key=value here" if sign is None else f"expected a key before {sign}"
        raise FilterError(problem, text, start, _after(_WORD, text, start))
    if sign is None:
        return Placed(Term(key, None, (), opposite), text, start, head.start("key"), at, at)
    value, end = _read_value(text, at)
    values = [value]
    while text[end : end + 1] == "|":
        value, end = _read_value(text, end + 1)
        values.append(value)
    sign = "=" if sign == "==" else sign
    return Placed(Term(key, sign, tuple(values), opposite), text, start, head.start("key"), at, end)


def _read_value(text: str, at: int) -> tuple[Glob, int]:
    pieces = [""]
    while found := _PIECE.match(text, at):
        if found.group() == "*":
            if len(pieces) == 1 or pieces[-1]:  # two stars are one
                pieces.append("")
        else:
            quoted = found["quoted"]
            pieces[-1] += found.group() if quoted is None else _ESCAPE.sub(r"\1", quoted)
        at = found.end()
    if text[at : at + 1] == '"':
        raise FilterError("this quotation mark has no second one", text, at, at + 1)
    return tuple(pieces), at


# What a filter can ask about: keys, the sorts of their values, and how they are compared. Values are read
# once; times are relative to a `now` that is handed in.

Subject: TypeAlias = Record | ExchangeSummary

ORDERED: Mapping[str, Callable[[Any, Any], Any]] = {">": gt, ">=": ge, "<": lt, "<=": le}
TIME_LENGTH = len("2026-11-21T12:00:00.000000")

_MILLISECONDS = {"us": 0.001, "µs": 0.001, "ms": 1.0, "": 1.0, "s": 1e3, "m": 6e4, "min": 6e4, "h": 3.6e6}
_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"": 1, "b": 1, "k": 1024, "kb": 1000, "kib": 1024, "m": 1024**2, "mb": 1000**2, "mib": 1024**2}
_BYTES |= {"g": 1024**3, "gb": 1000**3, "gib": 1024**3}
_MEASURE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?) ?([a-zA-Zµ]{0,3})", re.ASCII)
_CLOCK = re.compile(r"\d\d:\d\d(:\d\d(\.\d{1,6})?)?", re.ASCII)
_HTTP_STATUS = re.compile(r"(http-)?[1-9](\d\d|xx)", re.ASCII)
_DURATION, _SIZE = "a duration such as 200ms or 1.5s", "a size such as 500, 10KiB or 1MiB"
_DAYS = {"now": None, "today": 0, "yesterday": 1}


class Unreadable(ValueError):
    """A value that its key cannot have; the text says what is expected."""


class Sort(NamedTuple):
    """A sort of values. `read`: what a value is compared as; None where text stays text."""

    operators: tuple[str, ...]
    read: Callable[[str, datetime], Any] | None


class Key(NamedTuple):
    """One key. `get`: what a subject has there, a tuple of several things, or None."""

    name: str
    aliases: tuple[str, ...]
    sort: str
    about: str
    get: Callable[[Any], Any]
    words: tuple[str, ...] = ()


def _read_number(text: str, _now: datetime) -> int:
    if not re.fullmatch(r"-?\d{1,15}", text, re.ASCII):
        raise Unreadable("expected a whole number")
    return int(text)


def _measure(text: str, units: Mapping[str, float], expected: str) -> float:
    found = _MEASURE.fullmatch(text)
    if found is None or found[2] not in units:
        raise Unreadable(f"expected {expected}")
    return float(found[1]) * units[found[2]]


def _read_time(text: str, now: datetime) -> str:
    """A time as the beginning of `time` in a record."""
    found = _MEASURE.fullmatch(text)
    try:
        if text.lower() in _DAYS:
            days = _DAYS[text.lower()]
            today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
            moment = now if days is None else today - timedelta(days=days)
        elif found is not None and found[2] in _SECONDS:
            moment = now - timedelta(seconds=float(found[1]) * _SECONDS[found[2]])
        elif _CLOCK.fullmatch(text):
            moment = datetime.fromisoformat(f"{now.astimezone(UTC):%Y-%m-%d}T{text}")
        else:
            moment = datetime.fromisoformat(text)
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        return moment.isoformat(timespec="microseconds")[:TIME_LENGTH]
    except (ValueError, OverflowError):
        expected = "expected 10m (ago), 12:30, today, 2026-11-21 or 2026-11-21T12:30:00, in UTC"
        raise Unreadable(expected) from None


_FAILED = "; `failed` stands for every kind of failure"
_STATUS_HINTS = {
    **dict.fromkeys(("fail", "failed", "failure", "errors", "bad"), _FAILED),
    **dict.fromkeys(("iserror", "toolerror", "toolfailed"), "; a result with isError is tool-error"),
    "timeout": "; code=-31002 finds upstreams that took too long",
}


def _read_status(text: str, _now: datetime) -> str:
    lowered = text.lower()
    if lowered in WORDS:
        return lowered
    if _HTTP_STATUS.fullmatch(lowered):
        return "http-" + lowered.removeprefix("http-")
    hint = _STATUS_HINTS.get(lowered.replace("-", "").replace("_", ""), "")
    raise Unreadable(f"expected one of {', '.join(WORDS)}, or an HTTP status such as 404 or 4xx{hint}")


_EQUAL = ("=", "!=")
_ALIKE = (*_EQUAL, "~", "!~")
_IN_ORDER = (*_EQUAL, *ORDERED)

SORTS: Mapping[str, Sort] = {
    "text": Sort(_ALIKE, None),
    "word": Sort(_EQUAL, None),
    "body": Sort(("~", "!~"), None),
    "flag": Sort((), None),
    "status": Sort(_EQUAL, _read_status),
    "number": Sort(_IN_ORDER, _read_number),
    "duration": Sort(_IN_ORDER, lambda text, _: _measure(text, _MILLISECONDS, _DURATION)),
    "size": Sort(_IN_ORDER, lambda text, _: _measure(text.lower(), _BYTES, _SIZE)),
    "time": Sort(_IN_ORDER, _read_time),
    "since": Sort(("=",), _read_time),
}


def _statuses(subject: Subject) -> tuple[str, ...]:
    words = statuses_of(subject) if isinstance(subject, Record) else subject.statuses
    if words and subject.status is not None and subject.status < BAD_HTTP:
        return (*words, *http_words(subject.status, least=0))
    return words


def _has_failed(subject: Subject) -> bool:
    statuses = _statuses(subject)
    return bool(statuses) and statuses[0] not in ("ok", "open", "cancelled")


def _time(subject: Subject) -> str:
    return subject.time[:TIME_LENGTH]


_KINDS = ("request", "notification", "result", "error", "invalid")
_TABLE = (
    Key("method", (), "text", "the method; an answer has that of its request", lambda s: s.method),
    Key("upstream", ("server",), "text", "name of the upstream", lambda s: s.upstream),
    Key("uri", ("name", "target"), "text", "URI or name that the method is about", lambda s: s.target),
    Key("client", (), "text", "what the client calls itself", lambda s: s.client),
    Key("status", (), "status", "ok, error, tool-error, invalid, 404, 5xx", _statuses),
    Key("failed", (), "flag", "a flag: error, tool-error, invalid, or HTTP 4xx 5xx", _has_failed),
    Key("duration", ("ms", "latency"), "duration", "of an answer, since its request", lambda s: s.ms),
    Key("size", ("bytes",), "size", "of the message", lambda s: s.size),
    Key("code", (), "number", "JSON-RPC error code", lambda s: s.code),
    Key("exchange", (), "number", "number of the exchange", lambda s: s.exchange),
    Key("own", (), "flag", "a flag: mcpmux has asked by itself", lambda s: s.own),
    Key("since", (), "since", "that passed in the last 10m, or since 12:30", _time),
    Key("until", (), "since", "that passed before", _time),
    Key("time", (), "time", "when it passed, in UTC", _time),
    Key("text", ("body", "message"), "body", "what is in the message", lambda _: None),
    Key("leg", ("side",), "word", "client, upstream", lambda s: s.leg, ("client", "upstream")),
    Key("direction", ("dir",), "word", "in (to mcpmux), out", lambda s: s.direction, ("in", "out")),
    Key("kind", ("type",), "word", ", ".join(_KINDS), lambda s: s.kind, _KINDS),
    Key("redacted", (), "flag", "a flag: something was redacted", lambda s: bool(s.redacted)),
    Key("transport", (), "text", "http, stdio, sse, websocket, tcp, unix", lambda s: s.transport),
    Key("revision", (), "text", "protocol revision", lambda s: s.revision),
    Key("session", (), "text", "fingerprint of the HTTP session", lambda s: s.session),
    Key("peer", (), "text", "upstream session (docs#3) or client (c1)", lambda s: s.peer),
    Key("id", (), "text", "JSON-RPC id", lambda s: None if s.id is None else str(s.id)),
    Key("seq", (), "number", "number of the message in its run", lambda s: s.seq),
    Key("run", (), "text", "name of the run", lambda s: s.run),
)

KEYS: Mapping[str, Key] = {key.name: key for key in _TABLE}
NAMES: Mapping[str, Key] = {**KEYS} | {alias: key for key in _TABLE for alias in key.aliases}
"""Keys by their names and their other names."""


# Hints for words that are no terms of a filter.

OTHER_NAMES: Mapping[str, str] = {
    "tool": "name",
    "prompt": "name",
    "resource": "uri",
    "url": "uri",
    "http": "status",
    "outcome": "status",
    "result": "status",
    "principal": "client",
    "user": "client",
    "after": "since",
    "before": "until",
    "length": "size",
    "took": "duration",
}
"""Keys that there might be, and the ones that there are."""

_CONNECTIVES = {
    **dict.fromkeys(("and", "&&", "&"), "all terms must hold anyway: leave `{}` out"),
    **dict.fromkeys(("or", "||", "|"), "one of several values is key=a|b"),
    "not": "the opposite of a term is !key=value, without a blank",
}
_NUMBER = re.compile(r"#(\d{1,15})", re.ASCII)


def hint_for(word: str) -> str | None:
    """What to write in place of a word without an operator; None when there is no hint."""
    lowered = word.lower()
    if lowered in _CONNECTIVES:
        return _CONNECTIVES[lowered].format(word)
    if lowered in WORDS:
        return f"did you mean `status={lowered}`?"
    if (number := _NUMBER.fullmatch(word)) is not None:
        return f"did you mean `exchange={number[1]}`?"
    key, colon, value = word.partition(":")
    if colon and key.lower() in NAMES:
        return f"did you mean `{key}={value}`?"
    return None
