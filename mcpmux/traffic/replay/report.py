"""Report a replay: the differences of two answers, and the outcome of each request. Pure.

Lists of named things (`name`, `uri`, `uriTemplate`) are compared by name, so that a thing that
was added or moved is reported as that, and not as a change of all behind it.

Values that differ from run to run must only be present: cursors, states, ids of tasks, subscriptions
and elicitations, times of tasks. Redacted text is compared except for the redacted parts.
"""

from __future__ import annotations

import bisect
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import msgspec

from mcpmux.config.traffic import DEEP, ONE, Step, parse_path
from mcpmux.errors import RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import ErrorReply, Reply, error_body, raw, value_at, value_of
from mcpmux.protocol.handshake import INSTANCES
from mcpmux.protocol.raw_json import Fields
from mcpmux.traffic.reading.dialogue import CapturedRequest
from mcpmux.traffic.reading.histogram import Histogram
from mcpmux.traffic.reading.stats import percentiles_of
from mcpmux.traffic.redaction.redactor import Redactor
from mcpmux.traffic.redaction.secret_patterns import MARKER
from mcpmux.traffic.replay.mapping import Kind

NESTING = 64  # deeper values are only compared as wholes
DIFFERENCE_LIMIT = 200  # of one answer; more would not help

Path: TypeAlias = tuple[str | int, ...]
Pattern: TypeAlias = tuple[Step, ...]

_NAMES = ("uri", "uriTemplate", "name")
_PLAIN = re.compile(r"[^\s.\[\]\"'*$]+")

_TASKS = ("result", "result.task", "result.tasks[*]")
_VOLATILE = (
    "result.nextCursor",
    "result.requestState",
    f'result._meta["{INSTANCES}"]',
    *(f"{task}.{key}" for task in _TASKS for key in ("taskId", "createdAt", "lastUpdatedAt")),
    'result._meta["io.modelcontextprotocol/related-task"].taskId',
    'result._meta["io.modelcontextprotocol/subscriptionId"]',
    "result.inputRequests[*].params.elicitationId",
    "error.data.elicitations[*].elicitationId",
)
VOLATILE: tuple[Pattern, ...] = tuple(map(parse_path, _VOLATILE))


class Difference(NamedTuple):
    """One place. `kind`: changed, added (not in the capture), removed (not there now), moved."""

    path: Path
    kind: str
    captured: Any
    now: Any

    def as_json(self) -> dict[str, Any]:
        """Return it for programs, without the side that has no value."""
        sides = {"captured": self.captured, "now": self.now}
        sides.pop({"added": "captured", "removed": "now"}.get(self.kind, ""), None)
        return {"path": show_path(self.path), "kind": self.kind, **sides}


def compare(captured: Any, now: Any, ignore: Sequence[Pattern] = ()) -> list[Difference]:
    """Return at most DIFFERENCE_LIMIT differences of two JSON values, in the order of the captured one."""
    there = (*VOLATILE, *ignore)

    def counts(found: Difference) -> bool:
        left_out = there if type(found.captured) is type(found.now) else ignore
        return not any(covers(pattern, found.path) for pattern in left_out)

    differences = _differences(_with_numbered_wishes(captured), _with_numbered_wishes(now), ())
    return list(islice(filter(counts, differences), DIFFERENCE_LIMIT))


def covers(pattern: Pattern, path: Path) -> bool:
    """Return whether a pattern names a path, or something above it."""
    if not pattern:
        return True
    if pattern[0] is DEEP:
        return any(covers(pattern[1:], path[start:]) for start in range(len(path)))
    if not path:
        return False
    return (pattern[0] is ONE or pattern[0] == path[0]) and covers(pattern[1:], path[1:])


def show_path(path: Path) -> str:
    """Return a path in the form of `--ignore` and `[redaction]`: `result.tools[2].description`."""
    steps = (
        f".{step}" if isinstance(step, str) and _PLAIN.fullmatch(step) else f"[{json.dumps(step)}]"
        for step in path
    )
    return "".join(steps).removeprefix(".") or "$"


def _with_numbered_wishes(answer: Any) -> Any:
    """Return an answer with its questions in a list: the server makes up their names, so none can match."""
    wishes = value_at(answer, ("result", "inputRequests"))
    if not isinstance(wishes, dict):
        return answer
    return {**answer, "result": {**answer["result"], "inputRequests": list(wishes.values())}}


def _differences(captured: Any, now: Any, path: Path) -> Iterator[Difference]:
    if len(path) >= NESTING or not isinstance(captured, dict | list) or type(captured) is not type(now):
        if not _is_same(captured, now):
            yield Difference(path, "changed", captured, now)
        return
    by_name = isinstance(captured, list) and _have_names(captured) and _have_names(now)
    then, later = (_parts(result, by_name) for result in (captured, now))
    for name, (step, value) in then.items():
        if name in later:
            yield from _differences(value, later[name][1], (*path, step))
        else:
            yield Difference((*path, step), "removed", value, None)
    for name, (step, value) in later.items():
        if name not in then:
            yield Difference((*path, step), "added", None, value)
    if by_name:
        common = then.keys() & later.keys()
        order, other_order = ([name[1] for name in parts if name in common] for parts in (then, later))
        if order != other_order:
            yield Difference(path, "moved", order, other_order)


def _parts(whole: dict[str, Any] | list[Any], by_name: bool) -> dict[Any, tuple[str | int, Any]]:
    """Return the parts of an object or list: what they are compared by → (their step in a path, value)."""
    items = whole.items() if isinstance(whole, dict) else enumerate(whole)
    return {_name_of(value) if by_name else step: (step, value) for step, value in items}


def _have_names(items: Any) -> bool:
    names = [*map(_name_of, items)]
    return None not in names and len({*names}) == len(names)


def _name_of(item: Any) -> Any:
    named = (key for key in _NAMES if isinstance(item, dict) and isinstance(item.get(key), str))
    return next(((key, item[key]) for key in named), None)


def _is_same(captured: Any, now: Any) -> bool:
    if isinstance(captured, bool) is not isinstance(now, bool):
        return False
    if isinstance(captured, str) and isinstance(now, str) and MARKER.search(captured):
        texts = map(re.escape, MARKER.split(captured))
        return re.fullmatch(".*?".join(texts), now, re.DOTALL) is not None
    return bool(captured == now)


# Answers in a form to compare: `{"result": …}` or `{"error": …}`; of a listen its acknowledgement.


def captured_answer(request: CapturedRequest) -> dict[str, Any] | None:
    """Return a captured answer in that form; None when there is none."""
    if request.method == m.LISTEN and not isinstance(request.answer, ErrorReply):
        agreed = (sent for sent in request.before_answer if sent.method == m.ACKNOWLEDGED)
        return next((acknowledged(sent.params) for sent in agreed), None)
    if isinstance(request.answer, Reply):
        return {"result": value_of(request.answer.result)}
    if isinstance(request.answer, ErrorReply):
        return {"error": error_value(request.answer.as_error())}
    return None


def acknowledged(params: Fields) -> dict[str, Any]:
    """Return the acknowledgement of a listen in that form."""
    return {"acknowledged": value_of(params.get("notifications"))}


def error_value(error: RpcError) -> Any:
    """Return an error as a decoded JSON object."""
    return value_of(raw(error_body(error)))


# The outcome of a request:
#
# | status | meaning |
# | --- | --- |
# | `same` | the answer equals the captured one |
# | `different` | it does not |
# | `failed` | there was no answer |
# | `unasked` | answered at once, where the server asked its client first then; the end is compared |
# | `unchecked` | answered, but the capture has no answer to compare with |
# | `skipped` | not sent |

Status = Literal["same", "different", "failed", "unasked", "unchecked", "skipped"]
STATUSES: tuple[Status, ...] = get_args(Status)
PLACES_LIMIT = 1000  # of a list that is made up around one value in it


class Outcome(NamedTuple):
    """One request. `ms`: milliseconds until its answer; `reason`: why it failed or was skipped."""

    client: str
    captured: CapturedRequest
    status: Status
    reason: str | None = None
    differences: Sequence[Difference] = ()
    ms: float | None = None

    def as_json(self) -> dict[str, Any]:
        members = {
            "status": self.status,
            "client": self.client,
            "exchange": self.captured.exchange,
            "method": self.captured.method,
            "target": self.captured.target,
            "reason": self.reason,
            "differences": [difference.as_json() for difference in self.differences] or None,
        }
        return {key: value for key, value in members.items() if value is not None}


class Report:
    """Collects outcomes, with redacted differences.

    `left_out`: messages of the capture that belong to no request, by the reason. `questions`: number
    of servers' questions unlike those in the capture, by kind and method.
    """

    def __init__(self, left_out: Counter[str], redactor: Redactor | None = None) -> None:
        self.left_out = left_out
        self.outcomes: list[Outcome] = []  # in the order of the capture
        self.questions: Counter[tuple[Kind, str]] = Counter()
        self._redactor = redactor or Redactor()

    def add(self, outcome: Outcome) -> None:
        """Add an outcome, redacted."""
        redact = partial(self._redact, outcome.captured.method)
        outcome = outcome._replace(
            reason=self._redactor.clean(outcome.reason),
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
        """Return a value without secrets, redacted in its place in the message, which rules may depend on."""
        message = value
        for step in reversed(path):
            if isinstance(step, str):
                message = {step: message}
            else:
                message = [*[None] * min(step, PLACES_LIMIT), message]
        data, count = self._redactor.redact(method, msgspec.json.encode(message))
        if not count:
            return value
        message = msgspec.json.decode(data)
        for step in path:  # to the value, or to what has replaced something around it
            if isinstance(message, dict) and isinstance(step, str):
                message = message.get(step)
            elif isinstance(message, list) and isinstance(step, int) and message:
                message = message[-1]
        return message

    def counts(self) -> Counter[str]:
        """Return the number of requests with each status."""
        return Counter(outcome.status for outcome in self.outcomes)

    @property
    def clean(self) -> bool:
        """Whether no request was different or failed."""
        return not self.having("different", "failed")

    def having(self, *statuses: Status) -> list[Outcome]:
        """Return the requests with one of these statuses, in the order of the capture."""
        return [outcome for outcome in self.outcomes if outcome.status in statuses]

    def by_method(self) -> dict[str, Counter[str]]:
        """Return the number with each status for each method, in the order of the capture."""
        counts: dict[str, Counter[str]] = {}
        for outcome in self.outcomes:
            counts.setdefault(outcome.captured.method, Counter())[outcome.status] += 1
        return counts

    def reasons(self, status: Status) -> Counter[str]:
        """Return the reasons of requests with this status, counted."""
        return Counter(outcome.reason or "?" for outcome in self.having(status))

    def latency(self) -> dict[str, tuple[Histogram, Histogram]]:
        """Return durations then and now by method, of requests that were answered both times."""
        histograms: dict[str, tuple[Histogram, Histogram]] = {}
        for outcome in self.outcomes:
            if outcome.ms is not None and outcome.captured.ms is not None:
                then, now = histograms.setdefault(outcome.captured.method, (Histogram(), Histogram()))
                then.record(outcome.captured.ms / 1000)
                now.record(outcome.ms / 1000)
        return histograms

    def as_json(self) -> dict[str, Any]:
        """Return everything, for programs."""
        return {
            "clean": self.clean,
            "counts": _by_status(self.counts()),
            "methods": {name: _by_status(counts) for name, counts in self.by_method().items()},
            "questions": [
                {"method": method, "kind": kind, "count": count}
                for (kind, method), count in self.questions.items()
            ],
            "skipped": dict(self.reasons("skipped")),
            "leftOut": dict(self.left_out),
            "latencyMs": {
                method: {"count": now.count, "captured": percentiles_of(then), "now": percentiles_of(now)}
                for method, (then, now) in self.latency().items()
            },
            "exchanges": [outcome.as_json() for outcome in self.having("different", "failed")],
        }


def _by_status(counts: Counter[str]) -> dict[str, int]:
    return {status: counts[status] for status in STATUSES}
