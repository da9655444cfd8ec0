from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.mux.rewrite import IDS_KEPT, ForeignMark, Marks, owner_of

PROCESSES = st.text("abcxyz0123456789", min_size=1, max_size=16)


@given(PROCESSES, st.text())
def test_a_mark_gives_its_process_and_the_original_text(process, text: str):
    marked = Marks(process).current + text
    assert owner_of(marked) == process
    assert Marks(process).own_part(marked) == text


@given(PROCESSES, PROCESSES, st.text())
def test_the_mark_of_another_process_is_foreign(process, other, text: str):
    if process != other:
        with pytest.raises(ForeignMark):
            Marks(other).own_part(Marks(process).current + text)


@pytest.mark.parametrize(
    "text", ["", "abc", ".a", "A.a", "-1.a", "12345678901234567.a", "1", "a 1.b", None, 1, ["1.a"]]
)
def test_an_unmarked_text_has_no_owner(text: object):
    assert owner_of(text) is None


@given(PROCESSES, PROCESSES, st.text())
def test_marks_of_an_earlier_process_id_stay_its_own(before: str, now: str, text: str):
    marks = Marks(before)
    marked = marks.current + text
    marks.become(now)
    assert marks.own_part(marked) == text
    assert owner_of(marks.current + text) == now


def test_marks_of_the_latest_ids_are_valid_and_no_others():
    marks = Marks("0")
    for number in range(1, IDS_KEPT + 1):
        marks.become(str(number))
    assert [*marks.own] == [str(number) for number in range(1, IDS_KEPT + 1)]
    with pytest.raises(ForeignMark):
        marks.own_part("0.a")
