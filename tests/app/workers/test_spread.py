"""A changed list that one worker has heard of, on its way to the others; real desks, virtual time."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

from mcpmux.app.workers.control_channel import Begin, Changed, Desk, Ready
from mcpmux.app.workers.worker_pool import Crew, Worker
from mcpmux.errors import TransportClosed
from mcpmux.transports.handing import Hatch, hatch_pair
from tests.app.workers.test_pulse import desk_of

LISTS = (("docs", "notifications/tools/list_changed"),)


def no_beginning(_number: int) -> Begin:
    raise AssertionError("no worker is started here")


class Party:
    """Three workers, and what each is told."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.crew = Crew(3, no_beginning, lambda _number, _parcel: None)
        self._nursery = nursery
        self.desks: dict[int, Desk] = {}
        self.told: dict[int, list[object]] = {1: [], 2: [], 3: []}
        self._hatches: list[socket.socket] = []

    async def begin(self) -> None:
        for number in self.told:
            ours, theirs = socket.socketpair()
            hatch, other = hatch_pair()
            self._hatches.append(other)
            worker = Worker(number, desk_of(ours), Hatch(hatch), lambda _n, _p: None, self.crew._spread)
            self.crew._workers[number] = worker
            self.desks[number] = desk_of(theirs)
            self._nursery.start_soon(worker.listen)
            self._nursery.start_soon(self.crew._tell_changes, worker)
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
            self.told[number].append(saying)

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


async def test_what_one_has_heard_the_others_are_told(autojump_clock: trio.testing.MockClock):
    async with party() as here:
        await here.desks[1].say(Changed(LISTS))
        await wait_all_tasks_blocked()
        assert here.told == {1: [], 2: [Changed(LISTS)], 3: [Changed(LISTS)]}


async def test_one_that_has_gone_holds_up_nobody(autojump_clock: trio.testing.MockClock):
    async with party() as here:
        here.desks[3].close()
        await wait_all_tasks_blocked()
        await here.desks[1].say(Changed(LISTS))
        await wait_all_tasks_blocked()
        assert here.told == {1: [], 2: [Changed(LISTS)], 3: []}
