"""What a PromQL expression names: metrics with the labels that they are matched by, and labels of groups.

It knows as much of the language as `configs/deploy` uses. Anything else is a mistake, so that no name is
overlooked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

FUNCTIONS = frozenset({"absent", "histogram_quantile", "increase", "rate", "vector"})
AGGREGATIONS = frozenset({"count", "max", "min", "sum"})
LABEL_LISTS = frozenset({"by", "on", "group_left"})
OPERATORS = frozenset({"or", "unless", "offset"})

_TOKEN = re.compile(
    r"""
    (?P<text> "[^"\\]*" )
  | (?P<range> \[ (?: \d+[smhd] | \$__rate_interval ) \] )
  | (?P<number> \d+(?:\.\d+)?[smhd]?\b )
  | (?P<word> [A-Za-z_]\w* )
  | (?P<sign> =~ | !~ | == | != | >= | <= | [-+*/(){},=<>] )
    """,
    re.VERBOSE,
)


class Matcher(NamedTuple):
    """`label` is compared with `value`."""

    label: str
    sign: str
    value: str


class Selector(NamedTuple):
    metric: str
    matchers: tuple[Matcher, ...]


class Names(NamedTuple):
    """`groups`: labels of `by`, `on` and `group_left`."""

    selectors: tuple[Selector, ...]
    groups: frozenset[str]


def names_in(expression: str) -> Names:
    """All names in an expression. Raises ValueError for what is not known, and when nothing is selected."""
    tokens = list(_tokens(expression))
    selectors, groups = list[Selector](), set[str]()
    while tokens:
        kind, text = tokens.pop(0)
        following = tokens[0][1] if tokens else ""
        if kind != "word" or text in OPERATORS:
            continue
        if text in LABEL_LISTS:
            groups.update(_take_labels(tokens))
        elif text in AGGREGATIONS and following in ("(", "by"):
            continue
        elif following == "(":
            if text not in FUNCTIONS:
                raise ValueError(f"{text} is no function that is known here")
        else:
            selectors.append(Selector(text, tuple(_take_matchers(tokens) if following == "{" else ())))
    if not selectors:
        raise ValueError(f"nothing is selected by {expression!r}")
    return Names(tuple(selectors), frozenset(groups))


def _tokens(expression: str) -> Iterator[tuple[str, str]]:
    position = 0
    while rest := expression[position:].lstrip():
        position = len(expression) - len(rest)
        match = _TOKEN.match(expression, position)
        if match is None:
            raise ValueError(f"it is not known here what this means: {rest!r}")
        assert match.lastgroup is not None
        yield match.lastgroup, match[0]
        position = match.end()


def _take(tokens: list[tuple[str, str]], *wanted: str) -> str:
    """The next token, which is of a wanted kind, or one of the wanted signs."""
    kind, text = tokens.pop(0) if tokens else ("", "the end")
    if kind not in wanted and text not in wanted:
        raise ValueError(f"expected {' or '.join(wanted)}, this is {text}")
    return text


def _take_labels(tokens: list[tuple[str, str]]) -> Iterator[str]:
    _take(tokens, "(")
    while tokens and tokens[0][1] != ")":
        yield _take(tokens, "word")
        if tokens and tokens[0][1] != ")":
            _take(tokens, ",")
    _take(tokens, ")")


def _take_matchers(tokens: list[tuple[str, str]]) -> Iterator[Matcher]:
    _take(tokens, "{")
    while True:
        yield Matcher(
            _take(tokens, "word"), _take(tokens, "=", "!=", "=~", "!~"), _take(tokens, "text")[1:-1]
        )
        if _take(tokens, ",", "}") == "}":
            return
