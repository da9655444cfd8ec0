"""Counts, error rates and latencies of what passed, per upstream and method. Pure; memory is bounded.

Answers are counted where they were measured: on the clients' leg (what clients waited for, mcpmux included)
and on that of each upstream. A request is `open` when its answer was not among what was read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from attrs import define, field

from mcpmux.traffic.reading.summary import OK, is_answer, statuses_of
from mcpmux.traffic.record import Record, seconds_of

# Percentiles of any number of values in bounded memory. Pure.
#
# Values go into buckets whose bounds grow by GROWTH, so a percentile is at most ERROR away from the exact
# answer; the least and the most are exact. Two histograms added are the histogram of all their values.

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


# How many things happened when, in bounded memory. Pure.
#
# Slots begin a second wide. When there would be more than SLOTS of them, pairs become one, so that the
# picture always has between half of SLOTS and SLOTS of them, whatever the span, once it is long enough.

SLOTS = 120


class Slot(NamedTuple):
    """From `start` (seconds since 1970) on, for the timeline's width."""

    start: int
    answers: int
    failed: int


class Timeline:
    """`width`: seconds of a slot."""

    __slots__ = ("_slots", "width")

    def __init__(self) -> None:
        self.width = 1
        self._slots: dict[int, list[int]] = {}

    def __repr__(self) -> str:
        return f"<Timeline of {len(self._slots)} slots of {self.width} s>"

    def add(self, at: float, failed: bool) -> None:
        """Something happened at `at`, seconds since 1970."""
        place = int(at // self.width)
        slot = self._slots.get(place)
        if slot is None:
            self._slots[place] = [1, int(failed)]
            self._shrink()
        else:
            slot[0] += 1
            slot[1] += failed

    def _shrink(self) -> None:
        while max(self._slots) - min(self._slots) >= SLOTS:
            self.width *= 2
            slots: dict[int, list[int]] = {}
            for place, (count, failed) in self._slots.items():
                known = slots.setdefault(place // 2, [0, 0])
                known[0] += count
                known[1] += failed
            self._slots = slots

    def slots(self) -> list[Slot]:
        """Without gaps, oldest first."""
        if not self._slots:
            return []
        places = range(min(self._slots), max(self._slots) + 1)
        return [Slot(place * self.width, *self._slots.get(place, (0, 0))) for place in places]


GROUPS_LIMIT = 1000  # pairs of upstream and method; methods are strangers' words
OTHERS = "(others)"
CLIENTS = "(clients)"
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@define(eq=False, repr=False)
class Group:
    """What passed of one method on one leg. `upstream` is CLIENTS on that of the clients."""

    upstream: str
    method: str
    requests: int = 0
    answers: int = 0
    notifications: int = 0
    errors: int = 0
    tool_errors: int = 0
    http_errors: int = 0
    asked_bytes: int = 0
    bytes: int = 0
    latency: Histogram = field(factory=Histogram)

    def __repr__(self) -> str:
        return f"<Group {self.upstream} {self.method} {self.answers}>"

    @property
    def count(self) -> int:
        """What it is sorted by."""
        return self.answers + self.notifications + self.open

    @property
    def open(self) -> int:
        """Requests whose answer was not read."""
        return max(0, self.requests - self.answers)

    @property
    def failures(self) -> int:
        """Answers that are not ok."""
        return self.errors + self.tool_errors + self.http_errors

    @property
    def error_rate(self) -> float | None:
        """The share of failures among answers; None without answers."""
        return self.failures / self.answers if self.answers else None

    def add(self, record: Record) -> bool:
        """Count a message; whether it is a failure."""
        if record.kind == "request":
            self.requests += 1
            self.asked_bytes += record.size
            return False
        if record.kind == "notification":
            self.notifications += 1
            self.bytes += record.size
            return False
        self.answers += 1
        self.bytes += record.size
        if record.ms is not None:
            self.latency.add(record.ms)
        if record.failed:
            self.tool_errors += 1
        elif record.kind == "error":
            self.errors += 1
        elif statuses_of(record)[:1] != (OK,):
            self.http_errors += 1
        else:
            return False
        return True

    def as_json(self) -> dict[str, Any]:
        """For machines; durations in milliseconds, sizes in bytes."""
        return {
            "upstream": None if self.upstream == CLIENTS else self.upstream,
            "method": self.method,
            "requests": self.requests,
            "answers": self.answers,
            "open": self.open,
            "notifications": self.notifications,
            "errors": self.errors,
            "toolErrors": self.tool_errors,
            "httpErrors": self.http_errors,
            "errorRate": None if self.error_rate is None else round(self.error_rate, 6),
            "bytes": self.bytes,
            "requestBytes": self.asked_bytes,
            "latencyMs": latency_json(self.latency),
        }


def latency_json(latency: Histogram) -> dict[str, float | int | None] | None:
    """Percentiles in milliseconds, or None for none."""
    if not latency.count:
        return None
    mean = round(latency.total / latency.count, 3)
    return {**percentiles_of(latency), "max": latency.most, "mean": mean}


def percentiles_of(latency: Histogram) -> dict[str, float | int | None]:
    """Each of PERCENTILES, to the microsecond; None without any values."""
    found = {name: latency.percentile(share) for name, share in PERCENTILES.items()}
    return {name: None if value is None else round(value, 3) for name, value in found.items()}


class Stats:
    """Of all messages that were added."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], Group] = {}
        self.messages = 0
        self.bytes = 0
        self.invalid = 0
        self.first: str | None = None
        self.last: str | None = None
        self._asked = Timeline()
        self._forwarded = Timeline()

    def __repr__(self) -> str:
        return f"<Stats of {self.messages} messages in {len(self._groups)} groups>"

    def add(self, record: Record) -> None:
        """Count a message."""
        if record.kind == "start":
            return
        self.messages += 1
        self.bytes += record.size
        self.first = record.time if self.first is None else min(self.first, record.time)
        self.last = record.time if self.last is None else max(self.last, record.time)
        failed = False
        if record.kind in ("request", "result", "error", "notification"):
            failed = self._group(record).add(record)
        else:
            self.invalid += 1
        if is_answer(record):
            self._note(record, failed)

    def groups(self) -> list[Group]:
        """The clients' first, then those of each upstream; the busiest first."""
        return sorted(
            self._groups.values(),
            key=lambda group: (group.upstream != CLIENTS, group.upstream, -group.count, group.method),
        )

    @property
    def timeline(self) -> Timeline:
        """Answers over time: to clients, or of upstreams when nothing of clients was added."""
        return self._asked if self._asked.slots() else self._forwarded

    def latency(self, upstream: str | None = None) -> Histogram:
        """Of all groups of an upstream (or CLIENTS) together, or of all."""
        found = Histogram()
        for group in self._groups.values():
            if upstream is None or group.upstream == upstream:
                found.merge(group.latency)
        return found

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "messages": self.messages,
            "bytes": self.bytes,
            "invalid": self.invalid,
            "from": self.first,
            "to": self.last,
            "groups": [group.as_json() for group in self.groups()],
            "timeline": {
                "secondsPerSlot": self.timeline.width,
                "slots": [slot._asdict() for slot in self.timeline.slots()],
            },
        }

    def _group(self, record: Record) -> Group:
        upstream = CLIENTS if record.leg == "client" else record.upstream or record.peer or OTHERS
        key = (upstream, record.method or "(unknown)")
        group = self._groups.get(key)
        if group is None:
            if len(self._groups) >= GROUPS_LIMIT:
                key = (OTHERS, OTHERS)
            group = self._groups.setdefault(key, Group(*key))
        return group

    def _note(self, record: Record, failed: bool) -> None:
        at = seconds_of(record)
        if at is None:
            return
        timeline = self._asked if record.leg == "client" else self._forwarded
        timeline.add(at, failed)
