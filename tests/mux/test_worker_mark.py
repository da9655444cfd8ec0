from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.mux.rewrite import ForeignMark, Marks, owner_of

PROCESSES = st.text("abcxyz0123456789", min_size=1, max_size=16)


@given(PROCESSES, st.text())
def test_what_a_process_has_marked_says_whose_it_is_and_what_it_was(process, text: str):
    marked = Marks(process).current + text
    assert owner_of(marked) == process
    assert Marks(process).own_part(marked) == text


@given(PROCESSES, PROCESSES, st.text())
def test_another_processs_is_foreign(process, other, text: str):
    if process != other:
        with pytest.raises(ForeignMark):
            Marks(other).own_part(Marks(process).current + text)


@pytest.mark.parametrize(
    "text", ["", "abc", ".a", "A.a", "-1.a", "12345678901234567.a", "1", "a 1.b", None, 1, ["1.a"]]
)
def test_what_nobody_has_marked_is_nobodys(text: object):
    assert owner_of(text) is None


@given(PROCESSES, PROCESSES, st.text())
def test_what_a_process_gave_out_under_an_id_of_before_stays_its_own(before: str, now: str, text: str):
    marks = Marks(before)
    marked = marks.current + text
    marks.become(now)
    assert marks.own_part(marked) == text
    assert owner_of(marks.current + text) == now
