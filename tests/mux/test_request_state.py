from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.mux.seal import ForeignState, StateSeal, TaskSeal

SEAL = StateSeal(b"0123456789abcdef")
NAMES = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1, max_size=20)


@given(NAMES, st.text(st.characters()))
def test_a_state_comes_back_to_whom_it_was_given(name: str, state: str):
    assert SEAL.open(name, SEAL.seal(name, state)) == state
    assert StateSeal(b"0123456789abcdef").open(name, SEAL.seal(name, state)) == state


@given(NAMES, NAMES, st.text())
def test_nobody_else_can_use_it(name: str, other: str, state: str):
    if name != other:
        with pytest.raises(ForeignState):
            SEAL.open(other, SEAL.seal(name, state))
    with pytest.raises(ForeignState):
        StateSeal(b"another key 0123").open(name, SEAL.seal(name, state))


@given(NAMES, st.text())
def test_task_ids_and_states_do_not_open_each_other(name: str, text: str):
    tasks = TaskSeal(b"0123456789abcdef")
    assert tasks.open(name, tasks.seal(name, text)) == text
    for seal, other in ((SEAL, tasks), (tasks, SEAL)):
        with pytest.raises(ForeignState):
            other.open(name, seal.seal(name, text))


@given(st.text(max_size=100))
def test_anything_else_is_refused(text: str):
    with pytest.raises(ForeignState):
        SEAL.open("ann", text)
