"""Percentiles of any number of values in bounded memory. Pure.

Values go into buckets whose bounds grow by GROWTH, so what is told is at most ERROR away from the exact
answer; the least and the most are exact. Two histograms added are the histogram of all their values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

GROWTH = 1.02
ERROR = 0.01  # of the value
LEAST = 1e-3  # what is smaller counts as this; of milliseconds, a microsecond

_LOG = math.log(GROWTH)
_MOST = 1e12  # keeps the number of buckets bounded: 1750


class Histogram:
    """Values of 0 and more. `total` is their sum."""

    __slots__ = ("_buckets", "count", "least", "most", "total")

    def __init__(self, values: Sequence[float] = ()) -> None:
        self._buckets: dict[int, int] = {}
        self.count = 0
        self.total = 0.0
        self.least = math.inf
        self.most = -math.inf
        for value in values:
            self.add(value)

    def __repr__(self) -> str:
        return f"<Histogram of {self.count} from {self.least} to {self.most}>"

    def add(self, value: float) -> None:
        """One more value; what is no number of 0 or more is taken for the nearest that is."""
        value = min(max(value, 0.0), _MOST) if value == value else 0.0
        bucket = math.ceil(math.log(max(value, LEAST)) / _LOG)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        self.count += 1
        self.total += value
        self.least = min(self.least, value)
        self.most = max(self.most, value)

    def merge(self, other: Histogram) -> None:
        """All values of another one."""
        for bucket, count in other._buckets.items():
            self._buckets[bucket] = self._buckets.get(bucket, 0) + count
        self.count += other.count
        self.total += other.total
        self.least = min(self.least, other.least)
        self.most = max(self.most, other.most)

    def percentile(self, share: float) -> float | None:
        """The value that `share` (0 to 1) of the values do not exceed, by nearest rank; None without any."""
        if not self.count:
            return None
        rank = max(1, math.ceil(share * self.count))
        if rank == self.count:
            return self.most
        passed = 0
        for bucket in sorted(self._buckets):
            passed += self._buckets[bucket]
            if passed >= rank:
                return min(max(_middle(bucket), self.least), self.most)
        return self.most

    def bars(self, count: int) -> list[tuple[float, int]]:
        """The values in at most `count` ranges that grow alike: (where a range ends, how many are in it)."""
        if not self._buckets:
            return []
        first, last = min(self._buckets), max(self._buckets)
        width = max(1, math.ceil((last - first + 1) / count))
        sums = [0] * math.ceil((last - first + 1) / width)
        for bucket, number in self._buckets.items():
            sums[(bucket - first) // width] += number
        return [(GROWTH ** (first + (place + 1) * width - 1), number) for place, number in enumerate(sums)]


def _middle(bucket: int) -> float:
    """The value that is as far from both bounds of a bucket, in relation to them."""
    low, high = GROWTH ** (bucket - 1), GROWTH**bucket
    return 2 * low * high / (low + high)
