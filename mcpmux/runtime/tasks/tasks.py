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

from collections.abc import Callable

import trio

from mcpmux.errors import RpcError
from mcpmux.mux.ownership import Holding
from mcpmux.protocol import method as m
from mcpmux.protocol import tasks
from mcpmux.protocol.call import Call, Notify
from mcpmux.protocol.codes import INVALID_PARAMS, METHOD_NOT_FOUND
from mcpmux.protocol.envelope import EMPTY_OBJECT, decode_list, raw, text_of
from mcpmux.protocol.meta import CLIENT_CAPABILITIES, PROGRESS_TOKEN
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.revisions import is_modern
from mcpmux.runtime.calls import Client
from mcpmux.runtime.guard import Guard
from mcpmux.runtime.paging import walk
from mcpmux.runtime.personal import Personal
from mcpmux.runtime.tasks.view import TaskView
from mcpmux.runtime.tasks.wait import TaskWaits
from mcpmux.runtime.upstreams.upstream import Upstream

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

    async def exchange(self, upstream: Upstream, call: Call, notify: Notify) -> Fields:
        """Answer one call. Raises RpcError."""
        waited = await _settle(upstream, call) if upstream.facts is None else 0.0
        if call.method == m.TOOLS_CALL:
            return await self._call_tool(upstream, call, notify, waited)
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
            return await self.waits.resume(call, notify)
        facts = upstream.facts
        if facts is None or not tasks.offers_tasks(facts):
            return await upstream.exchange(_plain(call), notify, waited)
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
