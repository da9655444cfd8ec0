"""A worker that is asked whether it still does anything; its control channel is real, its time virtual."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from mcpmux.app.workers.channel import ControlChannel, MemberStore
from mcpmux.app.workers.pool import HUNG_SECONDS, SILENT_SECONDS, WorkerPool, WorkerProcess
from mcpmux.cluster.store import MemoryStore
from mcpmux.errors import TransportClosed
from mcpmux.transports.handing import ConnectionChannel, connection_channel_pair

NO_PROCESS = cast("trio.Process", None)
"""Of the process of a worker nothing is asked here."""


class Pair:
    """A worker as its supervisor sees it, and its end of the channel, which answers after `delay` seconds."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        store = MemoryStore(trio.current_time)
        connection_channel, self._connection_channel = connection_channel_pair()
        self.worker = WorkerProcess(
            1, NO_PROCESS, ControlChannel(ours), ConnectionChannel(connection_channel), MemberStore(store)
        )
        self.control = ControlChannel(theirs)
        self.delay = 0.0
        self.asked = 0
        self.recoveries: list[float] = []

    async def answer(self) -> None:
        await self.control.send("ready")
        await self.control.run({"heartbeat": self._wait, "metrics": self._wait})

    async def _wait(self) -> None:
        self.asked += 1
        await trio.sleep(self.delay)

    def note_recovery(self) -> None:
        assert self.worker.serves
        self.recoveries.append(trio.current_time())

    def close(self) -> None:
        self.control.close()
        self.worker.control.close()
        self.worker.connection_channel.close()
        self._connection_channel.close()


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    pair = Pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.answer)
        nursery.start_soon(WorkerPool(1, lambda _number: (), lambda _number: {}).listen, pair.worker)
        await pair.worker.ready.wait()
        yield pair
        nursery.cancel_scope.cancel()
    pair.close()


async def test_a_worker_that_answers_is_asked_again_and_serves(pair: Pair, autojump_clock: MockClock):
    with trio.move_on_after(100) as scope:
        await pair.worker.watch_heartbeat(pair.note_recovery)
    assert scope.cancelled_caught
    assert pair.asked >= 40
    assert pair.worker.serves
    assert not pair.recoveries


async def test_a_slow_worker_gets_no_connection_until_it_answers(pair: Pair, autojump_clock: MockClock):
    async with trio.open_nursery() as nursery:
        pair.delay = SILENT_SECONDS + 3
        nursery.start_soon(pair.worker.watch_heartbeat, pair.note_recovery)
        await trio.sleep(SILENT_SECONDS + 2.5)
        assert not pair.worker.serves
        pair.delay = 0
        await trio.sleep(HUNG_SECONDS)
        assert len(pair.recoveries) == 1
        assert pair.worker.serves
        nursery.cancel_scope.cancel()


async def test_a_worker_that_never_answers_hangs(pair: Pair, autojump_clock: MockClock):
    pair.delay = 10_000
    began = trio.current_time()
    await pair.worker.watch_heartbeat(pair.note_recovery)
    assert HUNG_SECONDS <= trio.current_time() - began <= HUNG_SECONDS + 5
    assert not pair.worker.serves
    assert not pair.recoveries


async def test_a_question_to_a_worker_that_ends_fails_at_once(pair: Pair, autojump_clock: MockClock):
    async def leave() -> None:
        await trio.sleep(1)
        pair.control.close()

    pair.delay = 10_000
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(leave)
        with pytest.raises(TransportClosed, match="has gone"):
            await pair.worker.control.ask("metrics")
    assert trio.current_time() - began == 1
