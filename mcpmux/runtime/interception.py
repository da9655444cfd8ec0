"""The step of an exchange at which interceptors may change it, refuse it, or have a person asked.

Promises: each interceptor judges a message once, in the order of the file, within its own timeout; a request
that is refused reaches no server, and no part of a refused answer reaches its client; an interceptor that
fails, is late, or changes what it must not, has no effect, and ends the exchange unless `on_failure` is
"pass". Refuses to know what interceptors do.

| asked | what happens |
| --- | --- |
| the client's user | the call ends with `input_required`, as when a server asks, and comes again |
| a person at the admin page | the exchange waits in `HeldExchanges` |

A call that comes again goes on with the parameters that its user was asked about, not with those that it has,
or with the answer that has waited meanwhile.
A server may ask something itself, so that the client repeats a call that was approved. The approval is
remembered for that one repetition: of the same call, by the same principal, with the server's state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, cast

import structlog
import trio

from mcpmux.channels.questions import PARK_LIMIT, PARK_SECONDS, ParkedCalls
from mcpmux.channels.tap import EXCHANGE, Intercepted, Tap
from mcpmux.config import Http
from mcpmux.config.intercept import NOTIFICATION, REQUEST, RESULT, Intercept
from mcpmux.errors import McpmuxError, Refused, RpcError
from mcpmux.lru import Lru
from mcpmux.mux.intercept import (
    PASS,
    REASON_CHARACTERS,
    Ask,
    BadVerdict,
    Change,
    Hold,
    InterceptedMessage,
    InterceptorRule,
    Refuse,
    ResultOrError,
    Verdict,
    change_call,
    change_outcome,
    read_headers,
    used_by,
)
from mcpmux.mux.override import override_schema
from mcpmux.mux.view import hints_of, overridden
from mcpmux.protocol import method as m
from mcpmux.protocol.call import CLIENT_CAPABILITIES, Call, Event, Notify
from mcpmux.protocol.codes import REFUSED, unknown_state
from mcpmux.protocol.envelope import decode_fields, encode, raw, text_of
from mcpmux.protocol.input_requests import RESPONSES, STATE, offers, read_response
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.tasks import TASK
from mcpmux.runtime.access_control import AccessControl
from mcpmux.runtime.holding import Held, HeldExchanges
from mcpmux.runtime.round_trips import RoundTrips
from mcpmux.transports.inline import in_task
from mcpmux.upstreams.lists import known_listing, learn_listing
from mcpmux.upstreams.upstream import Upstream

log = structlog.get_logger()

CHAINS_LIMIT: Final = 1000  # (method, upstream) that are remembered; a method may be any text of a client's
APPROVALS_LIMIT: Final = 1000  # approved calls whose servers have asked something
APPROVALS_BYTES: Final = 2**20
SPENT_BYTES: Final = 2**20  # of the states of calls that came again
WAITING_BYTES: Final = 64 * 2**20  # of calls and answers that wait for consent
QUESTION: Final = "dev.mcpmux/approval"  # the key of our question in a result

# Words for verdicts, besides the names of their classes.
ASK: Final = "ask"
AGREED: Final = "agreed"
CANCELLED: Final = "cancelled"
FAILED: Final = "failed"
REFUSE: Final = "refuse"

AnswerCall = Callable[[Call, Notify], Awaitable[Fields]]
"""Answers a call in the client's words."""


class Interceptor(NamedTuple):
    """One interceptor. `judge` returns the verdict on a message; any exception is a failure.

    `waits`: whether `judge` returns an awaitable, which has a timeout.
    """

    judge: Callable[[InterceptedMessage], Verdict | Awaitable[Verdict]]
    waits: bool = False


async def verdict_in_time(
    interceptor: Interceptor, settings: Intercept, message: InterceptedMessage
) -> Verdict:
    """Return the verdict of an interceptor that waits. Raises BadVerdict when it is late, or its error."""
    await in_task()
    with trio.move_on_after(settings.patience):
        return await cast(Awaitable[Verdict], interceptor.judge(message))
    raise BadVerdict(f"no verdict within {settings.patience:g} s")


def reason_of(problem: BaseException) -> str:
    """Return why an interceptor has failed."""
    return str(problem) if isinstance(problem, McpmuxError) else repr(problem)


def is_failure(problem: BaseException) -> bool:
    """Return whether an interceptor has failed: also if it would end mcpmux, but not if it was cancelled."""
    if isinstance(problem, BaseExceptionGroup):
        return problem.subgroup((trio.Cancelled, KeyboardInterrupt)) is None
    return isinstance(problem, (Exception, SystemExit))


class Step(NamedTuple):
    """One interceptor, and the exchanges that it is for."""

    rule: InterceptorRule
    interceptor: Interceptor


class Chain:
    """The interceptors for requests of one method to one upstream, by stage.

    `needs_tools`: some depend on what the upstream lists about its tools.
    """

    __slots__ = ("by_stage", "needs_tools")

    def __init__(self, method: str, by_stage: Mapping[str, Sequence[Step]]) -> None:
        self.by_stage = by_stage
        settings = [step.rule.settings for steps in by_stage.values() for step in steps]
        is_of_tool = used_by(method) == m.TOOLS_CALL
        self.needs_tools = is_of_tool and any(setting.reads or setting.annotations for setting in settings)


class _Waiting(NamedTuple):
    """A call that waits for consent. `first`: as the client sent it. `done`: who has judged it already.

    By their settings: after a change of the configuration another interceptor may have the name of one.
    `outcome`: the answer, if consent is for that. `size`: the bytes of the parameters, or of the answer.
    """

    step: Step
    first: Call
    call: Call
    done: tuple[Intercept, ...]
    until: float
    outcome: ResultOrError | None
    size: int


class _Ended(Exception):
    """The exchange ends with this outcome, and no other interceptor sees it. `verdict`: in a word."""

    def __init__(self, outcome: ResultOrError, verdict: str = REFUSE) -> None:
        super().__init__()
        self.outcome, self.verdict = outcome, verdict


class _Walk:
    """One exchange on its way through the interceptors.

    `first`: the call as the client sent it. `done`: settings of those that need not judge the request again,
    or the answer, if there was one when consent was asked for: `outcome`. `approved`: of those whose question
    about the request was answered. `name`: of the upstream. `own`: see `Interception.exchange`.
    """

    __slots__ = ("approved", "chain", "done", "first", "hints", "name", "outcome", "own", "upstream")

    def __init__(self, chain: Chain, upstream: Upstream | None, own: str | None, call: Call) -> None:
        self.chain, self.upstream, self.own, self.first = chain, upstream, own, call
        self.name = upstream.name if upstream is not None else None
        self.hints: Mapping[str, bool] | None = None
        self.done: tuple[Intercept, ...] = ()
        self.approved: tuple[Intercept, ...] = ()
        self.outcome: ResultOrError | None = None

    def steps(self, stage: str) -> list[Step]:
        """Return the interceptors of a stage that are for this exchange."""
        steps = self.chain.by_stage.get(stage)
        if steps is None:
            return []
        first, name, own, hints = self.first, self.name, self.own, self.hints or {}
        return [step for step in steps if step.rule.is_broad or step.rule.fits(first, name, own, hints)]

    def message(self, on: str, call: Call, outcome: ResultOrError | None = None) -> InterceptedMessage:
        return InterceptedMessage(on, call, self.name, self.own, self.hints, outcome)

    def done_after(self, last: Step, on: str) -> tuple[Intercept, ...]:
        """Return the settings of those that have judged the request, or answer, once `last` has."""
        steps = self.steps(on)
        count = steps.index(last) + 1
        done = self.done if on == REQUEST or self.outcome is not None else ()
        return (*done, *(step.rule.settings for step in steps[:count]))


class Interception:
    """All interceptors, in their order."""

    def __init__(
        self,
        steps: Sequence[Step],
        access: AccessControl,
        round_trips: RoundTrips,
        holding: HeldExchanges,
        tap: Tap | None,
        max_bytes: int,
        give_up: Callable[[str], None],
        former: Interception | None = None,
    ) -> None:
        """`max_bytes`: of what a change makes. `give_up` ends the call that is parked with a state.

        `former`: of the configuration before; the calls that wait in it for consent can go on.
        """
        self.steps = steps
        self._max_bytes, self._give_up = max_bytes, give_up
        self._access, self._round_trips, self._holding, self._tap = access, round_trips, holding, tap
        self._chains: dict[tuple[str, str | None], Chain | None] = {}
        self._parked: ParkedCalls[_Waiting] = ParkedCalls() if former is None else former._parked
        self._approvals: Lru[bytes, tuple[Intercept, ...]] = (
            Lru(APPROVALS_LIMIT, APPROVALS_BYTES) if former is None else former._approvals
        )
        self._spent: Lru[str, None] = Lru(PARK_LIMIT, SPENT_BYTES) if former is None else former._spent

    def __repr__(self) -> str:
        return f"<Interception by {', '.join(step.rule.name for step in self.steps)}>"

    def chain(self, method: str, upstream: str | None) -> Chain | None:
        """Return the interceptors for requests of a method to an upstream (None: to several), if any."""
        place = method, upstream
        if place not in self._chains:
            by_stage: dict[str, list[Step]] = {}
            for step in self.steps:
                for stage in step.rule.stages(method, upstream):
                    by_stage.setdefault(stage, []).append(step)
            if len(self._chains) >= CHAINS_LIMIT:
                self._chains.clear()
            self._chains[place] = Chain(method, by_stage) if by_stage else None
        return self._chains[place]

    def chain_for(self, call: Call, upstream: str | None) -> Chain | None:
        """Return the interceptors for a call, as `chain` does; one without any if it comes with consent.

        The interceptor that asked for consent may have gone with its configuration.
        """
        chain = self.chain(call.method, upstream)
        if chain is None and self._parked and call.text(STATE) in self._parked:
            return Chain(call.method, {})
        return chain

    def abandon(self, state: str) -> bool:
        """Give up the call that waits for consent with that state; return False if there is none."""
        return self._parked.pop(state) is not None

    def leave(self, client: object) -> None:
        """Give up the calls of a client that has gone."""
        for state in self._parked.states_of(client):
            self._parked.pop(state)

    async def exchange(
        self,
        chain: Chain,
        upstream: Upstream | None,
        own: str | None,
        call: Call,
        notify: Notify,
        work: AnswerCall,
    ) -> Fields:
        """Answer a call by `work`, as far as the interceptors let it. Raises RpcError.

        `own`: the upstream's own name for what is used, or the tool of a task; None if there is none.
        """
        walk = _Walk(chain, upstream, own, call)
        if chain.needs_tools:
            if upstream is not None and known_listing(upstream, m.TOOLS_LIST) is None:
                await self._learn(walk, call)
            walk.hints = hints_of(None)
            if upstream is not None and own is not None:
                hints = upstream.listings[m.TOOLS_LIST].hints.get(own) or walk.hints
                overrides = self._access.of(call.principal).overrides
                walk.hints = overridden(hints, overrides.annotations(upstream.name, own))
        outcome: ResultOrError | None = None
        answer: ResultOrError | None = None
        goes_on = True  # the client has its answer, or comes back
        try:
            call, goes_on = self._taken_back(walk, call), False
            outcome = walk.outcome
            if outcome is None:
                call, outcome = await self._request(walk, call)
            if outcome is None:
                try:
                    outcome = await work(call, self._heard(walk, call, notify))
                except RpcError as error:
                    outcome = error
            # The call comes again with the answers for its server: its user must not be asked twice.
            if walk.approved and isinstance(outcome, dict) and "inputRequests" in outcome:
                key = self._approval_key(walk.first, self._state_in(call, outcome))
                self._approvals[key] = walk.approved
            answer = outcome
            for step in walk.steps(RESULT):
                if walk.outcome is not None and step.rule.settings in walk.done:
                    continue
                changed = await self._judged(walk, step, walk.message(RESULT, call, answer))
                if isinstance(changed, (dict, RpcError)):
                    answer = changed
            goes_on = True
        except _Ended as end:
            answer, goes_on = end.outcome, end.verdict == ASK
        finally:
            # A refused call would stay parked at its server for minutes.
            if not goes_on:
                self._abandon(walk, call, outcome)
        if isinstance(answer, RpcError):
            raise answer
        assert answer is not None
        return answer

    async def admit(self, chain: Chain, upstream: Upstream, own: str, call: Call) -> None:
        """Have a request judged that is only admitted or refused. Raises RpcError when it is refused."""
        try:
            await self._request(_Walk(chain, upstream, own, call), call)
        except _Ended as end:
            assert isinstance(end.outcome, RpcError)
            raise end.outcome from None

    def _abandon(self, walk: _Walk, call: Call, outcome: ResultOrError | None) -> None:
        """Give up what a server keeps for a call that its client will not repeat."""
        states = [walk.first.text(STATE)]
        if isinstance(outcome, dict):
            states.append(self._state_in(call, outcome))
        for state in filter(None, states):
            self._give_up(state)

    async def _request(self, walk: _Walk, call: Call) -> tuple[Call, Fields | None]:
        """Return the call for the server, or the answer in its place. Raises _Ended."""
        for step in walk.steps(REQUEST):
            if not walk.done or step.rule.settings not in walk.done:
                changed = await self._judged(walk, step, walk.message(REQUEST, call))
                if isinstance(changed, dict):
                    return call, changed
                if isinstance(changed, Call):
                    call = changed
        return call, None

    def _heard(self, walk: _Walk, call: Call, notify: Notify) -> Notify:
        steps = walk.steps(NOTIFICATION)
        if not steps:
            return notify

        async def hear(event: Event) -> None:
            try:
                for step in steps:
                    message = walk.message(NOTIFICATION, call)
                    message.method, message.params = event.method, event.params
                    await self._judged(walk, step, message)
            except _Ended:  # it is dropped
                return
            await notify(event)

        return hear

    # One verdict

    async def _judged(
        self, walk: _Walk, step: Step, message: InterceptedMessage
    ) -> Call | ResultOrError | None:
        """Return what a verdict makes of a message: the call or answer that goes on, None for the same.

        Raises _Ended when the exchange ends here.
        """
        settings, name = step.rule.settings, step.rule.name
        began = trio.current_time() if self._tap is not None else 0.0
        word, changed = CANCELLED, None
        try:
            if step.interceptor.waits:
                verdict = await verdict_in_time(step.interceptor, settings, message)
            else:
                verdict = cast(Verdict, step.interceptor.judge(message))
            if isinstance(verdict, (Ask, Hold)):
                verdict = await self._asked(walk, step, message, verdict)
            word = type(verdict).__name__.lower()
            if isinstance(verdict, Refuse):
                raise _Ended(self._refusal(step, message, verdict.reason))
            if isinstance(verdict, Change):
                await self._learn(walk, message.call)
                if verdict.headers and walk.upstream is not None and walk.upstream.status.connection is None:
                    await in_task()
                    with trio.fail_after(settings.timeout):
                        await walk.upstream.supervision.settled()  # its transport decides
                changed = self._tried(walk, message, verdict)
        except _Ended as end:
            word = end.verdict
            raise
        except BaseException as problem:  # a wall: an interceptor may fail in any way
            if not is_failure(problem):
                raise problem
            word = FAILED
            shown = reason_of(problem)[:REASON_CHARACTERS]
            log.warning("an interceptor failed", interceptor=name, on=message.on, problem=shown)
            if settings.on_failure == "refuse":
                text = f"the interceptor {name} failed, and what it should judge is refused"
                raise _Ended(self._refusal(step, message, text), FAILED) from None
        finally:
            if self._tap is not None:
                digests = ("", "")
                if changed is not None:
                    digests = message.digest, _after(message, changed).digest
                self._note(name, message.on, word, began, digests)
        return changed

    def _note(self, name: str, on: str, word: str, began: float, digests: tuple[str, str] = ("", "")) -> None:
        if self._tap is not None:
            verdict = Intercepted(name, on, word, began, trio.current_time() - began, *digests)
            self._tap.intercepted(EXCHANGE.get(), verdict)

    async def _asked(
        self, walk: _Walk, step: Step, message: InterceptedMessage, verdict: Ask | Hold
    ) -> Verdict:
        """Return what a person decides. Raises _Ended to ask the client's user."""
        settings, name = step.rule.settings, step.rule.name
        if message.on == NOTIFICATION:
            raise BadVerdict("a notification can only be dropped")
        if message.on == REQUEST and settings in walk.approved:
            return PASS
        if isinstance(verdict, Ask):
            question = _question(message.call, verdict)
            if question is not None and (parked := self._park(walk, step, message, question)) is not None:
                raise _Ended(parked, ASK)
            if settings.unanswered == "refuse":
                return Refuse("the client cannot ask its user")
            verdict = Hold(verdict.message)
        await self._learn(walk, message.call)
        why, try_on = (name, verdict.reason), partial(self._tried, walk, message)
        held = Held(EXCHANGE.get(), *why, message, settings.answer_timeout, settings.at_timeout, try_on)
        decision = await self._holding.hold(held)
        if message.on == REQUEST:
            walk.approved += (settings,)
        return decision

    def _tried(
        self, walk: _Walk, message: InterceptedMessage, verdict: Verdict
    ) -> Call | ResultOrError | None:
        """Return what a change makes of a message. Raises BadVerdict. The tool must have been learned."""
        if not isinstance(verdict, Change):
            return None
        changed = self._changed(walk, message, verdict)
        if _after(message, changed).size > self._max_bytes:
            raise BadVerdict("what it changes has too many bytes (`limits.max_message_bytes`)")
        return changed

    def _changed(self, walk: _Walk, message: InterceptedMessage, verdict: Change) -> Call | ResultOrError:
        call, own = message.call, walk.own or ""
        upstream = walk.upstream if call.method == m.TOOLS_CALL else None
        is_of_request = verdict.params is not None or verdict.headers is not None
        if message.on == NOTIFICATION or is_of_request != (
            message.on == REQUEST and verdict.result is None and verdict.error is None
        ):
            raise BadVerdict(f"it cannot change that on a {message.on}")
        if call.method == m.RESOURCES_SUBSCRIBE:
            raise BadVerdict("a subscription can only be refused")
        schema = None
        if verdict.headers is not None:
            call = call.with_headers(self._with_headers(walk, call, verdict.headers))
            if verdict.params is None:
                return call
        if verdict.params is not None:
            if upstream is not None:
                schema = upstream.listings[m.TOOLS_LIST].schema(own)
                parameters = self._access.of(call.principal).overrides.parameters(upstream.name, own)
                if parameters:
                    schema = override_schema(schema, parameters)
            return change_call(call, verdict.params, schema)
        if upstream is not None:
            schema = upstream.listings[m.TOOLS_LIST].schema(own, "outputSchema") or None
        return change_outcome(message, verdict, schema)

    def _with_headers(
        self, walk: _Walk, call: Call, headers: Mapping[str, object]
    ) -> tuple[tuple[str, str], ...]:
        upstream = walk.upstream
        connection = upstream.status.connection if upstream is not None else None
        if upstream is None or connection is None or not connection.channel.takes_headers:
            raise BadVerdict("its server is not reached by Streamable HTTP, so it gets no headers")
        target = upstream.config.target
        taken = [*(name for name, _ in call.headers), *(target.headers if isinstance(target, Http) else ())]
        return call.headers + read_headers(headers, taken)

    def _refusal(self, step: Step, message: InterceptedMessage, reason: str) -> ResultOrError:
        name, text = step.rule.name, f"Refused by {step.rule.name}: {reason}"
        # A call that asks for a task has no other answer than one.
        is_call = message.call.method == m.TOOLS_CALL and TASK not in message.call.params
        if step.rule.settings.refuse_as == "tool_error" and is_call:
            content = [{"type": "text", "text": text}]
            return {"resultType": raw("complete"), "content": raw(content), "isError": raw(True)}
        return Refused(REFUSED, text, name)

    # Tools

    async def _learn(self, walk: _Walk, call: Call) -> None:
        """Learn the upstream's tools if the call is of one. Raises RpcError."""
        upstream = walk.upstream if used_by(call.method) == m.TOOLS_CALL else None
        if upstream is not None and known_listing(upstream, m.TOOLS_LIST) is None:
            await learn_listing(upstream, m.TOOLS_LIST, call)

    # Consent of the client's user

    def _park(self, walk: _Walk, step: Step, message: InterceptedMessage, question: Fields) -> Fields | None:
        """Return the result that asks the client's user; None if the answer cannot be kept meanwhile."""
        now, call, outcome = trio.current_time(), message.call, message.outcome
        self._parked.sift(lambda waiting: waiting.until >= now)
        size = message.size
        is_question = isinstance(outcome, dict) and "inputRequests" in outcome  # answers go to that one
        if is_question or size + sum(waiting.size for waiting in self._parked) > WAITING_BYTES:
            return None
        done = walk.done_after(step, message.on)
        waiting = _Waiting(step, walk.first, call, done, now + PARK_SECONDS, outcome, size)
        state = self._round_trips.own_state(call, self._parked.add(walk.first, waiting))
        requests = {QUESTION: {"method": m.ELICIT, "params": question}}
        return {"resultType": raw("input_required"), "inputRequests": raw(requests), STATE: raw(state)}

    def _taken_back(self, walk: _Walk, call: Call) -> Call:
        """Return the call that a repetition goes on with. Raises _Ended when consent was refused."""
        if STATE not in call.params and RESPONSES not in call.params:
            return call
        state = call.text(STATE)
        if state not in self._parked:
            if state in self._spent:  # the server must not answer twice
                raise unknown_state()
            key = self._approval_key(call, state)
            walk.approved = self._approvals.pop(key) or ()
            return call
        waiting = self._parked.take(call)
        self._spent[state or ""] = None
        if waiting.until < trio.current_time():
            raise unknown_state()
        walk.first, walk.done, walk.outcome = waiting.first, waiting.done, waiting.outcome
        walk.approved = waiting.done
        try:
            response = read_response(decode_fields(call.params.get(RESPONSES))[QUESTION])
            is_agreed = not isinstance(response, RpcError) and text_of(response.get("action")) == "accept"
        except (KeyError, ValueError):  # an answer to another question is no consent
            is_agreed = False
        name, on = waiting.step.rule.name, REQUEST if waiting.outcome is None else RESULT
        self._note(name, on, AGREED if is_agreed else REFUSE, trio.current_time())
        if not is_agreed:
            message = walk.message(REQUEST, call)
            raise _Ended(self._refusal(waiting.step, message, "the user did not agree"))
        return call.with_params(waiting.call.params).with_headers(waiting.call.headers)

    def _state_in(self, call: Call, result: Fields) -> str | None:
        """Return the state in a result as it will be in the repeated call."""
        if STATE not in result or call.legacy:
            return text_of(result.get(STATE))
        return self._round_trips.taken_back(call.with_params({STATE: result[STATE]})).text(STATE)

    def _approval_key(self, call: Call, state: str | None) -> bytes:
        # Consent holds for the arguments that were shown, and for this client only: all without a name are
        # one principal.
        params = {key: value for key, value in call.params.items() if key not in (STATE, RESPONSES)}
        who = call.principal.key, id(call.client)
        return hashlib.sha256(encode((who, call.method, params, state))).digest()


def _question(call: Call, ask: Ask) -> Fields | None:
    """Return the elicitation for a question, None if the client cannot be asked in this call."""
    if ask.url is not None:
        params = {"mode": raw("url"), "message": raw(ask.message), "url": raw(ask.url)}
    else:
        form = {"type": "object", "properties": {}}
        params = {"mode": raw("form"), "message": raw(ask.message), "requestedSchema": raw(form)}
    can_ask = call.method in m.MAY_ASK_FOR_INPUT
    return params if can_ask and offers(call.meta.get(CLIENT_CAPABILITIES), m.ELICIT, params) else None


def _after(message: InterceptedMessage, changed: Call | ResultOrError) -> InterceptedMessage:
    if isinstance(changed, Call):
        return InterceptedMessage(message.on, changed, None, None, None)
    return InterceptedMessage(message.on, message.call, None, None, None, changed)
