"""The tap, which passes every message and every exchange on to observers.

Observers of messages never delay traffic. Most get many at a time: messages are only collected
when they pass, and decoded later, unless an observer needs each at once. Observers of exchanges
admit an exchange before it is worked on, may delay or refuse it, and get its outcome. When one
refuses an exchange, those before it get that as its end; observers that only count come first.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence

import trio

from mcpmux.channels.tap import EXCHANGE, LAST_SECONDS, NO_HEADERS, Direction, Intercepted, Leg, Said
from mcpmux.protocol.call import Call
from mcpmux.protocol.raw_json import Fields, Id
from mcpmux.traffic.correlation import exchange_of, observe
from mcpmux.traffic.observer import (
    BATCH,
    LONG_BYTES,
    Exchange,
    ExchangeObserver,
    MessageObserver,
    Observation,
)
from mcpmux.transports.inline import AT_ONCE, in_task


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
        return exchange_of(leg, "in", request_id)

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
