"""Intervals and effect sizes of differences, by resampling. Pure: the random source is handed in.

A sample is a list of blocks, a block a list of (weight, value): what is estimated is the weighted mean of
all values. Whole blocks are drawn, because neighbours in time are alike and single seconds would look like
more evidence than they are.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from random import Random

import msgspec

Block = Sequence[tuple[float, float]]

ROUNDS = 2000  # resamples; the ends of a 95 % interval then move by a fraction of its width
CONFIDENCE = 0.95


class Interval(msgspec.Struct, frozen=True):
    """An estimate and the range in which it lies with CONFIDENCE."""

    estimate: float
    low: float
    high: float


def weighted_mean(blocks: Sequence[Block]) -> float:
    """Of all values; 0 when nothing has weight."""
    return _mean(*_total([_sum(block) for block in blocks]))


def relative_change(old: Sequence[Block], new: Sequence[Block], random: Random) -> Interval | None:
    """By what share the mean of the new sample differs from that of the old one; None when that is 0."""
    before, after = [_sum(block) for block in old], [_sum(block) for block in new]
    start = _mean(*_total(before))
    if start <= 0:
        return None
    drawn = []
    for _ in range(ROUNDS):
        one = _mean(*_total(random.choices(before, k=len(before))))
        other = _mean(*_total(random.choices(after, k=len(after))))
        if one > 0:
            drawn.append(other / one - 1)
    return _interval(_mean(*_total(after)) / start - 1, drawn, min(len(old), len(new)))


def difference(old: Sequence[Block], new: Sequence[Block], random: Random) -> Interval:
    """By how much the mean of the new sample differs from that of the old one."""
    before, after = [_sum(block) for block in old], [_sum(block) for block in new]
    drawn = [
        _mean(*_total(random.choices(after, k=len(after))))
        - _mean(*_total(random.choices(before, k=len(before))))
        for _ in range(ROUNDS)
    ]
    return _interval(_mean(*_total(after)) - _mean(*_total(before)), drawn, min(len(old), len(new)))


def paired_change(old: Sequence[float], new: Sequence[float], random: Random) -> Interval | None:
    """The mean of the relative changes pair by pair; None when an old value is 0."""
    if any(value <= 0 for value in old):
        return None
    changes = [after / before - 1 for before, after in zip(old, new, strict=True)]
    drawn = [math.fsum(random.choices(changes, k=len(changes))) / len(changes) for _ in range(ROUNDS)]
    return _interval(math.fsum(changes) / len(changes), drawn, len(changes))


def cliffs_delta(old: Sequence[float], new: Sequence[float]) -> float:
    """How often a new value is above an old one, less how often it is below: -1 to 1, 0 when alike."""
    ordered = sorted(old)
    if not ordered or not new:
        return 0.0
    above = sum(bisect_left(ordered, value) for value in new)
    below = sum(len(ordered) - bisect_right(ordered, value) for value in new)
    return (above - below) / (len(ordered) * len(new))


def _sum(block: Block) -> tuple[float, float]:
    return sum(weight for weight, _ in block), sum(weight * value for weight, value in block)


def _total(sums: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return sum(weight for weight, _ in sums), sum(product for _, product in sums)


def _mean(weight: float, product: float) -> float:
    return product / weight if weight else 0.0


def _interval(estimate: float, drawn: list[float], blocks: int) -> Interval:
    """The middle CONFIDENCE of what was drawn, widened as few blocks make it too narrow."""
    if not drawn:
        return Interval(estimate, -math.inf, math.inf)
    drawn.sort()
    tail = (1 - CONFIDENCE) / 2
    low, high = drawn[int(len(drawn) * tail)], drawn[min(int(len(drawn) * (1 - tail)), len(drawn) - 1)]
    wider = math.sqrt(blocks / (blocks - 1)) * (1 + 2 / blocks) if blocks > 1 else math.inf
    return Interval(estimate, estimate - (estimate - low) * wider, estimate + (high - estimate) * wider)
