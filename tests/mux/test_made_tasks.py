from __future__ import annotations

from mcpmux.mux.ownership import MADE_BYTES, MADE_LIMIT, MadeTasks


def test_a_task_is_of_the_first_principal_that_it_is_noted_for():
    made = MadeTasks()
    made.note("docs", "1", "ann", "build")
    made.note("docs", "1", "ben", None)
    assert made.may_use("docs", "1", "ann")
    assert not made.may_use("docs", "1", "ben")
    assert not made.may_use("docs", "1", "")
    assert made.may_use("more", "1", "ben")
    assert made.tool_of("docs", "1") == "build"


def test_what_is_nobodys_goes_by_its_id():
    made = MadeTasks()
    made.note("docs", "1", "", "build")
    assert made.may_use("docs", "1", "ann")
    assert made.may_use("docs", "1", "")


def test_the_tool_of_an_unknown_task_is_unknown():
    assert MadeTasks().tool_of("docs", "1") is None
    assert MadeTasks().tool_of("docs", None) is None


def test_the_memory_is_bounded_and_forgets_the_oldest():
    made = MadeTasks()
    for number in range(MADE_LIMIT + 1):
        made.note("docs", str(number), "ann", "build")
    made.note("docs", "x" * MADE_BYTES, "ann", "build")
    for forgotten in ("0", "x" * MADE_BYTES):
        assert made.may_use("docs", forgotten, "ben")
        assert made.tool_of("docs", forgotten) is None
    assert not made.may_use("docs", "1", "ben")
    assert made.tool_of("docs", "1") == "build"
