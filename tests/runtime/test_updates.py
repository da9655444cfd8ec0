"""Which updates are told when, and which are told once more."""

from __future__ import annotations

from math import inf

from mcpmux.runtime.updates import Updates

PAUSE = 10.0
A, B = ("docs", "memo:a"), ("docs", "memo:b")


def test_an_update_waits_for_its_pause_or_until_it_is_known():
    updates = Updates()
    updates.put(A, 1.0)
    assert updates.due(PAUSE) == 11.0
    updates.known(0.5)
    assert updates.due(PAUSE) == 11.0
    updates.known(1.0)
    assert updates.due(PAUSE) == -inf
    assert updates.take() == A
    assert not updates


def test_what_changes_again_before_it_is_known_is_told_once():
    updates = Updates()
    for heard in (1.0, 2.0, 3.0):
        updates.put(A, heard)
    updates.put(B, 2.0)
    updates.known(3.0)
    assert [updates.take() for _ in range(2)] == [A, B]
    assert not updates


def test_what_changes_again_after_what_is_known_is_told_again_when_that_is_known():
    updates = Updates()
    updates.put(A, 1.0)
    updates.put(A, 2.0)
    updates.known(1.5)
    assert (updates.due(PAUSE), updates.take()) == (-inf, A)
    assert updates.due(PAUSE) == 12.0
    updates.known(2.0)
    assert (updates.due(PAUSE), updates.take()) == (-inf, A)
    assert not updates


def test_without_a_pause_everything_is_told_at_once_and_once():
    updates = Updates()
    for _ in range(2):
        updates.put(A, 0.0)
    assert updates.due(0.0) == 0.0
    assert updates.take() == A
    assert not updates


def test_all_can_be_told_at_once():
    updates = Updates()
    updates.put(A, 1.0)
    updates.put(B, 1.0)
    updates.put(A, 2.0)
    assert (updates.take_all(), len(updates)) == ([A, B], 0)


def test_what_one_session_says_can_be_told_by_itself():
    updates = Updates()
    for key in (A, ("notes", "memo:a"), B):
        updates.put(key, 1.0)
    assert updates.take_all("docs") == [A, B]
    assert updates.take_all() == [("notes", "memo:a")]


def test_what_waits_for_one_session_waits_on_for_the_one_that_takes_over():
    updates = Updates()
    updates.put(A, 2.0)
    updates.put(B, 3.0)
    updates.put(("docs#2", "memo:a"), 1.0)
    updates.move("docs#2", "docs")
    assert len(updates) == 2
    updates.known(1.0)
    assert (updates.due(PAUSE), updates.take()) == (-inf, A)
    assert updates.due(PAUSE) == 13.0  # B
    updates.known(3.0)
    assert [updates.take() for _ in range(2)] == [B, A]
    assert not updates
