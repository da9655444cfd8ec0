from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.traffic.reading.stats import ERROR, LEAST, Histogram

VALUES = st.lists(st.floats(LEAST, 1e9), min_size=1, max_size=60)
SHARES = st.floats(0, 1)


@given(VALUES, SHARES)
def test_percentiles_are_close_to_the_exact_ones(values: list[float], share: float):
    exact = sorted(values)[max(1, math.ceil(share * len(values))) - 1]
    assert Histogram(values).percentile(share) == pytest.approx(exact, rel=ERROR)


@given(VALUES, SHARES, SHARES)
def test_percentiles_grow_and_stay_between_the_least_and_the_most(values: list[float], a: float, b: float):
    histogram = Histogram(values)
    low, high = histogram.percentile(min(a, b)), histogram.percentile(max(a, b))
    assert low is not None
    assert high is not None
    assert min(values) <= low <= high <= max(values)
    assert histogram.percentile(1.0) == max(values)


@given(VALUES, VALUES, SHARES)
def test_merged_histograms_are_one_of_all_values(one: list[float], other: list[float], share: float):
    merged, both = Histogram(one), Histogram([*one, *other])
    merged.merge(Histogram(other))
    assert merged.percentile(share) == both.percentile(share)
    assert (merged.count, merged.least, merged.most) == (both.count, both.least, both.most)
    assert merged.total == pytest.approx(both.total)


@given(st.lists(st.floats(0, 1e9), max_size=40), st.integers(1, 30))
def test_bars_hold_every_value_once(values: list[float], count: int):
    bars = Histogram(values).bars(count)
    assert sum(number for _, number in bars) == len(values)
    assert len(bars) <= count
    ends = [end for end, _ in bars]
    assert ends == sorted(ends)
    assert not values or ends[-1] >= max(*values, LEAST) * (1 - ERROR)


def test_without_values_there_is_nothing_to_tell():
    assert Histogram().percentile(0.5) is None
    assert Histogram().bars(5) == []


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, -1.0, 0.0, 1e300])
def test_odd_values_do_no_harm(odd: float):
    histogram = Histogram([odd, 5.0])
    assert histogram.count == 2
    assert math.isfinite(histogram.total)
    assert sum(number for _, number in histogram.bars(10)) == 2


def test_memory_is_bounded():
    histogram = Histogram([1.001**exponent for exponent in range(-20_000, 40_000)])
    assert len(histogram._buckets) < 2000
