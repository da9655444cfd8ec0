"""Task ids on the way through: outward as clients see them, inward as the upstream knows them.

| place | change |
| --- | --- |
| `taskId` of `tasks/get`, `result`, `cancel`, `update` and of their results | task id |
| `tasks[].taskId` of `tasks/list`, `task.taskId` of a result that made a task | task id |
| `taskId` of `notifications/tasks/status` | task id |
| related task in `_meta` of results, notifications, questions and their answers | task id |

An exposed id is the upstream's own behind `prefix+`, like a URI. A transparent upstream's stay as they are.
Source: `basic/utilities/tasks`, 2025-11-25; the Tasks extension (SEP-2663).
"""

from __future__ import annotations

from collections.abc import Callable

from mcpmux.mux.namespace import Space
from mcpmux.protocol.call import META
from mcpmux.protocol.envelope import decode_fields, raw, text_of
from mcpmux.protocol.input_requests import RELATED_TASK, RESPONSES
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.protocol.tasks import TASK, TASK_ID

IdChange = Callable[[str], str]


def expose_task(task: Fields, space: Space) -> Fields:
    """A task, or a notification about one, as clients see it (changed in place)."""
    _change_id(task, space.expose_task)
    return expose_related(task, space)


def expose_made(result: Fields, space: Space) -> Fields:
    """The result of a tool call that made a task, in either form (changed in place)."""
    if TASK in result:
        result[TASK] = _within(result[TASK], lambda task: _change_id(task, space.expose_task))
    return expose_task(result, space)


def expose_related(fields: Fields, space: Space) -> Fields:
    """The related task in `_meta` as clients see it (changed in place)."""
    if META in fields:
        fields[META] = _related(fields[META], space.expose_task)
    return fields


def resolve_related(fields: Fields, resolve: IdChange) -> Fields:
    """The related task in an answer's `_meta` as the upstream knows it."""
    return {**fields, META: _related(fields[META], resolve)} if META in fields else fields


def expose_questions(result: Fields, space: Space) -> Fields:
    """The related task of each of `inputRequests` (changed in place)."""

    def expose(request: Fields) -> None:
        if "params" in request:
            request["params"] = _within(request["params"], lambda params: expose_related(params, space))

    if "inputRequests" in result:
        result["inputRequests"] = _each(result["inputRequests"], expose)
    return result


def resolve_answers(params: Fields, resolve: IdChange) -> Fields:
    """A call's `inputResponses` with each related task as the upstream knows it."""

    def change(response: Fields) -> None:
        if META in response:
            response[META] = _related(response[META], resolve)

    if RESPONSES not in params:
        return params
    return {**params, RESPONSES: _each(params[RESPONSES], change)}


def _change_id(task: Fields, change: IdChange) -> None:
    task_id = text_of(task.get(TASK_ID))
    if task_id is not None:
        task[TASK_ID] = raw(change(task_id))


def _related(meta: Raw, change: IdChange) -> Raw:
    def change_related(members: Fields) -> None:
        if RELATED_TASK in members:
            members[RELATED_TASK] = _within(
                members[RELATED_TASK], lambda related: _change_id(related, change)
            )

    return _within(meta, change_related)


def _each(value: Raw, change: Callable[[Fields], object]) -> Raw:
    """Each object that is a member of the object `value`, changed."""

    def change_members(members: Fields) -> None:
        for key in members:
            members[key] = _within(members[key], change)

    return _within(value, change_members)


def _within(value: Raw, change: Callable[[Fields], object]) -> Raw:
    """The object `value` changed; anything but an object stays as it is."""
    try:
        members = decode_fields(value)
    except ValueError:
        return value
    change(members)
    return raw(members)
