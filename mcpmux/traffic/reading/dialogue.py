"""Dialogues out of a capture: each client's requests with all that belongs to them. Pure.

A dialogue is one conversation as the side saw it that asks: a client with mcpmux (leg `client`), or mcpmux
with a server (leg `upstream`). A second `initialize` that was answered with a result begins another dialogue.
Modern requests over HTTP may take any connection, so those of clients with one name are one dialogue.

| from the other side | belongs to |
| --- | --- |
| progress | the request with that token |
| a notification of a listen | the listen, by its subscription id |
| a notification or question of an exchange | the newest request of that exchange that is not answered yet |
| anything else | nothing: it is kept with the request whose answer it followed |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import msgspec
from attrs import define, field

from mcpmux.errors import RpcError
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
    value_of,
)
from mcpmux.protocol.raw_json import Fields, Id
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

    `problem` says why the request is not wholly known, `answer_problem` the same of its answer. A redacted
    answer is there all the same.
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
    """A notification of the side that asks."""

    position: int
    at: float
    method: str
    params: Fields


class CapturedQuestion(msgspec.Struct, frozen=True):
    """What the other side asked, and what it was answered.

    `during`: the position of the request that caused it; None when none is known to.
    """

    position: int
    method: str
    during: int | None
    answer: Answer


Step: TypeAlias = CapturedRequest | ClientNotification


@define(eq=False)
class Dialogue:
    """One conversation. `questions`: what the other side asked in requests of its own, in order."""

    name: str
    client: str | None
    transport: str | None = None
    steps: list[Step] = field(factory=list, repr=False)
    questions: list[CapturedQuestion] = field(factory=list, repr=False)

    def requests(self) -> Iterator[CapturedRequest]:
        """Its requests."""
        return (step for step in self.steps if isinstance(step, CapturedRequest))

    @property
    def stateless(self) -> bool:
        """Whether nothing ties its requests to their connection."""
        return self.transport == "http" and all(request.modern for request in self.requests())

    @property
    def at(self) -> float:
        """When it began, seconds since 1970."""
        return self.steps[0].at


SideName = Literal["client", "upstream"]


class Reading:
    """The dialogues of a leg. `left_out` counts messages that make no part of any, by the reason."""

    def __init__(self, side: SideName, upstream: str | None = None) -> None:
        """`upstream`: the configured name of the one that is meant, on that leg."""
        self.side: SideName = side
        self.left_out: Counter[str] = Counter()
        self.upstreams: set[str] = set()
        self._upstream = upstream
        self._conversations: dict[tuple[str, str], _Conversation] = {}
        self._position = 0

    def __repr__(self) -> str:
        return f"<Reading {self.side} {len(self._conversations)} conversations>"

    def add(self, record: Record) -> None:
        """One more message of the capture."""
        self._position += 1
        if record.upstream is not None:
            self.upstreams.add(record.upstream)
        if record.leg != self.side or record.kind == "start":
            return
        if self._upstream is not None and record.upstream != self._upstream:
            return
        key = (record.run, record.peer or "")
        conversation = self._conversations.get(key)
        if conversation is None:
            direction = "in" if self.side == "client" else "out"
            name = record.peer or "?"
            conversation = _Conversation(name, record.client, record.transport, request_direction=direction)
            self._conversations[key] = conversation
        conversation.client = conversation.client or record.client
        reason = conversation.take(record, self._position)
        if reason is not None:
            self.left_out[reason] += 1

    def dialogues(self) -> list[Dialogue]:
        """All of them, by their beginning; those without a request are left out."""
        stateless: dict[tuple[str, str | None], Dialogue] = {}
        found: list[Dialogue] = []
        for (run, _), dialogue in self._conversations.items():
            if self.side == "client" and dialogue.stateless:
                whole = stateless.setdefault((run, dialogue.client), Dialogue(dialogue.name, dialogue.client))
                whole.steps += dialogue.steps
            else:
                found += _sessions(dialogue)
        for whole in stateless.values():
            whole.steps.sort(key=lambda step: step.position)
            found.append(whole)
        return sorted((part for part in found if any(part.requests())), key=lambda part: part.at)


@define(eq=False)
class _Conversation(Dialogue):
    """One conversation while it is being read."""

    request_direction: str = "in"
    _open: dict[Id | None, CapturedRequest] = field(factory=dict, repr=False)
    _asked: dict[Id | None, tuple[int, str, int | None]] = field(factory=dict, repr=False)  # not answered
    _last: CapturedRequest | None = field(default=None, repr=False)

    def take(self, record: Record, position: int) -> str | None:
        """Put a message where it belongs. Returns why it belongs nowhere."""
        problem, message = _message_of(record)
        at = seconds_of(record)
        at = record.at if at is None else at
        is_from_client = record.direction == self.request_direction
        if record.kind == "request" and is_from_client:
            asked = message if isinstance(message, Request) else None
            self._take_request(record, position, at, problem, asked)
        elif record.kind in ANSWERS:
            answer = message if isinstance(message, Reply | ErrorReply) else None
            problem = problem if answer is not None else problem or UNREADABLE
            if is_from_client:
                return self._take_client_answer(record.id, problem, answer)
            return self._take_answer(record, position, at, problem, answer)
        elif message is None:
            return problem
        elif is_from_client and isinstance(message, Notification):
            note = ClientNotification(position, at, message.method, members_of(message.params))
            cancelled = self._open.get(id_of(note.params.get("requestId")))
            if note.method == m.CANCELLED and cancelled is not None:
                cancelled.cancelled = True
            self.steps.append(note)
        elif isinstance(message, Notification | Request):
            self._take_server_message(record, position, at, message)
        return None

    def _take_request(
        self, record: Record, position: int, at: float, problem: str | None, asked: Request | None
    ) -> None:
        params = members_of(asked.params if asked is not None else None)
        request = CapturedRequest(
            position=position,
            at=at,
            method=asked.method if asked is not None else record.method or "?",
            target=record.target,
            id=record.id,
            meta=members_of(params.pop(META, None)),
            params=params,
            exchange=record.exchange,
            revision=record.revision,
            problem=problem if asked is not None else problem or UNREADABLE,
        )
        self.steps.append(request)
        if record.id is not None:
            self._open[record.id] = request

    def _take_answer(
        self, record: Record, position: int, at: float, problem: str | None, answer: Answer | None
    ) -> str | None:
        request = self._open.pop(record.id, None)
        if request is None:
            return NO_REQUEST
        request.answered_position, request.answered_at, request.ms = position, at, record.ms
        request.revision = request.revision or record.revision
        request.answer, request.answer_problem = answer, problem
        self._last = request
        return None

    def _take_client_answer(
        self, request_id: Id | None, problem: str | None, answer: Answer | None
    ) -> str | None:
        asked = self._asked.pop(request_id, None)
        if asked is None:
            return NO_REQUEST
        if problem is not None or answer is None:
            return f"an answer to {asked[1]} that is {problem}"
        self.questions.append(CapturedQuestion(*asked, answer))
        return None

    def _take_server_message(
        self, record: Record, position: int, at: float, message: Notification | Request
    ) -> None:
        is_question, params = isinstance(message, Request), members_of(message.params)
        request = self._request_of(record.exchange, message.method, params)
        if isinstance(message, Request):
            during = request.position if request is not None else None
            self._asked[message.id] = (position, message.method, during)
        if request is not None:
            sent = ServerMessage(max(0.0, at - request.at), message.method, params, is_question)
            request.before_answer.append(sent)
        elif self._last is not None and not is_question:
            since = self._last.answered_at or self._last.at
            self._last.after_answer.append(ServerMessage(max(0.0, at - since), message.method, params))

    def _request_of(self, exchange: int | None, method: str, params: Fields) -> CapturedRequest | None:
        token = id_of(params.get(PROGRESS_TOKEN)) if method == m.PROGRESS else None
        if token is not None:
            return next((t for t in self._open.values() if id_of(t.meta.get(PROGRESS_TOKEN)) == token), None)
        listen = id_of(members_of(params.get(META)).get(SUBSCRIPTION_ID))
        if listen is not None:
            return self._open.get(listen)
        if exchange is None:
            return None
        return next((t for t in reversed(self._open.values()) if t.exchange == exchange), None)


def _sessions(dialogue: Dialogue) -> list[Dialogue]:
    """A dialogue cut where another session begins; questions go with the session in which they were asked."""
    parts = [Dialogue(dialogue.name, dialogue.client)]
    opened = False
    for step in dialogue.steps:
        opens = isinstance(step, CapturedRequest) and step.opens_session
        if opens and opened:
            parts.append(Dialogue(dialogue.name, dialogue.client))
        opened = opened or opens
        parts[-1].steps.append(step)
    for question in dialogue.questions:
        begun = [part for part in parts if part.steps and part.steps[0].position < question.position]
        (begun or parts)[-1].questions.append(question)
    return parts


def _message_of(record: Record) -> tuple[str | None, Message | None]:
    """What is wrong with a captured message, and the message if it can be read."""
    if record.message is None:
        return (TRUNCATED if record.text is not None else METADATA), None
    try:
        message = decode_message(bytes(record.message))
    except BadMessage:
        return UNREADABLE, None
    return (REDACTED if record.redacted else None), message


def values_of(fields: Fields) -> dict[str, Any]:
    """The Python values of raw members."""
    return {key: value_of(value) for key, value in fields.items()}


def result_of(answer: Answer) -> Fields:
    """A captured result. Raises RpcError: it was an error, or is no object."""
    if isinstance(answer, ErrorReply):
        raise answer.as_error()
    try:
        return decode_fields(answer.result)
    except ValueError:
        raise RpcError(INVALID_PARAMS, "the captured result is no object") from None
