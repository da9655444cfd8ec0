"""Our calls to one server: in flight, or parked while their client answers what the server has asked.

A legacy server asks in the middle of a call. The call is then parked: its request stays pending, its exchange
returns `input_required` with a random `requestState`, and the repeated call with that state goes on where it
was. A state is good for one connection, one method and one target, for PARK_SECONDS.

On a shared session a legacy server cannot say whose call it means. It is understood when calls of one client
only can be meant; otherwise it is refused in words that name the cure. A call that has waited for its client
for a while asks nothing more. What a server asks in a `resources/subscribe`, which mcpmux sends by itself,
goes to a client that listens to that resource; what it asks outside of all calls to the only client there is.

Source: `basic/patterns/mrtr`, 2026-07-28.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, NamedTuple, Protocol

import structlog
import trio

from mcpmux.errors import RpcError, TransportError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call, Event, PendingRequest, PendingRequests
from mcpmux.protocol.codes import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND
from mcpmux.protocol.content import downgrade_answer
from mcpmux.protocol.envelope import (
    ErrorReply,
    Notification,
    Reply,
    Request,
    decode_fields,
    encode_error,
    encode_reply,
    raw,
)
from mcpmux.protocol.input_requests import RESPONSES, STATE, WITHDRAWN, input_required, offers, read_response
from mcpmux.protocol.principal import Principal
from mcpmux.protocol.raw_json import Fields, Id, Raw
from mcpmux.protocol.revisions import NEWEST_LEGACY
from mcpmux.protocol.tasks import TASK_ID, related_task

log = structlog.get_logger()

PARK_SECONDS: Final = 600.0  # for a person to answer; then the server is told that nobody did
PARK_LIMIT: Final = 1000  # parked calls of one server; each holds a request of it open
ASKS_MORE_SECONDS: Final = 2.0  # for a server to ask several things at once
STATE_BYTES: Final = 24  # of randomness: a state is proof that one was given it

_ANSWERS: Final = (Reply, ErrorReply)

Send = Callable[[bytes], Awaitable[None]]

Hear = Callable[[Notification], None]
"""Takes a notification of the peer that belongs to no exchange. Never waits."""

AMBIGUOUS: Final = (
    "clients share this session and mcpmux cannot tell which one is meant; "
    'set session = "per-client" on the upstream'
)


class Client(Protocol):
    """A client that can be asked something outside of any call of its own.

    `capabilities`: what it said that it offers; `principal`: who it has been shown to be; `knows_tasks`:
    whether its revision has tasks, so that it can make them itself.
    """

    @property
    def capabilities(self) -> Raw: ...

    @property
    def principal(self) -> Principal: ...

    @property
    def knows_tasks(self) -> bool: ...

    async def ask(self, method: str, params: Fields) -> Fields:
        """The client's answer. Raises RpcError when it refuses or cannot be reached."""
        ...


class Question(NamedTuple):
    """What a server asks outside of the calls of clients.

    `task_id`: the task that it is about; `client`: who has caused it, as that calls itself in its calls.
    """

    method: str
    params: Fields
    task_id: str | None = None
    client: Hashable | None = None


FindClient = Callable[[Question], Awaitable[Client | None]]
"""Who is to be asked; None when that is unclear."""


async def nobody(_question: Question) -> None:
    """For a server whose questions have no one to go to."""


async def unheard(_event: Event) -> None:
    """For an exchange whose notifications nobody waits for."""


class Calls:
    """The calls of one connection.

    `send` carries our answers to the server's questions; `hear` is told (WITHDRAWN) when the server takes
    back what a parked call waits for.
    """

    def __init__(self, send: Send, hear: Hear) -> None:
        self.pending_requests = PendingRequests()
        self._send = send
        self._hear = hear
        self.parked: dict[str, PendingRequest] = {}  # by state
        self.may_ask = m.ASKED_DURING  # in which of our requests the server may ask something
        self.find_client: FindClient = nobody
        self.revision = NEWEST_LEGACY  # of the server that asks, once it is agreed

    def park(self, pending: PendingRequest) -> Fields:
        """The server has asked something in a call: what its client gets instead of an answer.

        Raises RpcError when too many wait already.
        """
        if len(self.parked) >= PARK_LIMIT:
            raise RpcError(INTERNAL_ERROR, f"more than {PARK_LIMIT} calls wait for their clients' answers")
        state = secrets.token_urlsafe(STATE_BYTES)
        self.parked[state] = pending
        pending.parked_until = trio.current_time() + PARK_SECONDS
        return input_required(pending.asked, state, legacy=pending.call.legacy)

    # Questions of the server

    async def take_question(self, request: Request, pending: PendingRequest | None = None) -> None:
        """The server asks something; `pending`: of which call, when the transport tells."""
        try:
            params = decode_fields(request.params)
            task_id = related_task(params)
            target = (pending or self._meant_by()) if task_id is None else self._waiting_for(task_id)
            if target is None or target.call.method == m.RESOURCES_SUBSCRIBE:
                await self._reply(request, await self._ask_directly(request.method, params, target))
                return
            if not offers(target.call.capabilities, request.method, params):
                raise RpcError(METHOD_NOT_FOUND, f"the client does not offer {request.method}")
            target.ask(request)
        except RpcError as refusal:
            tell = log.debug if request.method == m.ROOTS_LIST else log.info
            tell("a server's request is refused", method=request.method, reason=refusal.message)
            await self._send(encode_error(request.id, refusal))

    async def _reply(self, request: Request, answer: Fields) -> None:
        """Give the server a client's answer, in the words of its revision."""
        answer = downgrade_answer(request.method, answer, self.revision)
        await self._send(encode_reply(request.id, answer))

    def withdraw_question(self, request_id: Id | None) -> None:
        """The server does not want to know any more; nothing happens when it never asked that."""
        key = repr(request_id)
        for pending in self.pending_requests:
            if pending.asked.get(key) is not None and pending.asked[key].id == request_id:
                del pending.asked[key]
        for state, pending in self.parked.items():
            if not pending.asked:
                self._hear(Notification(WITHDRAWN, raw({STATE: state})))

    async def _ask_directly(self, method: str, params: Fields, cause: PendingRequest | None) -> Fields:
        """Ask a client something that none of its calls has caused, but perhaps one of ours: `cause`.

        Raises RpcError.
        """
        if cause is None:
            question = Question(method, params, related_task(params))
        else:
            question = Question(method, params, None, cause.call.client)
            cause.push(Event(m.ASKED, {}))
        try:
            client = await self.find_client(question)
            if client is None:
                raise RpcError(INVALID_REQUEST, f"no client is meant by this; {AMBIGUOUS}")
            if not offers(client.capabilities, method, params):
                raise RpcError(METHOD_NOT_FOUND, f"the client does not offer {method}")
            with trio.move_on_after(PARK_SECONDS):
                return await client.ask(method, params)
            raise _unanswered()
        finally:
            if cause is not None:
                cause.push(Event(m.ANSWERED, {}))

    def _waiting_for(self, task_id: str) -> PendingRequest | None:
        """The `tasks/result` that waits for a task; None when there is none."""
        waiting = (t for t in self.pending_requests if t.call.method == m.TASKS_RESULT)
        return next((pending for pending in waiting if pending.call.text(TASK_ID) == task_id), None)

    def _meant_by(self) -> PendingRequest | None:
        """The call that an unmarked request of the server is about; None when there is none.

        Raises RpcError when several can be meant.
        """
        candidates = [t for t in self.pending_requests if t.call.method in self.may_ask]
        candidates = [t for t in candidates if not _has_asked(t)] or candidates
        if not candidates:
            return None
        client = candidates[0].call.client
        if len(candidates) > 1 and (client is None or any(t.call.client is not client for t in candidates)):
            raise RpcError(INVALID_REQUEST, AMBIGUOUS)
        return candidates[0]

    async def resume(self, call: Call) -> PendingRequest:
        """The parked request that a repeated call goes on with; the client's answers are passed on.

        Raises RpcError for a state that was not given to this very request, or not any more.
        """
        state = call.text(STATE) or ""
        pending = self.parked.get(state)
        if pending is None or not _is_same(pending.call, call):
            raise unknown_state()
        del self.parked[state]
        pending.parked_until = None
        pending.call = call
        try:
            responses = decode_fields(call.params.get(RESPONSES))
            answers = {key: read_response(responses[key]) for key in pending.asked if key in responses}
        except ValueError:
            answers = {}
        for key, answer in answers.items():
            request = pending.asked.pop(key)
            if isinstance(answer, RpcError):
                await self._send(encode_error(request.id, answer))
            else:
                await self._reply(request, answer)
        return pending

    async def refuse_questions(self, pending: PendingRequest) -> None:
        """Tell the server that what it asked in a call will not be answered."""
        for request in pending.asked.values():
            try:
                await self._send(encode_error(request.id, _unanswered()))
            except TransportError:
                return


def _has_asked(pending: PendingRequest) -> bool:
    """Whether a server has waited for a client's answer for so long that it asks nothing more before."""
    began = math.inf if pending.parked_until is None else pending.parked_until - PARK_SECONDS
    return trio.current_time() - began > ASKS_MORE_SECONDS


def _unanswered() -> RpcError:
    return RpcError(INVALID_REQUEST, "the client did not answer")


def unknown_state() -> RpcError:
    """-32602: a state was not given to this very request, or not to this somebody, or not any more."""
    return RpcError(INVALID_PARAMS, "Invalid requestState: unknown or expired; send the request without it")


def _is_same(first: Call, again: Call) -> bool:
    """Whether a call repeats another: the same method on the same target, by the same somebody."""
    same_target = all(first.text(key) == again.text(key) for key in ("name", "uri", TASK_ID))
    same_somebody = first.principal.name == again.principal.name
    return first.method == again.method and same_target and same_somebody
