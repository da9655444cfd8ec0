"""A worker that is asked whether it still does anything; its desk is a real one, its time virtual."""

from __future__ import annotations

import socket

import pytest
import trio
import trio.testing

from mcpmux.app.workers.control_channel import Answer, Ask, Desk, Ready
from mcpmux.app.workers.worker_pool import HUNG_SECONDS, SILENT_SECONDS, Worker, keep_pulse
from mcpmux.errors import TransportClosed
from mcpmux.transports.handing import Hatch, hatch_pair


def desk_of(sock: socket.socket) -> Desk:
    sock.setblocking(False)
    return Desk(trio.SocketStream(trio.socket.from_stdlib_socket(sock)))


class Pair:
    """A worker as its keeper sees it, and the other end of its desk, which answers after `delay` seconds."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        hatch, self._hatch = hatch_pair()
        self.worker = Worker(1, desk_of(ours), Hatch(hatch), lambda _number, _parcel: None)
        self.desk = desk_of(theirs)
        self.delay = 0.0
        self.asked = 0
        self.awake: list[float] = []

    async def answer(self) -> None:
        await self.desk.say(Ready())
        try:
            while True:
                question = await self.desk.hear()
                assert isinstance(question, Ask)
                self.asked += 1
                await trio.sleep(self.delay)
                await self.desk.say(Answer(question.number, None))
        except TransportClosed:
            return

    def hear_awake(self) -> None:
        assert self.worker.serves
        self.awake.append(trio.current_time())

    def close(self) -> None:
        self.desk.close()
        self.worker.desk.close()
        self.worker.hatch.close()
        self._hatch.close()


async def watched(pair: Pair, nursery: trio.Nursery) -> None:
    nursery.start_soon(pair.answer)
    nursery.start_soon(pair.worker.listen)
    await pair.worker.ready.wait()


async def test_one_that_answers_is_asked_on_and_serves(autojump_clock: trio.testing.MockClock):
    pair = Pair()
    async with trio.open_nursery() as nursery:
        await watched(pair, nursery)
        with trio.move_on_after(100) as scope:
            await keep_pulse(pair.worker, pair.hear_awake)
        assert scope.cancelled_caught
        assert pair.asked >= 40
        assert pair.worker.serves
        assert not pair.awake
        nursery.cancel_scope.cancel()
    pair.close()


async def test_one_that_is_slow_gets_nothing_until_it_answers(autojump_clock: trio.testing.MockClock):
    pair = Pair()
    async with trio.open_nursery() as nursery:
        await watched(pair, nursery)
        pair.delay = SILENT_SECONDS + 3
        nursery.start_soon(keep_pulse, pair.worker, pair.hear_awake)
        await trio.sleep(SILENT_SECONDS + 2.5)
        assert not pair.worker.serves
        pair.delay = 0
        await trio.sleep(HUNG_SECONDS)
        assert len(pair.awake) == 1
        assert pair.worker.serves
        nursery.cancel_scope.cancel()
    pair.close()


async def test_one_that_never_answers_hangs(autojump_clock: trio.testing.MockClock):
    pair = Pair()
    async with trio.open_nursery() as nursery:
        await watched(pair, nursery)
        pair.delay = 10_000
        began = trio.current_time()
        await keep_pulse(pair.worker, pair.hear_awake)
        assert HUNG_SECONDS <= trio.current_time() - began <= HUNG_SECONDS + 5
        assert not pair.worker.serves
        assert not pair.awake
        nursery.cancel_scope.cancel()
    pair.close()


async def test_who_asks_one_that_goes_hears_so_at_once(autojump_clock: trio.testing.MockClock):
    pair = Pair()
    async with trio.open_nursery() as nursery:
        await watched(pair, nursery)
        pair.delay = 10_000
        began = trio.current_time()

        async def leave() -> None:
            await trio.sleep(1)
            pair.desk.close()

        nursery.start_soon(leave)
        with pytest.raises(TransportClosed, match="has gone"):
            await pair.worker.ask("metrics")
        assert trio.current_time() - began == 1
        nursery.cancel_scope.cancel()
    pair.close()
