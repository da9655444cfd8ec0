"""Requests in flight on one duplex stream: who waits for what.

State of a pending request

    waiting --reply/error--> answered --close()--> gone
    waiting --ask()--------> asked         (the server wants to know something first; see runtime/calls)
    waiting --cut_off()----> overdue       (its time is over, which `wake` tells) --close()--> gone
    waiting --close()------> gone          (the caller gave up: its late answer is swallowed)
    waiting --fail_all()---> answered      (the stream ended)

Rules: an id is used once per stream; a reply to an unknown id is nobody's and is dropped; the progress
token of a request is its id; events wait in a bounded box, where progress keeps the latest and log
messages are dropped with a count once it is full.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol, TypeVar

from mcpmux.errors import McpmuxError, Overdue, RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import LOG_LEVEL, META, PROGRESS_TOKEN, VERSION, Call, Event, Meta
from mcpmux.protocol.codes import INTERNAL_ERROR
from mcpmux.protocol.envelope import ErrorReply, Reply, Request, decode_fields, encode, raw
from mcpmux.protocol.raw_json import Fields, Id, RequestOut

T = TypeVar("T", bound="PendingRequest")

EVENT_LIMIT: Final = 64  # events that wait for one exchange; a reader that keeps up never sees the bound

_SAY_NOTHING: Final = frozenset({m.LISTEN, m.DISCOVER, m.PING})
"""Requests on whose way a server says nothing of its own."""


class Deadline(Protocol):
    """A moment in time (`at`), which may move."""

    at: float


class PendingRequest:
    """One request that waits for its answer. `wake` is called whenever there is something to take.

    `cut_off` is called once `deadline` has passed.
    """

    __slots__ = (
        "answer",
        "asked",
        "call",
        "deadline",
        "dropped",
        "events",
        "id",
        "overdue",
        "parked_until",
        "wake",
    )

    def __init__(self, id: int, call: Call) -> None:  # noqa: A002 - the protocol's word
        self.id = id
        self.call = call
        self.asked: dict[str, Request] = {}
        self.parked_until: float | None = None
        self.events: deque[Event] = deque()
        self.answer: Reply | ErrorReply | McpmuxError | None = None
        self.dropped = 0
        self.deadline: Deadline | None = None
        self.overdue = False
        self.wake: Callable[[], None] | None = None

    def __repr__(self) -> str:
        state = "answered" if self.answer is not None else "waiting"
        return f"<PendingRequest {self.id} {state}, {len(self.events)} events>"

    def push(self, event: Event) -> None:
        """Keep an event for the waiting exchange, within the bound."""
        if len(self.events) >= EVENT_LIMIT and not self._make_room(event):
            return
        self.events.append(event)
        self.notify()

    def _make_room(self, event: Event) -> bool:
        """Give up something older for `event`; False when `event` itself is what must go."""
        if event.method == m.PROGRESS:
            for index, waiting in enumerate(self.events):
                if waiting.method == m.PROGRESS:
                    del self.events[index]
                    return True
        self.dropped += 1
        if event.method == m.PROGRESS:
            self.events.popleft()
            return True
        return False

    def ask(self, request: Request) -> None:
        """The server asks something before it answers."""
        self.asked[repr(request.id)] = request  # 7 and "7" are different ids
        self.notify()

    @property
    def until(self) -> float:
        """When its time is over."""
        return math.inf if self.deadline is None else self.deadline.at

    def cut_off(self) -> None:
        """Its time is over. An answer that has come all the same still counts."""
        self.overdue = True
        self.notify()

    def result(self) -> Fields | None:
        """The members of the result, once that has come; until then None.

        Raises RpcError (it is an error, or makes no sense), what the request was failed with, or Overdue.
        """
        answer = self.answer
        if answer is None:
            if self.overdue and not self.asked:
                raise Overdue("no answer in time")
            return None
        if isinstance(answer, Reply):
            return answer.members if answer.members is not None else _members_of(answer)
        raise answer.as_error() if isinstance(answer, ErrorReply) else answer

    def settle(self, answer: Reply | ErrorReply | McpmuxError) -> None:
        """The answer has come."""
        self.answer = answer
        if self.wake is not None:
            self.wake()

    def notify(self) -> None:
        """There is something to take, or something else to do."""
        if self.wake is not None:
            self.wake()


class PendingRequests:
    """The requests that our side sent on one stream and that are not answered yet."""

    def __init__(self) -> None:
        self._tickets: dict[int, PendingRequest] = {}
        self._next = 0

    def __repr__(self) -> str:
        return f"<PendingRequests {len(self._tickets)} in flight>"

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[PendingRequest]:
        return iter(list(self._tickets.values()))

    def open(self, call: Call, kind: type[T] = PendingRequest) -> T:  # type: ignore[assignment]  # mypy 4236
        """A pending request for a call, under an id that was never used on this stream."""
        self._next += 1
        pending = self._tickets[self._next] = kind(self._next, call)
        return pending

    def take_answer(self, answer: Reply | ErrorReply) -> bool:
        """Hand an answer to whoever waits; False when nobody does (cancelled, or never asked)."""
        pending = self._find(answer.id)
        if pending is None:
            return False
        pending.settle(answer)
        return True

    def take_event(self, token: Id | None, event: Event) -> bool:
        """Hand a request-scoped notification to the exchange with that progress token."""
        pending = self._find(token)
        if pending is None:
            return False
        pending.push(event)
        return True

    def is_open(self, token: Id | None) -> bool:
        """Whether somebody still waits for the answer with that id."""
        return self._find(token) is not None

    def sole(self, method: str) -> PendingRequest | None:
        """The oldest request in flight, when all are of one client: an unmarked notification is for it.

        `method`: the notification's. A log message is for one that may hear any, if there is such.
        """
        all_pending = [t for t in self._tickets.values() if t.call.method not in _SAY_NOTHING]
        if method == m.LOG_MESSAGE:
            # One that has asked for log messages, or is of an era in which none has to.
            hearing = [t for t in all_pending if LOG_LEVEL in t.call.meta or VERSION not in t.call.meta]
            all_pending = hearing or all_pending
        if not all_pending:
            return None
        client = all_pending[0].call.client
        same = len(all_pending) == 1 or (
            client is not None and all(t.call.client is client for t in all_pending)
        )
        return all_pending[0] if same else None

    def close(self, pending: PendingRequest) -> bool:
        """Forget a request; True when it was still waiting, so that the peer must be told."""
        self._tickets.pop(pending.id, None)
        return pending.answer is None

    def fail_all(self, error: McpmuxError) -> None:
        """The stream is over: everybody who waits gets `error`."""
        for pending in self:  # those who wait may go on at once, and close theirs
            if pending.answer is None:
                pending.settle(error)

    def _find(self, token: Id | None) -> PendingRequest | None:
        if isinstance(token, bool) or not isinstance(token, int):
            return None
        return self._tickets.get(token)


def _members_of(answer: Reply) -> Fields:
    try:
        return decode_fields(answer.result)
    except ValueError:
        raise RpcError(INTERNAL_ERROR, "the upstream's result is not an object") from None


def encode_call(request_id: int, call: Call) -> bytes:
    """A call as it is sent, with its id as its progress token if it has one."""
    params: Mapping[str, Any] = call.params
    meta = call.meta
    if isinstance(meta, Meta):
        params = {**params, META: meta.encoded}
    elif PROGRESS_TOKEN in meta:
        params = {**params, META: {**meta, PROGRESS_TOKEN: raw(request_id)}}
    elif meta:
        params = {**params, META: meta}
    if not params:
        return encode({"jsonrpc": "2.0", "id": request_id, "method": call.method})
    return encode(RequestOut(request_id, call.method, params))
