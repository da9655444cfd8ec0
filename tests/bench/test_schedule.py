"""Rates over time: what is written, and the arrivals that come of it."""

from __future__ import annotations

import itertools
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.bench.schedule import Ramp, arrivals, parse_rate
from mcpmux.config.report import InvalidValue

WRITTEN = {
    "200": (Ramp(200, 200, 10),),
    "0.5": (Ramp(0.5, 0.5, 10),),
    "200/30s": (Ramp(200, 200, 30),),
    "100..1000/30s": (Ramp(100, 1000, 30),),
    "100..1000": (Ramp(100, 1000, 10),),
    "10..20/500ms": (Ramp(10, 20, 0.5),),
    "100,200,400/10s": (Ramp(100, 100, 10), Ramp(200, 200, 10), Ramp(400, 400, 10)),
    "100/5s, 100..500/1m, 500": (Ramp(100, 100, 5), Ramp(100, 500, 60), Ramp(500, 500, 10 / 3)),
    "100,200": (Ramp(100, 100, 5), Ramp(200, 200, 5)),
    "0..50/4s": (Ramp(0, 50, 4),),
}


@pytest.mark.parametrize(("text", "profile"), WRITTEN.items(), ids=WRITTEN)
def test_rate_is_read(text: str, profile: tuple[Ramp, ...]) -> None:
    assert parse_rate(text, 10) == profile


@pytest.mark.parametrize(
    "text",
    ["", "fast", "-1", "1..", "..2", "1/", "1/0s", "1/10x", "0", "0..0", "1,,2", "2000000", "nan", "1e3"],
)
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        parse_rate(text, 10)


rates = st.floats(0, 500, allow_nan=False)
ramps = st.builds(Ramp, rates, rates, st.floats(0.1, 3))
profiles = st.lists(ramps, min_size=1, max_size=4).map(tuple)


@given(profiles)
def test_even_arrivals_are_as_many_as_the_rates_say_in_every_stretch(profile: tuple[Ramp, ...]) -> None:
    moments = list(arrivals(profile, None))
    start = 0.0
    for ramp in profile:
        inside = sum(start <= moment < start + ramp.seconds for moment in moments)
        assert abs(inside - ramp.arrivals) <= 1.001
        start += ramp.seconds
    assert abs(len(moments) - sum(ramp.arrivals for ramp in profile)) <= 1.001


@given(profiles, st.integers(0, 9))
def test_arrivals_are_in_order_and_inside_the_schedule(profile: tuple[Ramp, ...], seed: int) -> None:
    random = Random(seed)
    moments = list(arrivals(profile, random))
    assert moments == sorted(moments)
    assert all(0 <= moment <= sum(ramp.seconds for ramp in profile) + 1e-9 for moment in moments)


def test_even_arrivals_at_a_constant_rate_are_at_even_distances() -> None:
    assert list(arrivals((Ramp(4, 4, 1),), None)) == pytest.approx([0, 0.25, 0.5, 0.75])


def test_a_ramp_is_half_as_dense_in_its_first_half() -> None:
    moments = list(arrivals((Ramp(0, 200, 10),), None))
    assert len(moments) == 1000
    assert sum(moment < 5 for moment in moments) == pytest.approx(250, abs=1)


def test_poisson_arrivals_have_the_rate_and_know_nothing_of_each_other() -> None:
    random = Random(7)
    moments = list(arrivals((Ramp(1000, 1000, 50),), random))
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert len(moments) == pytest.approx(50_000, rel=0.02)
    assert variance**0.5 == pytest.approx(mean, rel=0.03)  # as an exponential distribution has it


def test_the_same_seed_makes_the_same_arrivals() -> None:
    def make(seed: int) -> list[float]:
        random = Random(seed)
        return list(arrivals((Ramp(50, 90, 3),), random))

    assert make(3) == make(3)
    assert make(3) != make(4)
