"""Build dialogues from a capture: each client's requests with all that belongs to them. Pure.

A dialogue is one conversation as the asking side saw it: a client with mcpmux (leg `client`), or mcpmux
with a server (leg `upstream`). A second `initialize` that was answered with a result begins another dialogue.
Modern requests over HTTP may take any connection, so those of clients with one name are one dialogue.

| from the other side | belongs to |
| --- | --- |
| progress | the request with that token |
| a notification of a listen | the listen, by its subscription id |
| a notification or question of an exchange | the newest unanswered request of that exchange |
| an update of a resource | the requests that have subscribed to it, for as long as that lasts |
| anything else | no request: it is kept with the request whose answer it followed |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Literal, TypeAlias

import msgspec
from attrs import define, field

from mcpmux.errors import RpcError
from mcpmux.mux.subscriptions import find_above
from mcpmux.protocol import method as m
from mcpmux.protocol.call import META, PROGRESS_TOKEN, SUBSCRIPTION_ID, VERSION
from mcpmux.protocol.codes import INVALID_PARAMS
from mcpmux.protocol.envelope import (
    BadMessage,
    ErrorReply,
    Message,
    Notification,
    Reply,
    Request,
    decode_fields,
    decode_message,
    id_of,
    members_of,
    text_of,
    value_of,
)
from mcpmux.protocol.raw_json import Fields, Id, Raw
from mcpmux.traffic.record import ANSWERS, Record, seconds_of

Answer: TypeAlias = Reply | ErrorReply

REDACTED = "redacted"
TRUNCATED = "truncated"
METADATA = "without its message (level metadata)"
UNREADABLE = "no JSON-RPC message"
NO_REQUEST = "an answer to nothing"


class ServerMessage(msgspec.Struct, frozen=True, gc=False):
    """A notification or request of the server. `after`: seconds since the request or answer it belongs to."""

    after: float
    method: str
    params: Fields
    question: bool = False
    """Whether it is a request, which the asking side has answered."""


class CapturedRequest(msgspec.Struct):
    """One request and what it led to. `position`: its position in the capture; `at`: seconds since 1970.

    `problem`: why the request is not wholly known; `answer_problem`: the same of its answer. A redacted
    answer is kept all the same.
    """

    position: int
    at: float
    method: str
    target: str | None
    id: Id | None
    params: Fields
    meta: Fields
    exchange: int | None
    revision: str | None
    problem: str | None = None
    answer: Answer | None = None
    answer_problem: str | None = None
    answered_position: int | None = None
    answered_at: float | None = None
    ms: float | None = None
    cancelled: bool = False
    before_answer: list[ServerMessage] = msgspec.field(default_factory=list)
    after_answer: list[ServerMessage] = msgspec.field(default_factory=list)

    @property
    def modern(self) -> bool:
        """Whether the request was one of 2026-07-28."""
        return VERSION in self.meta or self.method in (m.DISCOVER, m.LISTEN)

    @property
    def opens_session(self) -> bool:
        """Whether it is an `initialize` that was answered with a result."""
        return self.method == m.INITIALIZE and isinstance(self.answer, Reply)


class ClientNotification(msgspec.Struct, frozen=True):
    """A notification of the asking side."""

    position: int
    at: float
    method: str
    params: Fields


class CapturedQuestion(msgspec.Struct, frozen=True):
    """A question of the other side, and its answer. `during`: the position of the request that caused it."""

    position: int
    method: str
    during: int | None
    answer: Answer


Step: TypeAlias = CapturedRequest | ClientNotification


@define(eq=False)
class Dialogue:
    """One conversation. `questions`: the other side's own requests, in order.

    `view`: that of the client, as records have it.
    """

    name: str
    client: str | None
    transport: str | None = None
    view: str = ""
    steps: list[Step] = field(factory=list)
    questions: list[CapturedQuestion] = field(factory=list)
    # While it is read: unanswered requests of both sides by `seq`, subscriptions by URI, the last answer.
    _open: dict[int, CapturedRequest] = field(factory=dict)
    _asked: dict[int, tuple[int, str, int | None]] = field(factory=dict)
    _subscribed: dict[str, CapturedRequest] = field(factory=dict)
    _last: CapturedRequest | None = None

    def requests(self) -> Iterator[CapturedRequest]:
        """Return its requests, in order."""
        return (step for step in self.steps if isinstance(step, CapturedRequest))

    @property
    def stateless(self) -> bool:
        """Whether its requests are independent of their connection."""
        return self.transport == "http" and all(request.modern for request in self.requests())

    @property
    def at(self) -> float:
        """The time when it began, seconds since 1970."""
        return self.steps[0].at

    def take(self, record: Record, position: int, is_from_client: bool) -> str | None:
        """Add a message where it belongs. Return the reason when it belongs nowhere."""
        problem, message = _message_of(record)
        at = seconds_of(record)
        at = record.at if at is None else at
        if record.kind in ANSWERS:
            answer = message if isinstance(message, Reply | ErrorReply) else None
            if is_from_client:
                question = self._asked.pop(record.answers or 0, None)
                if question is None:
                    return NO_REQUEST
                if problem is not None or answer is None:
                    return f"an answer to {question[1]} that is {problem}"
                self.questions.append(CapturedQuestion(*question, answer))
                return None
            request = self._open.pop(record.answers or 0, None)
            if request is None:
                return NO_REQUEST
            request.answered_position, request.answered_at, request.ms = position, at, record.ms
            request.revision = request.revision or record.revision
            request.answer, request.answer_problem = answer, problem
            if request.method == m.RESOURCES_UNSUBSCRIBE:
                self._subscribed.pop(_uri_in(request.params), None)
            self._last = request
            return None
        sent = message if isinstance(message, Request | Notification) else None
        params = members_of(sent.params) if sent is not None else {}
        if record.kind == "request" and is_from_client:
            method = sent.method if sent is not None else record.method or "?"
            meta = members_of(params.pop(META, None))
            facts = (record.target, record.id, params, meta, record.exchange, record.revision, problem)
            request = CapturedRequest(position, at, method, *facts)
            self.steps.append(request)
            self._open[record.seq] = request
            if method == m.RESOURCES_SUBSCRIBE:
                self._subscribed[_uri_in(params)] = request
        elif sent is None:
            return problem
        elif is_from_client:
            if (
                sent.method == m.CANCELLED
                and (cancelled := self._with_id(params.get("requestId"))) is not None
            ):
                cancelled.cancelled = True
            self.steps.append(ClientNotification(position, at, sent.method, params))
        else:
            self._take_server_message(record, position, at, sent, params)
        return None

    def _take_server_message(
        self, record: Record, position: int, at: float, said: Request | Notification, params: Fields
    ) -> None:
        request = self._request_of(record.exchange, said.method, params)
        is_question = isinstance(said, Request)
        if is_question:
            during = request.position if request is not None else None
            self._asked[record.seq] = (position, said.method, during)
        if request is not None:
            sent = ServerMessage(max(0.0, at - request.at), said.method, params, is_question)
            request.before_answer.append(sent)
        elif not is_question:
            is_update = said.method == m.RESOURCE_UPDATED
            subscribed = find_above(self._subscribed, _uri_in(params)) if is_update else []
            hearing = [self._subscribed[uri] for uri in subscribed]
            for request in hearing or filter(None, [self._last]):
                since = request.answered_at or request.at
                request.after_answer.append(ServerMessage(max(0.0, at - since), said.method, params))

    def _with_id(self, raw: Raw | None) -> CapturedRequest | None:
        """Return the unanswered request with an id; the last one if a client has used it twice."""
        request_id = id_of(raw)
        return next((t for t in reversed(self._open.values()) if t.id == request_id), None)

    def _request_of(self, exchange: int | None, method: str, params: Fields) -> CapturedRequest | None:
        token = id_of(params.get(PROGRESS_TOKEN)) if method == m.PROGRESS else None
        if token is not None:
            return next((t for t in self._open.values() if id_of(t.meta.get(PROGRESS_TOKEN)) == token), None)
        listen = members_of(params.get(META)).get(SUBSCRIPTION_ID)
        if id_of(listen) is not None:
            return self._with_id(listen)
        if exchange is None:
            return None
        return next((t for t in reversed(self._open.values()) if t.exchange == exchange), None)


SideName = Literal["client", "upstream"]


@define(eq=False)
class Reading:
    """The dialogues of a leg. `left_out`: the number of messages that are in no dialogue, by the reason.

    `upstream`: the configured name of the only one to read, on that leg. `messages`: how many were read,
    `upstreams`: the names of their upstreams.
    """

    side: SideName
    _upstream: str | None = None
    left_out: Counter[str] = field(factory=Counter)
    upstreams: set[str] = field(factory=set)
    messages: int = 0
    _dialogues: dict[tuple[str, str], Dialogue] = field(factory=dict)

    def add(self, record: Record) -> None:
        """Add one more message of the capture."""
        if record.kind == "start":
            return
        self.messages += 1
        if record.upstream is not None:
            self.upstreams.add(record.upstream)
        if record.leg != self.side or self._upstream not in (None, record.upstream):
            return
        key = (record.run, record.peer or "")
        dialogue = self._dialogues.get(key)
        if dialogue is None:
            dialogue = self._dialogues[key] = Dialogue(
                record.peer or "?", record.client, record.transport, record.view or ""
            )
        dialogue.client = dialogue.client or record.client
        is_from_client = record.direction == ("in" if self.side == "client" else "out")
        reason = dialogue.take(record, self.messages, is_from_client)
        if reason is not None:
            self.left_out[reason] += 1

    def dialogues(self) -> list[Dialogue]:
        """Return all dialogues by their beginning; those without a request are left out."""
        stateless: dict[tuple[str, str | None, str], Dialogue] = {}
        sessions: list[Dialogue] = []
        for (run, _), dialogue in self._dialogues.items():
            if self.side == "client" and dialogue.stateless:
                key = run, dialogue.client, dialogue.view
                whole = stateless.setdefault(key, _empty(dialogue))
                whole.steps += dialogue.steps
            else:
                sessions += _sessions(dialogue)
        for whole in stateless.values():
            whole.steps.sort(key=lambda step: step.position)
        parts = (part for part in (*sessions, *stateless.values()) if any(part.requests()))
        return sorted(parts, key=lambda part: part.at)


def _uri_in(params: Fields) -> str:
    return text_of(params.get("uri")) or ""


def _empty(dialogue: Dialogue) -> Dialogue:
    return Dialogue(dialogue.name, dialogue.client, view=dialogue.view)


def _sessions(dialogue: Dialogue) -> list[Dialogue]:
    """Return a dialogue cut where another session begins; questions stay with the session of their time."""
    parts = [_empty(dialogue)]
    opened = False
    for step in dialogue.steps:
        opens = isinstance(step, CapturedRequest) and step.opens_session
        if opens and opened:
            parts.append(_empty(dialogue))
        opened = opened or opens
        parts[-1].steps.append(step)
    for question in dialogue.questions:
        begun = [part for part in parts if part.steps and part.steps[0].position < question.position]
        (begun or parts)[-1].questions.append(question)
    return parts


_KINDS = {Request: "request", Notification: "notification", Reply: "result", ErrorReply: "error"}


def _message_of(record: Record) -> tuple[str | None, Message | None]:
    if record.message is None:
        return (TRUNCATED if record.text is not None else METADATA), None
    with suppress(BadMessage):
        message = decode_message(bytes(record.message))
        if _KINDS[type(message)] == record.kind:
            return (REDACTED if record.redacted else None), message
    return UNREADABLE, None


def values_of(fields: Fields) -> dict[str, Any]:
    """Return the Python values of raw members."""
    return {key: value_of(value) for key, value in fields.items()}


def result_of(answer: Answer) -> Fields:
    """Return a captured result. Raises RpcError: it was an error, or is no object."""
    if isinstance(answer, ErrorReply):
        raise answer.as_error()
    try:
        return decode_fields(answer.result)
    except ValueError:
        raise RpcError(INVALID_PARAMS, "the captured result is no object") from None


# The requests of a capture that are sent again.

READING = {m.INITIALIZE, m.DISCOVER, m.PING, *m.LISTS, m.RESOURCES_READ, m.PROMPTS_GET, m.COMPLETE}
READING |= {m.RESOURCES_SUBSCRIBE, m.RESOURCES_UNSUBSCRIBE, m.LISTEN, m.SET_LEVEL}
"""Methods that change nothing at a server except the state of their own session."""


def why_not(captured: CapturedRequest, *, with_tools: bool) -> str | None:
    """Return why a request is not sent again; None when it is."""
    if captured.problem is not None:
        return f"the request is {captured.problem}"
    if captured.method not in READING and not with_tools:
        kind = "calls a tool" if captured.method == m.TOOLS_CALL else "may change something"
        return f"it {kind}; --with-tools sends it"
    if captured.method == m.LISTEN:
        return None
    if captured.cancelled:  # its answer depends on how far the server had got
        return "the client took it back"
    return "no answer to it is in the capture" if captured.answered_position is None else None
