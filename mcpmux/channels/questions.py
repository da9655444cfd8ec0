"""A server's questions to clients, and the calls that wait for the answers: the bridge between the eras.

A legacy server asks in the middle of a call (sampling, elicitation, roots) and waits for the answer. The core
knows only 2026-07-28, where a call that needs input is answered with `input_required` and sent again with the
answers. From the question to its answer:

 1. `take` gets the server's question and finds its call: by the transport, or because only one client's calls
    come into question. Otherwise it refuses the question, with the setting that helps.
 2. The exchange of that call is woken and calls `park`: it ends with `input_required` and a random
    `requestState`, while its request stays pending at the server.
 3. The core's client is asked: a modern one gets the result unchanged, for a legacy one its session asks
    (`clients/legacy_session`). Meanwhile `_look_after` watches the parked call.
 4. The call comes again with the state. `resume` sends the answers to the server, and the exchange goes on
    where it was, perhaps up to another question.

    parked --its client comes back-----------------------------> goes on
           --the server withdraws all its questions------------> without questions
           --a program has not answered for ROOTS_SECONDS------> without questions, if there were no others
           --its answer comes, its deadline passes, the end----> over: the outcome is kept for its client
    any    --PARK_SECONDS, or its client has gone--------------> given up

A question is a sign of life and renews the deadline, as progress does. When a call has no questions any more,
or is over, a notification `WITHDRAWN` ends the asking of its client, and the call goes on.

A call that has waited for its client for ASKS_MORE_SECONDS gets no more questions that another call may have
caused. A question in a `resources/subscribe`, which mcpmux sends itself, goes to a client that listens to
that resource; a question outside of all calls goes to the only client there is.

Source: `basic/patterns/mrtr`, 2026-07-28; `client/` (sampling, elicitation, roots), 2025-11-25.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import structlog
import trio

from mcpmux.channels.pending import PendingRequest, PendingRequests
from mcpmux.errors import RpcError, TransportError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call, Event, Hear
from mcpmux.protocol.codes import BUSY, INVALID_REQUEST, METHOD_NOT_FOUND, unknown_state
from mcpmux.protocol.envelope import Notification, Request, decode_fields, encode_error, encode_reply, raw
from mcpmux.protocol.era import downgrade_answer
from mcpmux.protocol.input_requests import RESPONSES, STATE, WITHDRAWN, input_required, offers, read_response
from mcpmux.protocol.principal import Principal
from mcpmux.protocol.raw_json import Fields, Id, Raw
from mcpmux.protocol.revisions import NEWEST_LEGACY
from mcpmux.protocol.tasks import TASK, TASK_ID, related_task
from mcpmux.transports.waiting import DeadlineSweeper

log = structlog.get_logger()

PARK_SECONDS: Final = 600.0  # for a client to come back to a parked call; then it is given up
PERSON_SECONDS: Final = PARK_SECONDS - 30.0  # for a person's answer, so that the call can still go on with it
ROOTS_SECONDS: Final = 10.0  # for the answer of a program
PARK_LIMIT: Final = 1000  # parked calls of one server; each holds a request of it open
STATE_BYTES: Final = 24  # of randomness: a state cannot be guessed, so it proves that its bearer was given it
REFUSE_SECONDS: Final = 10.0  # for a server to take the refusal of its questions
ASKS_MORE_SECONDS: Final = 2.0  # for a server to ask several things at once

AMBIGUOUS: Final = (
    "clients share this session and mcpmux cannot tell which one is meant; "
    'set session = "per-client" on the upstream'
)

T = TypeVar("T")


class Client(Protocol):
    """A client that can be asked something outside of its calls.

    `capabilities`: those that it has declared. `principal`: its proven identity. `knows_tasks`: whether its
    revision has tasks, so that it can make them itself.
    """

    capabilities: Raw
    principal: Principal
    knows_tasks: bool

    async def ask(self, method: str, params: Fields) -> Fields:
        """Return the client's answer. Raises RpcError when it refuses or cannot be reached."""


class Question(NamedTuple):
    """A server's question outside of the calls of clients.

    `task_id`: the task that it is about. `client`: the client that has caused it, by the key in its calls.
    """

    method: str
    params: Fields
    task_id: str | None = None
    client: Hashable | None = None


FindClient = Callable[[Question], Awaitable[Client | None]]
"""Returns the client to ask; None if that is unclear."""


def seconds_to_answer(method: str) -> float:
    """Return the seconds that a client may take to answer a question of this method."""
    return ROOTS_SECONDS if method == m.ROOTS_LIST else PERSON_SECONDS


def unanswered(method: str) -> RpcError:
    """Return the error that a server gets in place of the answer to its question."""
    return RpcError(INVALID_REQUEST, f"the client did not answer {method} in time")


class ParkedCalls(Generic[T]):
    """Calls that wait for their clients, each with a value, by the state that the client was given."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[Call, T]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, state: str | None) -> bool:
        return state in self._entries

    def __iter__(self) -> Iterator[T]:
        """Yield the values."""
        return (value for _, value in self._entries.values())

    def add(self, call: Call, value: T) -> str:
        """Park a call; return the state for which `take` returns `value`. Raises RpcError for too many."""
        if len(self._entries) >= PARK_LIMIT:
            raise RpcError(BUSY, f"Busy: more than {PARK_LIMIT} calls wait for their clients' answers")
        state = secrets.token_urlsafe(STATE_BYTES)
        self._entries[state] = (call, value)
        return state

    def find(self, state: str) -> T | None:
        """Return the value that is parked with a state, and leave it there; None if there is none."""
        entry = self._entries.get(state)
        return None if entry is None else entry[1]

    def pop(self, state: str) -> T | None:
        """Remove and return the value that is parked with a state; None if there is none."""
        entry = self._entries.pop(state, None)
        return None if entry is None else entry[1]

    def take(self, again: Call) -> T:
        """Remove and return the value of a call that has come again. Raises RpcError for another call."""
        state = again.text(STATE) or ""
        entry = self._entries.get(state)
        if entry is None:
            raise unknown_state()
        first, value = entry
        same_target = all(first.text(key) == again.text(key) for key in ("name", "uri", TASK_ID))
        same_client = first.client is again.client and first.principal.key == again.principal.key
        # A state of another client or call is refused like an unknown one, and betrays no more.
        if first.method != again.method or not same_target or not same_client:
            raise unknown_state()
        del self._entries[state]
        return value

    def sift(self, is_wanted: Callable[[T], bool]) -> None:
        """Remove the values that are not wanted any more."""
        self._entries = {state: entry for state, entry in self._entries.items() if is_wanted(entry[1])}

    def states_of(self, client: object) -> list[str]:
        """Return the states that one client has."""
        return [state for state, (call, _) in self._entries.items() if call.client is client]


class ParkedCall:
    """One request that stays pending while its client is asked.

    `change` is called when its request has changed, and when `until` has passed.
    """

    __slots__ = ("_parked_at", "cut_off", "pending", "state")

    def __init__(self, pending: PendingRequest, now: float, change: Callable[[ParkedCall], None]) -> None:
        self.pending = pending
        self.state = ""  # until it is parked
        self._parked_at = now
        self.cut_off = pending.wake = partial(change, self)

    @property
    def until(self) -> float:
        """The next time, in trio's, at which the call must be looked after."""
        until = self._parked_at + PARK_SECONDS
        return until if self.pending.is_over else min(until, self.pending.until, self.asks_until)

    @property
    def asks_until(self) -> float:
        """The time at which its questions are given up: sooner if programs answer all of them."""
        requests = self.pending.asked.values()
        soon = bool(requests) and all(request.method == m.ROOTS_LIST for request in requests)
        return self._parked_at + (ROOTS_SECONDS if soon else PARK_SECONDS)


class Questions:
    """One server's questions over its channel, and the calls that are parked meanwhile.

    `may_ask`: the methods of our requests in which the server may ask something. `find_client` finds the
    client for a question that no call has caused; without it such questions are refused. `revision`: of the
    server, once it is agreed.
    """

    def __init__(
        self,
        pending_requests: PendingRequests,
        deadlines: DeadlineSweeper,
        send: Callable[[bytes], Awaitable[None]],
        hear: Hear,
        end: Callable[[PendingRequest], None],
        start: Callable[[Callable[[], Awaitable[None]], str], None],
    ) -> None:
        """`end` gives up a request. `start` runs a named task, unless the channel is closed."""
        self.may_ask = m.ASKED_DURING
        self.find_client: FindClient | None = None
        self.revision = NEWEST_LEGACY
        self.parked: ParkedCalls[ParkedCall] = ParkedCalls()
        self._outside: dict[Id, trio.CancelScope] = {}  # of questions outside of clients' calls
        self._pending_requests = pending_requests
        self._deadlines = deadlines
        self._send = send
        self._hear = hear
        self._end = end
        self._start = start

    # 1. The server asks

    async def take(self, request: Request, pending: PendingRequest | None = None) -> None:
        """Take a question of the server, and refuse it if it has no client. `pending`: its call, if known."""
        try:
            params = decode_fields(request.params)
            # "MUST process requests of that type normally, ignoring any task-augmentation metadata": mcpmux
            # makes no tasks for servers (`basic/utilities/tasks`).
            params.pop(TASK, None)
            task_id = related_task(params)
            target = (pending or self._meant_by()) if task_id is None else self._waiting_for(task_id)
            if target is None or target.call.method == m.RESOURCES_SUBSCRIBE:
                with trio.CancelScope() as scope:  # `withdraw` cancels it
                    self._outside[request.id] = scope
                    try:
                        answer = await self._ask_directly(request.method, params, target)
                    finally:
                        del self._outside[request.id]
                    await self._reply(request, answer)
                return
            if not offers(target.call.capabilities, request.method, params):
                raise RpcError(METHOD_NOT_FOUND, f"the client does not offer {request.method}")
            target.ask(request)
        except RpcError as refusal:
            # Servers ask for roots when they start, often before there is any client: a refusal is no news.
            tell = log.debug if request.method == m.ROOTS_LIST else log.info
            tell("a server's request is refused", method=request.method, reason=refusal.message)
            await self._send(encode_error(request.id, refusal))

    def withdraw(self, request_id: Id | None) -> None:
        """Withdraw a question that the server has cancelled; an unknown id has no effect."""
        if request_id is not None and request_id in self._outside:
            self._outside[request_id].cancel(reason="the server does not want to know any more")
        # Its exchange or `_look_after` sees that the question is gone.
        key = repr(request_id)
        for pending in self._pending_requests:
            if pending.asked.pop(key, None) is not None:
                pending.notify()

    def _meant_by(self) -> PendingRequest | None:
        """Return the call that has caused an unmarked request, None if there is none.

        Raises RpcError if calls of several clients come into question.
        """
        candidates = [request for request in self._pending_requests if request.call.method in self.may_ask]
        # A server that waits for an answer asks no more in that call: a client that leaves its call parked
        # must not make the questions of all others ambiguous.
        lately = trio.current_time() - ASKS_MORE_SECONDS
        candidates = [
            request for request in candidates if request.parked_at is None or request.parked_at >= lately
        ] or candidates
        if not candidates:
            return None
        client = candidates[0].call.client
        # The wrong client must not be asked: the question may show data of another one.
        if len(candidates) > 1 and (client is None or any(t.call.client is not client for t in candidates)):
            raise RpcError(INVALID_REQUEST, AMBIGUOUS)
        return candidates[0]

    def _waiting_for(self, task_id: str) -> PendingRequest | None:
        for pending in self._pending_requests:
            if pending.call.method == m.TASKS_RESULT and pending.call.text(TASK_ID) == task_id:
                return pending
        return None

    async def _ask_directly(self, method: str, params: Fields, cause: PendingRequest | None) -> Fields:
        """Ask a client a question that no client's call has caused; return its answer. Raises RpcError.

        `cause`: the request of mcpmux that has caused it, if any.
        """
        if cause is None:
            question = Question(method, params, related_task(params))
        else:
            question = Question(method, params, None, cause.call.client)
            cause.push(Event(m.ASKED, {}))  # our request has no deadline while a person is asked
        try:
            client = await self.find_client(question) if self.find_client is not None else None
            if client is None:
                raise RpcError(INVALID_REQUEST, f"no client is meant by this; {AMBIGUOUS}")
            if not offers(client.capabilities, method, params):
                raise RpcError(METHOD_NOT_FOUND, f"the client does not offer {method}")
            with trio.move_on_after(seconds_to_answer(method)):
                return await client.ask(method, params)
            raise unanswered(method)
        finally:
            if cause is not None:
                cause.push(Event(m.ANSWERED, {}))

    async def _reply(self, request: Request, answer: Fields) -> None:
        answer = downgrade_answer(request.method, answer, self.revision)
        await self._send(encode_reply(request.id, answer))

    # 2. The call is parked

    def park(self, pending: PendingRequest) -> Fields:
        """Park a call; return the `input_required` that ends its exchange. Raises RpcError for too many."""
        # A question is a sign of life, as progress is.
        if pending.deadline is not None:
            pending.deadline.renew()
        now = trio.current_time()
        parked = ParkedCall(pending, now, self._look_after)
        parked.state = self.parked.add(pending.call, parked)
        pending.parked_at = now
        self._deadlines.watch(parked)
        return input_required(pending.asked, parked.state, legacy=pending.call.legacy)

    # 3. Its client is asked

    def _look_after(self, parked: ParkedCall) -> None:
        """Act on a change of a parked call, or on the passing of its next time."""
        if self.parked.find(parked.state) is not parked:  # it has gone on, or was given up, meanwhile
            return
        now = trio.current_time()
        pending, requests = parked.pending, parked.pending.asked
        if pending.answer is None and pending.until <= now:
            # The error names the questions that were open: a client has not answered them in time.
            pending.overdue = True
            pending.unanswered = tuple(request.method for request in requests.values())
        if pending.is_over or parked.asks_until <= now:
            self._refuse(list(requests.values()))
            requests.clear()
        # Its outcome stays parked, for a client that comes back.
        if pending.is_over:
            self._end(pending)
        if parked.until <= now:
            self.abandon(parked.state)
        # Its client is not asked any more, and the call goes on when it comes back.
        if not requests:
            self._hear(Notification(WITHDRAWN, raw({STATE: parked.state})))

    def abandon(self, state: str) -> bool:
        """Give up a parked call, whose client has gone; return False if none is parked with that state."""
        parked = self.parked.pop(state)
        if parked is None:
            return False
        pending = self._woken_by_its_exchange(parked)
        self._refuse(list(pending.asked.values()))
        self._end(pending)
        return True

    def leave(self, client: object) -> None:
        """Give up the parked calls of a client that has gone."""
        for state in self.parked.states_of(client):
            self.abandon(state)

    def _refuse(self, asked: list[Request]) -> None:
        """Answer questions of the server with an error, as the client does not answer them any more."""
        if asked:
            self._start(partial(self._say_unanswered, asked), "unanswered questions")

    async def _say_unanswered(self, asked: list[Request]) -> None:
        with trio.move_on_after(REFUSE_SECONDS), suppress(TransportError):
            for request in asked:
                await self._send(encode_error(request.id, unanswered(request.method)))

    # 4. Its client comes back

    async def resume(self, call: Call) -> PendingRequest:
        """Send the answers in `call` to the server; return the request for which its exchange waits on.

        Raises RpcError for a state that is not, or no longer, that of this call.
        """
        pending = self._woken_by_its_exchange(self.parked.take(call))
        pending.call = call
        try:
            responses = decode_fields(call.params.get(RESPONSES))
            answers = {key: read_response(responses[key]) for key in pending.asked if key in responses}
        except ValueError:
            answers = {}
        # Questions without an answer stay open: the call is parked again for them.
        try:
            for key, answer in answers.items():
                request = pending.asked.pop(key)
                if isinstance(answer, RpcError):
                    await self._send(encode_error(request.id, answer))
                else:
                    await self._reply(request, answer)
        except BaseException:  # it is parked no more, so no other code would end it
            self._end(pending)
            raise
        return pending

    async def reply(self, call: Call) -> None:
        """Send the answers to the server, and give up the call's result. Raises as `resume`."""
        self._end(await self.resume(call))

    def _woken_by_its_exchange(self, parked: ParkedCall) -> PendingRequest:
        self._deadlines.forget(parked)
        parked.pending.parked_at = parked.pending.wake = None
        return parked.pending
