"""Select messages or exchanges: the filter language. Pure.

    method=resources/read upstream=docs status!=ok duration>200ms uri~*.md

    filter       = terms, all of which must hold, with blanks between them
    term         = ["!"] key operator value { "|" value }  |  ["!"] flag  |  ["!"] value
    operator     = "="  "!="  "~"  "!~"  ">"  ">="  "<"  "<="
    value        = text with `*` for any text; in "quotes" blanks, `|` and `*` stand for themselves, and `\"`
                   and `\\` for the quote and the backslash; a number may have its unit behind a blank

`=` and `~` hold when one of the values fits. `!=` and `!~` hold when there is a value and none fits; a `!`
in front of a term is its exact opposite. An empty value means an absent one: `upstream=` selects messages
without an upstream, `upstream!=` those that have one.

`=` respects case, `~` ignores it; `~` without a star also fits a part. `text~word` searches
bodies as they were sent and with escapes decoded; for an exchange it holds when it holds for one of
its messages. A term that is only a value searches bodies, methods, names and URIs like that. `#17` is the
exchange of that number, and `-32602` the error code.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import ge, gt, le, lt
from typing import Any, NamedTuple, TypeAlias

import msgspec
from attrs import define, evolve

from mcpmux.errors import McpmuxError
from mcpmux.mux.naming import likely_own, likely_shown
from mcpmux.mux.pattern import Glob, casefold, is_inside, matches
from mcpmux.protocol.method import KNOWN
from mcpmux.traffic.outcome import BAD_HTTP, CANCELLED, MESSAGE_WORDS, OK, OPEN, http_words, statuses_of
from mcpmux.traffic.reading.summary import ExchangeSummary
from mcpmux.traffic.record import Record

OPERATORS = ("!=", "!~", ">=", "<=", "=", "~", ">", "<")
"""Longer ones first."""

TEXT_LIMIT = 10_000  # characters

_TERM = re.compile(
    r"""(?=\S)(?P<not>!?)(?P<key>[^\s=~<>!|"*]*)(?P<sign>==|!=|!~|>=|<=|[=~><])?"""
    r"""(?P<values>(?:[^\s"]|"(?:[^"\\]|\\.)*+")*+(?:(?<=\d) (?:us|µs|ms|s|min|B|[KMG]iB)(?!\S))?)""",
    re.DOTALL,
)
_PIECE = re.compile(r'[^"|*]+|\*+|\||"(?P<quoted>(?:[^"\\]|\\.)*)"', re.DOTALL)
_WORD = re.compile(r"\S+")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_OPERATOR = re.compile(r"[=~<>]|^\||!$")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


class FilterError(McpmuxError):
    """An invalid filter. The wrong place is `text[start:end]`."""

    def __init__(self, problem: str, text: str, start: int, end: int) -> None:
        super().__init__(f"{problem}, at character {start + 1} of the filter")
        self.problem = problem
        self.text = text
        self.start = start
        self.end = max(end, start + 1)


class Term(NamedTuple):
    """One condition, and its place in the text. A flag or a searched word has no operator."""

    key: str
    operator: str | None
    values: tuple[Glob, ...]
    opposite: bool
    found: re.Match[str]

    def error(self, problem: str, part: str | None = None) -> FilterError:
        """Return an error about its `key`, `sign` or `values`, or about all of it."""
        start, end = self.found.span(part or 0)
        return FilterError(problem, self.found.string, start if part else self.found.start("key"), end)


def split_terms(text: str) -> list[Term]:
    """Return the terms of a filter. Raises FilterError."""
    if len(text) > TEXT_LIMIT:
        raise FilterError(f"the filter is longer than {TEXT_LIMIT} characters", text[:80], 0, 1)
    terms: list[Term] = []
    for match in _TERM.finditer(text):
        start, end = match.span()
        key, sign, values = match["key"], match["sign"], match["values"]
        searched: tuple[Glob, ...] = ()
        if sign is None and values:  # perhaps text to search for
            whole = key + values
            if whole.strip("*|") not in ("", '""') and _OPERATOR.search(_QUOTED.sub("", whole)) is None:
                searched = _read_values(whole)
        unclosed = text[end : end + 1] == '"'
        if not searched and not unclosed and (not key or (sign is None and values)):
            problem = "expected key=value here" if sign is None else f"expected a key before {sign}"
            word = _WORD.match(text, start)
            raise FilterError(problem, text, start, word.end() if word is not None else end)
        if unclosed:
            raise FilterError("this quotation mark has no second one", text, end, end + 1)
        operator, globs = "=" if sign == "==" else sign, _read_values(values) if sign else searched
        if sign is None and (number := _EXCHANGE.fullmatch(key)) is not None:
            key, operator, globs = "exchange", "=", ((number[1],),)
        elif sign is None and _CODE.fullmatch(key):
            key, operator, globs = "code", "=", ((key,),)
        terms.append(Term(key, operator, globs, bool(match["not"]), match))
    return terms


def _read_values(text: str) -> tuple[Glob, ...]:
    globs = [[""]]
    for piece in _PIECE.finditer(text):
        if piece[0] == "|":
            globs.append([""])
        elif piece[0][0] == "*":  # two stars are one
            globs[-1].append("")
        else:
            quoted = piece["quoted"]
            globs[-1][-1] += piece[0] if quoted is None else _ESCAPE.sub(r"\1", quoted)
    return tuple(map(tuple, globs))


# The keys of a filter, the sorts of their values, and how they are compared. Values are read
# once; times are relative to a `now` that is an argument.

Subject: TypeAlias = Record | ExchangeSummary
Test: TypeAlias = Callable[[Subject], bool]

ORDERED: Mapping[str, Callable[[Any, Any], Any]] = {">": gt, ">=": ge, "<": lt, "<=": le}
TIME_LENGTH = len("2026-11-21T12:00:00.000000")

_MILLISECONDS = {"us": 0.001, "µs": 0.001, "ms": 1.0, "": 1.0, "s": 1e3, "m": 6e4, "min": 6e4, "h": 3.6e6}
_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"": 1, "b": 1, "k": 1024, "kb": 1000, "kib": 1024, "m": 1024**2, "mb": 1000**2, "mib": 1024**2}
_BYTES |= {"g": 1024**3, "gb": 1000**3, "gib": 1024**3}
_MEASURE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?) ?([a-zA-Zµ]{0,3})", re.ASCII)
_NUMBER = re.compile(r"#?(-?\d{1,15})", re.ASCII)
_CODE = re.compile(r"-\d{1,15}", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d.*)?", re.ASCII)
_EXCHANGE = re.compile(r"#(\d{1,15})", re.ASCII)
_CLOCK = re.compile(r"\d\d:\d\d(:\d\d(\.\d{1,6})?)?", re.ASCII)
_HTTP_STATUS = re.compile(r"(http-)?[1-9](\d\d|xx)", re.ASCII)
_DURATION, _SIZE = "a duration such as 200ms or 1.5s", "a size such as 500, 10KiB or 1MiB"
_DAYS = {"today": 0, "yesterday": 1}
_decoder = msgspec.json.Decoder()


class Sort(NamedTuple):
    """A sort of values. `read`: returns the value to compare with; None where text stays text.

    It raises ValueError for an impossible value, with what is expected.
    """

    operators: tuple[str, ...]
    read: Callable[[str, datetime], Any] | None = None


class Key(NamedTuple):
    """One key. `get`: returns the value of a subject, a tuple of several values, or None."""

    name: str
    aliases: tuple[str, ...]
    sort: str
    about: str
    get: Callable[[Any], Any]
    words: tuple[str, ...] = ()


def _read_number(text: str, _now: datetime) -> int:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError("expected a whole number")
    return int(match[1])


def _measure(text: str, units: Mapping[str, float], expected: str) -> float:
    match = _MEASURE.fullmatch(text)
    if match is None or match[2] not in units:
        raise ValueError(f"expected {expected}")
    return float(match[1]) * units[match[2]]


def _read_time(text: str, now: datetime) -> str:
    """Return a time as the beginning of `time` in a record."""
    now, word = now.astimezone(UTC), text.lower()
    match = _MEASURE.fullmatch(text)
    try:
        if word == "now":
            moment = now
        elif word in _DAYS:
            moment = now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=_DAYS[word])
        elif match is not None and match[2] in _SECONDS:
            moment = now - timedelta(seconds=float(match[1]) * _SECONDS[match[2]])
        else:
            moment = datetime.fromisoformat(f"{now:%Y-%m-%d}T{text}" if _CLOCK.fullmatch(text) else text)
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        return moment.isoformat(timespec="microseconds")[:TIME_LENGTH]
    except (ValueError, OverflowError):
        expected = "expected 10m (ago), 12:30, today, 2026-11-21 or 2026-11-21T12:30:00, in UTC"
        raise ValueError(expected) from None


_FAILED = "; `failed` stands for every kind of failure"
_STATUS_HINTS = {
    **dict.fromkeys(("fail", "failed", "failure", "errors", "bad"), _FAILED),
    **dict.fromkeys(("iserror", "toolerror", "toolfailed"), "; a result with isError is tool_error"),
}


def _read_status(text: str, _now: datetime) -> str:
    lowered = text.lower()
    if (word := lowered.replace("-", "_")) in MESSAGE_WORDS:
        return word
    if _HTTP_STATUS.fullmatch(lowered):
        return "http-" + lowered.removeprefix("http-")
    hint = (
        f"; did you mean `code={text}`?"
        if _CODE.fullmatch(text)
        else _STATUS_HINTS.get(lowered.replace("-", "").replace("_", ""), "")
    )
    raise ValueError(
        f"expected one of {', '.join(MESSAGE_WORDS)}, or an HTTP status such as 404 or 4xx{hint}"
    )


_EQUAL = ("=", "!=")
_IN_ORDER = (*_EQUAL, *ORDERED)

SORTS: Mapping[str, Sort] = {
    "text": Sort((*_EQUAL, "~", "!~")),
    "word": Sort(_EQUAL),
    "body": Sort(("~", "!~")),
    "flag": Sort(()),
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
    return next(iter(_statuses(subject)), OK) not in (OK, OPEN, CANCELLED)


def _time(subject: Subject) -> str:
    return subject.time[:TIME_LENGTH]


def _spellings(subject: Subject) -> tuple[str, ...]:
    """Return the target of a message or exchange, as clients name it and as the upstream does."""
    target, upstream = subject.target, subject.upstream
    if isinstance(target, tuple):
        return (*target, *map(likely_own, target))
    if not target:
        return ()
    return target, likely_shown(target, upstream) if isinstance(upstream, str) else likely_own(target)


def body_texts(record: Record) -> tuple[str, ...]:
    """Return the body as it was sent and, if it has escapes, all its text without them."""
    if record.message is None:
        return (record.text,) if record.text is not None else ()
    wire = bytes(record.message).decode("utf-8", "replace")
    if "\\" not in wire:
        return (wire,)
    try:
        return wire, "\n".join(_strings_in(_decoder.decode(record.message)))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return (wire,)


def _searched_texts(record: Record) -> tuple[str, ...]:
    return (*body_texts(record), record.method or "", *_spellings(record))


def _strings_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, member in value.items():
            yield name
            yield from _strings_in(member)
    elif isinstance(value, list):
        for item in value:
            yield from _strings_in(item)


_KINDS = ("request", "notification", "result", "error", "invalid")
_TABLE = (
    Key("method", (), "text", "the method; an answer has that of its request", lambda s: s.method),
    Key("upstream", ("server",), "text", "name of the upstream", lambda s: s.upstream),
    Key("uri", ("name", "target"), "text", "URI or name that the method is about, on either leg", _spellings),
    Key("client", (), "text", "what the client calls itself", lambda s: s.client),
    Key("status", (), "status", "ok, error, timeout, tool_error, invalid, 404, 5xx", _statuses),
    Key("failed", (), "flag", "a flag: error, tool_error, invalid, or HTTP 4xx 5xx", _has_failed),
    Key("duration", ("ms", "latency"), "duration", "of an answer, since its request", lambda s: s.ms),
    Key("size", ("bytes",), "size", "of the message", lambda s: s.size),
    Key("code", (), "number", "JSON-RPC error code", lambda s: s.code),
    Key("exchange", (), "number", "number of the exchange", lambda s: s.exchange),
    Key("own", (), "flag", "a flag: mcpmux has asked by itself", lambda s: s.own),
    Key("since", (), "since", "that passed in the last 10m, or since 12:30", _time),
    Key("until", (), "since", "that passed before", _time),
    Key("time", (), "time", "when it passed, in UTC", _time),
    Key("text", ("body", "message"), "body", "what is in the message", body_texts),
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

SEARCH = Key("", (), "body", "text anywhere in the message, its method, name or URI", _searched_texts)
"""The key of a term that is only a value."""

KEYS: Mapping[str, Key] = {key.name: key for key in _TABLE}
NAMES: Mapping[str, Key] = {**KEYS} | {alias: key for key in _TABLE for alias in key.aliases}
"""Keys by their names and aliases."""

_LIVE = (
    Key("view", (), "text", "view of the client", lambda s: s.view),
    Key("marked", (), "flag", "a flag: somebody has marked it", lambda s: s.marked),
    Key("note", (), "text", "what somebody has noted on it", lambda s: s.note),
)
LIVE_NAMES: Mapping[str, Key] = {**NAMES, **{key.name: key for key in _LIVE}}
"""Keys for live exchanges, which have more members than those of captures."""


# Hints for words that are not terms of a filter.

OTHER_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("tool", "prompt"), "name"),
    **dict.fromkeys(("resource", "url"), "uri"),
    **dict.fromkeys(("http", "outcome", "result"), "status"),
    **dict.fromkeys(("principal", "user"), "client"),
    "after": "since",
    "before": "until",
    "length": "size",
    "took": "duration",
}
"""Keys that people may expect, and the existing ones."""

_CONNECTIVES = {
    **dict.fromkeys(("and", "&&", "&"), "all terms must hold anyway: leave `{}` out"),
    **dict.fromkeys(("or", "||", "|"), "one of several values is key=a|b"),
    "not": "the opposite of a term is !key=value, without a blank",
}


def may_be_term(word: str) -> bool:
    """Return whether a word is a term of a filter; else it is a path: with a slash, but no URI or method."""
    if any(operator in word for operator in OPERATORS) or " " in word:
        return True
    return "/" not in word.replace("\\", "/") or "://" in word or word in KNOWN


def _hint_for(word: str) -> str | None:
    """Return the term to write instead of a word without an operator; None when there is no hint."""
    lowered = word.lower()
    if lowered in _CONNECTIVES:
        return _CONNECTIVES[lowered].format(word)
    if lowered in MESSAGE_WORDS:
        return f"did you mean `status={lowered}`?"
    if _CLOCK.fullmatch(word) or _DATE.fullmatch(word):
        return f"did you mean `since={word}`?"
    key, colon, value = word.partition(":")
    return f"did you mean `{key}={value}`?" if colon and key.lower() in NAMES else None


# Terms as tests.

_NOTHING: Glob = ("",)
_LIMITS = {"since": ">=", "until": "<"}


class NameTest(NamedTuple):
    """A term that asks for a name, such as `upstream=docs`, and its test."""

    key: Key
    term: Term
    holds: Test


@define(frozen=True, eq=False)
class Filter:
    """All terms must hold. `body_tests`: the terms on bodies, for a Summarizer that judges exchanges.

    `name_tests`: the terms that ask for a name, which Sightings compares with the names that there are.
    `searched`: the terms that are only a value.
    """

    _tests: Sequence[Test]
    body_tests: Sequence[Test]
    name_tests: Sequence[NameTest] = ()
    searched: Sequence[str] = ()

    def __bool__(self) -> bool:
        """Return whether it has any terms."""
        return bool(self._tests)

    def matches(self, subject: Subject) -> bool:
        """Return whether all terms hold for a message or an exchange."""
        for test in self._tests:  # noqa: SIM110 - a generator costs more than most tests
            if not test(subject):
                return False
        return True

    def with_body_test(self, holds: Callable[[Record], bool]) -> Filter:
        """Return this filter with one more condition: a message for which the test holds."""
        test = body_test(holds)
        return evolve(self, tests=(*self._tests, test), body_tests=(*self.body_tests, test))


def parse_filter(text: str, now: datetime, names: Mapping[str, Key] = NAMES) -> Filter:
    """Return the filter of a text; `now`, with a zone: the time that `since=10m` counts from.

    `names`: keys by all their names, for subjects of another kind. Raises FilterError.
    """
    tests: list[Test] = []
    body_tests: list[Test] = []
    name_tests: list[NameTest] = []
    searched: list[str] = []
    for term in split_terms(text):
        key = _key_of(term, names)
        if key is SEARCH:
            term = term._replace(operator="~", values=term.values or ((term.key,),))
            searched.append(term.found[0])
        test = _test_of(key, term, now)
        if key.sort == "body":
            body_tests.append(test)
        if key.sort == "text" and term.operator in ("=", "~") and not term.opposite:
            name_tests.append(NameTest(key, term, test))
        tests.append(partial(_fails, test) if term.opposite else test)
    return Filter(tests, body_tests, name_tests, searched)


NEAR = 0.5  # similarity from which a name is suggested
NEAR_FLAG = 0.8  # similarity from which a word is a misspelt flag, and no text to search for
NAMES_LIMIT = 1000  # different names under one key that are remembered; a capture may have any number
TOLD_NAMES = 5  # that are listed when none is similar to the wanted one


class Sightings:
    """The names in what was read, to explain why a filter has no match."""

    def __init__(self, wanted: Filter) -> None:
        self._missing: list[tuple[NameTest, dict[str, None]]] = [(test, {}) for test in wanted.name_tests]

    def add(self, subject: Subject) -> None:
        """Note the names in a message or an exchange."""
        for missing in list(self._missing):
            test, names = missing
            if test.holds(subject):
                self._missing.remove(missing)
                continue
            value = test.key.get(subject)
            for name in value if isinstance(value, tuple) else (value,):
                if name and len(names) < NAMES_LIMIT:
                    names[name] = None

    def advice(self) -> str:
        """Return a colon and the terms without a match, with the nearest name for each; "" without any."""
        texts = (f"none has `{test.term.found[0]}`{_nearest(test, names)}" for test, names in self._missing)
        return ": " + "; ".join(texts) if self._missing else ""


def _nearest(test: NameTest, names: Collection[str]) -> str:
    key = test.term.key
    for value in test.term.values:
        if close := difflib.get_close_matches("*".join(value), names, n=1, cutoff=NEAR):
            return f"; did you mean `{key}={close[0]}`?"
    if not names:
        return f", nor any {test.key.name}"
    more = ", …" if len(names) > TOLD_NAMES else ""
    return f"; known: {', '.join(sorted(names)[:TOLD_NAMES])}{more}"


def _fails(test: Test, subject: Subject) -> bool:
    return not test(subject)


def _key_of(term: Term, names: Mapping[str, Key]) -> Key:
    name = term.key
    key = names.get(name.lower())
    if key is not None:
        return key
    if term.operator is None:
        flags = [flag for flag, key in names.items() if key.sort == "flag"]
        close = difflib.get_close_matches(name.lower(), flags, n=1, cutoff=NEAR_FLAG)
        if (near := _hint_for(name)) is not None:
            problem = f"this is no key=value; {near}"
        elif close:
            problem = f"no such flag; did you mean `{close[0]}`?"
        elif "text" in names:
            return SEARCH
        else:
            problem = 'no such flag; expected key=value; blanks in a value need "quotes"'
    else:
        other = OTHER_NAMES.get(name.lower(), "")
        close = [other] if other in names else difflib.get_close_matches(name.lower(), names, n=1)
        hint = f"did you mean `{close[0]}`?" if close else "there are " + ", ".join(sorted(names))
        problem = f"no such key; {hint}"
    raise term.error(problem, "key")


def _test_of(key: Key, term: Term, now: datetime) -> Test:
    get, name, operator, values = key.get, term.key, term.operator, term.values
    operators = SORTS[key.sort].operators
    if not operators:
        word = "*".join(values[0]).lower() if values else "true"
        if operator not in (None, *_EQUAL) or len(values) > 1 or word not in ("true", "false"):
            raise term.error(f"`{key.name}` is a flag; write {key.name} or !{key.name}")
        is_wanted = (word == "true") is (operator != "!=")
        return lambda subject: (get(subject) is True) is is_wanted
    if operator is None:
        raise term.error(f"expected a value: {name}{operators[0]}…")
    if operator not in operators:
        hint = "; 4xx|5xx is every HTTP status from 400" if key.sort == "status" else ""
        raise term.error(f"`{name}` knows {'  '.join(operators)}{hint}", "sign")
    try:
        fits = _comparison(key, term, now)
    except ValueError as error:
        raise term.error(str(error), "values") from None
    is_unlike = operator in ("!=", "!~")
    nothing_fits = is_unlike or (_NOTHING in values and key.sort != "body")

    def test(subject: Subject) -> bool:
        value = get(subject)
        if value is None or value == () or value == "":
            return nothing_fits is not is_unlike
        return (any(map(fits, value)) if type(value) is tuple else fits(value)) is not is_unlike

    return body_test(test) if key.sort == "body" else test


def _comparison(key: Key, term: Term, now: datetime) -> Callable[[Any], bool]:
    read = SORTS[key.sort].read
    globs = [glob for glob in term.values if glob != _NOTHING or key.sort == "body"]
    if read is not None:
        compare = ORDERED.get(_LIMITS.get(key.name, str(term.operator)))
        if compare is None:
            return {read("*".join(glob), now) for glob in globs}.__contains__
        if len(term.values) != 1:
            raise ValueError("expected one value here")
        limit = read("*".join(term.values[0]), now)
        return lambda value: bool(compare(value, limit))
    if key.words and not all("*".join(glob) in key.words for glob in globs):
        raise ValueError(f"expected one of {', '.join(key.words)}")
    if term.operator in ("~", "!~"):
        is_whole = key.sort != "body"
        folded = [(casefold(glob), matches if is_whole and len(glob) > 1 else is_inside) for glob in globs]
        return lambda text: any(is_like(glob, low) for low in [text.casefold()] for glob, is_like in folded)
    if all(len(glob) == 1 for glob in globs):
        return frozenset(glob[0] for glob in globs).__contains__
    return lambda text: any(matches(glob, text) for glob in globs)


def body_test(holds: Callable[[Record], bool]) -> Test:
    """Return a test of messages, which a Summarizer also makes of the messages of exchanges."""

    def test(subject: Subject) -> bool:
        return test in subject.passed_tests if isinstance(subject, ExchangeSummary) else holds(subject)

    return test
