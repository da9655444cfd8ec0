"""Serve answers from a capture instead of the mux, by the same listeners.

Promises: clients of every revision are served; an answer of the captured era is given unchanged,
another is translated. Messages during a call come again, under the new progress token; a legacy server's
questions are asked again, and the captured answer follows any reply. Changes go to subscribers,
in their order. A request that is not in the capture is refused with the nearest one that is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import product
from typing import Any

import msgspec
import structlog
import trio
from attrs import define, field

from mcpmux.channels.channel import ignore_event
from mcpmux.channels.questions import seconds_to_answer, unanswered
from mcpmux.channels.tap import Tap
from mcpmux.clients.legacy_session import AskClient
from mcpmux.clients.service import Elsewhere, read_filter
from mcpmux.config.report import closest
from mcpmux.errors import RpcError
from mcpmux.mux.subscriptions import is_at_or_above
from mcpmux.protocol import method as m
from mcpmux.protocol.call import (
    META,
    PROGRESS_TOKEN,
    SERVER_INFO,
    SUBSCRIPTION_ID,
    Call,
    Event,
    Notify,
    target_in,
    upgrade_result,
)
from mcpmux.protocol.codes import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND
from mcpmux.protocol.envelope import (
    ErrorReply,
    Notification,
    Reply,
    Request,
    decode_fields,
    members_of,
    raw,
    text_of,
    value_at,
    value_of,
)
from mcpmux.protocol.era import (
    downgrade_content,
    downgrade_error,
    downgrade_question,
    downgrade_result,
    upgrade_answer,
    upgrade_error,
)
from mcpmux.protocol.input_requests import RESPONSES, STATE, Wish, error_response, offers, wishes_in
from mcpmux.protocol.principal import ANYONE, Principal
from mcpmux.protocol.raw_json import Fields, Id, Raw
from mcpmux.protocol.revisions import NEWEST, SUPPORTED, is_modern, negotiate_legacy
from mcpmux.protocol.tasks import TASK_ID
from mcpmux.runtime.client_outbox import ClientOutbox
from mcpmux.runtime.round_trips import end_rounds
from mcpmux.runtime.sessions import SessionCounter
from mcpmux.traffic.reading.dialogue import (
    METADATA,
    REDACTED,
    CapturedRequest,
    Dialogue,
    ServerMessage,
    result_of,
    values_of,
)
from mcpmux.traffic.record import listened_uris
from mcpmux.transports.inline import in_task

log = structlog.get_logger()

# A request gets the answer to one with the same method and parameters, in any order and without `_meta`; else
# to one about the same tool, prompt, resource, completion or task, but never another page or another round of
# questions. Of several the one in the same revision, else of the same era. The answers to repeated requests
# come in their order in the capture; after the last comes the last again, or the first (`cycle`).

_REQUESTED = "protocolVersion"
_ABOUT = ("name", "uri", "ref", TASK_ID, "cursor", STATE, _REQUESTED)
ANY = "*"  # in the place of a revision
SHOWN = 120  # characters of a name or URI in an error

canonical = msgspec.json.Encoder(order="sorted").encode
"""JSON that is equal for equal values."""


class CapturedAnswers:
    """Captured answers by their requests. `cycle`: after the last answer to the same comes the first again.

    `unusable`: number of requests without a known answer, by the reason. `redacted`: number of answers with
    redacted values.
    """

    def __init__(self, dialogues: Sequence[Dialogue], *, cycle: bool = False) -> None:
        self.unusable: Counter[str] = Counter()
        self.redacted = 0
        self._cycle = cycle
        # By method, what a request is about, and its revision, whether it is modern, or ANY.
        self._groups: dict[tuple[str, bytes, str | bool | None], list[CapturedRequest]] = {}
        self._asked: Counter[tuple[object, ...]] = Counter()
        self.requests: dict[str, list[CapturedRequest]] = {}
        """Every answered request by its method, in the order of the capture."""
        for captured in (request for dialogue in dialogues for request in dialogue.requests()):
            reason = _problem_of(captured)
            if reason is not None:
                self.unusable[reason] += 1
                continue
            self.redacted += captured.answer_problem == REDACTED
            self.requests.setdefault(captured.method, []).append(captured)
            keys = [canonical(values_of(captured.params))] if captured.problem is None else []
            keys += [_about(captured.params)] if captured.method != m.LISTEN else []
            for key, era in product(keys, (captured.revision, captured.modern, ANY)):
                self._groups.setdefault((captured.method, key, era), []).append(captured)

    def find(self, method: str, params: Fields, revision: str) -> CapturedRequest | None:
        """Return the captured request whose answer this one gets; None when there is none."""
        eras: tuple[str | bool, ...] = revision, is_modern(revision), ANY
        for key, era in product((canonical(values_of(params)), _about(params)), eras):
            pool = self._groups.get((method, key, era))
            if pool is not None:
                return self._turn((method, key, pool[0].position), pool)
        return None

    def _turn(self, key: tuple[object, ...], pool: Sequence[CapturedRequest]) -> CapturedRequest:
        number = self._asked[key]
        self._asked[key] += 1
        return pool[number % len(pool) if self._cycle else min(number, len(pool) - 1)]

    def unknown(self, method: str, params: Fields) -> RpcError:
        """Return the error for a request without a captured answer; it names the nearest one."""
        if method not in self.requests:
            near = _hint(method, self.requests)
            return RpcError(METHOD_NOT_FOUND, f"Method not found: {method} is not in the capture{near}")
        target = target_in(params)
        if target is None or "cursor" in params or STATE in params:
            which = next((key for key in ("cursor", STATE) if key in params), "request like this")
            return RpcError(INVALID_PARAMS, f"Invalid params: no {which} of {method} is in the capture")
        near = _hint(
            target, {request.target for request in self.requests[method] if request.target is not None}
        )
        problem = f"Invalid params: {method} {target[:SHOWN]} is not in the capture{near}"
        return RpcError(INVALID_PARAMS, problem, {"uri": target} if "uri" in params else None)

    def updates(self, uri: str, captured: CapturedRequest | None = None) -> list[ServerMessage]:
        """Return the updates of a resource after a subscription; `captured`: by this request, if known."""
        captured = captured or self.find(m.RESOURCES_SUBSCRIBE, {"uri": raw(uri)}, NEWEST)
        listens = [
            listen for listen in self.requests.get(m.LISTEN, ()) if uri in listened_uris(listen.params)
        ]
        if captured is None and listens:
            captured = self._turn(("updates", uri), listens)
        notifications = (*captured.before_answer, *captured.after_answer) if captured is not None else ()
        updates = (sent for sent in notifications if sent.method == m.RESOURCE_UPDATED)
        return [sent for sent in updates if is_at_or_above(uri, text_of(sent.params.get("uri")) or "")]


def _problem_of(captured: CapturedRequest) -> str | None:
    if captured.method == m.LISTEN:
        is_known = captured.before_answer or captured.answer is not None
        return None if is_known else "a listen that was not acknowledged"
    if captured.answer is None:
        return f"an answer that is {captured.answer_problem}" if captured.answer_problem else "no answer"
    if captured.cancelled and isinstance(captured.answer, ErrorReply):
        return "an error because it was taken back"
    return f"a request that is {captured.problem}" if captured.problem == METADATA else None


def _about(params: Fields) -> bytes:
    values: dict[str, Any] = {key: value_of(params[key]) for key in _ABOUT if key in params}
    values["argument"] = text_of(members_of(params.get("argument")).get("name"))  # of `completion/complete`
    values["responses"] = RESPONSES in params
    return b"about " + canonical(values)


def _hint(wanted: str, known: Iterable[str]) -> str:
    near = closest(wanted[:SHOWN], (name[:SHOWN] for name in known), 0.0)
    return f"; the nearest is {near}" if near is not None else ""


@define(eq=False)
class Mock:
    """See clients.service.Service. Made by `open_mock`. `close` ends the listens."""

    answers: CapturedAnswers
    nursery: trio.Nursery
    _latency: bool
    _closing: trio.Event = field(factory=trio.Event)
    tap: Tap | None = None
    session_counter: SessionCounter = field(factory=SessionCounter)
    elsewhere: Elsewhere | None = None

    def close(self) -> None:
        """End the listens."""
        self._closing.set()

    def leave(self, client: object) -> None:
        """See Service."""

    def roots_changed(self) -> None:
        """See Service."""

    async def answer(self, request_id: Id, call: Call, notify: Notify) -> Fields:
        """Return the captured answer to a modern request. Raises RpcError."""
        await in_task()
        if call.method == m.LISTEN:
            return await self._listen(request_id, call, notify)
        captured = self.answers.find(call.method, call.params, NEWEST)
        if captured is None and call.method == m.DISCOVER:
            return make_handshake(self.answers, None)
        if captured is None:
            raise self.refuse(call)
        try:
            result = await self.play(captured, call, notify, None)
        except RpcError as error:
            raise (error if captured.modern else upgrade_error(call.method, call.params, error)) from None
        return result if captured.modern else upgrade_result(call.method, result)

    def enter(self, principal: Principal, view: str, query: str = "") -> Principal | None:
        """Admit every principal, but to no view: a mock has none."""
        return None if view else principal

    def judging(self, principal: Principal) -> None:
        """Return None: no query narrows anything."""

    async def initialize(self, request: Request, principal: Principal = ANYONE) -> tuple[MockSession, Fields]:
        """Open a legacy session. Return it with the result."""
        await in_task()
        call = Call.of(request.method, request.payload)
        requested = call.text(_REQUESTED) or ""
        captured = self.answers.find(call.method, call.params, requested)
        if captured is None:
            result = make_handshake(self.answers, requested)
        else:
            result = await self.play(captured, call, ignore_event, None)
        session = MockSession(self, result, call.params.get("capabilities"), principal)
        session.follow(captured)
        return session, result

    def refuse(self, call: Call) -> RpcError:
        """Return the error for a request that is not in the capture."""
        error = self.answers.unknown(call.method, call.params)
        log.warning("not in the capture", method=call.method, error=error.message)
        return error

    async def play(
        self, captured: CapturedRequest, call: Call, notify: Notify, ask: AskClient | None
    ) -> Fields:
        """Send what came before a captured answer, then return the answer. Raises RpcError.

        Progress has this call's token, and is left out without one. `ask` asks the client's questions.
        """
        began = trio.current_time()
        for sent in captured.before_answer:
            await self.wait(began, sent.after)
            params = sent.params
            if sent.question:
                if ask is not None:
                    with suppress(RpcError):
                        await ask(sent.method, params)
            elif sent.method != m.PROGRESS:
                await notify(Event(sent.method, params))
            elif call.wants_progress:
                await notify(Event(sent.method, {**params, PROGRESS_TOKEN: call.meta[PROGRESS_TOKEN]}))
        await self.wait(began, (captured.ms or 0.0) / 1000)
        assert captured.answer is not None
        return result_of(captured.answer)

    async def wait(self, began: float, after: float) -> None:
        """Wait until `after` seconds since `began`, if the mock has the captured latency."""
        if self._latency:
            await trio.sleep_until(began + after)

    async def _listen(self, request_id: Id, call: Call, notify: Notify) -> Fields:
        tag = {SUBSCRIPTION_ID: raw(request_id)}
        wish = read_filter(call)
        captured = self.answers.find(m.LISTEN, call.params, NEWEST)
        if captured is not None and captured.answer is not None and not captured.before_answer:
            return result_of(captured.answer)
        began = trio.current_time()
        if captured is not None:
            events = captured.before_answer
        else:  # not in the capture: an acknowledgement of all of it, and the updates that subscribers got
            agreed = ServerMessage(0.0, m.ACKNOWLEDGED, {"notifications": call.params["notifications"]})
            updates = [sent for uri in wish.uris for sent in self.answers.updates(uri)]
            events = [agreed, *sorted(updates, key=lambda sent: sent.after)]
        for sent in events:
            await self.wait(began, sent.after)
            meta = raw(decode_fields(sent.params.get(META)) | tag)
            await notify(Event(sent.method, {**sent.params, META: meta}))
        await self._closing.wait()
        return {"resultType": raw("complete"), META: raw(tag)}


@asynccontextmanager
async def open_mock(answers: CapturedAnswers, *, latency: bool = False) -> AsyncIterator[Mock]:
    """Open a server with these answers; `latency`: with the captured delays. Leaving ends its messages."""
    async with trio.open_nursery() as nursery:
        yield Mock(answers, nursery, latency)
        nursery.cancel_scope.cancel(reason="the mock is closed")


GAP_SECONDS = 0.01  # between changes: without it, several of the same resource would become one

_MODERN_ONLY = frozenset({m.DISCOVER, m.LISTEN, m.TASKS_UPDATE})
_CHANGES_NOTHING = frozenset({m.SET_LEVEL, m.RESOURCES_SUBSCRIBE, m.RESOURCES_UNSUBSCRIBE})


class MockSession:
    """A legacy session with a mocked server; see clients.legacy_session.Session.

    It gets captured answers of its revision unchanged, and others translated to it. Notifications
    come after the answer they followed in the capture; updates of a resource come once it has subscribed.
    """

    ask_unasked: AskClient

    def __init__(self, mock: Mock, result: Fields, capabilities: Raw | None, principal: Principal) -> None:
        """`result`: the answer to its `initialize`. `capabilities`: of its client."""
        self.revision = negotiate_legacy(text_of(result.get("protocolVersion")) or "")
        self.outbox = ClientOutbox(frozenset())
        self.principal = principal
        self._mock, self._capabilities = mock, capabilities
        self._feeds: dict[object, trio.CancelScope] = {}  # of a subscription by its URI

    def take_notification(self, notification: Notification) -> None:
        """See Session."""

    def close(self) -> None:
        """End the session, and what it sends."""
        for scope in self._feeds.values():
            scope.cancel(reason="the client has gone")
        self.outbox.close()

    def follow(self, captured: CapturedRequest | None) -> None:
        """Send what followed a captured answer, except updates: these depend on subscriptions."""
        sent_after = captured.after_answer if captured is not None else []
        messages = [sent for sent in sent_after if sent.method != m.RESOURCE_UPDATED]
        if messages:
            self._start_feed(object(), messages)

    def _start_feed(self, key: object, messages: Sequence[ServerMessage]) -> None:
        until = self._feeds[key] = trio.CancelScope()

        async def feed() -> None:
            began = trio.current_time()
            with until:
                for sent in messages:
                    await trio.sleep(GAP_SECONDS)
                    await self._mock.wait(began, sent.after)
                    self.outbox.put(Event(sent.method, sent.params))

        self._mock.nursery.start_soon(feed)

    async def answer(self, call: Call, notify: Notify, ask: AskClient) -> Fields:
        """Return the captured answer to a legacy request. Raises RpcError."""
        await in_task()
        if call.method == m.PING:
            return {}
        if call.method == m.INITIALIZE:
            raise RpcError(INVALID_REQUEST, "Invalid request: this session is initialized already")
        if call.method in _MODERN_ONLY:
            raise RpcError(METHOD_NOT_FOUND, f"Method not found: {call.method}")
        captured = self._mock.answers.find(call.method, call.params, self.revision)
        if captured is None and call.method not in _CHANGES_NOTHING:
            raise downgrade_error(call.method, self._mock.refuse(call))
        ask = partial(self._ask, ask)
        result = await self._answer(captured, call, notify, ask) if captured is not None else {}
        uri = call.text("uri") or ""
        if call.method == m.RESOURCES_UNSUBSCRIBE and uri in self._feeds:
            self._feeds.pop(uri).cancel(reason="unsubscribed")
        elif call.method == m.RESOURCES_SUBSCRIBE and uri not in self._feeds:
            self._start_feed(uri, self._mock.answers.updates(uri, captured))
        self.follow(captured)
        return result

    async def _ask(self, ask: AskClient, method: str, params: Fields) -> Fields:
        """Ask the client for what it has declared, as long as a legacy session does. Raises RpcError."""
        if not offers(self._capabilities, method, params):
            raise RpcError(METHOD_NOT_FOUND, f"the client does not offer {method}")
        with trio.move_on_after(seconds_to_answer(method)):
            return await ask(method, params)
        raise unanswered(method)

    async def _answer(self, captured: CapturedRequest, call: Call, notify: Notify, ask: AskClient) -> Fields:
        """Return the result in the session's revision, after its client has answered a server's questions."""

        async def repeat(call: Call, notify: Notify) -> Fields:
            again = self._mock.answers.find(call.method, call.params, self.revision)
            if again is None:
                raise self._mock.refuse(call)
            return await self._mock.play(again, call, notify, None)

        async def respond(_result: Fields, wishes: dict[str, Wish]) -> Fields:
            responses: Fields = {}
            for key, wish in wishes.items():
                try:
                    params = downgrade_question(wish.method, wish.params, self.revision, "mock")
                    answer = await ask(wish.method, params)
                    responses[key] = raw(upgrade_answer(wish.method, wish.params, answer, self.revision))
                except RpcError as error:
                    responses[key] = error_response(error)
            return responses

        try:
            # A legacy server asks during the call, a modern one by an answer that ends this round of it.
            result = await self._mock.play(captured, call, notify, None if captured.modern else ask)
            if captured.modern and wishes_in(result) is not None:
                result = await end_rounds(result, repeat, call, notify, respond)
        except RpcError as error:
            raise (downgrade_error(call.method, error) if captured.modern else error) from None
        if captured.revision == self.revision:
            return result
        result = downgrade_result(result) if captured.modern else result
        return downgrade_content(call.method, result, self.revision)


# The handshake of a mocked server: the captured one, or in an era that was not captured the same facts in the
# form of that era. Without a captured handshake the mock offers the capabilities of the captured requests.

_OFFERED_BY = {
    m.TOOLS_CALL: "tools",
    m.PROMPTS_GET: "prompts",
    m.RESOURCES_READ: "resources",
    m.COMPLETE: "completions",
    m.SET_LEVEL: "logging",
    **{method: listed.capability for method, listed in m.LISTS.items()},
}


def make_handshake(answers: CapturedAnswers, requested: str | None) -> Fields:
    """Return the InitializeResult for a requested revision, or else a DiscoverResult, from known facts."""
    requests = answers.requests
    info: Any = {"name": "mcpmux mock", "version": "1"}
    offered = sorted({_OFFERED_BY[method] for method in requests if method in _OFFERED_BY})
    members: dict[str, Any] = {"capabilities": {name: {} for name in offered}}
    for captured in (*requests.get(m.INITIALIZE, ()), *requests.get(m.DISCOVER, ())):
        result = value_of(captured.answer.result) if isinstance(captured.answer, Reply) else None
        if isinstance(result, dict) and isinstance(result.get("capabilities"), dict):
            info = result.get("serverInfo") or value_at(result, (META, SERVER_INFO)) or info
            facts = ("capabilities", "instructions")
            members = {key: result[key] for key in facts if result.get(key) is not None}
            break
    if requested is not None:
        members |= {"serverInfo": info, _REQUESTED: negotiate_legacy(requested)}
    else:
        members |= {"resultType": "complete", "supportedVersions": SUPPORTED, META: {SERVER_INFO: info}}
        members |= {"ttlMs": 0, "cacheScope": "private"}
    return {key: raw(value) for key, value in members.items()}
