from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.mux.breaker import (
    FAILURES,
    FIRST_PAUSE_SECONDS,
    LAST_PAUSE_SECONDS,
    PROBE_JITTER,
    Breaker,
    BreakerState,
    Renewals,
)

CHANCES = st.floats(0, 1)
STIMULI = st.lists(
    st.one_of(
        st.sampled_from(["fail", "suspect", "answered"]),
        st.tuples(st.just("probe_failed"), CHANCES, st.floats(0, 1e6)),
    ),
    max_size=60,
)


def opened() -> Breaker:
    breaker = Breaker()
    breaker.suspect()
    breaker.probe_failed(0.0, 0.0)
    return breaker


def test_failures_in_a_row_make_it_suspect_once_and_calls_go_on():
    breaker = Breaker()
    assert [breaker.fail() for _ in range(FAILURES + 2)] == [False] * (FAILURES - 1) + [True, False, False]
    assert breaker.state is BreakerState.SUSPECT
    assert not breaker.blocks


def test_an_answer_in_between_starts_the_count_anew():
    breaker = Breaker()
    for _ in range(3):
        for _ in range(FAILURES - 1):
            assert not breaker.fail()
        assert breaker.doubtful
        assert not breaker.answered()
        assert not breaker.doubtful


@pytest.mark.parametrize(
    ("state", "stimulus", "following"),
    [
        (BreakerState.CLOSED, "suspect", BreakerState.SUSPECT),
        (BreakerState.SUSPECT, "answered", BreakerState.CLOSED),
        (BreakerState.OPEN, "fail", BreakerState.OPEN),
        (BreakerState.OPEN, "suspect", BreakerState.OPEN),
        (BreakerState.OPEN, "answered", BreakerState.CLOSED),
    ],
)
def test_the_table_of_states(state, stimulus, following):
    breaker = Breaker() if state is BreakerState.CLOSED else opened()
    if state is BreakerState.SUSPECT:
        breaker = Breaker()
        breaker.suspect()
    assert breaker.state is state
    getattr(breaker, stimulus)()
    assert breaker.state is following


def test_the_first_failed_probe_stops_calls_until_an_answer():
    breaker = Breaker()
    breaker.suspect()
    assert breaker.probe_failed(0.0, 0.0) is True
    assert breaker.probe_failed(9.0, 0.0) is False
    assert breaker.answered() is True
    assert breaker.answered() is False


def test_pauses_grow_to_the_cap_and_begin_anew_after_an_answer():
    breaker = opened()
    pauses = [breaker.retry_at]
    for _ in range(6):
        breaker.probe_failed(100.0, 0.0)
        assert breaker.retry_at is not None
        pauses.append(breaker.retry_at - 100)
    assert pauses == [5, 10, 20, 40, 60, 60, 60]
    breaker.answered()
    breaker.suspect()
    breaker.probe_failed(0.0, 0.0)
    assert breaker.retry_at == FIRST_PAUSE_SECONDS


@given(CHANCES, st.floats(0, 1e6))
def test_a_wish_of_the_server_is_honoured_up_to_the_cap(chance, wish):
    breaker = Breaker()
    breaker.suspect()
    breaker.probe_failed(7.0, chance, wish)
    assert breaker.retry_at is not None
    pause = min(max(wish, FIRST_PAUSE_SECONDS), LAST_PAUSE_SECONDS)
    assert pause * (1 - PROBE_JITTER) - 1e-9 <= breaker.retry_at - 7.0 <= pause + 1e-9


@given(STIMULI)
def test_the_state_stays_consistent_after_any_stimuli(stimuli):
    breaker = Breaker()
    for stimulus in stimuli:
        was_blocked = breaker.blocks
        if isinstance(stimulus, tuple):
            began = breaker.probe_failed(0.0, *stimulus[1:])
            assert began == (not was_blocked)
        else:
            getattr(breaker, stimulus)()
            if stimulus != "answered":
                assert breaker.blocks == was_blocked  # nothing but a failed probe shuts calls off
        assert breaker.doubtful == (breaker.failures > 0 or breaker.state is not BreakerState.CLOSED)
        assert (breaker.retry_at is None) == (not breaker.blocks)
        assert breaker.failures <= FAILURES


@given(st.lists(st.tuples(st.floats(0, 200), st.booleans()), max_size=60))
def test_sessions_that_do_not_help_are_opened_ever_more_seldom(attempts):
    """Each attempt: seconds since the one before, and whether it helped."""
    renewals, now, pause, helped = Renewals(), 0.0, 0.0, True
    for seconds, helps in attempts:
        now += seconds
        assert renewals.allowed(now) == (helped or seconds >= pause)
        if not renewals.allowed(now):
            now -= seconds
            continue
        renewals.begin(now)
        pause = (
            FIRST_PAUSE_SECONDS if helped else min(max(2 * pause, FIRST_PAUSE_SECONDS), LAST_PAUSE_SECONDS)
        )
        helped = helps
        if helps:
            renewals.helped()
