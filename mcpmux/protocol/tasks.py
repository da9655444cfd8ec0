"""Tasks as plain values, in the two forms that MCP has for them.

| | core of 2025-11-25 | extension `io.modelcontextprotocol/tasks` of 2026-07-28 |
| --- | --- | --- |
| decides | the client: `task` in the call, if the tool's `execution.taskSupport` allows it | the server |
| made | result `{"task": {…}}` | result `{"resultType": "task", …}` |
| times | `ttl`, `pollInterval` | `ttlMs`, `pollIntervalMs` |
| result | `tasks/result`, which waits | in `tasks/get`, under `result` or `error` |
| a tool result with `isError` | status `failed` | status `completed` |
| questions | requests while `tasks/result` waits | `inputRequests` in `tasks/get`; `tasks/update` |
| list | `tasks/list` | none |

Neither form can be translated to the other without waiting, so the core carries both. `runtime/tasks` serves
a client that uses one form where the server answers in the other.

Source: `basic/utilities/tasks`, 2025-11-25; the Tasks extension (SEP-2663).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from mcpmux.errors import RpcError
from mcpmux.protocol.call import COMPLETE, META
from mcpmux.protocol.codes import INTERNAL_ERROR, MISSING_CLIENT_CAPABILITY
from mcpmux.protocol.envelope import data_of, error_body, members_of, raw, text_of, value_at, value_of
from mcpmux.protocol.era import replace_each
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.input_requests import RELATED_TASK
from mcpmux.protocol.input_requests import TASK as TASK
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.protocol.revisions import V_2025_11_25, is_modern

EXTENSION: Final = "io.modelcontextprotocol/tasks"
TASK_ID: Final = "taskId"
_EXTENSION_AT: Final = ("extensions", EXTENSION)
TERMINAL: Final = frozenset({"completed", "failed", "cancelled"})

_RENAMED: Final = {"ttl": "ttlMs", "pollInterval": "pollIntervalMs"}
_DEFAULT_POLL_MS: Final = 1000
# A server that gives no useful interval is asked neither too often nor too rarely.
_POLL_BOUNDS_MS: Final = (100, 10_000)


def knows_extension(capabilities: Raw | None) -> bool:
    """Return whether a modern client declares that it understands tasks."""
    return isinstance(value_at(value_of(capabilities), _EXTENSION_AT), dict)


def with_extension(capabilities: Raw | None) -> Raw:
    """Return a client's capabilities with the extension added."""
    members = members_of(capabilities)
    return raw({**members, "extensions": {**members_of(members.get("extensions")), EXTENSION: {}}})


def extension_missing() -> RpcError:
    """Return -32021: this needs a client that understands tasks."""
    data: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
    return RpcError(MISSING_CLIENT_CAPABILITY, f"Missing required client capability: {EXTENSION}", data)


def misses_extension(error: RpcError) -> bool:
    """Return whether a server's error means that it only serves clients that understand tasks."""
    required = value_at(data_of(error), ("requiredCapabilities", "extensions"))
    return error.code == MISSING_CLIENT_CAPABILITY and isinstance(required, dict) and EXTENSION in required


def offers_tasks(facts: ServerFacts) -> bool:
    """Return whether a server makes tasks of tool calls, in the way of its era."""
    if is_modern(facts.revision):
        return isinstance(value_at(facts.capabilities, _EXTENSION_AT), dict)
    call = value_at(facts.capabilities, ("tasks", "requests", "tools", "call"))
    return isinstance(call, dict) and facts.revision >= V_2025_11_25


def task_capabilities(servers: Iterable[ServerFacts], *, legacy: bool) -> dict[str, Any]:
    """Return the capabilities of tasks for a client: those of some server that can reach that client."""
    able = [facts for facts in servers if offers_tasks(facts)]
    # A modern client that understands tasks has those of all servers, a legacy one of legacy servers only.
    if not legacy:
        return {"extensions": {EXTENSION: {}}} if able else {}
    old = [facts.capabilities["tasks"] for facts in able if not is_modern(facts.revision)]
    if not old:
        return {}
    keys = [key for key in ("list", "cancel") if any(isinstance(own.get(key), dict) for own in old)]
    options: dict[str, Any] = {key: {} for key in keys}
    return {"tasks": {**options, "requests": {"tools": {"call": {}}}}}


def support_in(tool: Fields) -> str:
    """Return a tool's `execution.taskSupport`; "forbidden" when it is absent."""
    support = value_at(value_of(tool.get("execution")), ("taskSupport",))
    return support if isinstance(support, str) else "forbidden"


def made_task(result: Fields) -> Fields | None:
    """Return the task in a result that created one, in its own form; None for any other result."""
    kind = result.get("resultType")
    # Most results are complete, which the bytes show without decoding.
    if kind is not None and kind != COMPLETE and text_of(kind) == "task":
        return result
    if TASK not in result or "content" in result:
        return None
    task = members_of(result[TASK])
    return task if text_of(task.get(TASK_ID)) is not None else None


def upgrade_task(task: Fields) -> Fields:
    """Return a legacy task in the extension's form, without what depends on its status."""
    return {_RENAMED.get(key, key): value for key, value in task.items()}


def upgrade_made(result: Fields, task: Fields) -> Fields:
    """Return the result that created a legacy task in the extension's form."""
    rest = {key: value for key, value in result.items() if key not in (TASK, "resultType")}
    return {"resultType": raw("task"), **upgrade_task(task), **rest}


def _detailed(task: Fields, status: str, **details: Raw) -> Fields:
    return {"resultType": raw("complete"), **upgrade_task(task), "status": raw(status), **details}


def running(task: Fields) -> Fields:
    """Return a legacy task that works or was cancelled: it has no details."""
    status = text_of(task.get("status"))
    # No questions are known here, so the modern form, which carries them inside, cannot say that it waits.
    return _detailed(task, "working" if status == "input_required" else status or "working")


def completed(task: Fields, result: Fields) -> Fields:
    """Return a legacy task with the result from `tasks/result`."""
    # These members are for that answer only: here, the task is around the result.
    inner = {key: value for key, value in result.items() if key != "resultType"}
    meta = members_of(inner.pop(META, None))
    meta.pop(RELATED_TASK, None)
    if meta:
        inner[META] = raw(meta)
    return _detailed(task, "completed", result=raw(inner))


def failed(task: Fields, error: RpcError) -> Fields:
    """Return a legacy task that failed, with its error."""
    return _detailed(task, "failed", error=raw(error_body(error)))


def waiting(task: Fields, requests: Fields) -> Fields:
    """Return a legacy task that requires input, with its questions."""
    return _detailed(task, "input_required", inputRequests=raw(requests))


def error_in(task: Fields) -> RpcError:
    """Return the error in a failed task."""
    members = value_of(task.get("error"))
    body: dict[str, Any] = members if isinstance(members, dict) else {}
    code = body.get("code")
    message = body.get("message") or text_of(task.get("statusMessage")) or "the task failed"
    return RpcError(code if isinstance(code, int) else INTERNAL_ERROR, str(message), body.get("data"))


def poll_seconds(task: Fields) -> float:
    """Return the seconds to wait before asking again."""
    interval = value_of(task.get("pollIntervalMs"))
    low, high = _POLL_BOUNDS_MS
    # bool is a subclass of int: `true` would be one millisecond.
    is_number = isinstance(interval, int | float) and not isinstance(interval, bool)
    return min(max(interval if is_number else _DEFAULT_POLL_MS, low), high) / 1000


def related_task(params: Fields) -> str | None:
    """Return the id of the task that a message of a legacy peer belongs to, or None."""
    return text_of(members_of(members_of(params.get(META)).get(RELATED_TASK)).get(TASK_ID))


def without_task_support(result: Fields) -> Fields:
    """Remove task support from a modern server's `tools/list`, in place."""
    # It makes no legacy tasks, for which a legacy client would ask.
    replace_each(result, "tools", _without_support)
    return result


def _without_support(tool: Fields) -> Fields:
    execution = members_of(tool.get("execution"))
    if execution.pop("taskSupport", None) is None:
        return tool
    rest = {key: value for key, value in tool.items() if key != "execution"}
    return {**rest, "execution": raw(execution)} if execution else rest
