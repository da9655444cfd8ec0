"""Durations of any number in bounded memory, told to three significant digits. Pure.

Promises: from LEAST to MOST seconds, a percentile is at most ERROR away from the exact one by nearest rank;
the least, the most and the count are exact; merging two is recording their values together. What is shorter
or longer counts as the nearest bound. Knows nothing of what was timed.

A bucket's number follows from the binary form of the value, `value = m * 2**e` with 0.5 <= m < 1:
`(e + 19) * 1024 + floor(m * 2048) - 1024`. So 1024 buckets of the same width share each doubling, and a
histogram has at most MOST_BUCKETS. Bucket n holds values from `bound(n)` on and below `bound(n + 1)`.

Why not the `hdrhistogram` package: recording took 3.6 times as long, and it wants setuptools at run time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import frexp

import msgspec

LEAST = 1e-6  # seconds; no clock of ours tells shorter ones apart
MOST = 3600.0  # seconds; longer than any wait that a benchmark allows
ERROR = 1 / 2048  # of the value: half a bucket, at its narrowest place

_OFFSET = (19 << 10) - 1024  # so that the bucket of LEAST has a small number, not a negative one
MOST_BUCKETS = 32 << 10
_FUZZ = 1e-9  # of a rank: 99.9 % of 1000 is 999, whatever floating point makes of it


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Durations that were recorded, in seconds. `counts[i]` of them are in bucket `numbers[i]`.

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
        if any(one >= other for one, other in zip(self.numbers, self.numbers[1:], strict=False)):
            raise ValueError("the buckets of a histogram are not in order")
        if self.numbers and not 0 <= self.numbers[0] <= self.numbers[-1] < MOST_BUCKETS:
            raise ValueError("a histogram has a bucket out of range")
        if not 0 <= self.least <= self.most <= MOST:
            raise ValueError("the least and the most of a histogram do not fit")

    @property
    def mean(self) -> float | None:
        """The exact mean in seconds; None without any value."""
        return self.total / self.count if self.count else None

    def percentile(self, percent: float) -> float | None:
        """The duration that `percent` (0 to 100) of all do not exceed, in seconds; None without any."""
        return self.percentiles((percent,))[0]

    def percentiles(self, percents: Sequence[float]) -> list[float | None]:
        """Several percentiles, in the order asked for."""
        if not self.count:
            return [None] * len(percents)
        ranks = sorted({rank_of(percent, self.count) for percent in percents})
        found = dict(zip(ranks, self._values_at(ranks), strict=True))
        return [found[rank_of(percent, self.count)] for percent in percents]

    def _values_at(self, ranks: Sequence[int]) -> Iterator[float]:
        """The values of ascending ranks."""
        passed = place = 0
        for rank in ranks:
            while passed + self.counts[place] < rank:
                passed += self.counts[place]
                place += 1
            if rank == self.count:
                yield self.most
            else:
                yield min(max(middle(self.numbers[place]), self.least), self.most)

    def share_above(self, seconds: float) -> float:
        """Which share (0 to 1) is in buckets above that of `seconds`."""
        if not self.count:
            return 0.0
        limit = number_of(seconds)
        pairs = zip(self.numbers, self.counts, strict=True)
        return sum(count for number, count in pairs if number > limit) / self.count

    def curve(self) -> Iterator[tuple[float, float]]:
        """(seconds, share of values not above) of every bucket in use, ascending; the last is the most."""
        passed = 0
        for number, count in zip(self.numbers, self.counts, strict=True):
            passed += count
            yield min(bound(number + 1), self.most), passed / self.count


class Histogram:
    """Collects durations. `freeze` gives what may be kept."""

    __slots__ = ("count", "counts", "least", "most", "total")

    def __init__(self, values: Iterable[float] = ()) -> None:
        self.counts: dict[int, int] = {}
        self.count = 0
        self.total = 0.0
        self.least = math.inf
        self.most = 0.0
        for value in values:
            self.record(value)

    def __repr__(self) -> str:
        return f"<Histogram of {self.count} in {len(self.counts)} buckets>"

    def record(self, seconds: float) -> int:
        """Count one duration; the number of its bucket. Raises ValueError when it is no number."""
        if not LEAST <= seconds <= MOST:
            seconds = clamp(seconds)
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
        """Those of `freeze`, sooner; `percents` ascending."""
        if not self.count:
            return [None] * len(percents)
        found: list[float | None] = []
        counts = self.counts
        numbers = iter(sorted(counts))
        passed = number = 0
        for percent in percents:
            rank = rank_of(percent, self.count)
            while passed < rank:
                number = next(numbers)
                passed += counts[number]
            if rank == self.count:
                found.append(self.most)
            else:
                found.append(min(max(middle(number), self.least), self.most))
        return found

    def merge(self, other: Histogram | Distribution) -> None:
        """Count all that another one has counted."""
        if not other.count:
            return
        pairs: Iterable[tuple[int, int]]
        if isinstance(other, Histogram):
            pairs = other.counts.items()
        else:
            pairs = zip(other.numbers, other.counts, strict=True)
        counts = self.counts
        for number, count in pairs:
            counts[number] = counts.get(number, 0) + count
        self.count += other.count
        self.total += other.total
        self.least = min(self.least, other.least)
        self.most = max(self.most, other.most)

    def freeze(self) -> Distribution:
        """What was counted so far."""
        return freeze(self.counts, self.total, self.least if self.count else 0.0, self.most)


def freeze(counts: Mapping[int, int], total: float, least: float, most: float) -> Distribution:
    """A distribution of the counts of buckets."""
    numbers = tuple(sorted(counts))
    return Distribution(
        count=sum(counts.values()),
        total=total,
        least=least,
        most=most,
        numbers=numbers,
        counts=tuple(counts[number] for number in numbers),
    )


def merged(distributions: Iterable[Distribution]) -> Distribution:
    """All of them as one."""
    whole = Histogram()
    for distribution in distributions:
        whole.merge(distribution)
    return whole.freeze()


def rank_of(percent: float, count: int) -> int:
    """The nearest rank of a percentile among `count` values, from 1."""
    return min(max(math.ceil(percent * count / 100 - _FUZZ), 1), count)


def clamp(seconds: float) -> float:
    """The nearest duration that a histogram can hold."""
    if seconds != seconds:
        raise ValueError("a duration has to be a number")
    return min(max(seconds, LEAST), MOST)


def number_of(seconds: float) -> int:
    """The bucket of a duration."""
    mantissa, exponent = frexp(clamp(seconds))
    return (exponent << 10) + int(mantissa * 2048.0) + _OFFSET


def bound(number: int) -> float:
    """The least duration that belongs to a bucket, in seconds."""
    exponent, place = divmod(number, 1024)
    return math.ldexp((place + 1024) / 2048, exponent - 19)


def middle(number: int) -> float:
    """What is told of the durations in a bucket, in seconds."""
    return (bound(number) + bound(number + 1)) / 2
