from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.traffic.reading.filters import OPERATORS, FilterError, split_terms


class Meant(NamedTuple):
    """What a term says, wherever it is."""

    key: str
    operator: str | None = None
    values: tuple[tuple[str, ...], ...] = ()
    opposite: bool = False


KEYS = st.from_regex(r"[a-z][a-z-]{0,10}", fullmatch=True)
PIECES = st.text(st.sampled_from('ab"\\|*! =~<>\t\n\u00e9\U0001f600'), max_size=6)


@st.composite
def globs(draw: st.DrawFn) -> tuple[str, ...]:
    ends = (draw(PIECES), draw(PIECES))
    middle = draw(st.lists(PIECES.filter(bool), max_size=2))
    return draw(st.sampled_from([(ends[0],), (ends[0], *middle, ends[1])]))


TERMS = st.one_of(
    st.builds(Meant, KEYS, st.just(None), st.just(()), st.booleans()),
    st.builds(
        Meant,
        KEYS,
        st.sampled_from(OPERATORS),
        st.lists(globs(), min_size=1, max_size=3).map(tuple),
        st.booleans(),
    ),
)


def spell(term: Meant) -> str:
    """The term with everything in quotes that may be."""
    pieces = [[piece.replace("\\", "\\\\").replace('"', '\\"') for piece in glob] for glob in term.values]
    values = "|".join("*".join(f'"{piece}"' if piece else "" for piece in glob) for glob in pieces)
    return f"{'!' if term.opposite else ''}{term.key}{term.operator or ''}{values}"


@given(st.lists(TERMS, max_size=4).map(tuple))
def test_what_is_spelt_out_reads_as_it_was_meant(terms: tuple[Meant, ...]):
    text = " ".join(map(spell, terms))
    placed = split_terms(text)
    assert tuple(each[:4] for each in placed) == terms
    assert [each.found[0] for each in placed] == [spell(term) for term in terms]


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused_at_a_place_in_it(text: str):
    try:
        split_terms(text)
    except FilterError as error:
        assert 0 <= error.start < error.end <= len(text) + 1
        assert error.text == text


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


@pytest.mark.parametrize(("text", "terms"), SPELLINGS.items())
def test_spellings(text: str, terms: list[Meant]):
    assert [term[:4] for term in split_terms(text)] == terms


MISTAKES = {
    'a="x': ("no second one", '"'),
    "a=1 =2": ("expected a key before =", "=2"),
    "x |y": ("expected key=value", "|y"),
    "a|b=1": ("expected key=value", "a|b=1"),
    "*": ("expected key=value", "*"),
    "!": ("expected key=value", "!"),
    '"a b"': ("expected key=value", '"a'),
}


@pytest.mark.parametrize(("text", "expected"), MISTAKES.items())
def test_mistakes_have_a_place(text: str, expected: tuple[str, str]):
    with pytest.raises(FilterError) as caught:
        split_terms(text)
    assert expected[0] in caught.value.problem
    assert text[caught.value.start : caught.value.end] == expected[1]


def test_a_filter_has_a_length():
    with pytest.raises(FilterError, match="longer than"):
        split_terms("a=1 " * 10_000)
