"""Goals are judged by the median, and said in words."""

from __future__ import annotations

import math

import pytest

from benchmarks.goal import MET, NOT_MET, Goal, at_least, at_most, spread_of


@pytest.mark.parametrize(
    ("goal", "values", "judged"),
    [
        (at_least(0.33), [0.1, 0.33, 0.9], MET),
        (at_least(0.33), [0.32, 0.1, 0.9], NOT_MET),
        (at_most(120, " µs"), [120, 5000, 1], MET),
        (at_most(120, " µs"), [121, 5000, 1], NOT_MET),
        (Goal("between", least=1, most=2), [3], NOT_MET),
        (Goal("between", least=1, most=2), [1.5], MET),
    ],
)
def test_median_decides(goal, values, judged):
    assert goal.judge(values) == judged


def test_distance_is_the_factor_that_is_missing():
    assert at_least(100).distance([50]) == 2
    assert at_most(100).distance([250, 300, 1]) == 2.5
    assert at_most(100).distance([50]) == 0.5
    assert at_least(100).distance([0]) == math.inf
    assert at_least(100).judge([0]) == NOT_MET


def test_goal_says_its_bound_with_the_unit():
    assert at_least(0.33).words == "≥ 0.33"
    assert at_least(25_000, " /s").words == "≥ 25,000 /s"
    assert at_most(120, " µs").words == "≤ 120 µs"


def test_spread_has_median_and_ends():
    assert spread_of([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)
