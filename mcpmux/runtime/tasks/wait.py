"""Tasks for clients that know of none: the call is answered when the task is done.

The client's call waits while the task is asked about at the pace that its server names; a status message is
told as progress when the client wants progress. What the task asks is asked as in any other call, with
`input_required`; the repeated call goes on where it was. When the client gives up the task is cancelled.
"""

from __future__ import annotations

import secrets

import structlog
import trio

from mcpmux.errors import RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol import tasks
from mcpmux.protocol.call import Call, Event, Notify
from mcpmux.protocol.codes import BUSY, INTERNAL_ERROR, INVALID_PARAMS
from mcpmux.protocol.envelope import EMPTY_OBJECT, decode_fields, raw, text_of
from mcpmux.protocol.input_requests import RESPONSES, STATE
from mcpmux.protocol.meta import PROGRESS_TOKEN
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.runtime.calls import PARK_LIMIT, PARK_SECONDS, STATE_BYTES
from mcpmux.runtime.tasks.view import TaskView
from mcpmux.runtime.upstreams.upstream import Upstream

log = structlog.get_logger()

ANSWER_SECONDS = PARK_SECONDS - 20.0  # before the parked question itself is given up: the task is cancelled
CANCEL_SECONDS = 2.0  # for telling a server that nobody waits for its task any more


class Wait:
    """One call that waits for a task. `name` is the tool's, as the upstream knows it."""

    def __init__(self, upstream: Upstream, task_id: str, call: Call) -> None:
        self.upstream = upstream
        self.task_id = task_id
        self.client = call.client
        self.name = call.text("name")
        self.call = call
        self.told = 0
        self.message: str | None = None

    def is_resumed_by(self, call: Call) -> bool:
        """Whether it is the same client, or somebody, that calls the same tool again."""
        same_somebody = self.call.principal.name == call.principal.name
        return self.client is call.client and same_somebody and self.name == call.text("name")

    def __repr__(self) -> str:
        return f"<Wait for {self.task_id} of {self.upstream.key}>"


class TaskWaits:
    """All calls that wait for tasks. `run` has to run."""

    def __init__(self, view: TaskView) -> None:
        self._view = view
        self._parked: dict[str, Wait] = {}
        self._nursery: trio.Nursery

    def __repr__(self) -> str:
        return f"<TaskWaits {len(self._parked)} parked>"

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look after waits whose clients are asked something, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    def knows(self, call: Call) -> bool:
        """Whether a call goes on with a wait."""
        state = call.text(STATE)
        return state is not None and state in self._parked

    async def start(self, upstream: Upstream, task_id: str, call: Call, notify: Notify) -> Fields:
        """The result of a task that was made for `call`, when it is there. Raises RpcError."""
        return await self._follow(Wait(upstream, task_id, call), notify)

    async def resume(self, call: Call, notify: Notify) -> Fields:
        """Go on after questions. Raises RpcError for a state that was not given to this client and tool."""
        state = call.text(STATE) or ""
        wait = self._parked.get(state)
        if wait is None or not wait.is_resumed_by(call):
            raise RpcError(INVALID_PARAMS, "Invalid requestState: unknown or expired; call again without it")
        del self._parked[state]
        wait.call = call
        return await self._follow(wait, notify, call.params.get(RESPONSES, EMPTY_OBJECT))

    def abandon(self, state: str) -> bool:
        """The client that was asked has gone; False when the state is not known here."""
        wait = self._parked.pop(state, None)
        if wait is not None:
            self._nursery.start_soon(self._cancel, wait)
        return wait is not None

    async def _follow(self, wait: Wait, notify: Notify, responses: Raw | None = None) -> Fields:
        parked_or_done = False
        try:
            if responses is not None:
                await self._view.update(wait.upstream, wait.task_id, _with_responses(wait.call, responses))
            while True:
                task = await self._view.get(wait.upstream, wait.task_id, wait.call)
                status = text_of(task.get("status"))
                parked_or_done = status in tasks.TERMINAL
                if status == "completed":
                    return {"resultType": raw("complete"), **decode_fields(task.get("result"))}
                if status == "failed":
                    raise tasks.error_in(task)
                if status == "cancelled":
                    raise RpcError(INTERNAL_ERROR, text_of(task.get("statusMessage")) or "task cancelled")
                if status == "input_required" and (asked := decode_fields(task.get("inputRequests"))):
                    result = self._park(wait, asked)
                    parked_or_done = True
                    return result
                await _tell_progress(wait, task, notify)
                await trio.sleep(tasks.poll_seconds(task))
        finally:
            if not parked_or_done:
                with trio.CancelScope(shield=True):
                    await self._cancel(wait)

    def _park(self, wait: Wait, asked: Fields) -> Fields:
        if len(self._parked) >= PARK_LIMIT:
            raise RpcError(BUSY, f"Busy: more than {PARK_LIMIT} calls wait for their clients' answers")
        state = secrets.token_urlsafe(STATE_BYTES)
        self._parked[state] = wait
        self._nursery.start_soon(self._expire, state, name="parked wait for a task")
        return {"resultType": raw("input_required"), "inputRequests": raw(asked), STATE: raw(state)}

    async def _expire(self, state: str) -> None:
        await trio.sleep(ANSWER_SECONDS)
        self.abandon(state)

    async def _cancel(self, wait: Wait) -> None:
        with trio.move_on_after(CANCEL_SECONDS):
            try:
                await self._view.cancel(wait.upstream, wait.task_id, wait.call)
            except RpcError as error:
                log.debug("task not cancelled", upstream=wait.upstream.key, reason=error.message)


def _with_responses(call: Call, responses: Raw) -> Call:
    return call.with_params({RESPONSES: responses})


async def _tell_progress(wait: Wait, task: Fields, notify: Notify) -> None:
    """Tell a status message that is new."""
    message = text_of(task.get("statusMessage"))
    token = wait.call.meta.get(PROGRESS_TOKEN)
    if token is None or message is None or message == wait.message:
        return
    wait.message = message
    wait.told += 1
    said = {PROGRESS_TOKEN: token, "progress": raw(wait.told), "message": raw(message)}
    await notify(Event(m.PROGRESS, said))
