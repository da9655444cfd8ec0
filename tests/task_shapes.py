"""The shapes of tasks on the wire, for the judges that do not have them.

The core of 2025-11-25 has them; the extension of 2026-07-28 is in no core schema. Written down from
`basic/utilities/tasks` (2025-11-25) and from the Tasks extension (SEP-2663).
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

MODERN = "2026-07-28"
METHODS = {
    "2025-11-25": {"tasks/get", "tasks/result", "tasks/list", "tasks/cancel", "notifications/tasks/status"},
    MODERN: {"tasks/get", "tasks/update", "tasks/cancel"},
}
STATUSES = {"working", "input_required", "completed", "failed", "cancelled"}
DETAIL = {"completed": "result", "failed": "error", "input_required": "inputRequests"}


def knows(revision: str, method: str) -> bool:
    """Return whether a method is about tasks in a revision."""
    return method in METHODS.get(revision, ())


def makes_task(method: str, result: Json) -> bool:
    """Return whether a result says that a task was made."""
    return method == "tools/call" and ("task" in result or result.get("resultType") == "task")


def check_params(revision: str, method: str, params: Json) -> None:
    """Check params. Raises AssertionError when these are no parameters of a task method."""
    if method == "notifications/tasks/status":
        check_task(revision, params)
    elif method != "tasks/list":
        assert isinstance(params.get("taskId"), str), f"taskId is {params.get('taskId')!r}"
    if method == "tasks/update":
        assert isinstance(params.get("inputResponses"), dict), "no inputResponses"


def check_result(revision: str, method: str, result: Json) -> None:
    """Check a result, of a task method or of a call that made a task. Raises AssertionError."""
    if method == "tools/call":
        check_task(revision, result if revision == MODERN else result["task"])
        return
    if revision == MODERN:
        assert result.get("resultType") == "complete"
        if method == "tasks/get":
            check_task(revision, result)
            assert {DETAIL.get(result["status"])} - {None} == set(DETAIL.values()) & result.keys()
        else:
            assert result.keys() <= {"resultType", "_meta"}, "an acknowledgement says nothing more"
    elif method == "tasks/result":
        assert result["_meta"]["io.modelcontextprotocol/related-task"]["taskId"]
    elif method == "tasks/list":
        for task in result["tasks"]:
            check_task(revision, task)
    else:
        check_task(revision, result)


def check_task(revision: str, task: Json) -> None:
    """Check a task. Raises AssertionError when this is none."""
    life, pace = ("ttlMs", "pollIntervalMs") if revision == MODERN else ("ttl", "pollInterval")
    assert all(isinstance(task.get(key), str) for key in ("taskId", "createdAt", "lastUpdatedAt")), task
    assert task.get("status") in STATUSES, f"status is {task.get('status')!r}"
    assert life in task, f"no {life}"
    assert task[life] is None or isinstance(task[life], int)
    assert isinstance(task.get(pace, 0), int)
    foreign = {"ttl", "pollInterval"} if revision == MODERN else {"ttlMs", "pollIntervalMs", "resultType"}
    assert not foreign & task.keys(), f"{foreign & task.keys()} is of another revision"
