"""The tap, which tells observers of every message and every exchange.

Observers of messages never hold anything up. The batch observer is told after them, of many at a time:
without others, messages are only collected when they pass, and read later. Observers of exchanges are asked
before an exchange is worked on, may make it wait or refuse it, and are told how it went. When one refuses an
exchange, those before it are told that it has ended; observers that only count stand first.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import trio

from mcpmux.protocol.call import Call
from mcpmux.protocol.raw_json import Fields, Id
from mcpmux.runtime.tap import EXCHANGE, LAST_SECONDS, NO_HEADERS, Direction, Leg
from mcpmux.traffic.correlation import exchange_of, observe
from mcpmux.traffic.observer import (
    LONG_BYTES,
    AdmissionObserver,
    BatchObserver,
    Exchange,
    ExchangeObserver,
    MessageObserver,
    UnreadMessage,
)
from mcpmux.transports.inline import AT_ONCE, in_task

BATCH: Final = 128  # messages that wait to be looked at: one look costs less for many


class Recorder:
    """See `runtime.tap.Tap`. `clock` gives seconds. `batch_observer` is told of messages last."""

    def __init__(
        self,
        message_observers: Sequence[MessageObserver],
        exchange_observers: Sequence[ExchangeObserver],
        clock: Callable[[], float],
        batch_observer: BatchObserver | None = None,
    ) -> None:
        self._exchange_observers = tuple(exchange_observers)
        self._only_observer = exchange_observers[0] if len(exchange_observers) == 1 else None
        self._admission = self._only_observer if isinstance(self._only_observer, AdmissionObserver) else None
        self.keeps = bool(exchange_observers)
        self._clock = clock
        self._numbers = itertools.count(1)  # of exchanges
        self._takes = [observer.take for observer in message_observers]
        self._batch_observer = batch_observer
        self._has_observers = bool(message_observers) or batch_observer is not None
        self._most_waiting = 1
        if batch_observer is not None and not message_observers:
            self._most_waiting = min(BATCH, batch_observer.most_waiting)
        self._waiting: list[UnreadMessage] = []
        self._exchanges: dict[int, Exchange] = {}
        self._clients = itertools.count(1)

    @property
    def passes(self) -> bool:
        return not self.keeps or (self._admission is not None and self._admission.is_open)

    def client(self, transport: str) -> Leg:
        return Leg("client", f"c{next(self._clients)}", transport)

    def gone(self, leg: Leg) -> None:
        self.settle()
        leg.notes = None

    def message_passed(
        self, leg: Leg, direction: Direction, message: bytes, status: int | None = None
    ) -> None:
        if not self._has_observers:
            return
        waiting = self._waiting
        if not waiting and self._batch_observer is not None:
            self._batch_observer.expect(self.settle)
        waiting.append((leg, direction, message, self._clock(), status, EXCHANGE.get(), False))
        if len(waiting) >= self._most_waiting or len(message) > LONG_BYTES:
            self.settle()

    def settle(self) -> None:
        """Read the messages that wait, and tell of them."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        batch = observe(waiting, self._numbers)
        for take in self._takes:
            for observed in batch:
                take(observed)
        if self._batch_observer is not None:
            self._batch_observer.take_all(batch)

    def exchange_of(self, leg: Leg, request_id: Id, message: bytes | None = None) -> int:
        if not self._has_observers:
            return next(self._numbers)
        if message is not None and self._waiting:
            said_by, direction, data, at, status, _, _ = self._waiting[-1]
            if data is message and said_by is leg:
                number = next(self._numbers)
                self._waiting[-1] = (leg, direction, data, at, status, number, True)
                return number
        self.settle()
        return exchange_of(leg, "in", request_id)

    def routed(self, exchange: int, upstream: str) -> None:
        known = self._exchanges.get(exchange)
        if known is not None and upstream not in known.upstreams:
            known.upstreams.append(upstream)

    def admit(
        self, leg: Leg, exchange: int, call: Call, headers: Mapping[str, str] = NO_HEADERS
    ) -> Awaitable[None]:
        known = Exchange(exchange, leg, call, self._clock(), [], headers)
        if self._only_observer is None:
            return self._admit(known)
        admitted = self._only_observer.admit(known)
        if admitted is not AT_ONCE:
            return self._admit_after(admitted, known)
        self._exchanges[exchange] = known
        return AT_ONCE

    async def _admit_after(self, admitted: Awaitable[None], known: Exchange) -> None:
        await admitted
        self._exchanges[known.number] = known

    async def _admit(self, known: Exchange) -> None:
        admitted: list[ExchangeObserver] = []
        try:
            for observer in self._exchange_observers:
                await observer.admit(known)
                admitted.append(observer)
        except BaseException as refusal:
            await in_task()
            with trio.move_on_after(LAST_SECONDS, shield=True):
                for observer in admitted:
                    await observer.ended(known, refusal, self._clock() - known.began)
            raise
        self._exchanges[known.number] = known

    def ended(self, exchange: int, outcome: Fields | BaseException) -> Awaitable[None]:
        known = self._exchanges.pop(exchange, None)
        if known is None:
            return AT_ONCE
        seconds = self._clock() - known.began
        if self._only_observer is not None:
            return self._only_observer.ended(known, outcome, seconds)
        return self._tell_the_end(known, outcome, seconds)

    async def _tell_the_end(self, known: Exchange, outcome: Fields | BaseException, seconds: float) -> None:
        for observer in self._exchange_observers:
            await observer.ended(known, outcome, seconds)
