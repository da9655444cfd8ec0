"""Serve tasks, which are tool calls that are answered later, between all pairs of eras.

| client | server | a tool call | tasks/… |
| --- | --- | --- | --- |
| 2025-11-25 | legacy | passed on | passed on; `tasks/list` shows the client's own |
| older | legacy | a tool that requires a task: waited for | unknown |
| legacy | modern | waited for, when the server answers that it can only make a task | unknown |
| modern with the extension | modern | passed on | passed on |
| modern with the extension | legacy | a tool that requires a task: one is made | see Tasks |
| modern without it | legacy | a tool that requires a task: waited for | -32021 |
| modern without it | modern | passed on: the server answers the result, or -32021 | -32021 |

"Waited for": the task is made on the client's behalf, and the call answered with its result. A tool for which
a task is optional is called without one for a client that did not ask for a task. A legacy client that asks
for a task of a modern server's tool gets -32601: that server decides itself, and may answer with the result.

A task belongs to the client that made it, and to its principal; others get the error that it does not exist.
When its client has gone, or cannot be recognised (2026-07-28 over HTTP), the id is sufficient proof, as the
specification has it. No tasks are made for servers (sampling, elicitation). Changes are not pushed in
2026-07-28: `taskIds` of a listen are not acknowledged, clients ask.

Source: `basic/utilities/tasks`, 2025-11-25; the Tasks extension (SEP-2663).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec
import structlog
import trio

from mcpmux.channels.channel import ignore_event
from mcpmux.channels.questions import PARK_SECONDS, Client, ParkedCalls
from mcpmux.errors import Overdue, RpcError
from mcpmux.lru import Lru
from mcpmux.mux.access import no_task
from mcpmux.mux.rewrite import Marks
from mcpmux.protocol import method as m
from mcpmux.protocol import tasks
from mcpmux.protocol.call import CLIENT_CAPABILITIES, PROGRESS_TOKEN, Call, Event, Notify
from mcpmux.protocol.codes import INTERNAL_ERROR, METHOD_NOT_FOUND
from mcpmux.protocol.envelope import EMPTY_OBJECT, decode_fields, members_of, objects_in, raw, text_of
from mcpmux.protocol.input_requests import RESPONSES, STATE
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.revisions import is_modern
from mcpmux.runtime.access_control import AccessControl
from mcpmux.runtime.notification_hub import Personal
from mcpmux.transports.inline import in_task
from mcpmux.transports.waiting import Deadline
from mcpmux.upstreams.lists import known_listing, learn_listing
from mcpmux.upstreams.upstream import Upstream

log = structlog.get_logger()

QUESTION_SECONDS = 5.0  # for a server that waits for input to send its questions
ASKED_LIMIT = 1000  # tasks whose questions are kept for their clients; past that the oldest are asked anew
ASKED_BYTES = 64 * 2**20  # of these questions, and of the answers so far; one may have images
ANSWER_SECONDS = PARK_SECONDS - 20.0  # less than the parked question has, so that the task is cancelled first
CANCEL_SECONDS = 2.0  # for cancelling a task at its server when its client has gone

_ABOUT_TASKS = frozenset({tasks.TASK, STATE})  # members of a tool call that asks for a task, or continues one


class TaskQuestions(msgspec.Struct):
    """The questions of a legacy server's task. `state`: of the parked call. `responses`: so far."""

    state: str
    requests: Fields
    responses: Fields


@dataclass(eq=False)
class Wait:
    """A call that waits for a task. `call`: its latest repetition by the client.

    `watching`: the scope of `_watch` while the wait is parked. `told`: the number of progress messages sent,
    `message`: the last of them.
    """

    upstream: Upstream
    task_id: str
    call: Call = field(repr=False)
    watching: trio.CancelScope = field(default_factory=trio.CancelScope, repr=False)
    told: int = 0
    message: str | None = None


@dataclass(eq=False, repr=False)
class Tasks:
    """Answers calls that can make a task or are about one, for one upstream at a time, with its own ids."""

    _personal: Personal
    _find_client: Callable[[object], Client | None]  # by the object that identifies it in its calls
    _access: AccessControl
    _nursery: trio.Nursery  # for waits whose clients are asked something
    _asked: Lru[tuple[str, str], TaskQuestions] = field(default_factory=lambda: Lru(ASKED_LIMIT, ASKED_BYTES))
    _parked: ParkedCalls[Wait] = field(default_factory=ParkedCalls)
    marks: Marks = field(default_factory=Marks)  # of this process among several

    def makes_none(self, upstream: Upstream, call: Call) -> bool:
        """Return whether a tool call cannot make a task: its server makes none, and it asks for none."""
        connection = upstream.status.connection
        return connection is not None and not connection.makes_tasks and _ABOUT_TASKS.isdisjoint(call.params)

    async def exchange(self, upstream: Upstream, call: Call, notify: Notify) -> Fields:
        """Answer a tool call or a call about tasks. Raises RpcError."""
        deadline: Deadline | None = None
        # The server's era, which only a connection shows, determines the side that decides about a task.
        if upstream.facts is None:
            await in_task()
            seconds = upstream.patience(call.method)
            # The time of the call includes this wait.
            deadline = Deadline(seconds, 0.0, upstream.config.max_request_timeout)
            try:
                with deadline.limit():
                    await upstream.supervision.settled()
            except Overdue:
                raise upstream.status.late(call.method, seconds) from None
        if call.method == m.TOOLS_CALL:
            return await self._call_tool(upstream, call, notify, deadline)
        await in_task()
        if call.method != m.TASKS_LIST:
            return await self._about_one(upstream, call, notify)
        result = await upstream.exchange(call, notify)
        try:
            listed = objects_in(result.get("tasks", b"[]"))
        except ValueError:
            listed = []
        own = (task for task in listed if not self.hides(upstream, call, text_of(task.get(tasks.TASK_ID))))
        result["tasks"] = raw(list(own))
        return result

    def hides(self, upstream: Upstream, call: Call, task_id: str | None) -> bool:
        """Return whether a task in a list must be hidden from the client of `call`."""
        if upstream.config.session != "shared" and call.client is not None:
            return False  # everything in this session is the client's
        # The server lists the tasks of all clients that share its session.
        return not self._personal.tasks.is_of(upstream.key, task_id or "", call.client)

    async def _call_tool(
        self, upstream: Upstream, call: Call, notify: Notify, deadline: Deadline | None
    ) -> Fields:
        # Any other state is the server's own, with which it goes on.
        if call.text(STATE) in self._parked:
            await in_task()
            return await self._resume(call, notify)
        facts, plain = upstream.facts, call
        if tasks.TASK in call.params:  # the same call without the request for a task
            plain = call.with_params({key: value for key, value in call.params.items() if key != tasks.TASK})
        if facts is None or not tasks.offers_tasks(facts):
            return await upstream.exchange(plain, notify, deadline)
        await in_task()
        if is_modern(facts.revision):
            # In 2026-07-28 the server decides whether it makes a task: it may answer with the result.
            if call.legacy and plain is not call:
                raise RpcError(METHOD_NOT_FOUND, f"{call.text('name')} cannot be called as a task")
            try:
                return self._noted(upstream, call, await upstream.exchange(plain, notify))
            # The server can answer with a task only, which a legacy client cannot use: mcpmux waits for it.
            except RpcError as error:
                if not (call.legacy and tasks.misses_extension(error)):
                    raise
            able = tasks.with_extension(call.meta.get(CLIENT_CAPABILITIES))
            asking = plain.with_meta({**call.meta, CLIENT_CAPABILITIES: able})
        elif call.legacy and (client := self._find_client(call.client)) is not None and client.knows_tasks:
            return self._noted(upstream, call, await upstream.exchange(call, notify))
        elif await _support_of(upstream, call) != "required":
            return await upstream.exchange(plain, notify)
        else:
            asking = plain.with_params({**plain.params, tasks.TASK: EMPTY_OBJECT})
        result = await upstream.exchange(asking, notify)
        made = tasks.made_task(result)
        if made is None:
            return result
        if not call.legacy and _knows_extension(call):
            return tasks.upgrade_made(self._noted(upstream, call, result), made)
        task_id = text_of(made.get(tasks.TASK_ID)) or ""
        return await self._follow(Wait(upstream, task_id, plain), notify)

    def _noted(self, upstream: Upstream, call: Call, result: Fields) -> Fields:
        """Return the result. If it contains a new task, note that the task belongs to the client."""
        made = tasks.made_task(result)
        task_id = text_of(made.get(tasks.TASK_ID)) if made is not None else None
        if task_id is not None:
            self._access.tasks.note(upstream.key, task_id, call.principal.key, call.text("name"))
            token = call.meta.get(PROGRESS_TOKEN)
            self._personal.own_task(upstream.key, upstream.space, task_id, call.client, token)
        return result

    async def _about_one(self, upstream: Upstream, call: Call, notify: Notify) -> Fields:
        task_id = call.required(tasks.TASK_ID)
        if not call.legacy and not _knows_extension(call):
            raise tasks.extension_missing()
        modern = upstream.status.is_modern
        # Both the principal and the client must own the task, as far as its owners are known.
        is_own = self._access.tasks.may_use(upstream.key, task_id, call.principal.key)
        is_own = is_own and self._personal.tasks.may_use(upstream.key, task_id, call.client)
        # A task without an owner here may have one in another process, so a legacy client must own it.
        if self.marks.current and call.legacy:
            is_own = is_own and self._personal.tasks.is_of(upstream.key, task_id, call.client)
        # A legacy client has no task of a modern server: its call waits for that.
        if (call.legacy and modern) or not is_own:
            raise no_task()
        if call.legacy or modern:
            return await upstream.exchange(call, notify)
        views = {m.TASKS_GET: self._get, m.TASKS_UPDATE: self._update}
        return await views.get(call.method, self._cancel)(upstream, task_id, call)

    # The tasks of servers of both eras in the form of the extension of 2026-07-28. A modern server's are in
    # that form already. For a legacy server
    #
    # | extension | becomes |
    # | --- | --- |
    # | `tasks/get` | `tasks/get`; of a task that has ended, `tasks/result` as well |
    # | its `input_required` | `tasks/result`, opened to get the questions; parked until they are answered |
    # | `tasks/update` | the answers to these, once all are there; `tasks/result` is given up then |
    # | `tasks/cancel` | `tasks/cancel`; its answer only acknowledges that |

    async def _get(self, upstream: Upstream, task_id: str, call: Call) -> Fields:
        modern = upstream.status.is_modern
        task = await _ask(upstream, m.TASKS_GET, task_id, call)
        if modern:
            return task
        task.pop("resultType", None)
        status = text_of(task.get("status"))
        if status == "input_required":
            return await self._waiting(upstream, task_id, task, call)
        self._asked.discard((upstream.key, task_id))
        if status not in ("completed", "failed"):
            return tasks.running(task)
        try:
            result = await _ask(upstream, m.TASKS_RESULT, task_id, call)
        except RpcError as error:
            return tasks.failed(task, error)
        return tasks.completed(task, result)

    async def _waiting(self, upstream: Upstream, task_id: str, task: Fields, call: Call) -> Fields:
        key = (upstream.key, task_id)
        questions = self._asked.get(key)
        if questions is None:
            result: Fields = {}
            # A server may have no question after all, and answers only when the task ends.
            with trio.move_on_after(QUESTION_SECONDS):
                result = await _ask(upstream, m.TASKS_RESULT, task_id, call)
            if STATE not in result:
                return tasks.completed(task, result) if result else tasks.running(task)
            questions = TaskQuestions(
                text_of(result[STATE]) or "", decode_fields(result["inputRequests"]), {}
            )
            self._asked[key] = questions
        open_ones = {
            name: value for name, value in questions.requests.items() if name not in questions.responses
        }
        return tasks.waiting(task, open_ones)

    async def _update(self, upstream: Upstream, task_id: str, call: Call) -> Fields:
        """Take answers to the questions of a task. Other answers are ignored. Raises RpcError."""
        if upstream.status.is_modern:
            params = {RESPONSES: call.params[RESPONSES]} if RESPONSES in call.params else {}
            return await _ask(upstream, m.TASKS_UPDATE, task_id, call, params)
        questions = self._asked.get((upstream.key, task_id))
        if questions is None:
            await _ask(upstream, m.TASKS_GET, task_id, call)  # raises if there is no such task
            return _acknowledged()
        answers = decode_fields(call.params.get(RESPONSES))
        questions.responses.update(
            {name: answers[name] for name in answers.keys() & questions.requests.keys()}
        )
        if questions.responses.keys() == questions.requests.keys():
            self._asked.discard((upstream.key, task_id))
            params = {STATE: raw(questions.state), RESPONSES: raw(questions.responses)}
            await upstream.reply(_about(m.TASKS_RESULT, task_id, call, params))
        else:
            self._asked[upstream.key, task_id] = questions  # again, as its size has changed
        return _acknowledged()

    async def _cancel(self, upstream: Upstream, task_id: str, call: Call) -> Fields:
        try:
            await _ask(upstream, m.TASKS_CANCEL, task_id, call)
        finally:
            questions = self._asked.pop((upstream.key, task_id))
            if questions is not None and upstream.status.connection is not None:
                upstream.status.connection.abandon(questions.state)
        return _acknowledged()

    # Calls that wait for tasks, of clients that know no tasks. The task is polled at the interval that its
    # server names. Its status message becomes progress, if the client wants progress; its questions become
    # `input_required`, and the repeated call continues from there. When the client gives up, the task is
    # cancelled. While the client is asked, the task is watched: it may go on, or end, without the answers.

    async def _resume(self, call: Call, notify: Notify) -> Fields:
        """Continue after questions. Raises RpcError for a state of another client or tool."""
        wait = self._parked.take(call)
        wait.watching.cancel(reason="its client is back")
        wait.call = call
        answers = call.params.get(RESPONSES, EMPTY_OBJECT)
        answered_call = call.with_params({RESPONSES: answers}) if members_of(answers) else None
        return await self._follow(wait, notify, answered_call)

    def abandon(self, state: str) -> bool:
        """Give up the wait with that state, whose client has gone. Return False when there is none."""
        wait = self._parked.pop(state)
        if wait is not None:
            wait.watching.cancel(reason="its client has gone")
            self._nursery.start_soon(self._give_up, wait)
        return wait is not None

    def leave(self, client: object) -> None:
        """Give up the parked waits of a client that has gone."""
        for state in self._parked.states_of(client):
            self.abandon(state)

    async def _follow(self, wait: Wait, notify: Notify, answers: Call | None = None) -> Fields:
        """Poll a task until it ends or asks something, and return the answer to its call. Raises RpcError.

        Cancelling this, and errors on the way, cancel the task at its server.
        """
        parked_or_done = False
        try:
            if answers is not None:
                await self._update(wait.upstream, wait.task_id, answers)
            while True:
                task = await self._get(wait.upstream, wait.task_id, wait.call)
                status = text_of(task.get("status"))
                parked_or_done = status in tasks.TERMINAL
                if status == "completed":
                    return {**_acknowledged(), **decode_fields(task.get("result"))}
                if status == "failed":
                    raise tasks.error_in(task)
                if status == "cancelled":
                    raise RpcError(INTERNAL_ERROR, text_of(task.get("statusMessage")) or "task cancelled")
                if status == "input_required" and (requests := decode_fields(task.get("inputRequests"))):
                    state = self._parked.add(wait.call, wait)
                    parked_or_done, wait.watching = True, trio.CancelScope()
                    self._nursery.start_soon(self._watch, state, wait, name="parked wait for a task")
                    asked = {"inputRequests": raw(requests), STATE: raw(state)}
                    return {"resultType": raw("input_required"), **asked}
                message, token = text_of(task.get("statusMessage")), wait.call.meta.get(PROGRESS_TOKEN)
                # Most polls bring the state that is known already, which is no progress.
                if token is not None and message not in (None, wait.message):
                    wait.message, wait.told = message, wait.told + 1
                    progress = {"progress": raw(wait.told), "message": raw(message)}
                    await notify(Event(m.PROGRESS, {PROGRESS_TOKEN: token, **progress}))
                await trio.sleep(tasks.poll_seconds(task))
        finally:
            if not parked_or_done:
                # Shielded, as the call may be cancelled; `_give_up` is bounded by CANCEL_SECONDS.
                with trio.CancelScope(shield=True):
                    await self._give_up(wait)

    async def _watch(self, state: str, wait: Wait) -> None:
        """Keep a parked wait for ANSWER_SECONDS, and end its questions once the task needs no answers.

        Cancelling `wait.watching` ends this when the wait was taken out.
        """
        with wait.watching:
            with trio.move_on_after(ANSWER_SECONDS):
                await _until_nothing_is_asked(wait)
                self._personal.end_question(state)
                await trio.sleep_forever()
            self.abandon(state)

    async def _give_up(self, wait: Wait) -> None:
        with trio.move_on_after(CANCEL_SECONDS):
            try:
                await self._cancel(wait.upstream, wait.task_id, wait.call)
            except RpcError as error:
                log.debug("task not cancelled", upstream=wait.upstream.key, reason=error.message)


def _ask(
    upstream: Upstream, method: str, task_id: str, call: Call, params: Fields | None = None
) -> Awaitable[Fields]:
    return upstream.exchange(_about(method, task_id, call, params), ignore_event)


def _about(method: str, task_id: str, call: Call, params: Fields | None = None) -> Call:
    # Progress belongs to the call that made the task, not to a question about it.
    meta = {key: value for key, value in call.meta.items() if key != PROGRESS_TOKEN}
    meta[CLIENT_CAPABILITIES] = tasks.with_extension(meta.get(CLIENT_CAPABILITIES))
    fields = {tasks.TASK_ID: raw(task_id), **(params or {})}
    return call.on_behalf(method, fields).with_meta(meta)


def _acknowledged() -> Fields:
    return {"resultType": raw("complete")}


async def _until_nothing_is_asked(wait: Wait) -> None:
    """Wait until the task has ended, goes on, or cannot be polled any more."""
    seconds = tasks.poll_seconds({})
    while True:
        await trio.sleep(seconds)
        try:
            task = await _ask(wait.upstream, m.TASKS_GET, wait.task_id, wait.call)
        except RpcError:
            return  # the client gets the error when it repeats its call
        if text_of(task.get("status")) != "input_required":
            return
        seconds = tasks.poll_seconds(task)


async def _support_of(upstream: Upstream, call: Call) -> str | None:
    """Return the task support that the tool of a call states; None for a tool that is not listed."""
    name = call.text("name") or ""
    listing = known_listing(upstream, m.TOOLS_LIST)
    if listing is None or name not in listing.items:
        listing, _ = await learn_listing(upstream, m.TOOLS_LIST, call, anew=True)
    return listing.task_support(name)


def _knows_extension(call: Call) -> bool:
    return tasks.knows_extension(call.meta.get(CLIENT_CAPABILITIES))
