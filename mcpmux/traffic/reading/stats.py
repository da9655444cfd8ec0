"""Count traffic, error rates and latencies, per upstream and method, or name. Pure; memory is bounded.

Answers are counted where they were measured: on the clients' leg (what clients waited, mcpmux included)
and on that of each upstream. A request is `open` when its answer was not among the messages read.
"""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from heapq import nlargest
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from mcpmux.traffic.outcome import ERROR, OK, TOOL_ERROR, statuses_of
from mcpmux.traffic.reading.histogram import Histogram
from mcpmux.traffic.record import ANSWERS, Record, seconds_of

SLOTS = 120  # of a timeline


class Slot(NamedTuple):
    """From `start` (seconds since 1970) on, for the timeline's width."""

    start: int
    answers: int
    failed: int


class Timeline:
    """Counts over time, in bounded memory. `width`: seconds of a slot.

    Slots begin a second wide. When there would be more than SLOTS of them, pairs become one, so a long span
    has between half of SLOTS and SLOTS of them.
    """

    def __init__(self) -> None:
        self.width = 1
        self._answers: Counter[int] = Counter()
        self._failed: Counter[int] = Counter()

    def add(self, at: float, failed: bool) -> None:
        """Count an answer at `at`, seconds since 1970."""
        place = int(at // self.width)
        is_new = place not in self._answers
        self._answers[place] += 1
        self._failed[place] += failed
        while is_new and max(self._answers) - min(self._answers) >= SLOTS:
            self.width *= 2
            self._answers, self._failed = _in_pairs(self._answers), _in_pairs(self._failed)

    def slots(self) -> list[Slot]:
        """Return the slots without gaps, oldest first."""
        if not self._answers:
            return []
        places = range(min(self._answers), max(self._answers) + 1)
        return [Slot(place * self.width, self._answers[place], self._failed[place]) for place in places]


def _in_pairs(counts: Counter[int]) -> Counter[int]:
    pairs: Counter[int] = Counter()
    for place, count in counts.items():
        pairs[place // 2] += count
    return pairs


GROUPS_LIMIT = 1000  # peers may invent methods and names
OTHERS = "(others)"
CLIENTS = "(clients)"
PERCENTILES = (50, 90, 99)
HTTP = "http"


class Group:
    """The counts of one method, or of one name or URI, on a leg. `upstream` is CLIENTS on the clients' leg.

    `failed`: the answers that are not ok: ERROR, TOOL_ERROR, or else HTTP. `slowest`: number of an exchange
    in the run `slowest_run`.
    """

    def __init__(self, upstream: str, method: str, name: str | None = None) -> None:
        self.upstream = upstream
        self.method = method
        self.name = name
        self.slowest: int | None = None
        self.slowest_run = ""
        self.requests = self.answers = self.notifications = 0
        self.failed: Counter[str] = Counter()
        self.asked_bytes = self.bytes = 0
        self.latency = Histogram()

    @property
    def open(self) -> int:
        """The number of requests without an answer."""
        return max(0, self.requests - self.answers)

    @property
    def failures(self) -> int:
        """The number of answers that are not ok."""
        return self.failed.total()

    @property
    def error_rate(self) -> float | None:
        """The share of failures among answers; None without answers."""
        return self.failures / self.answers if self.answers else None

    def add(self, record: Record) -> bool:
        """Count a message. Return whether it is a failure."""
        if record.kind == "request":
            self.requests += 1
            self.asked_bytes += record.size
            return False
        self.bytes += record.size
        if record.kind == "notification":
            self.notifications += 1
            return False
        self.answers += 1
        if record.ms is not None:
            if record.ms / 1000 > self.latency.most:
                self.slowest, self.slowest_run = record.exchange, record.run
            self.latency.record(record.ms / 1000)
        status = statuses_of(record)[0]
        if status != OK:
            self.failed[status if status in (ERROR, TOOL_ERROR) else HTTP] += 1
        return status != OK

    def as_json(self) -> dict[str, Any]:
        latency: dict[str, float | None] | None = None
        if self.latency.count:
            mean = self.latency.total / self.latency.count
            whole = {"max": round(self.latency.most * 1000, 3), "mean": round(mean * 1000, 3)}
            latency = {**percentiles_of(self.latency), **whole}
        return {
            "upstream": None if self.upstream == CLIENTS else self.upstream,
            "method": self.method,
            "name": self.name,
            "slowest": self.slowest,
            "slowestRun": self.slowest_run or None,
            "requests": self.requests,
            "answers": self.answers,
            "open": self.open,
            "notifications": self.notifications,
            "errors": self.failed[ERROR],
            "toolErrors": self.failed[TOOL_ERROR],
            "httpErrors": self.failed[HTTP],
            "errorRate": None if self.error_rate is None else round(self.error_rate, 6),
            "bytes": self.bytes,
            "requestBytes": self.asked_bytes,
            "latencyMs": latency,
        }


def percentiles_of(latency: Histogram, percents: Sequence[int] = PERCENTILES) -> dict[str, float | None]:
    """Return percentiles in milliseconds, to the microsecond; None without any values."""
    values = zip(percents, latency.percentiles(percents), strict=True)
    return {f"p{percent}": None if value is None else round(value * 1000, 3) for percent, value in values}


class Stats:
    """The counts of all messages that were added. `by_name`: a group for each name or URI, not a method."""

    def __init__(self, *, by_name: bool = False) -> None:
        self._by_name = by_name
        self._groups: dict[tuple[str, str, str | None], Group] = {}
        self.has_runs = False  # several, which number their exchanges alike
        self._run = ""
        self.messages = 0
        self.bytes = 0
        self.invalid = 0
        self.first: str | None = None
        self.last: str | None = None
        self._asked = Timeline()
        self._forwarded = Timeline()

    def add(self, record: Record) -> None:
        """Count a message."""
        if record.kind == "start":
            return
        self.has_runs = self.has_runs or record.run != (self._run or record.run)
        self._run = record.run
        self.messages += 1
        self.bytes += record.size
        self.first = min(self.first or record.time, record.time)
        self.last = max(self.last or record.time, record.time)
        if record.kind not in ("request", "result", "error", "notification"):
            self.invalid += 1
            return
        upstream = CLIENTS if record.leg == "client" else record.upstream or record.peer or OTHERS
        key = (upstream, record.method or "(unknown)", record.target if self._by_name else None)
        if key not in self._groups:
            key = key if len(self._groups) < GROUPS_LIMIT else (OTHERS, OTHERS, None)
            self._groups.setdefault(key, Group(*key))
        failed = self._groups[key].add(record)
        if record.kind in ANSWERS and (at := seconds_of(record)) is not None:
            timeline = self._asked if record.leg == "client" else self._forwarded
            timeline.add(at, failed)

    def groups(self) -> list[Group]:
        """Return the groups, the clients' first, then those of each upstream.

        Within these the busiest methods are first, or the names with the slowest answer.
        """

        def place(group: Group) -> tuple[Any, ...]:
            busy = group.answers + group.notifications + group.open
            slow = group.latency.most if self._by_name else 0.0
            return group.upstream != CLIENTS, group.upstream, -slow, -busy, group.method, group.name or ""

        return sorted(self._groups.values(), key=place)

    @property
    def timeline(self) -> Timeline:
        """Answers over time: to clients, or of upstreams when no answer to clients was added."""
        return self._asked if self._asked.slots() else self._forwarded

    def latency(self, upstream: str | None = None) -> Histogram:
        """Return the durations of all groups of an upstream (or CLIENTS) together, or of all."""
        merged = Histogram()
        for group in self._groups.values():
            if upstream is None or group.upstream == upstream:
                merged.merge(group.latency)
        return merged

    def as_json(self) -> dict[str, Any]:
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


# Recent durations of calls for the inspector, in milliseconds: by upstream and method, by name, over time.

EDGES: Final = tuple(round(10 ** (exponent / 2), 4) for exponent in range(-2, 11))
"""Upper ends of the buckets that are shown, from 0.1 ms to 100 s; one more bucket has no upper end."""

SHOWN_GROUPS: Final = 200  # more pairs of upstream and method, or names, than a person reads


class TimedCall(NamedTuple):
    """`at`: its beginning, milliseconds since 1970. `upstream` "" stands for mcpmux.

    `name`: of the tool, resource or prompt of a whole exchange. `row`: its number.
    """

    at: float
    upstream: str
    method: str
    ms: float
    failed: bool
    name: str | None = None
    row: int = 0


class Durations(msgspec.Struct, kw_only=True):
    """Those of a `method` at an `upstream`, of all its methods, of a `name`, or from `at` on.

    `buckets`: number of calls up to each of EDGES, and longer. `slowest`: the row of the longest call.
    """

    upstream: str | UnsetType = UNSET
    method: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    slowest: int | UnsetType = UNSET
    at: float | UnsetType = UNSET
    count: int
    errors: int
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    most: float | None
    buckets: list[int]


class Statistics(msgspec.Struct):
    """`groups`: one method at one upstream each, the busiest first. `slots`: parts of `seconds` in order.

    `names`: one tool, resource or prompt each, as clients call it, the one with the longest call first.
    """

    groups: list[Durations]
    names: list[Durations]
    upstreams: list[Durations]
    slots: list[Durations]
    seconds: float
    edges: tuple[float, ...] = EDGES


def measure(
    calls: Iterable[TimedCall], now: float, window_ms: float, slots: int, seconds: float
) -> Statistics:
    """Return durations of calls that began in the window before `now`; older ones are left out.

    `slots`: the number of parts of the window.
    """
    by_pair: defaultdict[tuple[str, str], list[TimedCall]] = defaultdict(list)
    by_name: defaultdict[tuple[str, str], list[TimedCall]] = defaultdict(list)
    by_upstream: defaultdict[str, list[TimedCall]] = defaultdict(list)
    by_slot: list[list[TimedCall]] = [[] for _ in range(slots)]
    begin, width = now - window_ms, window_ms / slots
    for call in calls:
        if call.at >= begin:
            _group_for(by_pair, (call.upstream, call.method), SHOWN_GROUPS).append(call)
            if call.name is not None:
                _group_for(by_name, (call.method, call.name), GROUPS_LIMIT).append(call)
            by_upstream[call.upstream].append(call)
            by_slot[min(slots - 1, int((call.at - begin) / width))].append(call)
    pairs = sorted(by_pair.items(), key=lambda pair: -len(pair[1]))
    slowest = {key: max(group, key=lambda call: call.ms) for key, group in by_name.items()}
    names = nlargest(SHOWN_GROUPS, by_name, key=lambda key: slowest[key].ms)
    return Statistics(
        [_durations(group, upstream=upstream, method=method) for (upstream, method), group in pairs],
        [_durations(by_name[key], method=key[0], name=key[1], slowest=slowest[key].row) for key in names],
        [_durations(group, upstream=upstream) for upstream, group in by_upstream.items()],
        [_durations(group, at=begin + index * width) for index, group in enumerate(by_slot)],
        seconds,
    )


def _group_for(
    groups: defaultdict[tuple[str, str], list[TimedCall]], key: tuple[str, str], most: int
) -> list[TimedCall]:
    """Return the calls of a group, or those of all others when there are too many groups."""
    return groups[key if key in groups or len(groups) < most else (OTHERS, OTHERS)]


def _durations(calls: Sequence[TimedCall], **of: Any) -> Durations:
    histogram = Histogram()
    for call in calls:
        histogram.record(call.ms / 1000)
    places = Counter(bisect.bisect_left(EDGES, call.ms) for call in calls)
    of |= percentiles_of(histogram, (50, 90, 95, 99))
    return Durations(
        count=len(calls),
        errors=sum(call.failed for call in calls),
        most=round(histogram.most * 1000, 3) if calls else None,
        buckets=[places[place] for place in range(len(EDGES) + 1)],
        **of,
    )
