"""What carries exchanges to one peer, and what all such channels have in common.

An exchange adds a pending request, sends it, and waits until that has its answer. How a request is sent, and
who reads, is each channel's own: a duplex stream (`duplex_channel`), or HTTP (`upstreams/http_channel`).

Promises: an answer reaches exactly the exchange that asked. A peer is told once that an exchange is
cancelled, and its late answer is dropped. The pending request is closed however its exchange ends. An
exchange needs a task only where it waits for something besides its answer.

A legacy server asks in the middle of a call. The call is then parked: its request stays pending, its exchange
returns `input_required` with a random `requestState`, and the repeated call with that state goes on where it
was. A state is good for one connection, one method and one target, for PARK_SECONDS.

    parked --its client comes back-----------------------------> goes on
           --the server takes back all that it asked-----------> nothing is asked
           --a program has not answered for ROOTS_SECONDS------> nothing is asked, once it was all
           --its answer comes, its deadline passes, the end----> over: the outcome is kept for its client
    any    --PARK_SECONDS, or its client has gone--------------> given up

A question is a sign of life and renews the deadline, as progress does. When nothing is asked any more, or
the call is over, `WITHDRAWN` says so: a client that is still asked is asked no more, and its call goes on.

On a shared session a legacy server cannot say whose call it means. It is understood when calls of one client
only can be meant; otherwise it is refused in words that name the cure. A call that has waited for its client
for a while asks nothing more. What a server asks in a `resources/subscribe`, which mcpmux sends by itself,
goes to a client that listens to that resource; what it asks outside of all calls to the only client there is.

Source: `basic/patterns/mrtr`, 2026-07-28.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final

import structlog
import trio

from mcpmux.channels.calls import (
    PARK_LIMIT,
    PARK_SECONDS,
    ROOTS_SECONDS,
    STATE_BYTES,
    FindClient,
    Hear,
    Question,
    seconds_to_answer,
    unanswered,
    unknown_state,
)
from mcpmux.config.expansion import Hide
from mcpmux.errors import RpcError, TransportError
from mcpmux.printable import excerpt
from mcpmux.protocol import method as m
from mcpmux.protocol.call import (
    PROGRESS_TOKEN,
    Call,
    Event,
    Notify,
    PendingRequest,
    PendingRequests,
    encode_call,
)
from mcpmux.protocol.codes import INTERNAL_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND
from mcpmux.protocol.envelope import (
    BadMessage,
    ErrorReply,
    Notification,
    Reply,
    Request,
    decode_fields,
    encode_error,
    encode_reply,
    raw,
)
from mcpmux.protocol.era import downgrade_answer
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.input_requests import RESPONSES, STATE, WITHDRAWN, input_required, offers, read_response
from mcpmux.protocol.raw_json import Fields, Id
from mcpmux.protocol.revisions import NEWEST_LEGACY
from mcpmux.protocol.tasks import TASK_ID, related_task
from mcpmux.transports.inline import in_task, woken
from mcpmux.transports.waiting import Deadline, DeadlineSweeper, limited

log = structlog.get_logger()

REFUSE_SECONDS: Final = 10.0  # for a server to take the refusal of what it has asked
ASKS_MORE_SECONDS: Final = 2.0  # for a server to ask several things at once

AMBIGUOUS: Final = (
    "clients share this session and mcpmux cannot tell which one is meant; "
    'set session = "per-client" on the upstream'
)


class ParkedCall:
    """One call that waits for its client's answers.

    `change` is called when something has happened to it, and when it is time for something.
    """

    __slots__ = ("_parked_at", "cut_off", "pending")

    def __init__(self, pending: PendingRequest, now: float, change: Callable[[], None]) -> None:
        self.pending = pending
        self._parked_at = now
        self.cut_off = pending.wake = change

    @property
    def until(self) -> float:
        """When it is time for something."""
        until = self._parked_at + PARK_SECONDS
        return until if self.pending.is_over else min(until, self.pending.until, self.asks_until)

    @property
    def asks_until(self) -> float:
        """When the client is not asked any more: soon, when a program can answer everything."""
        asked = self.pending.asked.values()
        soon = bool(asked) and all(request.method == m.ROOTS_LIST for request in asked)
        return self._parked_at + (ROOTS_SECONDS if soon else PARK_SECONDS)


class Channel:
    """Exchanges with one peer. Its tasks are in `_nursery`, which whoever opens it sets.

    `closed`: the peer will say nothing more. `find_client` finds who is asked when the server asks something
    that no call has caused; without it nobody is. `legacy_only`: no modern server is to be expected there.
    `hearing`: whether what a legacy server says of its own accord is heard; `HEARING` says when that changes.
    `doubtful`: the server has refused something as one of another era would. `session`: the id that a legacy
    server gave us over HTTP, or the address with HTTP+SSE.
    """

    legacy_only = False
    source = "the connection"  # where the peer's messages come from, for the log
    _nursery: trio.Nursery

    def __init__(self, send: Callable[[bytes], Awaitable[None]], hear: Hear, closed: trio.Event) -> None:
        """`send` carries our answers to what the peer asks; `hear` hears what belongs to no exchange."""
        self.pending_requests = PendingRequests()
        self.may_ask = m.ASKED_DURING  # in which of our requests the server may ask something
        self.parked: dict[str, ParkedCall] = {}  # by state
        self._asking: dict[Id, trio.CancelScope] = {}  # what is asked outside of clients' calls
        self.find_client: FindClient | None = None
        self.asks_progress = False  # of tool calls, also where their client does not want to know it
        self._revision = NEWEST_LEGACY  # of the server that asks, once it is agreed
        self._tell = send
        self._hear = hear
        self.deadlines = DeadlineSweeper()
        self.closed = closed
        self.hearing = True
        self.doubtful = False
        self.session: str | None = None
        self._refused = 0  # messages of the peer that could not be taken
        self.hide: Hide = str  # takes what the peer was given out of what it says in the log

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.pending_requests!r}>"

    @property
    def close_reason(self) -> TransportError:
        """Why it ended, once `closed` is set."""
        raise NotImplementedError

    async def exchange(
        self,
        call: Call,
        notify: Notify,
        deadline: Deadline | None = None,
        parked: PendingRequest | None = None,
    ) -> Fields:
        """Send `call` as it is and wait for its answer, handing its notifications to `notify` on the way.

        `parked`: was sent before, and is waited for again. The answer is `input_required`, and the request
        parked, when the server asks something first. The client's progress token is replaced by our own on
        the wire and put back in what returns. Raises RpcError (the peer's answer), TransportError (there is
        none), Overdue (not within `deadline`).
        """
        pending = parked or self.pending_requests.open(self._pending(call))
        try:
            if deadline is not None:
                pending.deadline = deadline
                self.deadlines.watch(pending)
            if parked is None and not self._send_now(pending):
                await self._send(pending, deadline)
            while pending.events or (pending.answer is None and (pending.asked or not pending.overdue)):
                if pending.events:
                    await in_task()
                    with limited(deadline):  # for a client that does not read
                        await _pass_on(pending.events.pop(0), pending.call, notify)
                elif pending.asked:
                    return self._park(pending)
                else:
                    await woken(pending)
            return pending.result()
        except RpcError as error:
            again = self._after_error(call, notify, deadline, error)
            if again is None:
                raise
        finally:
            self._close(pending)
        return await again

    def _after_error(
        self, call: Call, notify: Notify, deadline: Deadline | None, error: RpcError
    ) -> Awaitable[Fields] | None:
        """How the call is done once more after the peer's error; None when that is its answer."""
        return None

    def _pending(self, call: Call) -> PendingRequest:
        return PendingRequest(call)

    def _log_refused(self, bad: BadMessage) -> None:
        """Log that a message could not be taken, and its beginning."""
        shown = {"begins": excerpt(bad.begins, self.hide)} if bad.begins else {}
        self._log_seldom("message refused", reason=bad.message, source=self.source, **shown)

    def _log_unmatched(self, answer: Reply | ErrorReply) -> None:
        """Log an answer that no call waits for: a late one is usual, any other is a mistake of the peer."""
        if self.pending_requests.was_used(answer.id):
            log.debug("late answer dropped", id=answer.id)
            return
        shown = {}
        if isinstance(answer, ErrorReply):
            shown["error"] = excerpt(answer.message.encode(), self.hide)
        self._log_seldom("answer matches no request", id=answer.id, source=self.source, **shown)

    def _log_seldom(self, event: str, **facts: object) -> None:
        """Log the 1st, 2nd, 4th, 8th … of the messages that make no sense: a flood must not flood the log."""
        self._refused += 1
        if self._refused.bit_count() == 1:
            log.warning(event, **facts, refused_so_far=self._refused)

    def _encoded(self, pending: PendingRequest) -> bytes:
        return encode_call(pending.id, pending.call, asks_progress=self.asks_progress)

    def _send_now(self, pending: PendingRequest) -> bool:
        """Send without waiting; False, and nothing is done, when that cannot be. Raises TransportError."""
        raise NotImplementedError

    async def _send(self, pending: PendingRequest, deadline: Deadline | None) -> None:
        """Send a pending request. Raises TransportError, Overdue."""
        raise NotImplementedError

    def _abandon(self, pending: PendingRequest) -> None:
        raise NotImplementedError

    def _close(self, pending: PendingRequest) -> None:
        if pending.dropped:
            method, count = pending.call.method, pending.dropped
            log.warning("events dropped for a slow client", method=method, count=count)
            pending.dropped = 0
        self.deadlines.forget(pending)
        if pending.parked_at is None and self.pending_requests.close(pending):
            self._abandon(pending)

    # Calls that wait for their client's answers

    def _park(self, pending: PendingRequest) -> Fields:
        if len(self.parked) >= PARK_LIMIT:
            raise RpcError(INTERNAL_ERROR, f"more than {PARK_LIMIT} calls wait for their clients' answers")
        state = secrets.token_urlsafe(STATE_BYTES)
        if pending.deadline is not None:
            pending.deadline.renew()
        pending.parked_at = now = trio.current_time()
        self.parked[state] = parked = ParkedCall(pending, now, partial(self._look_after, state))
        self.deadlines.watch(parked)
        return input_required(pending.asked, state, legacy=pending.call.legacy)

    def _look_after(self, state: str) -> None:
        """Draw the consequences when something has happened to a parked call, or its time has come."""
        parked, now = self.parked.get(state), trio.current_time()
        if parked is None:
            return
        pending, asked = parked.pending, parked.pending.asked
        if pending.answer is None and pending.until <= now:
            pending.overdue = True
            pending.unanswered = tuple(request.method for request in asked.values())
        if pending.is_over or parked.asks_until <= now:
            self._refuse(list(asked.values()))
            asked.clear()
        if pending.is_over and self.pending_requests.close(pending):
            self._abandon(pending)
        if parked.until <= now:
            self.abandon(state)
        if not asked:
            self._hear(Notification(WITHDRAWN, raw({STATE: state})))

    async def resume(self, call: Call, notify: Notify, deadline: Deadline | None = None) -> Fields:
        """Go on with a parked call. Raises RpcError for a state that was not given to it, or not any more."""
        await in_task()
        with limited(deadline):
            pending = await self._resumed(call)
        return await self.exchange(call, notify, deadline, pending)

    async def _resumed(self, call: Call) -> PendingRequest:
        state = call.text(STATE) or ""
        parked = self.parked.get(state)
        if parked is None or not _is_same(parked.pending.call, call):
            raise unknown_state()
        pending = self._taken_out(state, parked)
        pending.call = call
        try:
            responses = decode_fields(call.params.get(RESPONSES))
            answers = {key: read_response(responses[key]) for key in pending.asked if key in responses}
        except ValueError:
            answers = {}
        try:
            for key, answer in answers.items():
                request = pending.asked.pop(key)
                if isinstance(answer, RpcError):
                    await self._tell(encode_error(request.id, answer))
                else:
                    await self._reply(request, answer)
        except BaseException:
            self._close(pending)
            raise
        return pending

    def _taken_out(self, state: str, parked: ParkedCall) -> PendingRequest:
        del self.parked[state]
        self.deadlines.forget(parked)
        parked.pending.parked_at = parked.pending.wake = None
        return parked.pending

    async def reply(self, call: Call) -> None:
        """Answer what a parked call asked, and wait for it no more. Raises like `resume`."""
        self._close(await self._resumed(call))

    def abandon(self, state: str) -> bool:
        """Give up a parked call, whose client has gone; False when no call is parked with that state."""
        parked = self.parked.get(state)
        if parked is None:
            return False
        pending = self._taken_out(state, parked)
        self._refuse(list(pending.asked.values()))
        self._close(pending)
        return True

    def leave(self, client: object) -> None:
        """Give up the parked calls of a client that has gone."""
        for state in [state for state, parked in self.parked.items() if parked.pending.call.client is client]:
            self.abandon(state)

    def _refuse(self, asked: list[Request]) -> None:
        """Tell the server that the client does not answer this any more."""
        if asked and not self.closed.is_set():
            self._nursery.start_soon(self._say_unanswered, asked, name="unanswered questions")

    async def _say_unanswered(self, asked: list[Request]) -> None:
        with trio.move_on_after(REFUSE_SECONDS), suppress(TransportError):
            for request in asked:
                await self._tell(encode_error(request.id, unanswered(request.method)))

    # Questions of the server

    async def take_question(self, request: Request, pending: PendingRequest | None = None) -> None:
        """The server asks something; `pending`: of which call, when the transport tells."""
        try:
            params = decode_fields(request.params)
            task_id = related_task(params)
            target = (pending or self._meant_by()) if task_id is None else self._waiting_for(task_id)
            if target is None or target.call.method == m.RESOURCES_SUBSCRIBE:
                with trio.CancelScope() as scope:
                    self._asking[request.id] = scope
                    try:
                        answer = await self._ask_directly(request.method, params, target)
                    finally:
                        del self._asking[request.id]
                    await self._reply(request, answer)
                return
            if not offers(target.call.capabilities, request.method, params):
                raise RpcError(METHOD_NOT_FOUND, f"the client does not offer {request.method}")
            target.ask(request)
        except RpcError as refusal:
            tell = log.debug if request.method == m.ROOTS_LIST else log.info
            tell("a server's request is refused", method=request.method, reason=refusal.message)
            await self._tell(encode_error(request.id, refusal))

    async def _reply(self, request: Request, answer: Fields) -> None:
        answer = downgrade_answer(request.method, answer, self._revision)
        await self._tell(encode_reply(request.id, answer))

    def withdraw_question(self, request_id: Id | None) -> None:
        """The server does not want to know any more; nothing happens when it never asked that."""
        if request_id is not None and request_id in self._asking:
            self._asking[request_id].cancel(reason="the server does not want to know any more")
        key = repr(request_id)
        for pending in self.pending_requests:
            if pending.asked.pop(key, None) is not None:
                pending.notify()

    async def _ask_directly(self, method: str, params: Fields, cause: PendingRequest | None) -> Fields:
        """Ask what no call of a client has caused, but perhaps one of ours: `cause`. Raises RpcError."""
        if cause is None:
            question = Question(method, params, related_task(params))
        else:
            question = Question(method, params, None, cause.call.client)
            cause.push(Event(m.ASKED, {}))
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

    def _waiting_for(self, task_id: str) -> PendingRequest | None:
        waiting = (t for t in self.pending_requests if t.call.method == m.TASKS_RESULT)
        return next((pending for pending in waiting if pending.call.text(TASK_ID) == task_id), None)

    def _meant_by(self) -> PendingRequest | None:
        """The call that an unmarked request is about, None for none. Raises RpcError for several."""
        candidates = [t for t in self.pending_requests if t.call.method in self.may_ask]
        candidates = [t for t in candidates if not _has_asked(t)] or candidates
        if not candidates:
            return None
        client = candidates[0].call.client
        if len(candidates) > 1 and (client is None or any(t.call.client is not client for t in candidates)):
            raise RpcError(INVALID_REQUEST, AMBIGUOUS)
        return candidates[0]

    # What a server's session needs besides

    def notify(self, method: str, params: Fields | None = None) -> Awaitable[None]:
        """Send a notification. Raises TransportError."""
        raise NotImplementedError

    async def listen(self) -> None:
        """From now on hear what a legacy server says of its own accord."""

    async def older(self) -> Channel | None:
        """After `initialize` was refused: the same server by the transport of 2024-11-05, if it has that."""
        return None

    def learn_tools(self, result: Fields) -> Fields:
        """A modern server has listed tools: the result without those that cannot be called here."""
        return result

    def settle(self, facts: ServerFacts) -> None:
        """The revision is agreed."""
        self._revision = facts.revision

    def give_up(self, reason: TransportError) -> None:
        """What was agreed does not hold any more: sets `closed`."""
        raise NotImplementedError


async def _pass_on(event: Event, call: Call, notify: Notify) -> None:
    """Hand an event to the client, progress under its own token; progress it did not ask for stops here.

    The token is our id then, which may well be the token of another call of that client.
    """
    if event.method != m.PROGRESS:
        await notify(event)
    elif (token := call.meta.get(PROGRESS_TOKEN)) is not None:
        await notify(Event(event.method, {**event.params, PROGRESS_TOKEN: token}))


def _has_asked(pending: PendingRequest) -> bool:
    """Whether a server has waited for a client's answer for so long that it asks nothing more before."""
    return pending.parked_at is not None and trio.current_time() - pending.parked_at > ASKS_MORE_SECONDS


def _is_same(first: Call, again: Call) -> bool:
    same_target = all(first.text(key) == again.text(key) for key in ("name", "uri", TASK_ID))
    same_somebody = first.principal.key == again.principal.key
    return first.method == again.method and same_target and same_somebody
