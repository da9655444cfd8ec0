"""The tasks of servers of both eras as the extension of 2026-07-28 has them: get, update, cancel.

A modern server's are its own. For a legacy server

| extension | becomes |
| --- | --- |
| `tasks/get` | `tasks/get`; of a task that has ended, `tasks/result` as well |
| its `input_required` | `tasks/result`, opened to hear the questions; parked until they are answered |
| `tasks/update` | the answers to these questions, once all are there; `tasks/result` is given up then |
| `tasks/cancel` | `tasks/cancel`; its answer says nothing more than that |

Source: `basic/utilities/tasks`, 2025-11-25; the Tasks extension (SEP-2663).
"""

from __future__ import annotations

import msgspec
import trio

from mcpmux.errors import RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol import tasks
from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import decode_fields, raw, text_of
from mcpmux.protocol.input_requests import RESPONSES, STATE
from mcpmux.protocol.meta import CLIENT_CAPABILITIES, PROGRESS_TOKEN
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.revisions import is_modern
from mcpmux.runtime.upstreams.connection import unheard
from mcpmux.runtime.upstreams.upstream import Upstream

QUESTION_SECONDS = 5.0  # for a server that waits for input to say what it wants to know
ASKED_LIMIT = 1000  # tasks whose questions are kept for their clients; past that the oldest are asked anew


class Asked(msgspec.Struct):
    """What a legacy server asked in a task: the state of the parked call, and the answers so far."""

    state: str
    requests: Fields
    responses: Fields


class TaskView:
    """What clients of the extension do with a task. Ids are the upstream's own."""

    def __init__(self) -> None:
        self._asked: dict[tuple[str, str], Asked] = {}

    def __repr__(self) -> str:
        return f"<TaskView {len(self._asked)} asked>"

    async def get(self, upstream: Upstream, task_id: str, call: Call) -> Fields:
        """The task as it is now, with its result, error or questions. Raises RpcError."""
        if _is_modern(upstream):
            return await upstream.exchange(about(m.TASKS_GET, task_id, call), unheard)
        task = await upstream.exchange(about(m.TASKS_GET, task_id, call), unheard)
        task.pop("resultType", None)
        status = text_of(task.get("status"))
        if status == "input_required":
            return await self._waiting(upstream, task_id, task, call)
        self._asked.pop((upstream.key, task_id), None)
        if status in ("completed", "failed"):
            return await self._ended(upstream, task_id, task, call)
        return tasks.running(task)

    async def _ended(self, upstream: Upstream, task_id: str, task: Fields, call: Call) -> Fields:
        try:
            result = await upstream.exchange(about(m.TASKS_RESULT, task_id, call), unheard)
        except RpcError as error:
            return tasks.failed(task, error)
        return tasks.completed(task, result)

    async def _waiting(self, upstream: Upstream, task_id: str, task: Fields, call: Call) -> Fields:
        key = (upstream.key, task_id)
        asked = self._asked.get(key)
        if asked is None:
            result: Fields = {}
            with trio.move_on_after(QUESTION_SECONDS):
                result = await upstream.exchange(about(m.TASKS_RESULT, task_id, call), unheard)
            if STATE not in result:
                return tasks.completed(task, result) if result else tasks.running(task)
            asked = Asked(text_of(result[STATE]) or "", decode_fields(result["inputRequests"]), {})
            self._keep(key, asked)
        unanswered = {key: value for key, value in asked.requests.items() if key not in asked.responses}
        return tasks.waiting(task, unanswered)

    def _keep(self, key: tuple[str, str], asked: Asked) -> None:
        if len(self._asked) >= ASKED_LIMIT:
            del self._asked[next(iter(self._asked))]
        self._asked[key] = asked

    async def update(self, upstream: Upstream, task_id: str, call: Call) -> Fields:
        """Take answers to what the task asked; answers to anything else are ignored. Raises RpcError."""
        if _is_modern(upstream):
            params = {RESPONSES: call.params[RESPONSES]} if RESPONSES in call.params else {}
            return await upstream.exchange(about(m.TASKS_UPDATE, task_id, call, params), unheard)
        asked = self._asked.get((upstream.key, task_id))
        if asked is None:
            await upstream.exchange(about(m.TASKS_GET, task_id, call), unheard)  # there is such a task
            return _acknowledged()
        answers = decode_fields(call.params.get(RESPONSES))
        asked.responses.update({name: answers[name] for name in answers.keys() & asked.requests.keys()})
        if asked.responses.keys() == asked.requests.keys():
            del self._asked[upstream.key, task_id]
            params = {STATE: raw(asked.state), RESPONSES: raw(asked.responses)}
            await upstream.reply(about(m.TASKS_RESULT, task_id, call, params))
        return _acknowledged()

    async def cancel(self, upstream: Upstream, task_id: str, call: Call) -> Fields:
        """Ask the server to give up. Raises RpcError."""
        try:
            await upstream.exchange(about(m.TASKS_CANCEL, task_id, call), unheard)
        finally:
            asked = self._asked.pop((upstream.key, task_id), None)
            if asked is not None and upstream.connection is not None:
                upstream.connection.abandon(asked.state)
        return _acknowledged()


def about(method: str, task_id: str, call: Call, params: Fields | None = None) -> Call:
    """A request about a task, on behalf of the client of `call`."""
    meta = {key: value for key, value in call.meta.items() if key != PROGRESS_TOKEN}
    meta[CLIENT_CAPABILITIES] = tasks.with_extension(meta.get(CLIENT_CAPABILITIES))
    fields = {tasks.TASK_ID: raw(task_id), **(params or {})}
    return call.on_behalf(method, fields).with_meta(meta)


def _is_modern(upstream: Upstream) -> bool:
    return upstream.facts is not None and is_modern(upstream.facts.revision)


def _acknowledged() -> Fields:
    return {"resultType": raw("complete")}
