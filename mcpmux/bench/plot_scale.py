"""Where a value lies on an axis, and which values get a mark. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

Ticks = list[tuple[float, str]]


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """Maps values from `low` to `high` onto `start` to `end`; by their logarithms when `log`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """The place of a value; what is outside is put on the nearest end."""
        value = min(max(value, self.low), self.high)
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log10(value), math.log10(low), math.log10(high)
        share = (value - low) / (high - low) if high > low else 0.0
        return self.start + share * (self.end - self.start)


def even_ticks(high: float, count: int, text: Callable[[float], str]) -> Ticks:
    """From 0 to `high` or just above, at round numbers, about `count` of them."""
    if high <= 0:
        return [(0.0, text(0.0)), (1.0, text(1.0))]
    power = 10.0 ** math.floor(math.log10(high / count))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if high / (power * factor) <= count)
    return [(place * step, text(place * step)) for place in range(math.ceil(high / step - 1e-9) + 1)]


def log_ticks(low: float, high: float, text: Callable[[float], str]) -> Ticks:
    """Around `low` and `high` at 1, 2 and 5 of each power of ten; only the powers when there are many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1,) if last - first > 3 else (1, 2, 5)
    values = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
    start = max((value for value in values if value <= low), default=values[0])
    end = min((value for value in values if value >= high), default=values[-1])
    if start == end:
        end = start * 10
    return [(value, text(value)) for value in values if start <= value <= end] or [(start, text(start))]


def span(values: Sequence[float]) -> tuple[float, float]:
    """The least and the most, apart enough to draw."""
    if not values:
        return 1e-3, 1e-2
    low, high = min(values), max(values)
    return (low, high) if high > low * 1.2 else (low / 1.2, high * 1.2)
