"""Which records of an audit log are wanted: the filter language of `mcpmux traffic`, over their members.

`status` is how an exchange went in one word, as `show` prints it. `=` compares as it is, `~` whatever the
case and with a part. A member that is a list fits when one of its items does. Pure.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

from mcpmux.mux.glob import Glob, casefold, is_inside, matches
from mcpmux.protocol.envelope import raw
from mcpmux.traffic.audit.record import AuditRecord
from mcpmux.traffic.reading.filter_language import (
    ORDERED,
    SORTS,
    TIME_LENGTH,
    FilterError,
    Placed,
    Term,
    Unreadable,
    split_terms,
)

Fields: TypeAlias = Mapping[str, Any]
Test: TypeAlias = Callable[[Fields], bool]

MEMBERS = frozenset({"v", "seq", "prev", "hash", *AuditRecord.__struct_fields__})
ALIASES = {
    **dict.fromkeys(("upstream", "server"), "upstreams"),
    **dict.fromkeys(("duration", "latency"), "ms"),
    **dict.fromkeys(("uri", "name", "tool"), "target"),
    **dict.fromkeys(("who", "user"), "principal"),
}
FLAGS = frozenset({"failed", "keyed"})
NAMES = frozenset({*MEMBERS, *ALIASES, "status", "until"})
_SORTS = {"ms": "duration", "asked": "size", "answered": "size", "time": "time"}
_NUMBERS = frozenset(
    {"seq", "exchange", "code", "torn", "refused", "late", "lost", "file", "more_targets", "v"}
)
_LIMITS = {"since": ">=", "until": "<"}
_NOTHING: Glob = ("",)


def parse_filter(text: str, now: datetime) -> Test:
    """Whether a record is wanted; `now`, with a zone, is what `since=10m` counts from. Raises FilterError."""
    tests = [_test_of(placed, text, now) for placed in split_terms(text)]
    return lambda record: all(test(record) for test in tests)


def status_of(record: Fields) -> str | None:
    """How an exchange went, in one word; None for what is no exchange that has ended."""
    if record.get("kind") != "exchange":
        return None
    if record.get("decision") == "refused":
        return "refused"
    if record.get("outcome") != "answered":
        return str(record.get("outcome"))
    if record.get("code") is not None:
        return "error"
    return "tool-error" if record.get("failed") else str(record.get("result") or "ok")


def _test_of(placed: Placed, text: str, now: datetime) -> Test:
    term = placed.term
    start = placed.start + term.opposite
    name = ALIASES.get(term.key.lower(), term.key.lower())
    if name not in NAMES:
        close = difflib.get_close_matches(name, NAMES, n=1)
        hint = f"did you mean `{close[0]}`?" if close else f"expected one of {', '.join(sorted(NAMES))}"
        problem = f"no record has `{term.key}`; {hint}"
        if term.operator is None:
            problem += '; a filter is key=value, and blanks in a value need "quotes"'
        raise FilterError(problem, text, start, start + len(term.key))
    if term.operator is None:
        if name not in FLAGS:
            raise FilterError(f"expected a value: {term.key}=…", text, start, placed.end)
        term = term._replace(operator="=", values=(("true",),))
    try:
        test = _comparison(name, term, now)
    except Unreadable as error:
        raise FilterError(str(error), text, placed.values, placed.end) from None
    return (lambda record: not test(record)) if term.opposite else test


def _comparison(name: str, term: Term, now: datetime) -> Test:
    operator = str(term.operator)
    if name in _LIMITS:
        if operator != "=":
            raise Unreadable(f"{name} knows =; time has >, >=, < and <=")
        return _ordered("time", _LIMITS[name], term, now)
    if operator in ORDERED:
        return _ordered(name, operator, term, now)
    fits = _fits(name, term, now)
    nothing = _NOTHING in term.values
    if operator in ("!=", "!~"):
        return lambda record: bool(found := _values(record, name)) and (nothing or not any(map(fits, found)))
    return lambda record: any(map(fits, found)) if (found := _values(record, name)) else nothing


def _ordered(name: str, operator: str, term: Term, now: datetime) -> Test:
    sort = _SORTS.get(name, "number" if name in _NUMBERS else None)
    if sort is None:
        raise Unreadable(f"{name} has no order; expected = or ~")
    if len(term.values) != 1:
        raise Unreadable("expected one value here")
    limit = _read(sort, term.values[0], now)
    compare: dict[str, Callable[[Any], bool]] = {
        ">": lambda value: bool(value > limit),
        ">=": lambda value: bool(value >= limit),
        "<": lambda value: bool(value < limit),
        "<=": lambda value: bool(value <= limit),
    }
    return lambda record: any(map(compare[operator], map(_comparable, _values(record, name))))


def _fits(name: str, term: Term, now: datetime) -> Callable[[Any], bool]:
    globs = [glob for glob in term.values if glob != _NOTHING]
    if name == "ms":
        limits = [_read("duration", glob, now) for glob in globs]
        return lambda value: value in limits
    if term.operator in ("~", "!~"):
        folded = [casefold(glob) for glob in globs]
        return lambda value: any(_is_like(glob, _text(value).casefold()) for glob in folded)
    return lambda value: any(matches(glob, _text(value)) for glob in globs)


def _is_like(glob: Glob, text: str) -> bool:
    return is_inside(glob, text) if len(glob) == 1 else matches(glob, text)


def _read(sort: str, glob: Glob, now: datetime) -> Any:
    read = SORTS[sort].read
    assert read is not None
    return read("*".join(glob), now)


def _values(record: Fields, name: str) -> Sequence[Any]:
    """What a record has under a name, none for nothing."""
    if name == "status":
        found = status_of(record)
    elif name == "target":
        found = record.get("target") or record.get("targets")
    else:
        found = record.get(name)
    if found is None:
        return ()
    return found if isinstance(found, list) else (found,)


def _comparable(value: Any) -> Any:
    return value[:TIME_LENGTH] if isinstance(value, str) else value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else bytes(raw(value)).decode()
