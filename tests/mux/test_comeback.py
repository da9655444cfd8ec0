from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcpmux.mux.breaker import (
    DEATHS,
    JITTER,
    LAST_SECONDS,
    LOOP_SECONDS,
    STABLE_SECONDS,
    WINDOW_SECONDS,
    Comeback,
)

ENDS = st.lists(st.tuples(st.booleans(), st.floats(0, 40), st.floats(0, 1)), max_size=80)


def waits(
    comeback: Comeback, count: int, *, died: bool, life: float = 0.0, chance: float = 0.0
) -> list[float]:
    """Return the waits after `count` attempts that each lasted for `life` seconds, one after the other."""
    now, seconds = 0.0, []
    for _ in range(count):
        now += life
        seconds.append(comeback.wait(now, died=died, held=life if died else 0.0, chance=chance))
        now += seconds[-1]
    return seconds


def test_a_missing_upstream_is_tried_ever_more_rarely():
    assert waits(Comeback(), 10, died=False) == [0, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30]


def test_quick_deaths_are_a_crash_loop_with_the_longest_pause():
    comeback = Comeback()
    assert waits(comeback, 8, died=True) == [0, 0.2, 0.4, 0.8, *[LOOP_SECONDS] * 4]
    assert (comeback.looping, comeback.deaths) == (True, 8)


def test_a_connection_that_held_ends_a_crash_loop():
    comeback = Comeback()
    waits(comeback, DEATHS, died=True)
    assert comeback.wait(1000.0, died=True, held=STABLE_SECONDS + 1, chance=0.0) == 0
    assert not comeback.looping


def test_deaths_far_apart_are_no_crash_loop():
    comeback = Comeback()
    assert waits(comeback, 30, died=True, life=WINDOW_SECONDS / (DEATHS - 1)) == [0.0] * 30
    assert not comeback.looping


def test_nobody_there_is_no_crash_loop():
    comeback = Comeback()
    waits(comeback, 50, died=False)
    assert not comeback.looping


@given(ENDS)
def test_waits_are_bounded_and_deaths_are_those_that_count(ends):
    comeback, now, deaths = Comeback(), 0.0, []
    for died, held, chance in ends:
        now += held
        in_loop = comeback.deaths + died if comeback.looping and held <= STABLE_SECONDS else None
        wait = comeback.wait(now, died=died, held=held, chance=chance)
        if died:
            deaths.append(now)
        recent = [at for at in deaths if at > now - WINDOW_SECONDS]
        assert comeback.deaths == (min(len(recent), DEATHS) if in_loop is None else in_loop)
        cap = LOOP_SECONDS if comeback.looping else LAST_SECONDS
        assert 0 <= wait <= cap
        if comeback.looping:
            assert wait >= LOOP_SECONDS * (1 - JITTER)
        now += wait
