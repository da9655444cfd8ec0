"""Laws of the histogram, against sorting all values."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpmux.traffic.reading.histogram import (
    ERROR,
    LEAST,
    MOST,
    MOST_BUCKETS,
    Distribution,
    Histogram,
    bound,
    merged,
)

durations = st.floats(min_value=LEAST, max_value=MOST) | st.sampled_from(
    [LEAST, MOST, 0.5, 1.0, 1.0000000001, math.nextafter(1.0, 0.0), 1e-3]
)
lists = st.lists(durations, min_size=1, max_size=200)
percents = st.sampled_from(["0", "0.1", "25", "50", "90", "99", "99.9", "99.99", "100"])


def recorded(values: Iterable[float]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    return histogram


@settings(deadline=None)
@given(lists, percents)
def test_a_percentile_is_within_a_thousandth_of_the_exact_one(values: list[float], percent: str):
    rank = max(1, math.ceil(Fraction(percent) * len(values) / 100))
    exact = sorted(values)[rank - 1]
    percentile = recorded(values).freeze().percentile(float(percent))
    assert percentile == pytest.approx(exact, rel=ERROR * 1.000001)
    assert ERROR < 0.001


@settings(deadline=None)
@given(st.lists(durations, max_size=200))
def test_percentiles_before_and_after_freezing_are_the_same(values: list[float]):
    histogram, percents = recorded(values), (0, 25, 50, 50, 99, 99.9, 100)
    assert histogram.percentiles(percents) == histogram.freeze().percentiles(percents)


@settings(deadline=None)
@given(lists, lists)
def test_merging_is_recording_together(one: list[float], other: list[float]):
    whole = recorded(one)
    whole.merge(recorded(other))
    together = recorded([*one, *other]).freeze()
    for sum_ in (whole.freeze(), merged([recorded(one).freeze(), recorded(other).freeze()])):
        assert sum_.total == pytest.approx(together.total)
        assert msgspec.structs.replace(sum_, total=together.total) == together


@settings(deadline=None)
@given(lists)
def test_count_least_and_most_are_exact(values: list[float]):
    kept = recorded(values).freeze()
    assert (kept.count, kept.least, kept.most) == (len(values), min(values), max(values))
    assert kept.mean == pytest.approx(sum(values) / len(values))


@given(st.lists(durations, max_size=50))
def test_json_brings_back_the_same(values: list[float]):
    kept = recorded(values).freeze()
    assert msgspec.json.decode(msgspec.json.encode(kept), type=Distribution) == kept


@given(durations)
def test_every_duration_lies_in_its_bucket(value: float):
    number = Histogram().record(value)
    assert 0 <= number < MOST_BUCKETS
    assert bound(number) <= value < bound(number + 1)


@settings(deadline=None)
@given(lists)
def test_the_curve_rises_to_the_most(values: list[float]):
    curve = list(recorded(values).freeze().curve())
    assert curve == sorted(curve)
    assert curve[-1] == (max(values), 1.0)
    for seconds, share in curve:
        below = sum(value <= seconds for value in values) / len(values)
        assert share <= below + 1e-9


@pytest.mark.parametrize(("value", "counted"), [(-1.0, LEAST), (0.0, LEAST), (1e12, MOST), (math.inf, MOST)])
def test_a_duration_out_of_range_counts_as_the_nearest_bound(value: float, counted: float):
    kept = recorded([value]).freeze()
    assert (kept.percentile(50), kept.most) == (counted, counted)


def test_what_is_no_number_is_refused_and_leaves_nothing():
    histogram = Histogram()
    with pytest.raises(ValueError, match="has to be a number"):
        histogram.record(math.nan)
    assert histogram.freeze() == Histogram().freeze()


def test_nothing_has_no_percentile():
    nothing = Histogram().freeze()
    assert nothing.percentiles((50, 99)) == [None, None]
    assert nothing.mean is None
    assert list(nothing.curve()) == []


def test_memory_is_bounded_by_the_buckets():
    histogram = recorded(LEAST * 1.0001**place for place in range(300_000))
    assert histogram.count == 300_000
    assert len(histogram.counts) <= MOST_BUCKETS


GOOD = recorded([0.001, 0.002, 0.002]).freeze()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"count": 4}, "do not add up"),
        ({"counts": (1,)}, "do not add up"),
        ({"counts": (3, 0)}, "no count"),
        ({"numbers": GOOD.numbers[::-1]}, "not in order"),
        ({"numbers": (5, MOST_BUCKETS)}, "out of range"),
        ({"numbers": (-1, 5)}, "out of range"),
        ({"least": 3.0}, "least and the most"),
        ({"most": math.inf}, "least and the most"),
    ],
)
def test_parts_that_do_not_fit_are_refused(change: dict, problem: str):
    fields = {**msgspec.structs.asdict(GOOD), **change}
    with pytest.raises(ValueError, match=problem):
        Distribution(**fields)


@settings(deadline=None)
@given(st.lists(durations, max_size=40), st.integers(1, 30))
def test_bars_hold_every_value_once(values: list[float], count: int):
    bars = recorded(values).bars(count)
    assert sum(number for _, number in bars) == len(values)
    assert len(bars) <= count
    ends = [end for end, _ in bars]
    assert ends == sorted(ends)
    assert not values or ends[-1] == pytest.approx(max(values))


def test_bars_grow_alike_and_are_few_when_values_are_near():
    bars = recorded([0.001, 0.002, 0.009, 0.05, 1.0]).bars(3)
    assert [number for _, number in bars] == [3, 1, 1]
    assert [end for end, _ in bars] == pytest.approx([0.01, 0.1, 1.0])
    assert recorded([1.0, 1.001]).bars(12) == [(1.001, 2)]
