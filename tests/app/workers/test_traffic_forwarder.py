"""The traffic of all workers in one ring."""

from __future__ import annotations

from itertools import count

import trio

from mcpmux.app.workers.traffic_forwarder import (
    WAITING_BYTES,
    TrafficBatch,
    TrafficCollector,
    TrafficForwarder,
)
from mcpmux.channels.tap import Leg
from mcpmux.protocol.call import Call
from mcpmux.protocol.principal import ANYONE
from mcpmux.traffic.admin.ring import LiveRing
from mcpmux.traffic.observer import Exchange, Observation
from mcpmux.traffic.recorder import observe

REQUEST = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}'
ANSWER = b'{"jsonrpc":"2.0","id":1,"result":{}}'


class Worker:
    """A forwarder, and traffic for it."""

    def __init__(self) -> None:
        self.forwarder = TrafficForwarder()
        self._exchanges, self._order = count(1), count(1)
        self._numbers = count(1)
        self.batches: list[TrafficBatch] = []

    def see(self, leg: Leg, direction: str, data: bytes, exchange: int = 0) -> int:
        """Forward a message, and return the number of its exchange."""
        now = trio.current_time()
        unread = Observation(leg, direction, data, now, exchange=exchange)  # type: ignore[arg-type]
        (seen,) = observe([unread], self._exchanges, self._order)
        self.forwarder.take_all([seen])
        return seen.exchange

    def exchange(self, answered: bool = True) -> int:
        client = Leg("client", f"c{next(self._numbers)}", "http")
        number = self.see(client, "in", REQUEST)
        if answered:
            upstream = Leg("upstream", "docs", "http", "docs")
            self.see(upstream, "out", REQUEST, number)
            self.see(upstream, "in", ANSWER)
            self.see(client, "out", ANSWER)
        return number

    async def deliver(self, collector: TrafficCollector, number: int) -> None:
        """Deliver everything that waits."""
        arrived = trio.Event()

        async def take(batch: TrafficBatch) -> None:
            collector.take(number, batch)
            arrived.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.forwarder.run, take)
            await arrived.wait()
            nursery.cancel_scope.cancel()


async def test_exchanges_of_workers_are_rows_of_one_list(autojump_clock: trio.testing.MockClock):
    ring = LiveRing(100, 10**6)
    collector = TrafficCollector(ring, 2)
    for number in (1, 2):
        worker = Worker()
        collector.begin(number)
        for _ in range(3):
            worker.exchange()
        await worker.deliver(collector, number)
    rows = list(ring.before(ring.last + 1))
    assert [row.number for row in rows] == [6, 5, 4, 3, 2, 1]
    assert {row.status for row in rows} == {"ok"}
    assert {row.count for row in rows} == {4}
    assert len({row.exchange for row in rows}) == 6
    assert {row.first.leg.peer for row in rows} == {f"{w}/c{c}" for w in (1, 2) for c in (1, 2, 3)}
    assert {row.upstreams for row in rows} == {("docs",)}


async def test_an_exchange_of_a_worker_has_the_view_of_its_client(autojump_clock: trio.testing.MockClock):
    ring = LiveRing(100, 10**6)
    collector = TrafficCollector(ring, 2)
    worker = Worker()
    collector.begin(2)
    number = worker.exchange()
    client = Leg("client", "c9", "http")
    call = Call("tools/call", {}, {}, principal=ANYONE.within("coding"))
    await worker.forwarder.admit(Exchange(number + 1, client, call, 0.0, [], {}))
    worker.see(client, "in", REQUEST)
    await worker.deliver(collector, 2)
    assert [row.view for row in ring.before(ring.last + 1)] == ["coding", ""]


async def test_a_worker_that_was_replaced_does_not_go_on_with_old_exchanges(
    autojump_clock: trio.testing.MockClock,
):
    ring = LiveRing(100, 10**6)
    collector = TrafficCollector(ring, 2)
    for _ in range(3):
        worker = Worker()
        collector.begin(2)
        worker.exchange()
        await worker.deliver(collector, 2)
    assert ring.last == 3
    assert [row.count for row in ring.before(4)] == [4, 4, 4]


async def test_an_exchange_that_was_cut_off_is_told(autojump_clock: trio.testing.MockClock):
    ring = LiveRing(100, 10**6)
    collector, worker = TrafficCollector(ring, 2), Worker()
    collector.begin(1)
    number = worker.exchange(answered=False)
    exchange = Exchange(number, Leg("client", "c1", "http"), Call("tools/call", {}, {}), 0.0, [], {})
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as cancelled:
            with trio.CancelScope(shield=True):
                await worker.forwarder.ended(exchange, cancelled, 0.0)
            raise
    await worker.deliver(collector, 1)
    assert [row.status for row in ring.before(2)] == ["cancelled"]


async def test_what_waits_is_bounded_and_what_is_missing_is_counted(
    autojump_clock: trio.testing.MockClock,
):
    ring = LiveRing(1000, 10**8)
    collector, worker = TrafficCollector(ring, 1), Worker()
    collector.begin(1)
    large = REQUEST[:-2] + b',"arguments":{"a":"' + b"x" * 2**20 + b'"}}}'
    leg = Leg("client", "c1", "http")
    for _ in range(40):
        worker.see(leg, "in", large)
    assert worker.forwarder._bytes < WAITING_BYTES + 2 * len(large)
    await worker.deliver(collector, 1)
    assert 10 < ring.last < 40
    worker.see(leg, "in", REQUEST)
    await worker.deliver(collector, 1)
    assert ring.position == ring.last


async def test_a_message_that_is_too_long_to_carry_keeps_its_size(autojump_clock: trio.testing.MockClock):
    ring = LiveRing(1000, 10**9)
    collector, worker = TrafficCollector(ring, 1), Worker()
    collector.begin(1)
    long = REQUEST[:-2] + b',"arguments":{"a":"' + b"x" * 5 * 2**20 + b'"}}}'
    worker.see(Leg("client", "c1", "http"), "in", long)
    await worker.deliver(collector, 1)
    (row,) = ring.before(2)
    assert row.size == len(long)
    assert row.messages[0].too_large
