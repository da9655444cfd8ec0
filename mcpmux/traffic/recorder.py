"""The tap, which passes every message and every exchange on to observers.

Observers of messages never delay traffic. Most get many at a time: messages are only collected
when they pass, and decoded later, unless an observer needs each at once. Observers of exchanges
admit an exchange before it is worked on, may delay or refuse it, and get its outcome. When one
refuses an exchange, those before it get that as its end; observers that only count come first.

Collected messages are matched: answers to their requests on each leg, and both to the exchange behind them.
State, for each leg and direction: the unanswered requests, by id. It is kept in the leg's
`notes`, which are None when there are none.

    a client's request          begins an exchange
    what mcpmux sends           belongs to the exchange that it is sent for, which the caller names
    an answer                   belongs to the exchange of its request
    progress of an upstream     belongs to the exchange of the request with that token (mcpmux uses its id)
    anything else of an         belongs to the exchange in whose context it was read, or to the only one of
      upstream                  the leg that was not cancelled, or to none
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
import trio
from msgspec import UNSET

from mcpmux.channels.pending import own_id
from mcpmux.channels.tap import EXCHANGE, LAST_SECONDS, NO_HEADERS, Direction, Intercepted, Leg, Said
from mcpmux.lru import Lru
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import (
    UNREADABLE,
    BadMessage,
    ErrorReply,
    Notification,
    Request,
    decode_message,
    is_batch,
    split_batch,
)
from mcpmux.protocol.raw_json import Fields, Id, Raw, repaired
from mcpmux.traffic.observer import (
    BATCH,
    LONG_BYTES,
    Exchange,
    ExchangeObserver,
    MessageObserver,
    Observation,
    PendingRequest,
)
from mcpmux.traffic.record import MICROS, NO_PARAMS, Envelope, Error, Params, Result
from mcpmux.transports.inline import AT_ONCE, in_task

T = TypeVar("T", Params, Result)

PENDING_LIMIT: Final = 4096  # of one leg and direction; older ones count as never answered
PENDING_BYTES: Final = 2**20  # of requests of peers, which choose ids and methods
SENT_BYTES: Final = 4 * 2**20  # of requests of mcpmux

_EXCHANGE: Final = 0  # of PendingRequest
_OF_EXCHANGES: Final = frozenset({m.PROGRESS, m.LOG_MESSAGE})

_PendingById: TypeAlias = Lru[Id, PendingRequest]
"""Unanswered requests, the oldest first."""


class Recorder:
    """See `runtime.tap.Tap`. `clock` returns seconds."""

    def __init__(
        self,
        message_observers: Sequence[MessageObserver],
        exchange_observers: Sequence[ExchangeObserver],
        clock: Callable[[], float],
    ) -> None:
        self._exchange_observers = list(exchange_observers)
        self.keeps = bool(exchange_observers)
        self._clock = clock
        self._exchange_numbers = itertools.count(1)
        self._message_numbers = itertools.count(1)
        self._message_observers = list(message_observers)
        self._most_waiting = min([BATCH, *(observer.most_waiting for observer in message_observers)])
        self._waiting: list[Observation] = []
        self._exchanges: dict[int, Exchange] = {}
        self._clients = itertools.count(1)

    @property
    def passes(self) -> bool:
        """Whether no observer of exchanges needs to admit one now."""
        for observer in self._exchange_observers:  # noqa: SIM110 - a generator costs more
            if not observer.passes:
                return False
        return True

    def client(self, transport: str) -> Leg:
        """Return the leg of a new client."""
        return Leg("client", f"c{next(self._clients)}", transport)

    def gone(self, leg: Leg) -> None:
        """Forget a leg that has ended, after its last messages are passed on."""
        self.settle()
        leg.notes = None

    def message_passed(
        self,
        leg: Leg,
        direction: Direction,
        message: bytes,
        status: int | None = None,
        said: Said | None = None,
    ) -> None:
        """Collect a message, and pass the collected ones on when there are enough or it is long."""
        if not self._message_observers:
            return
        waiting = self._waiting
        if not waiting:
            for observer in self._message_observers:
                observer.expect(self.settle)
        # The context variable holds only now, so the exchange is noted before the message is decoded.
        at, exchange = self._clock(), EXCHANGE.get()
        waiting.append(Observation(leg, direction, message, at, "", exchange, status=status, said=said))
        if len(waiting) >= self._most_waiting or len(message) > LONG_BYTES:
            self.settle()

    def settle(self) -> None:
        """Decode the waiting messages, and pass them on."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        batch = observe(waiting, self._exchange_numbers, self._message_numbers)
        for observer in self._message_observers:
            observer.take_all(batch)

    def exchange_of(
        self, leg: Leg, request_id: Id, message: bytes | None = None, said: Said | None = None
    ) -> int:
        """Return the exchange of a client's request. `message`: its bytes, if it passed just now."""
        if not self._message_observers:
            return next(self._exchange_numbers)
        # The request is the last message: its exchange can begin without decoding it for the observers.
        if message is not None and self._waiting:
            last = self._waiting[-1]
            if last.data is message and last.leg is leg:
                last.said, last.has_begun, last.exchange = said, True, next(self._exchange_numbers)
                return last.exchange
        self.settle()
        return pending_exchange(leg, "in", request_id)

    def routed(self, exchange: int, upstream: str) -> None:
        """Note that an exchange went to an upstream."""
        record = self._exchanges.get(exchange)
        if record is not None and upstream not in record.upstreams:
            record.upstreams.append(upstream)

    def intercepted(self, exchange: int, verdict: Intercepted) -> None:
        """Note what an interceptor has decided."""
        record = self._exchanges.get(exchange)
        if record is not None:
            record.intercepted = (*record.intercepted, verdict)

    def admit(
        self, leg: Leg, exchange: int, call: Call, headers: Mapping[str, str] = NO_HEADERS
    ) -> Awaitable[None]:
        """Have all observers admit an exchange. Raises the refusal of the first that refuses."""
        record = Exchange(exchange, leg, call, self._clock(), [], headers)
        count = 0
        try:
            for observer in self._exchange_observers:
                admitted = observer.admit(record)
                count += 1
                if admitted is not AT_ONCE:
                    return self._admit_on(record, admitted, count)
        except Exception as refusal:
            if not count:
                raise
            return self._turn_down(record, refusal, count)
        self._exchanges[exchange] = record
        return AT_ONCE

    async def _admit_on(self, record: Exchange, admitted: Awaitable[None], count: int) -> None:
        """Go on with the observers after the first `count`. `admitted` is the answer of the last of those."""
        try:
            await admitted
            for observer in self._exchange_observers[count:]:
                count += 1
                await observer.admit(record)
            # Cancellation counts as well: observers that have admitted the exchange must get its end.
        except BaseException as refusal:
            await self._turn_down(record, refusal, count - 1)
        self._exchanges[record.number] = record

    async def _turn_down(self, record: Exchange, refusal: BaseException, admitted: int) -> None:
        """Pass a refusal on to the observers that have admitted the exchange. Raises the refusal."""
        if admitted:
            await in_task()
            with trio.move_on_after(LAST_SECONDS, shield=True):
                for observer in self._exchange_observers[:admitted]:
                    await observer.ended(record, refusal, self._clock() - record.began)
        raise refusal

    def ended(self, exchange: int, outcome: Fields | BaseException) -> Awaitable[None]:
        """Pass the outcome of an exchange on to all observers, in order."""
        record = self._exchanges.pop(exchange, None)
        if record is None:
            return AT_ONCE
        seconds = self._clock() - record.began
        for count, observer in enumerate(self._exchange_observers, 1):
            answer = observer.ended(record, outcome, seconds)
            if answer is not AT_ONCE:
                return self._tell_on(record, outcome, seconds, answer, count)
        return AT_ONCE

    async def _tell_on(
        self,
        record: Exchange,
        outcome: Fields | BaseException,
        seconds: float,
        answer: Awaitable[None],
        count: int,
    ) -> None:
        """Go on with the observers after the first `count`. `answer` is that of the last of those."""
        await answer
        for observer in self._exchange_observers[count:]:
            await observer.ended(record, outcome, seconds)


# Matching of messages. Pure; time and numbers of exchanges are arguments.


def _pending(leg: Leg) -> tuple[_PendingById, _PendingById]:
    if leg.notes is None:
        leg.notes = (Lru(PENDING_LIMIT, PENDING_BYTES), Lru(PENDING_LIMIT, SENT_BYTES))
    pending_of_side: tuple[_PendingById, _PendingById] = leg.notes
    return pending_of_side


def pending_exchange(leg: Leg, direction: Direction, request_id: Id) -> int:
    """Return the exchange of an unanswered request; 0 when there is none."""
    pending = _pending(leg)[direction == "out"].get(request_id)
    return pending[_EXCHANGE] if pending is not None else 0


def observe(
    messages: Iterable[Observation], exchanges: Iterator[int], numbers: Iterator[int]
) -> list[Observation]:
    """Read messages. Return them, with its members in the place of a batch.

    `exchanges`: numbers of new exchanges. `numbers`: of the messages.
    """
    observed: list[Observation] = []
    for message in messages:
        facts, message.said = message.said, None
        if facts is None:
            try:
                _read(message, exchanges, numbers)
            except BadMessage:
                observed += _read_batch(message, exchanges, numbers)
                continue
        else:
            message.number = next(numbers)
            if facts.kind == "request" and facts.id is not None:
                _take_request(message, facts.id, facts.method, facts.target, exchanges)
            else:
                _take_answer(message, facts.id, facts.code, facts.failed)
        observed.append(message)
    return observed


def _read_batch(batch: Observation, exchanges: Iterator[int], numbers: Iterator[int]) -> list[Observation]:
    """Return the members of a batch; one invalid message for anything else."""
    leg, direction, data, at = batch.leg, batch.direction, batch.data, batch.at
    try:
        parts = split_batch(data) if is_batch(data) else [data]
    except BadMessage:
        parts = [data]
    members: list[Observation] = []
    for part in parts:
        member = Observation(leg, direction, part, at, "invalid", batch.exchange, status=batch.status)
        members.append(member)
        try:
            _read(member, exchanges, numbers)
        except BadMessage as bad:
            member.id, member.number = bad.id, next(numbers)
    return members


def _read(message: Observation, exchanges: Iterator[int], numbers: Iterator[int]) -> None:
    """Read one message. Raises BadMessage, without a change."""
    envelope = _read_at_once(message.data)
    if envelope is None:
        envelope = read_by_member(message.data)
        message.data = repaired(message.data)  # so that the record is valid JSON
    method, request_id = envelope.method, envelope.id
    message.number = next(numbers)
    if method is UNSET:
        code = envelope.error.code if envelope.error is not UNSET else None
        failed = envelope.result is not UNSET and envelope.result.isError is True
        _take_answer(message, None if request_id is UNSET else request_id, code, failed or None)
        return
    params = envelope.params or NO_PARAMS
    if request_id is UNSET or request_id is None:
        _take_notification(message, method, params)
    else:
        about = params.uri if type(params.uri) is str else params.target
        _take_request(message, request_id, method, about, exchanges)


def _take_notification(message: Observation, method: str, params: Params) -> None:
    leg, direction = message.leg, message.direction
    message.kind, message.method, message.target = "notification", method, params.target
    if method == m.CANCELLED:
        requests, request_id = _pending(leg)[direction == "out"], params.requestId
        pending = requests.get(request_id) if _is_id(request_id) else None
        if pending is not None:
            exchange, of_method, began, _, number = pending
            # Marked, and not forgotten: an answer may come nevertheless.
            requests[request_id] = exchange, of_method, began, True, number
            message.exchange = exchange or message.exchange
    elif direction == "in" and leg.side == "upstream" and not message.exchange and method in _OF_EXCHANGES:
        token = params.progressToken
        known = _is_id(token)
        message.exchange = pending_exchange(leg, "out", _sent_id(token)) if known else _only_exchange(leg)


def _take_request(
    message: Observation, request_id: Id, method: str, about: str | None, exchanges: Iterator[int]
) -> None:
    leg, direction, exchange = message.leg, message.direction, message.exchange
    # A request of a client begins an exchange, unless `Recorder.exchange_of` has begun it already.
    if direction == "in" and not message.has_begun:
        if leg.side == "client":
            exchange = next(exchanges)
        elif not exchange:
            exchange = _only_exchange(leg)
    pending = (leg.notes or _pending(leg))[direction == "out"]
    pending.keep(request_id, (exchange, method, message.at, False, message.number), len(method))
    message.kind, message.exchange, message.method = "request", exchange, method
    message.id, message.target = request_id, about


def _take_answer(message: Observation, request_id: Id | None, code: int | None, failed: bool | None) -> None:
    """Note what answers say. `failed`: whether its result has `isError`."""
    leg, direction = message.leg, message.direction
    if request_id is not None:
        requests = (leg.notes or _pending(leg))[direction == "in"]
        pending = requests.pop(_sent_id(request_id) if direction == "in" else request_id)
        if pending is not None:
            message.exchange, message.method, began, _, message.answers = pending
            message.ms = round((message.at - began) * MICROS) / 1000
    message.kind, message.id, message.code = "result" if code is None else "error", request_id, code
    # `isError` has a meaning in the result of a tool call only.
    message.failed = failed if failed and code is None and message.method == m.TOOLS_CALL else None


def _only_exchange(leg: Leg) -> int:
    """Return the one exchange that an upstream works for; 0 when there are none or several."""
    _, sent = _pending(leg)
    exchanges = {exchange for exchange, _, _, was_taken_back, _ in sent.values() if not was_taken_back}
    exchanges.discard(0)  # requests of mcpmux itself
    return exchanges.pop() if len(exchanges) == 1 else 0


def _sent_id(request_id: Id) -> Id:
    """Return the id of a request that mcpmux has sent, which some peers send back as text."""
    number = own_id(request_id)
    return request_id if number is None else number


def _is_id(value: Any) -> bool:
    return isinstance(value, (int, str)) and not isinstance(value, bool)


# The envelope of a message, with the few members of params and results that are recorded. Pure.
#
# Promises: accepts and refuses the same messages as `decode_message`. Most are decoded in one go; those that
# are malformed in some place are decoded again, member by member.

_decode: Final = msgspec.json.Decoder(Envelope).decode


def read_envelope(data: bytes) -> Envelope:
    """Return the envelope of a message. Raises BadMessage."""
    return _read_at_once(data) or read_by_member(data)


def _read_at_once(data: bytes) -> Envelope | None:
    """Return the envelope of a well-formed message; None for any other."""
    try:
        if not data.isascii():
            data.decode()
        envelope = _decode(data)
        if envelope.method is not UNSET:
            if envelope.id is not None:
                return envelope
        elif envelope.error is not UNSET or (
            envelope.result is not UNSET and envelope.id is not UNSET and envelope.id is not None
        ):
            return envelope
    except UNREADABLE:
        pass
    return None


def method_id_target(message: bytes) -> tuple[str | None, Id | None, str | None]:
    """Return the method, id and target of a message; None for absent ones."""
    try:
        envelope = read_envelope(message)
    except BadMessage as bad:
        return None, bad.id, None
    method = None if envelope.method is UNSET else envelope.method
    request_id = None if envelope.id is UNSET else envelope.id
    params = envelope.params if method is not None else None
    return method, request_id, params.target if params is not None else None


def read_by_member(data: bytes) -> Envelope:
    """Return the envelope of a message that is malformed in some place. Raises BadMessage."""
    message = decode_message(data)
    if isinstance(message, (Request, Notification)):
        request_id = message.id if isinstance(message, Request) else UNSET
        return Envelope("2.0", request_id, message.method, _part(message.params, Params))
    if isinstance(message, ErrorReply):
        return Envelope("2.0", message.id, error=Error(message.code))
    return Envelope("2.0", message.id, result=_part(message.result, Result) or Result())


def _part(part: Raw | None, kind: type[T]) -> T | None:
    """Return the recorded members of a part of a message; None when it is absent or malformed."""
    try:
        return msgspec.json.decode(part, type=kind) if part is not None else None
    except UNREADABLE:
        return None
