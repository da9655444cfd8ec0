from __future__ import annotations

from mcpmux.mux.ownership import HELD_LIMIT, Holding


def test_a_task_is_of_the_first_principal_that_it_is_noted_for():
    held = Holding()
    held.note("docs", "1", "ann")
    held.note("docs", "1", "ben")
    assert held.may_use("docs", "1", "ann")
    assert not held.may_use("docs", "1", "ben")
    assert not held.may_use("docs", "1", "")
    assert held.may_use("more", "1", "ben")
    assert repr(held) == "<Holding 1 tasks>"


def test_what_is_nobodys_goes_by_its_id():
    held = Holding()
    held.note("docs", "1", "")
    assert held.may_use("docs", "1", "ann")
    assert held.may_use("docs", "1", "")


def test_the_memory_is_bounded_and_forgets_the_oldest():
    held = Holding()
    for number in range(HELD_LIMIT + 1):
        held.note("docs", str(number), "ann")
    assert held.may_use("docs", "0", "ben")
    assert not held.may_use("docs", "1", "ben")
