"""What a measurement has to reach, and whether it did. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

MET, NOT_MET, NOT_MEASURED = "met", "not met", "not measured"


class Spread(NamedTuple):
    """What several runs have shown of one number."""

    median: float
    least: float
    most: float


class Goal(NamedTuple):
    """A bound of a median, in words that a person reads next to the value: `≥ 0.33`."""

    words: str
    least: float | None = None
    most: float | None = None

    def judge(self, values: Sequence[float]) -> str:
        """MET or NOT_MET, by the median of what this run has shown."""
        value = median(values)
        too_small = self.least is not None and value < self.least
        too_large = self.most is not None and value > self.most
        return NOT_MET if too_small or too_large else MET


def at_least(bound: float, unit: str = "") -> Goal:
    """More is better."""
    return Goal(f"≥ {bound:,g}{unit}", least=bound)


def at_most(bound: float, unit: str = "") -> Goal:
    """Less is better."""
    return Goal(f"≤ {bound:,g}{unit}", most=bound)


def spread_of(values: Sequence[float]) -> Spread:
    """The median and the ends."""
    return Spread(median(values), min(values), max(values))
