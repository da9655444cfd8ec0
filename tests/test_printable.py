"""Laws of what a terminal or a log may be given."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.printable import printable, printable_lines

ANY_TEXT = st.text(st.characters(categories=None, exclude_categories=()))
STEERING = ["Cc", "Cs", "Zl", "Zp"]
HARMLESS_FORMAT = set("\u200c\u200d")  # join letters and parts of emoji


@given(ANY_TEXT)
def test_nothing_that_steers_a_terminal_is_left(text: str):
    shown = printable(text)
    assert not [character for character in shown if unicodedata.category(character) in STEERING]
    assert len(shown.splitlines()) <= 1
    shown.encode()


@given(ANY_TEXT)
def test_text_that_is_fit_already_stays_as_it_is(text: str):
    once = printable(text)
    assert printable(once) == once


@given(st.text(st.characters(categories=("L", "N", "P", "S", "M", "Zs"), exclude_characters="\xad")))
def test_letters_signs_and_marks_of_any_script_are_not_touched(text: str):
    hiding = [character for character in text if 0xE0000 <= ord(character) < 0xE1000]
    if not hiding:
        assert printable(text) == text


@given(ANY_TEXT, ANY_TEXT)
def test_parts_are_made_printable_as_the_whole_is(one: str, other: str):
    assert printable(one + other) == printable(one) + printable(other)


@given(st.lists(ANY_TEXT.filter(lambda text: "\n" not in text), min_size=1))
def test_our_own_line_ends_stay_and_nobody_elses(lines: list[str]):
    assert printable_lines("\n".join(lines)).split("\n") == [printable(line) for line in lines]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
        ("\x9b31mred", r"\x9b31mred"),
        ("one\r\ntwo\x85three\u2028four", r"one\r\ntwo\x85three\u2028four"),
        ("a\tb\x00c", r"a\tb\x00c"),
        ("gpj.\u202eexe", r"gpj.\u202eexe"),
        ("ad\u200bmin\ufeff", r"ad\u200bmin\ufeff"),
        ("half \ud83d of a pair", r"half \ud83d of a pair"),
        ("\U000e0041hidden", r"\U000e0041hidden"),
        ("Übergröße 你好 👩‍👧 ﷺ", "Übergröße 你好 👩‍👧 ﷺ"),
    ],
)
def test_what_is_unfit_is_shown_as_an_escape(text: str, shown: str):
    assert printable(text) == shown
