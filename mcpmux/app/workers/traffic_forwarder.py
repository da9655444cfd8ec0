"""Forward the traffic of workers to the supervisor, whose inspector shows all workers as one.

Messages arrive in batches, in the order in which their worker saw them. Waiting messages are bounded in
bytes; messages that do not fit are left out, and the log counts them. Times, exchanges and clients are
translated to those of the supervisor; `peer` names the worker, as in `2/c7`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import structlog
import trio

from mcpmux.channels.tap import Leg
from mcpmux.lru import Lru
from mcpmux.protocol.raw_json import Fields
from mcpmux.traffic.admin.ring import LiveRing
from mcpmux.traffic.observer import BATCH, Exchange, Observation
from mcpmux.transports.inline import AT_ONCE
from mcpmux.transports.waiting import stopwatch

log = structlog.get_logger()

BATCH_SECONDS = 0.1  # between two batches; as often as the inspector looks
WAITING_BYTES = 16 * 2**20  # of messages that were not forwarded yet
MESSAGE_BYTES = 400  # of a message besides its text, about
LONG_BYTES = 4 * 2**20  # a longer message is forwarded without its text
LEGS = 16_384  # conversations that the supervisor remembers; the longest silent is forgotten first
LEGS_BYTES = 8 * 2**20  # of them: peers choose names and ids of sessions

_leg_facts = attrgetter("side", "peer", "transport", "upstream", "revision", "session", "name")

TrafficBatch: TypeAlias = list[tuple[tuple[Any, ...], int, tuple[Any, ...]] | tuple[int, str] | int]
"""Messages, (exchange, view) pairs, and exchanges that ended without an answer, in the order of the worker.

A message is the facts of its leg, the size of its whole text, and its Observation without the leg. Times are
readings of the system's monotonic clock, which all processes share.
"""

Send: TypeAlias = Callable[[TrafficBatch], Awaitable[None]]


class TrafficForwarder:
    """The end in a worker: a MessageObserver, and an ExchangeObserver that never waits. `run` must run."""

    most_waiting = BATCH
    passes = False

    def __init__(self) -> None:
        self._settle: Callable[[], None] = lambda: None
        # Trio's time differs between processes, and the system's may be set: messages travel with neither.
        self._behind = stopwatch()() - trio.current_time()
        self._waiting: TrafficBatch = []
        self._views: dict[int, str] = {}  # of exchanges that were admitted after the last messages
        self._bytes = 0
        self._missing = 0

    def expect(self, settle: Callable[[], None]) -> None:
        self._settle = settle

    def take_all(self, batch: Sequence[Observation]) -> None:
        for seen in batch:
            if self._bytes > WAITING_BYTES:
                self._missing += 1
                continue
            size = len(seen.data)
            data = seen.data if size <= LONG_BYTES else b""
            self._bytes += len(data) + MESSAGE_BYTES
            facts = (seen.direction, data, seen.at + self._behind, *seen.facts())
            self._waiting.append((_leg_facts(seen.leg), size, facts))
        if self._views:
            # After the requests of these exchanges, which the ring must know before their views.
            self._waiting += self._views.items()
            self._views = {}

    def admit(self, exchange: Exchange) -> Awaitable[None]:
        """See ExchangeObserver."""
        if (view := exchange.call.principal.view) and self._bytes <= WAITING_BYTES:
            self._bytes += len(view) + MESSAGE_BYTES
            self._views[exchange.number] = view
        return AT_ONCE

    def ended(self, exchange: Exchange, outcome: Fields | BaseException, seconds: float) -> Awaitable[None]:
        """See ExchangeObserver."""
        if isinstance(outcome, trio.Cancelled):
            self._settle()  # first the messages of the exchange that still wait in the recorder
            self._waiting.append(exchange.number)
        return AT_ONCE

    async def run(self, send: Send) -> None:
        """Forward the traffic in batches, until cancelled."""
        while True:
            await trio.sleep(BATCH_SECONDS)
            await self.forward(send)

    async def forward(self, send: Send) -> None:
        """Forward the traffic so far."""
        self._settle()
        if self._waiting:
            batch, missing = self._waiting, self._missing
            self._waiting, self._bytes, self._missing = [], 0, 0
            if missing:
                log.warning("messages left out of the inspector, there are too many", number=missing)
            await send(batch)


class TrafficCollector:
    """The end in the supervisor: puts the traffic of all workers into one ring."""

    def __init__(self, ring: LiveRing, workers: int) -> None:
        self._ring = ring
        self._workers = workers
        self._behind = stopwatch()() - trio.current_time()
        self._base: dict[int, int] = {}  # by worker; each new process gets another base for its numbers
        self._highest = 0
        self._legs: Lru[tuple[int, int, str, str], tuple[Leg, tuple[Any, ...]]] = Lru(LEGS, LEGS_BYTES)

    def begin(self, worker: int) -> None:
        """Begin with a new process of a worker, whose exchanges and clients get new numbers."""
        self._highest += self._workers
        self._base[worker] = self._highest // self._workers

    def take(self, worker: int, batch: TrafficBatch) -> None:
        """Put a batch of a worker into the ring."""
        for entry in batch:
            if isinstance(entry, int):
                self._ring.cut_off(self._number(worker, entry))
                continue
            if len(entry) == 2:
                self._ring.set_view(self._number(worker, entry[0]), entry[1])
                continue
            facts, size, (direction, data, at, kind, exchange, *rest, number, answers) = entry
            side, peer, transport, upstream, *names = facts
            # The peers of each process are numbered from 1, also after a worker was started again.
            key = (worker, self._base.get(worker, 0), side, peer)
            leg, known = self._legs.get(key) or (Leg(side, f"{worker}/{peer}", transport, upstream), ())
            if facts != known:  # its revision and session are known once it has agreed on them
                leg.revision, leg.session, leg.name = names
                self._legs[key] = leg, facts
            exchange = self._number(worker, exchange)
            seen = Observation(leg, direction, data, at - self._behind, kind, exchange, *rest)
            seen.number, seen.answers = self._number(worker, number), self._number(worker, answers)
            self._ring.take(seen, size)

    async def row_of(self, worker: int, exchange: int) -> int | None:
        """Return the row of an exchange of a worker that has begun, or None."""
        return self._ring.row_of(self._number(worker, exchange))

    def _number(self, worker: int, number: int) -> int:
        """Return the number of an exchange or a message, unique among those of all workers; 0 stays 0."""
        if not number:
            return 0
        # Each worker has every n-th number, beyond those that its former process used.
        number = (self._base.get(worker, 0) + number) * self._workers + worker - 1
        self._highest = max(self._highest, number)
        return number
