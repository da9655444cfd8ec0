"""Which of many things is asked for how often: all alike, or a few much more than the rest. Pure.

Source: Zipf's law; of n things the k-th is drawn with a weight of 1 / k ** exponent.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Generic, TypeVar

T = TypeVar("T")

Draw = Callable[[], float]
"""Gives numbers from 0 up to, not including, 1."""


class Drawing(Generic[T]):
    """Draws one of `items`, each as often as its weight says. Raises ValueError without anything to draw."""

    def __init__(self, items: Sequence[T], weights: Iterable[float]) -> None:
        self._items = items
        self._bounds = list(accumulate(weights))
        if not items or len(self._bounds) != len(items) or self._bounds[-1] <= 0:
            raise ValueError("there is nothing to draw from")
        self._total = self._bounds[-1]

    def __repr__(self) -> str:
        return f"<Drawing of {len(self._items)}>"

    def __len__(self) -> int:
        return len(self._items)

    def one(self, draw: Draw) -> T:
        """One of them."""
        place = bisect_right(self._bounds, draw() * self._total)
        return self._items[min(place, len(self._items) - 1)]


def zipf(count: int, exponent: float) -> list[float]:
    """The weights of `count` things, the first the most popular; an exponent of 0 makes them alike."""
    return [float(rank) ** -exponent for rank in range(1, count + 1)]
