"""Record durations of any number in bounded memory, to three significant digits. Pure.

Promises: from LEAST to MOST seconds, a percentile is at most ERROR away from the exact one by nearest rank;
the least, the most and the count are exact; merging two equals recording their values together. Shorter
or longer durations count as the nearest bound.

A bucket's number follows from the binary form of the value, `value = m * 2**e` with 0.5 <= m < 1:
`(e + 19) * 1024 + floor(m * 2048) - 1024`. So 1024 buckets of the same width share each doubling. The package
`hdrhistogram` takes 2.1 µs for a value instead of 0.55, and 190 kB for an empty histogram.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from math import frexp

import msgspec

LEAST = 1e-6  # seconds; no clock of ours tells shorter ones apart
MOST = 1e9  # seconds; a listen may last as long as mcpmux
ERROR = 1 / 2048  # of the value: half a bucket, at its narrowest place

_OFFSET = (19 << 10) - 1024  # so that the bucket of LEAST has a small number, not a negative one
MOST_BUCKETS = 50 << 10
NARROWEST_BAR = 1.02  # from the beginning of a bar to its end
_FUZZ = 1e-9  # of a rank: 99.9 % of 1000 is 999, in spite of floating point


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded durations, in seconds. `counts[i]` of them are in bucket `numbers[i]`.

    `total` is their sum; `least` and `most` are exact, and 0 when there are none.
    Raises ValueError when the parts do not fit together: it may come from a file.
    """

    count: int
    total: float
    least: float
    most: float
    numbers: tuple[int, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.numbers) != len(self.counts) or sum(self.counts) != self.count:
            raise ValueError("the counts of a histogram do not add up to its count")
        if any(count < 1 for count in self.counts):
            raise ValueError("a histogram has a bucket with no count")
        if any(number >= other for number, other in zip(self.numbers, self.numbers[1:], strict=False)):
            raise ValueError("the buckets of a histogram are not in order")
        if self.numbers and not 0 <= self.numbers[0] <= self.numbers[-1] < MOST_BUCKETS:
            raise ValueError("a histogram has a bucket out of range")
        if not 0 <= self.least <= self.most <= MOST:
            raise ValueError("the least and the most of a histogram do not fit")

    def buckets(self) -> Iterator[tuple[int, int]]:
        """Return (number, count) of every bucket in use, ascending."""
        return zip(self.numbers, self.counts, strict=True)

    @property
    def mean(self) -> float | None:
        """The exact mean in seconds; None without any value."""
        return self.total / self.count if self.count else None

    def percentile(self, percent: float) -> float | None:
        """Return the duration that `percent` (0 to 100) of all do not exceed, in seconds, or None."""
        return self.percentiles((percent,))[0]

    def percentiles(self, percents: Sequence[float]) -> list[float | None]:
        """Return several percentiles by nearest rank, in the given order, in one walk over the buckets."""
        count = self.count
        if not count:
            return [None] * len(percents)
        ranks = [min(max(math.ceil(percent * count / 100 - _FUZZ), 1), count) for percent in percents]
        percentiles: dict[int, float | None] = {}
        buckets = self.buckets()
        passed = number = 0
        for rank in sorted(ranks):
            while passed < rank:
                number, counted = next(buckets)
                passed += counted
            middle = (bound(number) + bound(number + 1)) / 2
            # The last rank is the most itself, which is known exactly.
            percentiles[rank] = self.most if rank == count else min(max(middle, self.least), self.most)
        return [percentiles[rank] for rank in ranks]

    def curve(self) -> Iterator[tuple[float, float]]:
        """Yield (seconds, share of values not above) of every bucket, ascending; the last is the most."""
        passed = 0
        for number, count in self.buckets():
            passed += count
            yield min(bound(number + 1), self.most), passed / self.count


class Histogram:
    """Collects durations. `freeze` returns an immutable copy."""

    __slots__ = ("count", "counts", "least", "most", "total")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.count = 0
        self.total = 0.0
        self.least = math.inf
        self.most = 0.0

    def record(self, seconds: float) -> int:
        """Count one duration. Return the number of its bucket. Raises ValueError for NaN."""
        if not LEAST <= seconds <= MOST:
            if math.isnan(seconds):
                raise ValueError("a duration has to be a number")
            seconds = min(max(seconds, LEAST), MOST)
        mantissa, exponent = frexp(seconds)
        number = (exponent << 10) + int(mantissa * 2048.0) + _OFFSET
        counts = self.counts
        counts[number] = counts.get(number, 0) + 1
        self.count += 1
        self.total += seconds
        if seconds < self.least:
            self.least = seconds
        if seconds > self.most:
            self.most = seconds
        return number

    def percentiles(self, percents: Sequence[float]) -> list[float | None]:
        """Return percentiles as `freeze` would have them."""
        return self.freeze().percentiles(percents)

    def bars(self, most: int) -> list[tuple[float, int]]:
        """Return all values in at most `most` ranges that grow by a factor: (end in seconds, count)."""
        if not self.count:
            return []
        growth = max((self.most / self.least) ** (1 / most), NARROWEST_BAR)
        bars = [0] * max(1, math.ceil(math.log(self.most / self.least, growth) - _FUZZ))
        for number, count in self.counts.items():
            place = int(math.log(max(bound(number) / self.least, 1.0), growth))
            bars[min(place, len(bars) - 1)] += count
        ends = (min(self.least * growth**place, self.most) for place in range(1, len(bars) + 1))
        return list(zip(ends, bars, strict=True))

    def merge(self, other: Histogram | Distribution) -> None:
        """Add all counts of another one."""
        if not other.count:
            return
        counts = self.counts
        for number, count in other.counts.items() if isinstance(other, Histogram) else other.buckets():
            counts[number] = counts.get(number, 0) + count
        self.count += other.count
        self.total += other.total
        self.least = min(self.least, other.least)
        self.most = max(self.most, other.most)

    def freeze(self) -> Distribution:
        """Return all that was counted so far."""
        numbers = tuple(sorted(self.counts))
        return Distribution(
            count=self.count,
            total=self.total,
            least=self.least if self.count else 0.0,
            most=self.most,
            numbers=numbers,
            counts=tuple(self.counts[number] for number in numbers),
        )


def merged(histograms: Iterable[Histogram | Distribution]) -> Distribution:
    """Return all of them as one."""
    whole = Histogram()
    for histogram in histograms:
        whole.merge(histogram)
    return whole.freeze()


def bound(number: int) -> float:
    """Return the least duration of a bucket, in seconds."""
    exponent, place = divmod(number, 1024)
    return math.ldexp((place + 1024) / 2048, exponent - 19)
