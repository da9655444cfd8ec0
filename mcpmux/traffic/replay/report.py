"""The outcome of a replay, request by request. Pure.

| status | meaning |
| --- | --- |
| `same` | the answer is what it was |
| `different` | it is not |
| `failed` | there was no answer |
| `unasked` | answered at once, and then the server asked its client first; the end is compared |
| `unchecked` | answered, but what was answered then is not in the capture |
| `skipped` | not sent |
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import msgspec

from mcpmux.traffic.reading.dialogue import CapturedRequest
from mcpmux.traffic.reading.histogram import Histogram
from mcpmux.traffic.reading.stats import percentiles_of
from mcpmux.traffic.redaction.redactor import Redactor
from mcpmux.traffic.replay.difference import Difference, Path, show_path
from mcpmux.traffic.replay.mapping import Kind

Status = Literal["same", "different", "failed", "unasked", "unchecked", "skipped"]
STATUSES: tuple[Status, ...] = ("same", "different", "failed", "unasked", "unchecked", "skipped")
PLACES_LIMIT = 1000  # of a list that is made up to look at one value in it


class Outcome(NamedTuple):
    """One request. `ms`: milliseconds until its answer; `reason`: why it failed or was skipped."""

    client: str
    captured: CapturedRequest
    status: Status
    reason: str | None = None
    differences: Sequence[Difference] = ()
    ms: float | None = None


class Latency(NamedTuple):
    """Durations of the same requests, then and now."""

    captured: Histogram
    now: Histogram


class Report:
    """Collects outcomes; what would be shown of them is redacted first.

    `left_out`: messages of the capture that belong to no request, by the reason. `questions`: how many
    questions of servers were not as in the capture, by kind and method.
    """

    def __init__(self, left_out: Counter[str], redactor: Redactor | None = None) -> None:
        self.left_out = left_out
        self.outcomes: list[Outcome] = []  # in the order of the capture
        self.questions: Counter[tuple[Kind, str]] = Counter()
        self._redactor = redactor or Redactor()

    def __repr__(self) -> str:
        return f"<Report {dict(self.counts())}>"

    def add(self, outcome: Outcome) -> None:
        """One more request."""
        redact = partial(self._redact, outcome.captured.method)
        outcome = outcome._replace(
            reason=self._redactor.redact_name(outcome.reason),
            differences=[
                Difference(path, kind, redact(path, captured), redact(path, now))
                for path, kind, captured, now in outcome.differences
            ],
        )
        bisect.insort(self.outcomes, outcome, key=lambda each: each.captured.position)

    def add_questions(self, deviations: Counter[tuple[Kind, str]]) -> None:
        """Count the questions of one server that were not asked as in the capture."""
        for (kind, method), count in deviations.items():
            self.questions[kind, self._redactor.clean(method)] += count

    def _redact(self, method: str, path: Path, value: Any) -> Any:
        """A value without secrets: looked at where it stands in its message, as rules may go by that.

        Values of this run were never captured, so they have not been redacted.
        """
        data, count = self._redactor.redact(method, msgspec.json.encode(_placed(path, value)))
        return _at(path, msgspec.json.decode(data)) if count else value

    def counts(self) -> Counter[str]:
        """How many requests have each status."""
        return Counter(outcome.status for outcome in self.outcomes)

    @property
    def clean(self) -> bool:
        """Whether nothing was different or failed."""
        return not any(outcome.status in ("different", "failed") for outcome in self.outcomes)

    def by_method(self) -> dict[str, Counter[str]]:
        """The same for each method, in the order of the capture."""
        found: dict[str, Counter[str]] = {}
        for outcome in self.outcomes:
            found.setdefault(outcome.captured.method, Counter())[outcome.status] += 1
        return found

    def reasons(self, status: Status) -> Counter[str]:
        """Why requests have this status."""
        return Counter(o.reason or "?" for o in self.outcomes if o.status == status)

    def latency(self) -> dict[str, Latency]:
        """By method, of requests that were answered both times."""
        found: dict[str, Latency] = {}
        for outcome in self.outcomes:
            if outcome.ms is not None and outcome.captured.ms is not None:
                latency = found.setdefault(outcome.captured.method, Latency(Histogram(), Histogram()))
                latency.captured.record(outcome.captured.ms / 1000)
                latency.now.record(outcome.ms / 1000)
        return found

    def different(self) -> list[Outcome]:
        """The requests that were answered otherwise."""
        return [outcome for outcome in self.outcomes if outcome.status == "different"]

    def as_json(self) -> dict[str, Any]:
        """Everything, for programs."""
        return {
            "clean": self.clean,
            "counts": _by_status(self.counts()),
            "methods": {name: _by_status(found) for name, found in self.by_method().items()},
            "questions": [
                {"method": method, "kind": kind, "count": count}
                for (kind, method), count in self.questions.items()
            ],
            "skipped": dict(self.reasons("skipped")),
            "leftOut": dict(self.left_out),
            "latencyMs": {
                method: {
                    "count": both.now.count,
                    "captured": percentiles_of(both.captured),
                    "now": percentiles_of(both.now),
                }
                for method, both in self.latency().items()
            },
            "exchanges": [_outcome_as_json(o) for o in self.outcomes if o.status in ("different", "failed")],
        }


def _by_status(counts: Counter[str]) -> dict[str, int]:
    return {status: counts[status] for status in STATUSES}


def _placed(path: Path, value: Any) -> Any:
    """A message with nothing but the value, at its place."""
    for step in reversed(path):
        value = {step: value} if isinstance(step, str) else [*[None] * min(step, PLACES_LIMIT), value]
    return value


def _at(path: Path, message: Any) -> Any:
    """The value at its place, or what replaced something above it."""
    for step in path:
        if isinstance(message, dict) and isinstance(step, str):
            message = message.get(step)
        elif isinstance(message, list) and isinstance(step, int) and message:
            message = message[-1]
    return message


def _outcome_as_json(outcome: Outcome) -> dict[str, Any]:
    captured = outcome.captured
    members = {
        "status": outcome.status,
        "client": outcome.client,
        "exchange": captured.exchange,
        "method": captured.method,
        "target": captured.target,
        "reason": outcome.reason,
        "differences": [_difference_as_json(found) for found in outcome.differences] or None,
    }
    return {key: value for key, value in members.items() if value is not None}


def _difference_as_json(found: Difference) -> dict[str, Any]:
    sides = {"captured": found.captured, "now": found.now}
    sides.pop({"added": "captured", "removed": "now"}.get(found.kind, ""), None)
    return {"path": show_path(found.path), "kind": found.kind, **sides}


def count_text(counts: Iterable[tuple[str, int]]) -> str:
    """`3 redacted, 1 truncated`."""
    return ", ".join(f"{number} {what}" for what, number in counts)
