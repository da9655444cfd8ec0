"""Goals of measurements, and judgements by them. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

MET, NOT_MET, NOT_MEASURED = "met", "not met", "not measured"
IN_PROPORTION = "not met, but in proportion"
"""A time or a rate by itself that this machine, being slower than the one of the goals, could not reach."""


class Spread(NamedTuple):
    """Median, least and most of one number in several runs."""

    median: float
    least: float
    most: float


class Goal(NamedTuple):
    """A bound of a median, in words that a person reads next to the value: `≥ 0.33`.

    `absolute`: it is a time or a rate and no ratio, so a slower machine reaches it later.
    """

    words: str
    least: float | None = None
    most: float | None = None
    absolute: bool = False

    def judge(self, values: Sequence[float]) -> str:
        """Return MET or NOT_MET, by the median of this run."""
        return NOT_MET if self.distance(values) > 1 else MET

    def distance(self, values: Sequence[float]) -> float:
        """Return the factor by which the median misses the bound; 1 or less if the goal is met."""
        value = median(values)
        short = 0.0 if self.least is None else self.least / value if value > 0 else math.inf
        over = value / self.most if self.most is not None else 0.0
        return max(short, over)


def at_least(bound: float, unit: str = "", *, absolute: bool = False) -> Goal:
    """Return a goal of which more is better."""
    return Goal(f"≥ {bound:,g}{unit}", least=bound, absolute=absolute)


def at_most(bound: float, unit: str = "", *, absolute: bool = False) -> Goal:
    """Return a goal of which less is better."""
    return Goal(f"≤ {bound:,g}{unit}", most=bound, absolute=absolute)


def spread_of(values: Sequence[float]) -> Spread:
    """Return the median and the ends."""
    return Spread(median(values), min(values), max(values))
