"""Tasks: tool calls that are answered later, in every pair of eras.

| client | server | a tool call | tasks/… |
| --- | --- | --- | --- |
| 2025-11-25 | legacy | as it is | as they are; `tasks/list` shows the client's own |
| older | legacy | a tool that requires a task: waited for | unknown |
| legacy | modern | waited for, when the server answers that it can only make a task | unknown |
| modern with the extension | modern | as it is | as they are |
| modern with the extension | legacy | a tool that requires a task: one is made | see runtime/task_view |
| modern without it | legacy | a tool that requires a task: waited for | -32021 |
| modern without it | modern | as it is: the server answers the result, or -32021 | -32021 |

"Waited for": the task is made on the client's behalf, and the call answered with its result. A tool for which
a task is optional is called plainly for a client that did not ask for one. A legacy client that asks for a
task of a modern server's tool hears -32601: that server decides itself, and may well answer with the result.

A task belongs to the client that made it, and to its principal. Another is told that there is none. When its
client has gone, or was never to be recognised (2026-07-28 over HTTP), the id is proof enough, as the
specification has it. We never make tasks for servers (sampling, elicitation), so none is declared to them.
Changes are not pushed in 2026-07-28: `taskIds` of a listen are not acknowledged, clients ask.

Source: `basic/utilities/tasks`, 2025-11-25; the Tasks extension (SEP-2663).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

import msgspec
import structlog
import trio

from mcpmux.errors import RpcError
from mcpmux.mux.ownership import Holding
from mcpmux.protocol import method as m
from mcpmux.protocol import tasks
from mcpmux.protocol.call import CLIENT_CAPABILITIES, PROGRESS_TOKEN, Call, Event, Notify
from mcpmux.protocol.codes import BUSY, INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND
from mcpmux.protocol.envelope import EMPTY_OBJECT, decode_fields, decode_list, raw, text_of
from mcpmux.protocol.input_requests import RESPONSES, STATE
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.protocol.revisions import is_modern
from mcpmux.runtime.calls import PARK_LIMIT, PARK_SECONDS, STATE_BYTES, Client
from mcpmux.runtime.guard import Guard
from mcpmux.runtime.merger import walk
from mcpmux.runtime.personal import Personal
from mcpmux.runtime.upstreams.connection import unheard
from mcpmux.runtime.upstreams.upstream import Upstream
from mcpmux.transports.inline import in_task

# The tasks of servers of both eras as the extension of 2026-07-28 has them: get, update, cancel.
#
# A modern server's are its own. For a legacy server
#
# | extension | becomes |
# | --- | --- |
# | `tasks/get` | `tasks/get`; of a task that has ended, `tasks/result` as well |
# | its `input_required` | `tasks/result`, opened to hear the questions; parked until they are answered |
# | `tasks/update` | the answers to these questions, once all are there; `tasks/result` is given up then |
# | `tasks/cancel` | `tasks/cancel`; its answer says nothing more than that |
#
# Source: `basic/utilities/tasks`, 2025-11-25; the Tasks extension (SEP-2663).

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


# Tasks for clients that know of none: the call is answered when the task is done.
#
# The client's call waits while the task is asked about at the pace that its server names; a status message
# is told as progress when the client wants progress. What the task asks is asked as in any other call, with
# `input_required`; the repeated call goes on where it was. When the client gives up the task is cancelled.

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


_ABOUT_TASKS = frozenset({tasks.TASK, STATE})
"""Members of a tool call that may be about a task, or go on with one."""

FindClient = Callable[[object], Client | None]
"""The client that calls itself so in its calls."""


class Tasks:
    """What can make a task or is about one, for one upstream at a time and in its own ids."""

    def __init__(self, personal: Personal, find_client: FindClient, guard: Guard | None = None) -> None:
        self._guard = guard if guard is not None else Guard()
        self._personal = personal
        self._find_client = find_client
        self._view = TaskView()
        self.waits = TaskWaits(self._view)
        self._held = Holding()

    def __repr__(self) -> str:
        return f"<Tasks {self._personal.tasks!r}, {self.waits!r}>"

    def makes_none(self, upstream: Upstream, call: Call) -> bool:
        """Whether a tool call is no matter of tasks: its server makes none, and none is asked for."""
        connection = upstream.connection
        return connection is not None and not connection.makes_tasks and _ABOUT_TASKS.isdisjoint(call.params)

    async def exchange(self, upstream: Upstream, call: Call, notify: Notify) -> Fields:
        """Answer one call. Raises RpcError."""
        waited = await _settle(upstream, call) if upstream.facts is None else 0.0
        if call.method == m.TOOLS_CALL:
            return await self._call_tool(upstream, call, notify, waited)
        await in_task()
        if call.method == m.TASKS_LIST:
            return self._own_ones(upstream, call, await upstream.exchange(call, notify))
        return await self._about(upstream, call, notify)

    def hides(self, upstream: Upstream, call: Call, task: Fields) -> bool:
        """Whether a task in a list must not be shown to the client of `call`."""
        if upstream.config.session != "shared" and call.client is not None:
            return False  # everything in this session is the client's
        task_id = text_of(task.get(tasks.TASK_ID)) or ""
        return not self._personal.tasks.is_of(upstream.key, task_id, call.client)

    def _own_ones(self, upstream: Upstream, call: Call, result: Fields) -> Fields:
        try:
            listed = decode_list(result.get("tasks", b"[]"))
        except ValueError:
            listed = []
        result["tasks"] = raw([task for task in listed if not self.hides(upstream, call, task)])
        return result

    # Calls that may make a task

    async def _call_tool(self, upstream: Upstream, call: Call, notify: Notify, waited: float) -> Fields:
        if self.waits.knows(call):
            await in_task()
            return await self.waits.resume(call, notify)
        facts = upstream.facts
        if facts is None or not tasks.offers_tasks(facts):
            return await upstream.exchange(_plain(call), notify, waited)
        await in_task()
        if is_modern(facts.revision):
            return await self._call_modern(upstream, call, notify)
        if call.legacy and self._knows_tasks(call):
            return self._noted(upstream, call, await upstream.exchange(call, notify))
        return await self._call_legacy(upstream, _plain(call), notify)

    async def _call_modern(self, upstream: Upstream, call: Call, notify: Notify) -> Fields:
        if call.legacy and tasks.TASK in call.params:
            raise RpcError(METHOD_NOT_FOUND, f"{call.text('name')} cannot be called as a task")
        try:
            return self._noted(upstream, call, await upstream.exchange(_plain(call), notify))
        except RpcError as error:
            if not (call.legacy and tasks.misses_extension(error)):
                raise
        able = tasks.with_extension(call.meta.get(CLIENT_CAPABILITIES))
        result = await upstream.exchange(call.with_meta({**call.meta, CLIENT_CAPABILITIES: able}), notify)
        return await self._waited_for(upstream, call, result, notify)

    async def _call_legacy(self, upstream: Upstream, call: Call, notify: Notify) -> Fields:
        """For a client that makes no tasks itself, of a server that makes none by itself."""
        if await self._support_of(upstream, call) != "required":
            return await upstream.exchange(call, notify)
        asking = call.with_params({**call.params, tasks.TASK: EMPTY_OBJECT})
        result = await upstream.exchange(asking, notify)
        made = tasks.made_task(result)
        if made is not None and not call.legacy and _knows_extension(call):
            return tasks.upgrade_made(self._noted(upstream, call, result), made)
        return await self._waited_for(upstream, call, result, notify)

    async def _waited_for(self, upstream: Upstream, call: Call, result: Fields, notify: Notify) -> Fields:
        made = tasks.made_task(result)
        if made is None:
            return result
        return await self.waits.start(upstream, text_of(made.get(tasks.TASK_ID)) or "", call, notify)

    def _noted(self, upstream: Upstream, call: Call, result: Fields) -> Fields:
        """The result; when it says that a task was made, that is its client's from now on."""
        made = tasks.made_task(result)
        task_id = text_of(made.get(tasks.TASK_ID)) if made is not None else None
        if task_id is not None:
            self._guard.made_task(upstream.key, task_id, call.text("name"))
            token = call.meta.get(PROGRESS_TOKEN)
            self._held.note(upstream.key, task_id, call.principal.name)
            self._personal.own_task(upstream.key, upstream.space, task_id, call.client, token)
        return result

    async def _support_of(self, upstream: Upstream, call: Call) -> str | None:
        """What the tool of a call says about tasks; asked of the server once for each connection."""
        name = call.text("name") or ""
        connection = upstream.connection
        if connection is None:
            return None
        if name not in connection.task_support:
            tools = await walk(upstream, call.on_behalf(m.TOOLS_LIST, {}))
            names = {text_of(tool.get("name")) or "": "forbidden" for tool in tools}
            connection.task_support = names | tasks.task_support(tools)
        return connection.task_support.get(name)

    def _knows_tasks(self, call: Call) -> bool:
        client = self._find_client(call.client)
        return client is not None and client.knows_tasks

    # What is about a task

    async def _about(self, upstream: Upstream, call: Call, notify: Notify) -> Fields:
        task_id = call.text(tasks.TASK_ID)
        if task_id is None:
            raise RpcError(INVALID_PARAMS, f'Invalid params: "{tasks.TASK_ID}" must be a string')
        if not call.legacy and not _knows_extension(call):
            raise tasks.extension_missing()
        modern = upstream.facts is not None and is_modern(upstream.facts.revision)
        if (call.legacy and modern) or not self._may_use(upstream, task_id, call):
            raise task_not_found()
        if call.legacy or modern:
            return await upstream.exchange(call, notify)
        if call.method == m.TASKS_GET:
            return await self._view.get(upstream, task_id, call)
        if call.method == m.TASKS_UPDATE:
            return await self._view.update(upstream, task_id, call)
        return await self._view.cancel(upstream, task_id, call)

    def _may_use(self, upstream: Upstream, task_id: str, call: Call) -> bool:
        """Whether a task is the client's and its principal's, as far as it is known whose it is."""
        if not self._held.may_use(upstream.key, task_id, call.principal.name):
            return False
        return self._personal.tasks.may_use(upstream.key, task_id, call.client)


def task_not_found() -> RpcError:
    """-32602: this client has no such task."""
    return RpcError(INVALID_PARAMS, "Task not found")


async def _settle(upstream: Upstream, call: Call) -> float:
    """Wait for an upstream that is about to be connected: how many seconds of the call's time that took.

    Raises RpcError when it took all of them.
    """
    await in_task()
    began, seconds = trio.current_time(), upstream.patience(call.method)
    with trio.move_on_after(seconds) as scope:
        await upstream.settled()
    if scope.cancelled_caught:
        raise upstream.late(call.method, seconds)
    return min(trio.current_time() - began, seconds)


def _plain(call: Call) -> Call:
    """A tool call that asks for no task."""
    if tasks.TASK not in call.params:
        return call
    return call.with_params({key: value for key, value in call.params.items() if key != tasks.TASK})


def _knows_extension(call: Call) -> bool:
    return tasks.knows_extension(call.meta.get(CLIENT_CAPABILITIES))
