"""A change that one worker has heard of, until it knows that the others know; real desks, virtual time."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from mcpmux.app.workers.changes import SPREAD_SECONDS
from mcpmux.app.workers.crew import Crew
from mcpmux.app.workers.desk import Answer, Ask, Begin, Changed, Desk, Known, Ready
from mcpmux.app.workers.member import Worker
from mcpmux.errors import TransportClosed
from mcpmux.transports.handing import Hatch, hatch_pair
from tests.app.workers.test_pulse import desk_of

RESOURCES = (("docs", "memo:1"),)


def no_beginning(_number: int) -> Begin:
    raise AssertionError("no worker is started here")


class Party:
    """Three workers: what each is told, and how long it takes to say that it has understood."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.crew = Crew(3, no_beginning, lambda _number, _parcel: None)
        self._nursery = nursery
        self.desks: dict[int, Desk] = {}
        self.told: dict[int, list[tuple[float, object]]] = {1: [], 2: [], 3: []}
        self.delays = {1: 0.0, 2: 0.0, 3: 0.0}
        self._hatches: list[socket.socket] = []

    async def begin(self) -> None:
        for number in self.delays:
            ours, theirs = socket.socketpair()
            hatch, other = hatch_pair()
            self._hatches.append(other)
            worker = Worker(number, desk_of(ours), Hatch(hatch), lambda _n, _p: None, self.crew._spread)
            self.crew._workers[number] = worker
            self.desks[number] = desk_of(theirs)
            self._nursery.start_soon(worker.listen)
            self._nursery.start_soon(self.crew._tell_changes, worker)
            self._nursery.start_soon(self.crew._tell_what_is_known, worker)
            self._nursery.start_soon(self._play, number)
            await worker.ready.wait()

    async def _play(self, number: int) -> None:
        desk = self.desks[number]
        await desk.say(Ready())
        while True:
            try:
                saying = await desk.hear()
            except TransportClosed:
                return
            if isinstance(saying, Ask):
                await trio.sleep(self.delays[number])
                await desk.say(Answer(saying.number, None))
            else:
                self.told[number].append((trio.current_time(), saying))

    def close(self) -> None:
        for number, worker in self.crew._workers.items():
            worker.desk.close()
            worker.hatch.close()
            self.desks[number].close()
        for hatch in self._hatches:
            hatch.close()


@asynccontextmanager
async def party() -> AsyncIterator[Party]:
    async with trio.open_nursery() as nursery:
        found = Party(nursery)
        try:
            await found.begin()
            yield found
        finally:
            nursery.cancel_scope.cancel()
            found.close()


async def test_who_has_told_of_a_change_hears_when_all_others_know_it(
    autojump_clock: trio.testing.MockClock,
):
    async with party() as here:
        here.delays[3] = SPREAD_SECONDS / 2
        began = trio.current_time()
        await here.desks[1].say(Changed(RESOURCES, 7))
        await trio.sleep(SPREAD_SECONDS * 2)
        assert here.told[2] == here.told[3] == [(began, Changed(RESOURCES))]
        assert here.told[1] == [(began + SPREAD_SECONDS / 2, Known(7))]


@pytest.mark.parametrize("how", ["late", "silent", "gone"])
async def test_a_worker_that_does_not_answer_is_not_waited_for(
    autojump_clock: trio.testing.MockClock, how: str
):
    async with party() as here:
        here.delays[3] = SPREAD_SECONDS * 10
        here.crew._workers[3].silent = how == "silent"
        if how == "gone":
            here.desks[3].close()
            await trio.sleep(SPREAD_SECONDS)
        began = trio.current_time()
        await here.desks[1].say(Changed(RESOURCES, 1))
        await trio.sleep(SPREAD_SECONDS * 2)
        assert here.told[1] == [(began + (SPREAD_SECONDS if how == "late" else 0), Known(1))]
        assert here.told[2] == [(began, Changed(RESOURCES))]


async def test_what_several_have_heard_is_known_to_each_of_them(autojump_clock: trio.testing.MockClock):
    async with party() as here:
        for number in (1, 2):
            for count in (1, 2):
                await here.desks[number].say(Changed(RESOURCES, count))
        await trio.sleep(SPREAD_SECONDS * 2)
        for number in (1, 2):
            assert [each for _, each in here.told[number] if isinstance(each, Known)] == [Known(1), Known(2)]
