"""The filter language: text to terms and back. Pure; `filter_keys` knows what keys mean.

    filter       = terms, all of which must hold, with blanks between them
    term         = ["!"] key operator value { "|" value }  |  ["!"] flag
    operator     = "="  "!="  "~"  "!~"  ">"  ">="  "<"  "<="
    value        = text with `*` for any text; in "quotes" blanks, `|` and `*` stand for themselves, and `\\"`
                   and `\\\\` for the quote and the backslash

`=` and `~` hold when one of the values fits. `!=` and `!~` hold when there is something and none fits; a `!`
in front of a term is its exact opposite. An empty value stands for nothing there: `upstream=` of a message
without an upstream, `upstream!=` of one that has one.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from mcpmux.errors import McpmuxError
from mcpmux.mux.glob import Glob

OPERATORS = ("!=", "!~", ">=", "<=", "=", "~", ">", "<")
"""Longer ones first."""

TEXT_LIMIT = 10_000  # characters; nobody types more

_HEAD = re.compile(r"(?P<not>!?)(?P<key>[^\s=~<>!|\"*]*)(?P<op>==|!=|!~|>=|<=|=|~|>|<)?")
_BARE = re.compile(r"[^\s\"|*]+")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_SAFE = re.compile(r"(?!=)[^\s\"|*\\]+")  # "=" first would be read as part of the operator
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

    def __str__(self) -> str:
        values = "|".join(map(print_glob, self.values))
        return f"{'!' if self.opposite else ''}{self.key}{self.operator or ''}{values}"


class Placed(NamedTuple):
    """A term and where it stands: `text[start:end]`, with its values from `values` on."""

    term: Term
    start: int
    values: int
    end: int


def print_terms(terms: tuple[Term, ...]) -> str:
    """The filter that reads as these terms."""
    return " ".join(map(str, terms))


def print_glob(glob: Glob) -> str:
    """The value as it is written."""
    if glob == ("",):
        return '""'
    return "*".join(map(_print_piece, glob))


def _print_piece(piece: str) -> str:
    if not piece or _SAFE.fullmatch(piece):
        return piece
    escaped = piece.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def split_terms(text: str) -> list[Placed]:
    """The terms of a filter. Raises FilterError."""
    if len(text) > TEXT_LIMIT:
        raise FilterError(f"the filter is longer than {TEXT_LIMIT} characters", text[:80], 0, 1)
    terms: list[Placed] = []
    at = 0
    while True:
        while at < len(text) and text[at].isspace():
            at += 1
        if at == len(text):
            return terms
        placed = _read_term(text, at)
        terms.append(placed)
        at = placed.end


def _read_term(text: str, start: int) -> Placed:
    head = _HEAD.match(text, start)
    assert head is not None  # all of it may be absent
    key, operator, opposite = head["key"], head["op"], bool(head["not"])
    end = head.end()
    if operator is None:
        if not key or (end < len(text) and not text[end].isspace()):
            raise FilterError("expected key=value here", text, start, _word_end(text, start))
        return Placed(Term(key, None, (), opposite), start, end, end)
    if not key:
        raise FilterError(f"expected a key before {operator}", text, start, _word_end(text, start))
    values, after = _read_values(text, end)
    operator = "=" if operator == "==" else operator
    return Placed(Term(key, operator, values, opposite), start, end, after)


def _word_end(text: str, start: int) -> int:
    end = start
    while end < len(text) and not text[end].isspace():
        end += 1
    return end


def _read_values(text: str, at: int) -> tuple[tuple[Glob, ...], int]:
    values = []
    while True:
        value, at = _read_value(text, at)
        values.append(value)
        if text[at : at + 1] != "|":
            return tuple(values), at
        at += 1


def _read_value(text: str, at: int) -> tuple[Glob, int]:
    pieces = [""]
    while at < len(text) and text[at] != "|" and not text[at].isspace():
        if text[at] == "*":
            if len(pieces) == 1 or pieces[-1]:  # two stars are one
                pieces.append("")
            at += 1
        elif text[at] == '"':
            found = _QUOTED.match(text, at)
            if found is None:
                raise FilterError("this quotation mark has no second one", text, at, at + 1)
            pieces[-1] += _ESCAPE.sub(r"\1", found[1])
            at = found.end()
        else:
            found = _BARE.match(text, at)
            assert found is not None
            pieces[-1] += found.group()
            at = found.end()
    return tuple(pieces), at
