"""Which messages or exchanges are wanted. Pure.

    method=resources/read upstream=docs status!=ok duration>200ms uri~*.md

`filter_language` has the grammar and the keys. `=` compares as it is, `~` whatever the case; `~`
without a star is content with a part. `text~word` looks into bodies as they are on the wire and with escapes
undone; of an exchange it holds when it holds for one of its messages.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeAlias

import msgspec

from mcpmux.mux.pattern import Glob, casefold, is_inside, matches
from mcpmux.traffic.reading.filter_language import (
    NAMES,
    ORDERED,
    OTHER_NAMES,
    SORTS,
    Key,
    Placed,
    Subject,
    Term,
    Unreadable,
    hint_for,
    split_terms,
)
from mcpmux.traffic.reading.summary import ExchangeSummary
from mcpmux.traffic.record import Record

Test: TypeAlias = Callable[[Subject], bool]

_NOTHING: Glob = ("",)
_LIMITS = {"since": ">=", "until": "<"}
_decoder = msgspec.json.Decoder()


class Filter:
    """All terms must hold. `body_tests`: the terms on bodies, for a Summarizer that judges exchanges."""

    def __init__(self, text: str, tests: Sequence[Test], body_tests: Sequence[Test]) -> None:
        self.body_tests = tuple(body_tests)
        self._text = text
        self._tests = tuple(tests)

    def __repr__(self) -> str:
        return f"<Filter {self._text}>"

    def __bool__(self) -> bool:
        """Whether it asks for anything."""
        return bool(self._tests)

    def matches(self, subject: Subject) -> bool:
        """Whether the message or exchange is wanted."""
        return all(test(subject) for test in self._tests)


def parse_filter(text: str, now: datetime, names: Mapping[str, Key] = NAMES) -> Filter:
    """The filter that the text describes; `now`, with a zone, is what `since=10m` counts from.

    `names`: keys by all their names, for subjects of another kind. Raises FilterError.
    """
    tests: list[Test] = []
    body_tests: list[Test] = []
    for placed in split_terms(text):
        key = _key_of(placed, names)
        placed = placed._replace(term=_plain_flag(key, placed.term))
        _check(key, placed)
        if key.sort == "body":
            body_tests.append(_body_test(placed.term))
            test: Test = partial(_passes_body_test, body_tests[-1])
        else:
            test = _test_of(key, placed, now)
        tests.append(partial(_fails, test) if placed.term.opposite else test)
    return Filter(text, tests, body_tests)


def _fails(test: Test, subject: Subject) -> bool:
    return not test(subject)


def _passes_body_test(test: Test, subject: Subject) -> bool:
    """A Summarizer has run the test on the messages of an exchange."""
    return test in subject.passed_tests if isinstance(subject, ExchangeSummary) else test(subject)


def _key_of(placed: Placed, names: Mapping[str, Key]) -> Key:
    name = placed.term.key
    key = names.get(name.lower())
    if key is not None:
        return key
    close = difflib.get_close_matches(name.lower(), names, n=1)
    if placed.term.operator is None:
        if (meant := hint_for(name)) is not None:
            problem = f"this is no key=value; {meant}"
        elif close:
            problem = f"no such flag; did you mean `{_example(names[close[0]], close[0])}`?"
        else:
            find = f"to find the word anywhere: text~{name}; " if "text" in names else ""
            problem = f'no such flag; expected key=value; {find}blanks in a value need "quotes"'
    else:
        other = OTHER_NAMES.get(name.lower())
        close = [other] if other in names else close
        hint = f"did you mean `{close[0]}`?" if close else "there are " + ", ".join(sorted(names))
        problem = f"no such key; {hint}"
    raise placed.error(problem, end=placed.key + len(name))


def _plain_flag(key: Key, term: Term) -> Term:
    """`failed=true` is `failed`, `failed=false` is `!failed`."""
    word = "*".join(term.values[0]).lower() if len(term.values) == 1 else ""
    if key.sort != "flag" or term.operator not in ("=", "!=") or word not in ("true", "false"):
        return term
    return Term(term.key, None, (), term.opposite ^ (term.operator == "!=") ^ (word == "false"))


def _example(key: Key, name: str) -> str:
    operators = SORTS[key.sort].operators
    return f"{name}{operators[0]}…" if operators else name


def _check(key: Key, placed: Placed) -> None:
    """Raises FilterError for an operator that the key does not have."""
    name, operator, *_ = placed.term
    operators = SORTS[key.sort].operators
    if operator is None and operators:
        raise placed.error(f"expected a value: {_example(key, name)}")
    if operator is not None and not operators:
        raise placed.error(f"`{key.name}` is a flag; write {key.name} or !{key.name}")
    if operator is not None and operator not in operators:
        hint = "; 4xx|5xx is every HTTP status from 400" if key.sort == "status" else ""
        place = placed.key + len(name)
        raise placed.error(f"`{name}` knows {'  '.join(operators)}{hint}", place, place + len(operator))


def _test_of(key: Key, placed: Placed, now: datetime) -> Test:
    term, get = placed.term, key.get
    if key.sort == "flag":
        return lambda subject: get(subject) is True
    try:
        fits = _text_fits(key, term) if SORTS[key.sort].read is None else _value_fits(key, term, now)
    except Unreadable as error:
        raise placed.error(str(error), placed.values) from None
    if term.operator in ("!=", "!~"):
        return lambda subject: not _one_fits(get(subject), fits, True)
    nothing = _NOTHING in term.values
    return lambda subject: _one_fits(get(subject), fits, nothing)


def _one_fits(value: Any, fits: Callable[[Any], bool], nothing: bool) -> bool:
    """Whether one of the values fits; `nothing` says the same of no value."""
    if value is None or value == () or value == "":
        return nothing
    return any(map(fits, value)) if type(value) is tuple else fits(value)


def _value_fits(key: Key, term: Term, now: datetime) -> Callable[[Any], bool]:
    read = SORTS[key.sort].read
    assert read is not None
    compare = ORDERED.get(_LIMITS.get(key.name, str(term.operator)))
    if compare is None:
        return {read("*".join(glob), now) for glob in term.values if glob != _NOTHING}.__contains__
    if len(term.values) != 1:
        raise Unreadable("expected one value here")
    limit = read("*".join(term.values[0]), now)
    return lambda value: bool(compare(value, limit))


def _text_fits(key: Key, term: Term) -> Callable[[str], bool]:
    globs = [glob for glob in term.values if glob != _NOTHING]
    if key.words and not all("*".join(glob) in key.words for glob in globs):
        raise Unreadable(f"expected one of {', '.join(key.words)}")
    if term.operator in ("~", "!~"):
        folded = [(casefold(glob), is_inside if len(glob) == 1 else matches) for glob in globs]
        return lambda text: any(is_like(glob, text.casefold()) for glob, is_like in folded)
    if all(len(glob) == 1 for glob in globs):
        return frozenset(glob[0] for glob in globs).__contains__
    return lambda text: any(matches(glob, text) for glob in globs)


def _body_test(term: Term) -> Test:
    globs = [casefold(glob) for glob in term.values]
    wanted = term.operator == "~"

    def test(record: Subject) -> bool:
        if not isinstance(record, Record) or (record.message is None and record.text is None):
            return False
        found = any(is_inside(glob, body.casefold()) for body in body_texts(record) for glob in globs)
        return found is wanted

    return test


def body_texts(record: Record) -> list[str]:
    """The body as on the wire and, when there are escapes in it, all its text without them."""
    if record.message is None:
        return [record.text] if record.text is not None else []
    wire = bytes(record.message).decode("utf-8", "replace")
    if "\\" not in wire:
        return [wire]
    try:
        return [wire, "\n".join(_strings_in(_decoder.decode(record.message)))]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return [wire]


def _strings_in(value: Any) -> list[str]:
    found: list[str] = []
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, list):
            waiting += reversed(value)
        elif isinstance(value, dict):
            waiting += reversed([part for item in value.items() for part in item])
    return found
