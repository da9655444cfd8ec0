"""The tap: tells everybody who watches, and asks everybody who must keep something.

Sinks are told of every message and never hold anything up. An archive is told after them, of many at a time:
with nobody else to tell, what passes is only put down, and looked at later. Keepers are asked before an
exchange is worked on and told how it went, and may make it wait or refuse it. Those that had admitted one
that a later keeper refuses are told that, too; keepers that only count stand first.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import trio

from mcpmux.protocol.call import Call
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.shapes import Id
from mcpmux.runtime.tap import EXCHANGE, LAST_SECONDS, NO_HEADERS, Direction, Leg
from mcpmux.traffic.correlation import Correlator
from mcpmux.traffic.observer import LONG, Archive, Doorkeeper, Exchange, Keeper, Passed, Sink
from mcpmux.transports.inline import AT_ONCE

BATCH: Final = 128  # messages that wait to be looked at: one look costs less for many


class Recorder:
    """See `runtime.tap.Tap`. `clock` gives seconds. `archive` is told of messages after the sinks."""

    def __init__(
        self,
        sinks: Sequence[Sink],
        keepers: Sequence[Keeper],
        clock: Callable[[], float],
        archive: Archive | None = None,
    ) -> None:
        self._keepers = tuple(keepers)
        self._only_keeper = keepers[0] if len(keepers) == 1 else None
        self._doorkeeper = self._only_keeper if isinstance(self._only_keeper, Doorkeeper) else None
        self.keeps = bool(keepers)
        self._clock = clock
        self._correlator = Correlator()
        self._takes = [sink.take for sink in sinks]
        self._archive = archive
        self._is_told = bool(sinks) or archive is not None
        self._most_waiting = min(BATCH, archive.patience) if archive is not None and not sinks else 1
        self._waiting: list[Passed] = []
        self._exchanges: dict[int, Exchange] = {}
        self._clients = itertools.count(1)

    def __repr__(self) -> str:
        return f"<Recorder {self._correlator!r} {len(self._exchanges)} open>"

    @property
    def passes(self) -> bool:
        """See Tap."""
        return not self.keeps or (self._doorkeeper is not None and self._doorkeeper.is_open)

    def client(self, transport: str) -> Leg:
        """See Tap."""
        return Leg("client", f"c{next(self._clients)}", transport)

    def gone(self, leg: Leg) -> None:
        """See Tap."""
        self.settle()
        self._correlator.forget(leg)

    def saw(self, leg: Leg, direction: Direction, message: bytes, status: int | None = None) -> None:
        """See Tap."""
        if not self._is_told:
            return
        waiting = self._waiting
        if not waiting and self._archive is not None:
            self._archive.expect(self.settle)
        waiting.append((leg, direction, message, self._clock(), status, EXCHANGE.get(), False))
        if len(waiting) >= self._most_waiting or len(message) > LONG:
            self.settle()

    def settle(self) -> None:
        """Look at the messages that wait, and tell of them."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        batch = self._correlator.settle(waiting)
        for take in self._takes:
            for seen in batch:
                take(seen)
        if self._archive is not None:
            self._archive.take_all(batch)

    def exchange_of(self, leg: Leg, request_id: Id, message: bytes | None = None) -> int:
        """See Tap."""
        if not self._is_told:
            return self._correlator.begin()
        if message is not None and self._waiting:
            said_by, direction, data, at, status, _, _ = self._waiting[-1]
            if data is message and said_by is leg:
                number = self._correlator.begin()
                self._waiting[-1] = (leg, direction, data, at, status, number, True)
                return number
        self.settle()
        return self._correlator.exchange_of(leg, request_id)

    def routed(self, exchange: int, upstream: str) -> None:
        """See Tap."""
        known = self._exchanges.get(exchange)
        if known is not None and upstream not in known.upstreams:
            known.upstreams.append(upstream)

    def admit(
        self, leg: Leg, exchange: int, call: Call, headers: Mapping[str, str] = NO_HEADERS
    ) -> Awaitable[None]:
        """See Tap."""
        known = Exchange(exchange, leg, call, self._clock(), [], headers)
        if self._only_keeper is None:
            return self._admit(known)
        admitted = self._only_keeper.admit(known)
        if admitted is not AT_ONCE:
            return self._admit_after(admitted, known)
        self._exchanges[exchange] = known
        return AT_ONCE

    async def _admit_after(self, admitted: Awaitable[None], known: Exchange) -> None:
        await admitted
        self._exchanges[known.number] = known

    async def _admit(self, known: Exchange) -> None:
        admitted: list[Keeper] = []
        try:
            for keeper in self._keepers:
                await keeper.admit(known)
                admitted.append(keeper)
        except BaseException as refusal:
            with trio.move_on_after(LAST_SECONDS, shield=True):
                for keeper in admitted:
                    await keeper.ended(known, refusal, self._clock() - known.began)
            raise
        self._exchanges[known.number] = known

    def ended(self, exchange: int, outcome: Fields | BaseException) -> Awaitable[None]:
        """See Tap."""
        known = self._exchanges.pop(exchange, None)
        if known is None:
            return AT_ONCE
        seconds = self._clock() - known.began
        if self._only_keeper is not None:
            return self._only_keeper.ended(known, outcome, seconds)
        return self._tell_the_end(known, outcome, seconds)

    async def _tell_the_end(self, known: Exchange, outcome: Fields | BaseException, seconds: float) -> None:
        for keeper in self._keepers:
            await keeper.ended(known, outcome, seconds)
