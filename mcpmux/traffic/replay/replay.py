"""Captured requests sent again: one session for each captured client, its answers compared.

Promises: a request goes out in the revision it was made in, after the answers that its client had then; every
request of the capture has one outcome; every wait is bounded. Refuses to know how a server is reached.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

import trio
from msgspec import Raw

from mcpmux import __version__
from mcpmux.errors import McpmuxError, RpcError, TransportError
from mcpmux.protocol import method as m
from mcpmux.protocol.asking import STATE, error_response, repeated, wishes_in
from mcpmux.protocol.call import CLIENT_CAPABILITIES, Call, Event
from mcpmux.protocol.codes import INVALID_REQUEST
from mcpmux.protocol.envelope import (
    EMPTY_OBJECT,
    ErrorReply,
    Fields,
    Notification,
    Reply,
    decode_fields,
    raw,
    value_of,
)
from mcpmux.protocol.handshake import ServerFacts, initialize_call, read_initialize_result
from mcpmux.protocol.revisions import LEGACY, NEWEST_LEGACY, V_2025_11_25
from mcpmux.runtime.calls import Hear
from mcpmux.runtime.upstreams.connection import Channel, unheard
from mcpmux.runtime.upstreams.http_peer import HttpStatusError
from mcpmux.traffic.reading.dialogue import Answer, Dialogue, Note, Step, Turn
from mcpmux.traffic.replay.difference import Pattern, compare
from mcpmux.traffic.replay.mapping import Mapping, Unmapped
from mcpmux.traffic.replay.replayable import is_legacy, offered_by, opening, replayable, waits_for, why_not
from mcpmux.traffic.replay.report import Outcome, Report

IN_FLIGHT = 256  # requests of all sessions at a time, whatever the capture says
ROUNDS = 100  # of questions in one call; more are a circle

OpenChannel = Callable[[Hear], AbstractAsyncContextManager[Channel]]
"""A new connection to the server."""


class Settings(NamedTuple):
    """How to replay. `speed`: 2 is twice as fast as it was, inf as fast as possible.

    `timeout`: seconds for one answer, and for a session to be opened. `sessions`: that are open at a time
    at infinite speed; at others there are as many as there were.
    """

    speed: float = math.inf
    with_tools: bool = False
    timeout: float = 60.0
    sessions: int = 16
    ignore: Sequence[Pattern] = ()


async def run_replay(
    dialogues: Sequence[Dialogue], open_channel: OpenChannel, settings: Settings, report: Report
) -> None:
    """Replay them all; how it went is in `report`. Cancelling it closes the sessions."""
    if not dialogues:
        return
    most = settings.sessions if math.isinf(settings.speed) else len(dialogues)
    sessions, room = trio.CapacityLimiter(most), trio.CapacityLimiter(IN_FLIGHT)
    clock = _Clock(dialogues[0].moment, trio.current_time(), settings.speed)
    async with trio.open_nursery() as nursery:
        for dialogue in dialogues:
            replay = _Replay(dialogue, open_channel, settings, report, room, clock)
            nursery.start_soon(replay.run_within, sessions, name=f"replay {dialogue.name}")


class _Clock(NamedTuple):
    """When what was captured at a moment is due."""

    first: float
    began: float
    speed: float

    async def wait_for(self, moment: float) -> None:
        if not math.isinf(self.speed):
            await trio.sleep_until(self.began + max(0.0, moment - self.first) / self.speed)


class _Replay:
    """One captured client. `capabilities`, `knows_tasks` and `ask`: what a server can ask it."""

    def __init__(
        self,
        dialogue: Dialogue,
        open_channel: OpenChannel,
        settings: Settings,
        report: Report,
        room: trio.CapacityLimiter,
        clock: _Clock,
    ) -> None:
        self._dialogue = dialogue
        self._open = open_channel
        self._settings = settings
        self._report = report
        self._room = room
        self._clock = clock
        self._channel: Channel
        self._mapping = Mapping()
        self._answers = {method: iter(answers) for method, answers in dialogue.answers.items()}
        self._pending: dict[int, tuple[Turn, trio.Event]] = {}  # sent, without an outcome
        self._listens: dict[int, trio.CancelScope] = {}
        self._told: set[int] = set()
        self.capabilities: Raw = EMPTY_OBJECT
        self.knows_tasks = False

    def __repr__(self) -> str:
        return f"<Replay {self._dialogue!r} {len(self._told)} told>"

    async def run_within(self, sessions: trio.CapacityLimiter) -> None:
        """Replay it all. Raises nothing but bugs and Cancelled."""
        if not replayable(self._dialogue, with_tools=self._settings.with_tools):
            self._give_up("nothing of its client is sent again", "skipped")
            return
        await self._clock.wait_for(self._dialogue.moment)
        trouble: list[str] = []
        async with sessions:
            try:
                await self._run()
            except* McpmuxError as group:
                trouble += [str(error) for error in _leaves(group)]
        self._give_up("; ".join(trouble) or "the session has ended", "failed")

    def _give_up(self, reason: str, status: Any) -> None:
        """Every request that has no outcome yet gets one."""
        for turn in self._dialogue.turns():
            if turn.place not in self._told:
                own = why_not(turn, with_tools=self._settings.with_tools)
                self._tell(turn, "skipped" if own else status, own or reason)

    def _tell(self, turn: Turn, status: Any, reason: str | None = None, **more: Any) -> None:
        self._told.add(turn.place)
        if status in ("skipped", "failed") and isinstance(turn.answer, Reply):
            self._mapping.learn(turn.method, turn.params, value_of(turn.answer.result), None)
        self._report.add(Outcome(self._dialogue.name, turn, status, reason, **more))
        if turn.place in self._pending:
            self._pending.pop(turn.place)[1].set()

    async def _run(self) -> None:
        async with self._open(_unheard) as self._channel:
            self._channel.ask_clients_by(lambda _task_id: self)
            steps = list(self._dialogue.steps)
            if is_legacy(self._dialogue):
                steps = await self._begin(steps)
            async with trio.open_nursery() as nursery:
                for step in steps:
                    await self._wait_for(step)
                    if isinstance(step, Turn):
                        await self._take_turn(step, nursery)
                    else:
                        await self._say(step)
                await self._wait_for_all()
                nursery.cancel_scope.cancel(reason="everything is replayed")

    async def _wait_for(self, step: Step) -> None:
        """Until its time has come, and everything is answered that was when it came."""
        await self._clock.wait_for(step.moment)
        for turn, done in list(self._pending.values()):
            if waits_for(step.place, turn):
                await done.wait()

    async def _wait_for_all(self) -> None:
        for _, done in list(self._pending.values()):
            await done.wait()

    # The session

    async def _begin(self, steps: list[Step]) -> list[Step]:
        """Open a legacy session, as the capture has it or as well as can be; the steps that are left.

        Raises McpmuxError.
        """
        first = opening(self._dialogue)
        revision = next((t.revision for t in self._dialogue.turns() if t.revision in LEGACY), NEWEST_LEGACY)
        if first is None:
            info = raw({"name": self._dialogue.client or "mcpmux replay", "version": __version__})
            call = initialize_call(info, raw(offered_by(self._dialogue)))
            call.params["protocolVersion"] = raw(revision)
        else:
            call = Call(m.INITIALIZE, first.params, first.meta)
        self.capabilities = call.params.get("capabilities", EMPTY_OBJECT)
        began = trio.current_time()
        result: Fields | None = None
        with trio.move_on_after(self._settings.timeout):
            result = await self._initialize(call)
        if result is None:
            raise TransportError(f"no answer to `initialize` within {self._settings.timeout:g} s")
        facts = read_initialize_result(result)
        self.knows_tasks = facts.revision >= V_2025_11_25
        await self._settle(facts)
        if first is None:
            return steps
        self._check(first, {"result": _value(result)}, began)
        return [step for step in steps if step is not first]

    async def _initialize(self, call: Call) -> Fields:
        try:
            return await self._channel.exchange(call, unheard)
        except (RpcError, HttpStatusError):
            older = await self._channel.older()
            if older is None:
                raise
            self._channel = older
            return await older.exchange(call, unheard)

    async def _settle(self, facts: ServerFacts) -> None:
        self._channel.settle(facts)
        await self._channel.notify(m.INITIALIZED)
        await self._channel.listen()

    async def _say(self, note: Note) -> None:
        """Something that the client told the server; cancelling is done by leaving the request."""
        if note.method == m.CANCELLED:
            request_id = value_of(note.params.get("requestId"))
            for turn in self._dialogue.turns():
                if turn.id == request_id and turn.place < note.place and turn.place in self._listens:
                    self._listens[turn.place].cancel(reason="the client had enough")
        elif note.method == m.ROOTS_CHANGED:
            await self._channel.notify(note.method, note.params)

    # Requests

    async def _take_turn(self, turn: Turn, nursery: trio.Nursery) -> None:
        reason = why_not(turn, with_tools=self._settings.with_tools)
        if reason is None and turn.method == m.INITIALIZE:
            reason = "a session was open already"
        try:
            call = self._call_of(turn)
        except Unmapped as error:
            reason = reason or str(error)
        if reason is not None:
            self._tell(turn, "skipped", reason)
            return
        self._pending[turn.place] = (turn, trio.Event())
        await nursery.start(self._listen if turn.method == m.LISTEN else self._perform, turn, call)

    async def _perform(self, turn: Turn, call: Call, task_status: trio.TaskStatus[None]) -> None:
        """Send a request and compare its answer. `started` means: it is about to be sent."""
        async with self._room:
            task_status.started()
            began = trio.current_time()
            now: Any = None
            reason = f"no answer within {self._settings.timeout:g} s"
            with trio.move_on_after(self._settings.timeout):
                try:
                    now = {"result": _value(await self._ask_server(turn, call))}
                except RpcError as error:
                    now = {"error": _error_value(error)}
                except McpmuxError as error:
                    reason = str(error)
            if now is None:
                self._tell(turn, "failed", reason)
            else:
                self._check(turn, now, began)

    def _call_of(self, turn: Turn) -> Call:
        """Raises Unmapped."""
        succeeded = isinstance(turn.answer, Reply)
        params, meta = self._mapping.apply(turn.method, turn.params, turn.meta, succeeded=succeeded)
        capabilities = meta.get(CLIENT_CAPABILITIES, self.capabilities)
        return Call(turn.method, params, meta, self, capabilities, not turn.modern)

    async def _ask_server(self, turn: Turn, call: Call) -> Fields:
        """The result; what a legacy server asks on the way is answered as in the capture."""
        result = await self._channel.exchange(call, unheard)
        for _ in range(ROUNDS):
            wishes = None if turn.modern or STATE not in result else wishes_in(result)
            if wishes is None:
                break
            responses = {key: self._response_to(wish.method) for key, wish in wishes.items()}
            call = repeated(call, result, responses)
            result = await self._channel.resume(call, unheard)
        return result

    def _response_to(self, method: str) -> Raw:
        answer = self._next_answer(method)
        if isinstance(answer, Reply):
            return answer.result
        return error_response(answer.as_error())

    def _next_answer(self, method: str) -> Answer:
        missing = ErrorReply(None, INVALID_REQUEST, f"the capture has no more answers to {method}")
        return next(self._answers.get(method, iter(())), missing)

    async def ask(self, method: str, _params: Fields) -> Fields:
        """See runtime.calls.Client."""
        answer = self._next_answer(method)
        if isinstance(answer, ErrorReply):
            raise answer.as_error()
        return decode_fields(answer.result)

    async def _listen(self, turn: Turn, call: Call, task_status: trio.TaskStatus[None]) -> None:
        """Listen until the client had enough. What is compared is what the server agrees to tell."""
        began = trio.current_time()

        async def hear(event: Event) -> None:
            if event.method == m.ACKNOWLEDGED and turn.place not in self._told:
                scope.deadline = math.inf
                self._check(turn, _acknowledged(event.params), began)

        reason = f"not acknowledged within {self._settings.timeout:g} s"
        with trio.CancelScope(deadline=began + self._settings.timeout) as scope:
            self._listens[turn.place] = scope
            task_status.started()
            try:
                await self._channel.exchange(call, hear)
                reason = "the listen ended before it was acknowledged"
            except RpcError as error:
                if turn.place not in self._told:
                    self._check(turn, {"error": _error_value(error)}, began)
            except McpmuxError as error:
                reason = str(error)
        if turn.place not in self._told:
            self._tell(turn, "failed", reason)

    def _check(self, turn: Turn, now: Any, began: float) -> None:
        """Compare an answer with the captured one."""
        ms = (trio.current_time() - began) * 1000
        captured = _captured(turn)
        if captured is None:
            self._tell(turn, "unchecked", f"the captured answer is {turn.answer_problem or 'missing'}", ms=ms)
            return
        self._mapping.learn(turn.method, turn.params, captured.get("result"), now.get("result"))
        differences = compare(captured, now, self._settings.ignore)
        status = "different" if differences else "same"
        self._tell(turn, status, None, differences=differences, ms=ms)


def _unheard(_notification: Notification) -> None:
    """What a server tells of its own accord is not compared: it depends on what happens there."""


def _captured(turn: Turn) -> dict[str, Any] | None:
    """The captured answer as it is compared; of a listen its acknowledgement."""
    if turn.method == m.LISTEN and not isinstance(turn.answer, ErrorReply):
        agreed = (said for said in turn.said if said.method == m.ACKNOWLEDGED)
        return next((_acknowledged(said.params) for said in agreed), None)
    if isinstance(turn.answer, Reply):
        return {"result": value_of(turn.answer.result)}
    if isinstance(turn.answer, ErrorReply):
        return {"error": _error_value(turn.answer.as_error())}
    return None


def _acknowledged(params: Fields) -> dict[str, Any]:
    return {"acknowledged": value_of(params.get("notifications"))}


def _error_value(error: RpcError) -> dict[str, Any]:
    told: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.data is not None:
        told["data"] = value_of(error.data) if isinstance(error.data, Raw) else error.data
    return told


def _value(result: Fields) -> Any:
    return {key: value_of(value) for key, value in result.items()}


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
