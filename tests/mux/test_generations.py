"""Generations: an act is seen by every process at once, and what was heard by every other one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.mux.cache import MERGED, ROW_BYTES, Generations

PROCESSES = 3
NAMES = ["docs", "web"]


def shared() -> list[Generations]:
    counters = memoryview(bytearray(PROCESSES * ROW_BYTES))
    return [Generations(counters, process, PROCESSES) for process in range(PROCESSES)]


def all_of(generations: list[Generations], name: str) -> list[int]:
    return [generation.of(name) for generation in generations]


@given(st.lists(st.tuples(st.integers(0, PROCESSES - 1), st.sampled_from(NAMES), st.booleans())))
def test_a_change_begins_a_new_generation_of_what_it_concerns(told: list[tuple[int, str, bool]]):
    generations = shared()
    for process, name, acts in told:
        earlier = {own: all_of(generations, own) for own in [*NAMES, MERGED]}
        (generations[process].act if acts else generations[process].hear)(name)
        for own in [*NAMES, MERGED]:
            concerned = own in (name, MERGED)
            for other, (now, then) in enumerate(zip(all_of(generations, own), earlier[own], strict=True)):
                assert now - then == (concerned and (acts or other != process))


def test_one_that_has_ended_may_have_done_anything():
    generations = shared()
    earlier = {own: all_of(generations, own) for own in [*NAMES, MERGED]}
    generations[1].act_everywhere()
    for own, then in earlier.items():
        assert all(now > old for now, old in zip(all_of(generations, own), then, strict=True))


def test_a_process_by_itself_has_nobody_to_tell_of_what_it_hears():
    generations = Generations()
    generations.hear("docs")
    assert generations.of("docs") == generations.of(MERGED) == 0
    generations.act("docs")
    assert (generations.of("docs"), generations.of("web"), generations.of(MERGED)) == (1, 0, 1)


@pytest.mark.parametrize("name", ["", "docs", "a" * 200])
def test_no_name_reaches_into_the_row_of_another_process(name: str):
    counters = memoryview(bytearray(2 * ROW_BYTES))
    Generations(counters, 0, 2).act(name or "x")
    Generations(counters, 0, 2).hear(name or "x")
    Generations(counters, 0, 2).act_everywhere()
    assert any(counters[:ROW_BYTES])
    assert not any(counters[ROW_BYTES:])
