"""Counts, error rates and latencies of what passed, per upstream and method. Pure; memory is bounded.

Answers are counted where they were measured: on the clients' leg (what clients waited for, mcpmux included)
and on that of each upstream. A request is `open` when its answer was not among what was read.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from mcpmux.traffic.reading.percentiles import Histogram
from mcpmux.traffic.reading.status import OK, is_answer, statuses_of
from mcpmux.traffic.reading.timeline import Timeline
from mcpmux.traffic.record import Record

GROUPS_LIMIT = 1000  # pairs of upstream and method; methods are strangers' words
OTHERS = "(others)"
CLIENTS = "(clients)"
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


class Group:
    """What passed of one method on one leg. `upstream` is CLIENTS on that of the clients."""

    __slots__ = (
        "answers",
        "asked_bytes",
        "bytes",
        "errors",
        "http_errors",
        "latency",
        "method",
        "notifications",
        "requests",
        "tool_errors",
        "upstream",
    )

    def __init__(self, upstream: str, method: str) -> None:
        self.upstream = upstream
        self.method = method
        self.requests = self.answers = self.notifications = 0
        self.errors = self.tool_errors = self.http_errors = 0
        self.asked_bytes = self.bytes = 0
        self.latency = Histogram()

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
        """Count a message; whether it tells of a failure."""
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


def latency_json(latency: Histogram) -> dict[str, float | int] | None:
    """Percentiles in milliseconds, or None for none."""
    if not latency.count:
        return None
    found = {name: latency.percentile(share) or 0.0 for name, share in PERCENTILES.items()}
    rounded = {name: round(value, 3) for name, value in found.items()}
    return {**rounded, "max": latency.most, "mean": round(latency.total / latency.count, 3)}


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
        try:
            moment = datetime.fromisoformat(record.time).timestamp()
        except ValueError:  # somebody else's file
            return
        timeline = self._asked if record.leg == "client" else self._forwarded
        timeline.add(moment, failed)
