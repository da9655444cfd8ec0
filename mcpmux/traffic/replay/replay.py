"""Send captured requests again: one session for each captured client, with its answers compared.

Promises: a request goes out in the revision it was made in, after the answers that its client had then; every
request of the capture has one outcome; every wait is bounded. Refuses to know how a server is reached.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import trio
from attrs import define, field

from mcpmux import __version__
from mcpmux.channels.channel import Channel, ignore_event
from mcpmux.channels.http_peer import HttpStatusError
from mcpmux.channels.questions import Question
from mcpmux.errors import McpmuxError, RpcError, TransportError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import CLIENT_CAPABILITIES, Call, Event, Hear
from mcpmux.protocol.envelope import EMPTY_OBJECT, Notification, Reply, id_of, raw
from mcpmux.protocol.handshake import initialize_call, read_initialize_result
from mcpmux.protocol.input_requests import STATE, error_response, repeated, wishes_in
from mcpmux.protocol.principal import ANYONE, Principal
from mcpmux.protocol.raw_json import Fields, Id, Raw
from mcpmux.protocol.revisions import LEGACY, NEWEST_LEGACY, V_2025_11_25
from mcpmux.traffic.reading.dialogue import (
    CapturedRequest,
    ClientNotification,
    Dialogue,
    result_of,
    values_of,
    why_not,
)
from mcpmux.traffic.replay.mapping import INPUT_REQUIRED, Questions, Unmapped, ValueMapping, asked_in
from mcpmux.traffic.replay.report import (
    Outcome,
    Pattern,
    Report,
    Status,
    acknowledged,
    captured_answer,
    compare,
    error_value,
)
from mcpmux.transports.wall import walled

ROUNDS = 100  # of questions in one call; more of them would never end
IN_FLIGHT = 256  # requests of all sessions at a time, for any capture

_CAPABILITY = {m.CREATE_MESSAGE: "sampling", m.ELICIT: "elicitation", m.ROOTS_LIST: "roots"}

OpenChannel = Callable[[Hear, str], AbstractAsyncContextManager[Channel]]
"""Opens a new connection to the server, for a client of a view as in records."""


@define(eq=False)
class Replay:
    """The settings of a replay, and what its sessions share. `first`: when the capture began (since 1970).

    `speed`: 2 is twice as fast as captured, inf as fast as possible. `timeout`: seconds for one answer, and
    for opening a session. `sessions`: how many are open at a time at infinite speed; at others there are as
    many as in the capture.

    When the first session fails to connect, the reason is the `trouble`, and later sessions do not start.
    A server that has answered once is reachable: a connection that is lost afterwards costs one
    session.
    """

    open_channel: OpenChannel
    report: Report
    first: float
    speed: float = math.inf
    with_tools: bool = False
    timeout: float = 60.0
    sessions: int = 16
    ignore: Sequence[Pattern] = ()
    trouble: str | None = None
    reached: bool = False
    in_flight: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(IN_FLIGHT))
    _began: float = field(factory=trio.current_time)
    _failed: trio.Event = field(factory=trio.Event)

    def failed(self, error: BaseException) -> None:
        """Note an error, which may mean that the server cannot be reached."""
        if isinstance(error, TransportError) and not self.reached and self.trouble is None:
            self.trouble = str(error)
            self._failed.set()

    async def wait(self, at: float) -> None:
        """Wait until a message captured `at` is due, or until the server is known to be unreachable."""
        with trio.move_on_at(self._began + max(0.0, at - self.first) / self.speed):
            await self._failed.wait()


class SessionReplay:
    """One captured client's requests, sent again in a separate session.

    A server's questions are answered as in the capture, at any time. `capabilities`, `principal`,
    `knows_tasks` and `ask`: see `runtime.calls.Client`.
    """

    capabilities: Raw = EMPTY_OBJECT
    knows_tasks = False
    principal: Principal = ANYONE
    _channel: Channel

    def __init__(self, dialogue: Dialogue, whole: Replay) -> None:
        self._dialogue = dialogue
        self._whole = whole
        self._timeout = whole.timeout
        self._mapping = ValueMapping()
        self._questions = Questions(dialogue)
        self._requests = list(dialogue.requests())
        self._skipped = {r.position: why_not(r, with_tools=whole.with_tools) for r in self._requests}
        self._reported: set[int] = set()
        self._early: dict[int, tuple[Any, float]] = {}  # see `_compare_early`
        self._pending: dict[int, tuple[CapturedRequest, trio.Event]] = {}
        self._listens: dict[Id | None, trio.CancelScope] = {}

    async def run_within(self, sessions: trio.CapacityLimiter) -> None:
        """Replay the dialogue. Raises nothing but bugs and Cancelled."""
        if all(self._skipped.values()):
            self._give_up("nothing of its client is sent again")
            return
        await self._whole.wait(self._dialogue.at)
        trouble: list[BaseException] = []
        async with sessions:
            if self._whole.trouble is None:
                await walled(self._run(), McpmuxError, trouble.extend)
            for error in trouble:
                self._whole.failed(error)
        self._give_up("; ".join(map(str, trouble)) or self._whole.trouble or "the session has ended")
        self._whole.report.add_questions(self._questions.deviations)

    def _give_up(self, reason: str) -> None:
        for captured in self._requests:
            if captured.position not in self._reported:
                own = self._skipped[captured.position]
                self._report_outcome(captured, "skipped" if own else "failed", own or reason)

    def _report_outcome(
        self, captured: CapturedRequest, status: Status, reason: str | None = None, **more: Any
    ) -> None:
        self._reported.add(captured.position)
        if status in ("skipped", "failed"):
            self._mapping.learn(captured, None)
        self._whole.report.add(Outcome(self._dialogue.name, captured, status, reason, **more))
        if captured.position in self._pending:
            self._pending.pop(captured.position)[1].set()

    async def _who_is_asked(self, _question: Question) -> SessionReplay:
        return self

    async def _run(self) -> None:
        async with self._whole.open_channel(_unheard, self._dialogue.view) as self._channel:
            self._channel.questions.find_client = self._who_is_asked
            if any(not request.modern and request.method != m.PING for request in self._requests):
                await self._begin()
            async with trio.open_nursery() as nursery:
                for step in self._dialogue.steps:
                    if step.position in self._reported:  # `_begin` has sent it
                        continue
                    await self._whole.wait(step.at)
                    await self._wait_for_answers(before=step.position)
                    if self._whole.trouble is not None:
                        break
                    if isinstance(step, CapturedRequest):
                        await self._replay_request(step, nursery)
                    else:
                        await self._repeat_notification(step)
                await self._wait_for_answers()
                nursery.cancel_scope.cancel(reason="everything is replayed")
            self._questions.finish()

    async def _wait_for_answers(self, before: float = math.inf) -> None:
        """Wait for all answers that had come before a position in the capture."""
        for captured, done in list(self._pending.values()):
            if before == math.inf or (captured.answered_position or math.inf) < before:
                await done.wait()

    async def _begin(self) -> None:
        """Open a legacy session, with the captured request or a similar one. Raises McpmuxError."""
        first = next(
            (request for request in self._requests if request.opens_session and request.problem is None), None
        )
        if first is not None:
            call = Call(m.INITIALIZE, first.params, first.meta)
        else:  # one made of what the client did in the capture
            info = raw({"name": self._dialogue.client or "mcpmux replay", "version": __version__})
            methods = {question.method for question in self._dialogue.questions}
            offered = raw({_CAPABILITY[method]: {} for method in methods if method in _CAPABILITY})
            revisions = (request.revision for request in self._requests if request.revision in LEGACY)
            call = initialize_call(info, offered, next(revisions, None) or NEWEST_LEGACY)
        self.capabilities = call.params.get("capabilities", EMPTY_OBJECT)
        began = trio.current_time()
        result = None
        with trio.move_on_after(self._timeout):
            try:
                result = await self._channel.exchange(call, ignore_event)
            except (RpcError, HttpStatusError):
                older = await self._channel.older()  # the transport of 2024-11-05
                if older is None:
                    raise
                self._channel = older
                result = await older.exchange(call, ignore_event)
        if result is None:
            raise TransportError(f"no answer to `initialize` within {self._timeout:g} s")
        self._whole.reached = True
        facts = read_initialize_result(result)
        self.knows_tasks = facts.revision >= V_2025_11_25
        self._channel.settle(facts)
        await self._channel.notify(m.INITIALIZED)
        await self._channel.listen()
        if first is not None:
            self._check(first, {"result": values_of(result)}, _ms_since(began))

    async def _repeat_notification(self, note: ClientNotification) -> None:
        """Repeat a notification of the client; a cancelled request is simply left."""
        if note.method == m.CANCELLED:
            listen = self._listens.get(id_of(note.params.get("requestId")))
            if listen is not None:
                listen.cancel(reason="the client cancelled it")
        elif note.method == m.ROOTS_CHANGED:
            await self._channel.notify(note.method, note.params)

    async def _replay_request(self, captured: CapturedRequest, nursery: trio.Nursery) -> None:
        reason = self._skipped[captured.position]
        if reason is None and captured.method == m.INITIALIZE:
            reason = "a session was open already"
        origin = self._questions.rounds.get(captured.position)
        if reason is None and origin in self._early:
            self._compare_early(captured, *self._early.pop(origin))
            return
        try:
            params, meta = self._mapping.apply(captured)
        except Unmapped as error:
            reason = reason or str(error)
        if reason is not None:
            self._report_outcome(captured, "skipped", reason)
            return
        capabilities = meta.get(CLIENT_CAPABILITIES, self.capabilities)
        call = Call(captured.method, params, meta, self, capabilities, not captured.modern)
        self._pending[captured.position] = (captured, trio.Event())
        await nursery.start(self._perform, captured, call)

    async def _perform(
        self, captured: CapturedRequest, call: Call, task_status: trio.TaskStatus[None]
    ) -> None:
        """Send a request and compare its answer. `started` is called just before it is sent.

        A listen goes on until its client cancelled it; the server's acknowledgement is compared.
        """
        listens = captured.method == m.LISTEN
        async with nullcontext() if listens else self._whole.in_flight:
            task_status.started()
            began = trio.current_time()

            async def take_event(event: Event) -> None:
                if event.method == m.ACKNOWLEDGED and captured.position not in self._reported:
                    scope.deadline = math.inf
                    self._check(captured, acknowledged(event.params), _ms_since(began))

            now: Any = None
            reason = f"{'not acknowledged' if listens else 'no answer'} within {self._timeout:g} s"
            with trio.CancelScope(deadline=began + self._timeout) as scope:
                try:
                    if listens:
                        self._listens[captured.id] = scope
                        await self._channel.exchange(call, take_event)
                        reason = "the listen ended before it was acknowledged"
                    else:
                        now = {"result": values_of(await self._ask_server(captured, call))}
                except RpcError as error:
                    now = {"error": error_value(error)}
                except McpmuxError as error:
                    reason = str(error)
                    if not listens:
                        self._whole.failed(error)
            if captured.position in self._reported:
                return
            if now is None:
                self._report_outcome(captured, "failed", reason)
            else:
                self._whole.reached = True
                self._compare_early(captured, now, _ms_since(began))

    def _compare_early(self, captured: CapturedRequest, now: Any, ms: float) -> None:
        """Compare an answer, which may have come without the question before it in the capture."""
        kind = now["result"].get("resultType") if "result" in now else INPUT_REQUIRED
        if asked_in(captured) is not None and kind != INPUT_REQUIRED:
            self._early[captured.position] = (now, ms)
            self._report_outcome(captured, "unasked", ms=ms)
        else:
            self._check(captured, now, ms)

    async def _ask_server(self, captured: CapturedRequest, call: Call) -> Fields:
        """Return the result; questions on the way that are not in the capture get captured answers."""
        go_on = self._channel.exchange if captured.modern else self._channel.resume
        expected = set((asked_in(captured) or {}).values())
        result = await self._channel.exchange(call, ignore_event)
        for _ in range(ROUNDS):
            wishes = wishes_in(result) if captured.modern or STATE in result else None
            if wishes is None:
                break
            answers = {
                key: self._questions.answer(wish.method, captured.position, modern=captured.modern)
                for key, wish in wishes.items()
            }
            if not expected.isdisjoint(wish.method for wish in wishes.values()):
                break  # the next request of the capture has the answers
            if captured.modern and not all(isinstance(answer, Reply) for answer in answers.values()):
                break  # a modern client cannot refuse
            responses = {
                key: answer.result if isinstance(answer, Reply) else error_response(answer.as_error())
                for key, answer in answers.items()
            }
            call = repeated(call, result, responses)
            result = await go_on(call, ignore_event)
        return result

    async def ask(self, method: str, _params: Fields) -> Fields:
        """Answer a question of the server, see runtime.calls.Client."""
        return result_of(self._questions.answer(method, None))

    def _check(self, captured: CapturedRequest, now: Any, ms: float) -> None:
        then = captured_answer(captured)
        if then is None:
            reason = f"the captured answer is {captured.answer_problem or 'missing'}"
            self._report_outcome(captured, "unchecked", reason, ms=ms)
            return
        self._mapping.learn(captured, now.get("result"))
        differences = compare(then, now, self._whole.ignore)
        status: Status = "different" if differences else "same"
        self._report_outcome(captured, status, differences=differences, ms=ms)


def _ms_since(began: float) -> float:
    return (trio.current_time() - began) * 1000


def _unheard(_notification: Notification) -> None:
    """Ignore a notification: those without a request depend on the server's state, so none is compared."""


async def run_replay(
    dialogues: Sequence[Dialogue], open_channel: OpenChannel, report: Report, **how: Any
) -> None:
    """Replay all dialogues, see Replay; `report` gets the outcomes. Cancelling closes the sessions."""
    if not dialogues:
        return
    whole = Replay(open_channel, report, dialogues[0].at, **how)
    sessions = trio.CapacityLimiter(whole.sessions if math.isinf(whole.speed) else len(dialogues))
    async with trio.open_nursery() as nursery:
        for dialogue in dialogues:
            run = SessionReplay(dialogue, whole).run_within
            nursery.start_soon(run, sessions, name=f"replay {dialogue.name}")
