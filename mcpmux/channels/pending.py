"""Calls in flight with one peer: matches answers and events to the exchanges that wait for them.

    waiting --reply/error--> answered --close()--> gone
    waiting --ask()--------> asked         (the server asks something first; see `questions`)
    waiting --cut_off()----> overdue       (its deadline has passed, and `wake` is called) --close()--> gone
    waiting --close()------> gone          (the caller gave up: its late answer is dropped)
    waiting --fail_all()---> answered      (the stream ended)

An id is used once per stream; a reply to an unknown id is dropped; an answer whose id cannot be read is for
the only call in flight; the progress token of a request is its id, and a peer may send either back as text.
Events wait in a bounded list. Once it is full, new progress replaces older progress, and log messages are
dropped and counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from mcpmux.errors import McpmuxError, Overdue, RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import LOG_LEVEL, VERSION, Call, Event
from mcpmux.protocol.codes import INTERNAL_ERROR
from mcpmux.protocol.envelope import EMPTY_OBJECT, ErrorReply, Reply, Request, decode_fields
from mcpmux.protocol.raw_json import Fields, Id
from mcpmux.transports.waiting import Deadline

T = TypeVar("T", bound="PendingRequest")

OWN_ID_DIGITS: Final = 18  # of an id that a peer sends back as text; ours never get that far
EVENT_LIMIT: Final = 64  # events that wait for one exchange; a reader that keeps up never meets the bound

_SAY_NOTHING: Final = frozenset({m.LISTEN, m.DISCOVER, m.PING})
"""Requests during which a server sends no unmarked notifications about them."""


class PendingRequest:
    """One request that waits for its answer. `wake` is called when something has arrived for it.

    `cut_off` is called once `deadline` has passed. `parked_at`: the time, in trio's, at which it was parked,
    None if it is not. `unanswered`: methods of the questions that were open when its deadline passed.
    """

    def __init__(self, call: Call) -> None:
        self.id = 0  # until it is open
        self.call = call
        self.asked: dict[str, Request] = {}
        self.unanswered: tuple[str, ...] = ()
        self.parked_at: float | None = None
        self.events: list[Event] = []
        self.answer: Reply | ErrorReply | McpmuxError | None = None
        self.dropped = 0
        self.deadline: Deadline | None = None
        self.overdue = False
        self.wake: Callable[[], None] | None = None

    def push(self, event: Event) -> None:
        """Keep an event for the waiting exchange, within the bound.

        Progress renews the deadline, and is dropped then if the client did not ask for it.
        """
        if event.method == m.PROGRESS:
            if self.deadline is not None:
                self.deadline.renew()
            if not self.call.wants_progress:
                return
        # The reader of the stream calls this, and must not wait for one slow client.
        if len(self.events) >= EVENT_LIMIT and not self._make_room(event):
            return
        self.events.append(event)
        self.notify()

    def _make_room(self, event: Event) -> bool:
        """Drop an older event for `event`; return False if `event` itself must be dropped."""
        if event.method == m.PROGRESS:
            for index, waiting in enumerate(self.events):
                if waiting.method == m.PROGRESS:
                    del self.events[index]
                    return True
        self.dropped += 1
        if event.method == m.PROGRESS:
            del self.events[0]
            return True
        return False

    def ask(self, request: Request) -> None:
        """Add a question of the server, which it asks before it answers."""
        self.asked[repr(request.id)] = request  # 7 and "7" are different ids
        self.notify()

    @property
    def is_over(self) -> bool:
        """Whether it has an answer or is overdue."""
        return self.answer is not None or self.overdue

    @property
    def until(self) -> float:
        return math.inf if self.deadline is None else self.deadline.at

    def cut_off(self) -> None:
        """Mark the request as overdue. An answer that has arrived nevertheless still counts."""
        self.overdue = True
        self.notify()

    def result(self) -> Fields:
        """Return the members of the result, once the wait is over.

        Raises RpcError (the answer is an error, or no object), the error with which the request was failed,
        or Overdue if there is no answer.
        """
        answer = self.answer
        if answer is None:
            raise Overdue("no answer in time", self.unanswered)
        if isinstance(answer, Reply):
            if answer.members is not None:  # the decoder has read them already
                return answer.members
            try:
                return decode_fields(answer.result)
            except ValueError:
                raise RpcError(INTERNAL_ERROR, "the upstream's result is not an object") from None
        raise answer.as_error() if isinstance(answer, ErrorReply) else answer

    def settle(self, answer: Reply | ErrorReply | McpmuxError) -> None:
        self.answer = answer
        if self.wake is not None:
            self.wake()

    def notify(self) -> None:
        if self.wake is not None:
            self.wake()


def own_id(token: Id | None) -> int | None:
    """Return the number that our side gave as an id or a progress token; some peers send it back as text."""
    if type(token) is str:
        is_number = len(token) <= OWN_ID_DIGITS and token.isascii() and token.isdecimal()
        return int(token) if is_number and (token[0] != "0" or token == "0") else None
    return token if type(token) is int else None


class PendingRequests:
    """The requests that this side sent on one stream and that are not answered yet."""

    def __init__(self) -> None:
        self._tickets: dict[int, PendingRequest] = {}
        self._next = 0

    def __repr__(self) -> str:
        return f"<PendingRequests {len(self._tickets)} in flight>"

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[PendingRequest]:
        return iter(list(self._tickets.values()))

    def open(self, pending: T) -> T:
        """Add a request, and give it an id that was never used on this stream; return it."""
        pending.id = self._next = self._next + 1
        self._tickets[self._next] = pending
        return pending

    def take_answer(self, answer: Reply | ErrorReply) -> bool:
        """Pass an answer to its request; return False if none waits (cancelled, or never sent)."""
        pending = self._find(answer.id)
        if pending is None:
            return False
        pending.settle(answer)
        return True

    def fail_unread(self, request_id: Id | None, error: McpmuxError) -> bool:
        """Fail the request that the peer could not read, or whose answer we could not; return False if none.

        `request_id`: None for the only request in flight.
        """
        pending = self._find(request_id)
        if request_id is None:
            # A listen waits for its end, not for an answer.
            waiting = [t for t in self._tickets.values() if t.answer is None and t.call.method != m.LISTEN]
            pending = waiting[0] if len(waiting) == 1 else None
        if pending is None:
            return False
        pending.settle(error)
        return True

    def end_listen(self, request_id: Id | None) -> bool:
        """End a listen that its server has ended by `notifications/cancelled`; return False if there is none.

        Only a listen: a server may cancel no other request of ours.
        """
        pending = self._find(request_id)
        if pending is None or pending.call.method != m.LISTEN:
            return False
        pending.settle(Reply(pending.id, EMPTY_OBJECT, {}))
        return True

    def was_used(self, token: Id | None) -> bool:
        """Return whether a request had that id, so that an answer to it is late and no mistake."""
        number = own_id(token)
        return number is not None and 0 < number <= self._next

    def take_event(self, token: Id | None, event: Event) -> bool:
        """Pass a notification to the exchange with that progress token; return False if there is none."""
        pending = self._find(token)
        if pending is None:
            return False
        pending.push(event)
        return True

    def is_open(self, token: Id | None) -> bool:
        """Return whether a request with that id still waits."""
        return self._find(token) is not None

    def sole(self, method: str) -> PendingRequest | None:
        """Return the oldest request in flight, if all are of one client; an unmarked notification is for it.

        `method`: the notification's. A log message is for a request that may get any, if there is one.
        """
        candidates = [t for t in self._tickets.values() if t.call.method not in _SAY_NOTHING]
        if method == m.LOG_MESSAGE:
            # One that has asked for log messages, or is of an era in which none has to.
            candidates = [
                t for t in candidates if LOG_LEVEL in t.call.meta or VERSION not in t.call.meta
            ] or candidates
        # Another client must not see what may be the first one's: several clients make it ambiguous.
        client = candidates[0].call.client if candidates else None
        same = len(candidates) == 1 or (
            client is not None and all(t.call.client is client for t in candidates)
        )
        return candidates[0] if same else None

    @property
    def is_quiet(self) -> bool:
        """Whether no request is in flight that an unmarked notification may be about."""
        return all(pending.call.method in _SAY_NOTHING for pending in self._tickets.values())

    def close(self, pending: PendingRequest) -> bool:
        """Forget a request; return whether it was still waiting, so that the peer must be notified."""
        return self._tickets.pop(pending.id, None) is not None and pending.answer is None

    def fail_all(self, error: McpmuxError) -> None:
        """Fail all waiting requests with errors like `error`, as the stream has ended."""
        for pending in self:  # over a copy: exchanges may go on at once, and close their requests
            # An error each: one that is raised in several exchanges would keep the frames of all of them.
            if pending.answer is None:
                pending.settle(error.anew())

    def _find(self, token: Id | None) -> PendingRequest | None:
        number = token if type(token) is int else own_id(token)
        return None if number is None else self._tickets.get(number)
