from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from mcpmux.mux.pattern import casefold, is_inside, matches

TEXT = st.text("abA\n*", max_size=12)
GLOBS = st.lists(st.text("abA\n*", max_size=3), min_size=1, max_size=4).map(tuple)


@given(GLOBS, TEXT)
def test_a_glob_matches_as_a_regular_expression_does(glob: tuple[str, ...], text: str):
    expression = ".*".join(map(re.escape, glob))
    assert matches(glob, text) == bool(re.fullmatch(expression, text, re.DOTALL))
    assert is_inside(glob, text) == bool(re.search(expression, text, re.DOTALL))


@given(GLOBS, TEXT)
def test_what_matches_is_inside(glob: tuple[str, ...], text: str):
    assert not matches(glob, text) or is_inside(glob, text)


def test_many_stars_take_no_time():
    assert not matches(("a",) * 2000 + ("b",), "a" * 100_000)


def test_case_may_not_matter():
    assert matches(casefold(("Straße", ".MD")), "STRASSE/x.md".casefold())
