"""Where two answers differ, member by member. Pure.

Lists of things that have names (`name`, `uri`, `uriTemplate`) are compared thing by thing, so that one that
was added or moved is told as that, and not as a change of all behind it.

What differs from run to run by its nature is only looked for: cursors, states, ids of tasks, subscriptions
and elicitations, times of tasks. Text with something redacted is compared around that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from mcpmux.config.traffic import DEEP, ONE, Step, parse_path
from mcpmux.errors import RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import ErrorReply, Reply, error_body, raw, value_of
from mcpmux.protocol.raw_json import Fields
from mcpmux.traffic.reading.dialogue import CapturedRequest
from mcpmux.traffic.redaction.secret_patterns import MARKER

NESTING = 64  # deeper values are only compared as wholes
DIFFERENCE_LIMIT = 200  # of one answer; more would not help

Path: TypeAlias = tuple[str | int, ...]
Pattern: TypeAlias = tuple[Step, ...]
Parts: TypeAlias = dict[Any, tuple[str | int, Any]]
"""Members of an object or things in a list: what they are compared by → (their step in a path, value)."""

_NAMES = ("uri", "uriTemplate", "name")
_PLAIN = re.compile(r"[^\s.\[\]\"'*$]+")

_TASKS = ("result", "result.task", "result.tasks[*]")
_VOLATILE = (
    "result.nextCursor",
    "result.requestState",
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


def compare(captured: Any, now: Any, ignore: Sequence[Pattern] = ()) -> list[Difference]:
    """At most DIFFERENCE_LIMIT places in which two JSON values differ, in the order of the captured one."""
    found = (
        difference
        for difference in _differences(_with_numbered_wishes(captured), _with_numbered_wishes(now), ())
        if not _is_volatile(difference) and not any(covers(pattern, difference.path) for pattern in ignore)
    )
    return list(islice(found, DIFFERENCE_LIMIT))


def covers(pattern: Pattern, path: Path) -> bool:
    """Whether a path, or something above it, is what a pattern names."""
    if not pattern:
        return True
    if pattern[0] is DEEP:
        return any(covers(pattern[1:], path[start:]) for start in range(len(path)))
    if not path:
        return False
    return (pattern[0] is ONE or pattern[0] == path[0]) and covers(pattern[1:], path[1:])


def show_path(path: Path) -> str:
    """As `--ignore` and `[redaction]` take it: `result.tools[2].description`."""
    text = ""
    for step in path:
        if isinstance(step, str) and _PLAIN.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f"[{json.dumps(step)}]"
    return text or "$"


def _is_volatile(difference: Difference) -> bool:
    same_kind = type(difference.captured) is type(difference.now)
    return same_kind and any(covers(pattern, difference.path) for pattern in VOLATILE)


def _with_numbered_wishes(answer: Any) -> Any:
    """What a server asks for goes under names that it makes up: they are numbered instead."""
    result = answer.get("result") if isinstance(answer, dict) else None
    wishes = result.get("inputRequests") if isinstance(result, dict) else None
    if not isinstance(result, dict) or not isinstance(wishes, dict):
        return answer
    return {**answer, "result": {**result, "inputRequests": list(wishes.values())}}


def _differences(captured: Any, now: Any, path: Path) -> Iterator[Difference]:
    if len(path) >= NESTING:
        if captured != now:
            yield Difference(path, "changed", captured, now)
    elif isinstance(captured, dict) and isinstance(now, dict):
        yield from _in_parts(_parts(captured.items()), _parts(now.items()), path)
    elif isinstance(captured, list) and isinstance(now, list):
        yield from _in_lists(captured, now, path)
    elif not _is_same(captured, now):
        yield Difference(path, "changed", captured, now)


def _is_same(captured: Any, now: Any) -> bool:
    if isinstance(captured, bool) is not isinstance(now, bool):
        return False
    if isinstance(captured, str) and isinstance(now, str) and MARKER.search(captured):
        around = map(re.escape, MARKER.split(captured))
        return re.fullmatch(".*?".join(around), now, re.DOTALL) is not None
    return bool(captured == now)


def _parts(items: Iterable[tuple[str | int, Any]]) -> Parts:
    return {step: (step, value) for step, value in items}


def _in_parts(captured: Parts, now: Parts, path: Path) -> Iterator[Difference]:
    for name, (step, value) in captured.items():
        if name in now:
            yield from _differences(value, now[name][1], (*path, step))
        else:
            yield Difference((*path, step), "removed", value, None)
    for name, (step, value) in now.items():
        if name not in captured:
            yield Difference((*path, step), "added", None, value)


def _in_lists(captured: list[Any], now: list[Any], path: Path) -> Iterator[Difference]:
    named, other_named = _by_name(captured), _by_name(now)
    if named is None or other_named is None:
        yield from _in_parts(_parts(enumerate(captured)), _parts(enumerate(now)), path)
        return
    yield from _in_parts(named, other_named, path)
    order = [name[1] for name in named if name in other_named]
    other_order = [name[1] for name in other_named if name in named]
    if order != other_order:
        yield Difference(path, "moved", order, other_order)


def _by_name(items: list[Any]) -> Parts | None:
    """The things in a list by what each is called; None when one has no name of its own."""
    parts: Parts = {}
    for place, item in enumerate(items):
        if not isinstance(item, dict):
            return None
        name = next(((key, item[key]) for key in _NAMES if isinstance(item.get(key), str)), None)
        if name is None or name in parts:
            return None
        parts[name] = (place, item)
    return parts


# Answers in a form to compare: `{"result": …}` or `{"error": …}`; of a listen its acknowledgement.


def captured_answer(request: CapturedRequest) -> dict[str, Any] | None:
    """The captured answer in that form."""
    if request.method == m.LISTEN and not isinstance(request.answer, ErrorReply):
        agreed = (sent for sent in request.before_answer if sent.method == m.ACKNOWLEDGED)
        return next((acknowledged(sent.params) for sent in agreed), None)
    if isinstance(request.answer, Reply):
        return {"result": value_of(request.answer.result)}
    if isinstance(request.answer, ErrorReply):
        return {"error": error_value(request.answer.as_error())}
    return None


def acknowledged(params: Fields) -> dict[str, Any]:
    """The acknowledgement of a listen in that form."""
    return {"acknowledged": value_of(params.get("notifications"))}


def error_value(error: RpcError) -> Any:
    """An error in that form."""
    return value_of(raw(error_body(error)))
