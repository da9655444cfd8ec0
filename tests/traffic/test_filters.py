"""The grammar of filters, what its terms mean for records and exchanges, and what is said of mistakes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.traffic.reading.filters import (
    KEYS,
    OPERATORS,
    SORTS,
    Filter,
    FilterError,
    parse_filter,
    split_terms,
)
from mcpmux.traffic.reading.summary import Summarizer
from mcpmux.traffic.record import Record
from tests.traffic.made import Play, record

NOW = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)

ANSWER = record(
    seq=4,
    at=600,
    kind="result",
    leg="upstream",
    method="resources/read",
    target="file:///Notes/A.md",
    exchange=17,
    ms=250.0,
    size=2048,
    id=5,
    revision="2025-11-25",
    body={"id": 5, "result": {"contents": [{"text": "Caf\u00e9 \U0001f600\nsecond line"}]}},
)
ERROR = record(kind="error", leg="client", direction="out", code=-32602, status=400, ms=1.5, redacted=2)
TOOL = record(kind="result", direction="out", method="tools/call", failed=True, ms=90_000.0, status=200)
REQUEST = record(method="tools/call", target="docs__find", client="claude-ai", text="cut off at the", size=10)
NOTE = record(kind="notification", method="notifications/message", direction="out")
GARBAGE = record(kind="invalid", text="<html>", status=502)
ALL = {"answer": ANSWER, "error": ERROR, "tool": TOOL, "request": REQUEST, "note": NOTE, "garbage": GARBAGE}


def parse(text: str) -> Filter:
    return parse_filter(text, NOW)


# The grammar


class Meant(NamedTuple):
    """The parts of a term, without its place in the text."""

    key: str
    operator: str | None = None
    values: tuple[tuple[str, ...], ...] = ()
    opposite: bool = False


NAMES_OF_KEYS = st.from_regex(r"[a-z][a-z-]{0,10}", fullmatch=True)
PIECES = st.text(st.sampled_from('ab"\\|*! =~<>\t\n\u00e9\U0001f600'), max_size=6)


@st.composite
def globs(draw: st.DrawFn) -> tuple[str, ...]:
    ends = (draw(PIECES), draw(PIECES))
    middle = draw(st.lists(PIECES.filter(bool), max_size=2))
    return draw(st.sampled_from([(ends[0],), (ends[0], *middle, ends[1])]))


TERMS = st.one_of(
    st.builds(Meant, NAMES_OF_KEYS, st.just(None), st.just(()), st.booleans()),
    st.builds(
        Meant,
        NAMES_OF_KEYS,
        st.sampled_from(OPERATORS),
        st.lists(globs(), min_size=1, max_size=3).map(tuple),
        st.booleans(),
    ),
)


def spell(term: Meant) -> str:
    """Return the term with quotes around everything that may have them."""
    pieces = [[piece.replace("\\", "\\\\").replace('"', '\\"') for piece in glob] for glob in term.values]
    values = "|".join("*".join(f'"{piece}"' if piece else "" for piece in glob) for glob in pieces)
    return f"{'!' if term.opposite else ''}{term.key}{term.operator or ''}{values}"


@given(st.lists(TERMS, max_size=4).map(tuple))
def test_what_is_spelt_out_reads_as_it_was_meant(terms: tuple[Meant, ...]):
    text = " ".join(map(spell, terms))
    placed = split_terms(text)
    assert tuple(term[:4] for term in placed) == terms
    assert [term.found[0] for term in placed] == [spell(term) for term in terms]


SPELLINGS = {
    "": [],
    "  a=1\tb!=2\n": [Meant("a", "=", (("1",),)), Meant("b", "!=", (("2",),))],
    "a==1": [Meant("a", "=", (("1",),))],
    "a=*.md": [Meant("a", "=", (("", ".md"),))],
    "a=x**y": [Meant("a", "=", (("x", "y"),))],
    'a="x*y"*': [Meant("a", "=", (("x*y", ""),))],
    'a=b"c d"e': [Meant("a", "=", (("bc de",),))],
    'a="\\"\\\\"': [Meant("a", "=", (('"\\',),))],
    "a=1|2|": [Meant("a", "=", (("1",), ("2",), ("",)))],
    "a=": [Meant("a", "=", (("",),))],
    "!a": [Meant("a", opposite=True)],
    "!a!~b": [Meant("a", "!~", (("b",),), True)],
    "a>=200ms": [Meant("a", ">=", (("200ms",),))],
    "a=b=c": [Meant("a", "=", (("b=c",),))],
    "uri=https://h/?a=1&b=<2>": [Meant("uri", "=", (("https://h/?a=1&b=<2>",),))],
}


def test_spellings(subtests: pytest.Subtests):
    for text, terms in SPELLINGS.items():
        with subtests.test(text):
            assert [term[:4] for term in split_terms(text)] == terms


def test_a_filter_has_a_length():
    with pytest.raises(FilterError, match="longer than"):
        parse("a=1 " * 10_000)


# The meaning of terms

WANTED = {
    "": "answer error tool request note garbage",
    "method=resources/read upstream=docs status=ok duration>200ms uri~*.md": "answer",
    "method=tools/call": "tool request",
    "method=tools/*|resources/*": "answer tool request",
    'method="tools/*"': "",
    "status=200": "tool",
    "status=2xx": "tool",
    "status!=2xx method!=": "answer",
    "failed=true": "error tool garbage",
    "failed=false": "answer request note",
    "!failed=false": "error tool garbage",
    "redacted!=true": "answer tool request note garbage",
    "since=today": "answer error tool request note garbage",
    "since=now": "",
    "until=now": "answer error tool request note garbage",
    "until=yesterday": "",
    "method!=tools/call": "answer note",
    "method=": "error garbage",
    "method!=": "answer tool request note",
    "!method=tools/call": "answer error note garbage",
    "METHOD=tools/call": "tool request",
    "status!=ok": "error tool garbage",
    "status=": "request note",
    "status=error": "error",
    "status=tool_error|invalid": "tool garbage",
    "status=tool-error": "tool",
    "status=400": "error",
    "status=http-4xx|5xx": "error garbage",
    "failed": "error tool garbage",
    "!failed": "answer request note",
    "redacted": "error",
    "duration>=250": "answer tool",
    "ms<2ms": "error",
    "latency>1m": "tool",
    "duration=1.5|250ms": "answer error",
    "duration!=250ms": "error tool",
    "size>1KiB": "answer",
    "size>=2k size<=2KiB": "answer",
    "bytes=10": "request",
    "code=-32602": "error",
    "code<0": "error",
    "exchange=17|18": "answer",
    "exchange=#17": "answer",
    "#17": "answer",
    "!#17": "error tool request note garbage",
    "duration>=0.2 s ms<251 ms": "answer",
    "size>1.5 KiB": "answer",
    "bytes=10 B": "request",
    "since=2026-11-21T12:05:00.000": "answer",
    "id=5": "answer",
    "uri~notes": "answer",
    "uri~*.MD|docs__*": "answer request",
    "uri!~.md": "request",
    "name=docs__find": "request",
    "client=claude-ai leg=client kind=request": "request",
    "leg=upstream": "answer",
    "dir=out kind=notification|error": "error note",
    "peer=c1 transport=http kind=invalid": "garbage",
    "revision~2025": "answer",
    "since=20m": "answer",
    "since=12:05": "answer",
    "until=12:05 kind=invalid": "garbage",
    "time>2026-11-21T12:09:59.5Z": "answer",
    "time>2026-11-21T14:09:00+02:00": "answer",
    "time>=2026-11-21 time<2026-11-21T12:00:01 kind=invalid": "garbage",
    "text~caf\u00c9": "answer",
    "text~'second": "",
    'text~"\n"': "answer",
    'text~"cut off"': "request",
    "text~html|second": "answer garbage",
    "text~cut*the": "request",
    "text!~html": "answer request",
    "!text~html": "answer error tool request note",
    "run=5f3a9c01 seq>3": "answer",
    "café": "answer",
    '"cut off"': "request",
    "html|second": "answer garbage",
    "cut*the !café": "request",
}


def test_what_is_wanted(subtests: pytest.Subtests):
    for text, names in WANTED.items():
        with subtests.test(text):
            filter_ = parse(text)
            assert [name for name, record in ALL.items() if filter_.matches(record)] == names.split()


def _examples() -> list[str]:
    """Return a term for every key and operator."""
    values = {
        "status": "ok",
        "number": "17",
        "exchange": "#17",
        "duration": "2ms",
        "size": "2KiB",
        "time": "10m",
        "since": "10m",
    }
    examples = []
    for key in KEYS.values():
        value = values.get(key.sort, key.words[0] if key.words else "docs*")
        examples += [f"{key.name}{operator}{value}" for operator in SORTS[key.sort].operators] or [key.name]
    return examples


RECORDS = st.sampled_from(list(ALL.values()))
EXAMPLES = st.sampled_from(_examples())


@given(EXAMPLES, RECORDS)
def test_a_mark_in_front_is_the_exact_opposite(text: str, subject: Record):
    assert parse(f"!{text}").matches(subject) is not parse(text).matches(subject)


@given(st.sampled_from([text for text in _examples() if "!=" in text or "!~" in text]), RECORDS)
def test_not_equal_is_there_and_not_equal(text: str, subject: Record):
    is_there = parse(text).matches(subject) or parse(text.replace("!", "", 1)).matches(subject)
    assert parse(text).matches(subject) == (is_there and not parse(text.replace("!", "", 1)).matches(subject))
    assert not (parse(text).matches(subject) and parse(text.replace("!", "", 1)).matches(subject))


@given(EXAMPLES, EXAMPLES, RECORDS)
def test_all_terms_must_hold(one: str, other: str, subject: Record):
    both = parse(f"{one} {other}").matches(subject)
    assert both == (parse(one).matches(subject) and parse(other).matches(subject))


MISTAKES = {
    'a="x': ("no second one", '"'),
    "a=1 =2": ("expected a key before =", "=2"),
    "x |y": ("expected key=value", "|y"),
    "x!": ("expected key=value", "x!"),
    "a|b=1": ("expected key=value", "a|b=1"),
    "*": ("expected key=value", "*"),
    "!": ("expected key=value", "!"),
    "upstrem=docs": ("did you mean `upstream`?", "upstrem"),
    "method=x !duratoin>1": ("did you mean `duration`?", "duratoin"),
    "colour=red": ("there are body, bytes, client", "colour"),
    "faild": ("did you mean `failed`?", "faild"),
    "redactd": ("did you mean `redacted`?", "redactd"),
    "method": ("expected a value: method=…", "method"),
    "failed=yes": ("`failed` is a flag", "failed=yes"),
    "upstream>docs": ("`upstream` knows =  !=  ~  !~", ">"),
    "!duration~2": ("`duration` knows", "~"),
    "text=x": ("`text` knows ~  !~", "="),
    "duration>fast": ("expected a duration such as 200ms", "fast"),
    "duration>1|2": ("expected one value", "1|2"),
    "size>3ms": ("expected a size", "3ms"),
    "since=tomorrow": ("expected 10m (ago), 12:30, today", "tomorrow"),
    "method=x and status=ok": ("all terms must hold anyway: leave `and` out", "and"),
    "method=x or": ("one of several values is key=a|b", "or"),
    "not failed": ("the opposite of a term is !key=value", "not"),
    "method=x error": ("did you mean `status=error`?", "error"),
    "status=-32002": ("did you mean `code=-32002`?", "-32002"),
    "12:44:59.123": ("did you mean `since=12:44:59.123`?", "12:44:59.123"),
    "2026-11-21T12:44": ("did you mean `since=2026-11-21T12:44`?", "2026-11-21T12:44"),
    "2026-11-21": ("did you mean `since=2026-11-21`?", "2026-11-21"),
    "method:tools/call": ("did you mean `method=tools/call`?", "method:tools/call"),
    "tool=find": ("did you mean `name`?", "tool"),
    "status>=400": ("4xx|5xx is every HTTP status from 400", ">="),
    "status=failed": ("`failed` stands for every kind of failure", "failed"),
    "status=isError": ("a result with isError is tool_error", "isError"),
    "failed>1": ("`failed` is a flag", "failed>1"),
    "since=10": ("expected 10m (ago)", "10"),
    "since=999999999h": ("expected 10m (ago)", "999999999h"),
    "code=x": ("expected a whole number", "x"),
    "status=good": ("expected one of ok, error", "good"),
    "leg=middle": ("expected one of client, upstream", "middle"),
    "kind=a*": ("expected one of request", "a*"),
}


def test_a_mistake_tells_what_to_write_and_where(subtests: pytest.Subtests):
    for text, (advice, place) in MISTAKES.items():
        with subtests.test(text):
            with pytest.raises(FilterError) as caught:
                parse(text)
            assert advice in caught.value.problem
            assert text[caught.value.start : caught.value.end] == place


@given(st.text(max_size=60))
def test_any_text_is_a_filter_or_a_mistake(text: str):
    try:
        filter_ = parse(text)
    except FilterError as error:
        assert 0 <= error.start < error.end <= len(text) + 1
        assert error.text == text
    else:
        for subject in ALL.values():
            filter_.matches(subject)


def test_an_exchange_is_judged_by_both_legs():
    play = Play()
    play.read("file:///a.md", seconds=0.3, text="needle")
    play.read("file:///b.md", upstream="git", error=-32602)
    play.call(failed=True)

    def numbers(text: str) -> list[int | None]:
        filter_ = parse(text)
        summarizer = Summarizer(filter_.body_tests)
        ended = [exchange for record in play.records for exchange in summarizer.add(record)]
        return [exchange.exchange for exchange in ended if filter_.matches(exchange)]

    assert numbers("") == [1, 2, 3]
    assert numbers("upstream=docs client=claude-ai status=ok duration>200ms uri~*.md") == [1]
    assert numbers("uri=file:///b.md") == numbers("uri=git+file:///b.md") == [2]
    assert numbers("upstream=") == [3]
    assert numbers("status!=ok") == [2, 3]
    assert numbers("upstream!=docs") == [2]
    assert numbers("text~needle") == [1]
    assert numbers("!text~needle") == [2, 3]
    assert numbers("text~needle text~b.md") == []


@pytest.mark.parametrize("text", ["name=docs__find", "name=find", "name=*find", "name~FIND", "!name!=find"])
def test_a_name_is_found_on_both_legs_in_either_spelling(text: str):
    request = record(method="tools/call", target="docs__find", leg="client")
    passed = record(method="tools/call", target="find", leg="upstream", upstream="docs")
    elsewhere = record(method="tools/call", target="find", leg="upstream", upstream="web")
    filter_ = parse(text)
    assert filter_.matches(request) and filter_.matches(passed)
    assert filter_.matches(elsewhere) is (text != "name=docs__find")


@pytest.mark.parametrize("text", ["uri=docs+note:///a", "uri=note:///a", "uri=*note:*"])
def test_a_uri_is_found_on_both_legs_in_either_spelling(text: str):
    filter_ = parse(text)
    for leg, target, upstream in (("client", "docs+note:///a", None), ("upstream", "note:///a", "docs")):
        assert filter_.matches(record(method="resources/read", target=target, leg=leg, upstream=upstream))
    assert not filter_.matches(record(method="resources/read", target="docs+file:///a", leg="client"))
