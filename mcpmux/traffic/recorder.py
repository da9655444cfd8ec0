"""The tap: tells everybody who watches, and asks everybody who must keep something.

Sinks are told of every message and never hold anything up. Keepers are asked before an exchange is worked on
and told how it went, and may make it wait or refuse it. Those that had admitted one that a later keeper
refuses are told that, too; keepers that only count stand first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec
import trio

from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import Fields, Id
from mcpmux.runtime.tap import EXCHANGE, LAST_SECONDS, NO_HEADERS, Direction, Leg
from mcpmux.traffic.correlation import Correlator, Seen


class Exchange(msgspec.Struct, gc=False):
    """One exchange that is being worked on. `upstreams`: configured names, in the order they were asked."""

    number: int
    leg: Leg
    call: Call
    began: float
    upstreams: list[str]
    headers: Mapping[str, str]


class Sink(Protocol):
    """Told of every message."""

    def take(self, seen: Seen) -> None:
        """Must not wait."""
        ...


class Keeper(Protocol):
    """Asked and told about every exchange."""

    async def admit(self, exchange: Exchange) -> None:
        """Before it is worked on. May wait. Raises RpcError when it must not be."""
        ...

    async def ended(self, exchange: Exchange, outcome: Fields | BaseException, seconds: float) -> None:
        """After it was worked on, before the client has the answer. May wait, may raise RpcError."""
        ...


class Recorder:
    """See `runtime.tap.Tap`. `clock` gives seconds."""

    def __init__(self, sinks: Sequence[Sink], keepers: Sequence[Keeper], clock: Callable[[], float]) -> None:
        self._sinks = tuple(sinks)
        self._keepers = tuple(keepers)
        self.keeps = bool(keepers)
        self._clock = clock
        self._correlator = Correlator()
        self._take_one = self._correlator.take_one
        self._takes = [sink.take for sink in sinks]
        self._exchanges: dict[int, Exchange] = {}
        self._clients = itertools.count(1)

    def __repr__(self) -> str:
        return f"<Recorder {self._correlator!r} {len(self._exchanges)} open>"

    def client(self, transport: str) -> Leg:
        """See Tap."""
        return Leg("client", f"c{next(self._clients)}", transport)

    def gone(self, leg: Leg) -> None:
        """See Tap."""
        self._correlator.forget(leg)

    def saw(self, leg: Leg, direction: Direction, message: bytes, status: int | None = None) -> None:
        """See Tap. Exchanges begin and end on clients' legs: without sinks the others are of no interest."""
        if not self._sinks and leg.side == "upstream":
            return
        if message.startswith(b"{"):
            one = self._take_one(leg, direction, message, EXCHANGE.get(), self._clock())
            if status is not None:
                one.status = status
            for take in self._takes:
                take(one)
            return
        for seen in self._correlator.take(leg, direction, message, EXCHANGE.get(), self._clock()):
            seen.status = status
            for sink in self._sinks:
                sink.take(seen)

    def exchange_of(self, leg: Leg, request_id: Id) -> int:
        """See Tap."""
        return self._correlator.exchange_of(leg, request_id)

    def routed(self, exchange: int, upstream: str) -> None:
        """See Tap."""
        known = self._exchanges.get(exchange)
        if known is not None and upstream not in known.upstreams:
            known.upstreams.append(upstream)

    async def admit(
        self, leg: Leg, exchange: int, call: Call, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        """See Tap."""
        known = Exchange(exchange, leg, call, self._clock(), [], headers)
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
        self._exchanges[exchange] = known

    async def ended(self, exchange: int, outcome: Fields | BaseException) -> None:
        """See Tap."""
        known = self._exchanges.pop(exchange, None)
        if known is not None:
            seconds = self._clock() - known.began
            for keeper in self._keepers:
                await keeper.ended(known, outcome, seconds)
