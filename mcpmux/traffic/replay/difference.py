"""Where two answers differ, member by member. Pure.

Lists of things that have names (`name`, `uri`, `uriTemplate`) are compared thing by thing, so that one that
was added or moved is told as that, and not as a change of all behind it.

What differs from run to run by its nature is only looked for: cursors, states, ids of tasks, subscriptions
and elicitations, times of tasks. Text with something redacted is compared around that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from mcpmux.config.traffic import DEEP, ONE, Step, parse_path
from mcpmux.errors import RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import ErrorReply, Reply, value_of
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.traffic.reading.dialogue import CapturedRequest
from mcpmux.traffic.redaction.secret_patterns import MARKER

NESTING = 64  # deeper values are only compared as wholes
DIFFERENCE_LIMIT = 200  # of one answer; more would not help

Path: TypeAlias = tuple[str | int, ...]
Pattern: TypeAlias = tuple[Step, ...]

_NAMES = ("uri", "uriTemplate", "name")
_PLAIN = re.compile(r"[^\s.\[\]\"'*$]+")

_TASK = ("taskId", "createdAt", "lastUpdatedAt")
VOLATILE: tuple[Pattern, ...] = tuple(
    map(
        parse_path,
        (
            "result.nextCursor",
            "result.requestState",
            *(f"result.{key}" for key in _TASK),
            *(f"result.task.{key}" for key in _TASK),
            *(f"result.tasks[*].{key}" for key in _TASK),
            'result._meta["io.modelcontextprotocol/related-task"].taskId',
            'result._meta["io.modelcontextprotocol/subscriptionId"]',
            "result.inputRequests[*].params.elicitationId",
            "error.data.elicitations[*].elicitationId",
        ),
    )
)


class Difference(NamedTuple):
    """One place. `kind`: changed, added (not in the capture), removed (not there now), moved."""

    path: Path
    kind: str
    captured: Any
    now: Any


def compare(captured: Any, now: Any, ignore: Sequence[Pattern] = ()) -> list[Difference]:
    """At most DIFFERENCE_LIMIT places in which two JSON values differ, in the order of the captured one."""
    found = []
    for difference in _differences(_with_numbered_wishes(captured), _with_numbered_wishes(now), ()):
        if _is_volatile(difference) or any(covers(pattern, difference.path) for pattern in ignore):
            continue
        found.append(difference)
        if len(found) == DIFFERENCE_LIMIT:
            break
    return found


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
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f"[{json.dumps(step)}]"
    return text or "$"


def _is_volatile(difference: Difference) -> bool:
    same_kind = type(difference.captured) is type(difference.now)
    return same_kind and any(covers(pattern, difference.path) for pattern in VOLATILE)


def _with_numbered_wishes(answer: Any) -> Any:
    """What a server asks for goes under names that it makes up: they are numbered instead."""
    if not isinstance(answer, dict) or not isinstance(answer.get("result"), dict):
        return answer
    result = answer["result"]
    wishes = result.get("inputRequests")
    if not isinstance(wishes, dict):
        return answer
    return {**answer, "result": {**result, "inputRequests": list(wishes.values())}}


def _differences(captured: Any, now: Any, path: Path) -> Iterator[Difference]:
    if len(path) >= NESTING:
        if captured != now:
            yield Difference(path, "changed", captured, now)
    elif isinstance(captured, dict) and isinstance(now, dict):
        yield from _in_objects(captured, now, path)
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


def _in_objects(captured: dict[str, Any], now: dict[str, Any], path: Path) -> Iterator[Difference]:
    for key, value in captured.items():
        if key in now:
            yield from _differences(value, now[key], (*path, key))
        else:
            yield Difference((*path, key), "removed", value, None)
    for key, value in now.items():
        if key not in captured:
            yield Difference((*path, key), "added", None, value)


def _in_lists(captured: list[Any], now: list[Any], path: Path) -> Iterator[Difference]:
    names, other_names = _names_of(captured), _names_of(now)
    if names is None or other_names is None:
        yield from _by_position(captured, now, path)
        return
    for place, (name, value) in enumerate(zip(names, captured, strict=True)):
        if name in other_names:
            yield from _differences(value, now[other_names[name]], (*path, place))
        else:
            yield Difference((*path, place), "removed", value, None)
    for place, (name, value) in enumerate(zip(other_names, now, strict=True)):
        if name not in names:
            yield Difference((*path, place), "added", None, value)
    order = [name[1] for name in names if name in other_names]
    other_order = [name[1] for name in other_names if name in names]
    if order != other_order:
        yield Difference(path, "moved", order, other_order)


def _by_position(captured: list[Any], now: list[Any], path: Path) -> Iterator[Difference]:
    both = min(len(captured), len(now))
    for place in range(both):
        yield from _differences(captured[place], now[place], (*path, place))
    for place in range(both, len(captured)):
        yield Difference((*path, place), "removed", captured[place], None)
    for place in range(both, len(now)):
        yield Difference((*path, place), "added", None, now[place])


def _names_of(items: list[Any]) -> dict[tuple[str, str], int] | None:
    """What each thing in a list is called, with its place; None when one has no name of its own."""
    names: dict[tuple[str, str], int] = {}
    for place, item in enumerate(items):
        if not isinstance(item, dict):
            return None
        name = next(((key, item[key]) for key in _NAMES if isinstance(item.get(key), str)), None)
        if name is None or name in names:
            return None
        names[name] = place
    return names


# Answers in a form to compare: `{"result": …}` or `{"error": …}`; of a listen its acknowledgement. Pure.


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


def error_value(error: RpcError) -> dict[str, Any]:
    """An error in that form."""
    value: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.data is not None:
        value["data"] = value_of(error.data) if isinstance(error.data, Raw) else error.data
    return value


def result_value(result: Fields) -> dict[str, Any]:
    """A result in that form."""
    return {key: value_of(value) for key, value in result.items()}
