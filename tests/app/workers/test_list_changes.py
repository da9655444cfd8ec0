"""A changed list that one worker has heard of, on its way to the others; real sockets, virtual time."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

from mcpmux.app.workers.channel import ControlChannel
from mcpmux.app.workers.pool import WorkerPool, WorkerProcess
from mcpmux.app.workers.shared_store import MemberStore
from mcpmux.cluster.store import MemoryStore
from mcpmux.transports.handing import ConnectionChannel, connection_channel_pair

CHANGED = ("notifications/tools/list_changed", "docs")
NO_PROCESS = cast("trio.Process", None)
"""Of the process of a worker nothing is asked here."""


class Party:
    """Three workers, and what each is told."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.pool = WorkerPool(3, lambda _number: (), lambda _number, _batch: None)
        self._nursery = nursery
        self.controls: dict[int, ControlChannel] = {}
        self.told: dict[int, list[tuple[str, ...]]] = {1: [], 2: [], 3: []}
        self._connection_channels: list[socket.socket] = []

    async def begin(self) -> None:
        for number in self.told:
            ours, theirs = socket.socketpair()
            connection_channel, other = connection_channel_pair()
            self._connection_channels.append(other)
            worker = WorkerProcess(
                number,
                NO_PROCESS,
                ControlChannel(ours),
                ConnectionChannel(connection_channel),
                MemberStore(MemoryStore(trio.current_time)),
            )
            self.pool._workers[number] = worker
            self.controls[number] = ControlChannel(theirs)
            self._nursery.start_soon(self.pool.listen, worker)
            self._nursery.start_soon(self._play, number)
            await worker.ready.wait()

    async def _play(self, number: int) -> None:
        control = self.controls[number]
        await control.send("ready")
        await control.run({"list changed": lambda *changed: self.told[number].append(changed)})

    def close(self) -> None:
        for number, worker in self.pool._workers.items():
            worker.control.close()
            worker.connection_channel.close()
            self.controls[number].close()
        for connection_channel in self._connection_channels:
            connection_channel.close()


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
        here.controls[1].post("list changed", *CHANGED, once=True)
        await wait_all_tasks_blocked()
        assert here.told == {1: [], 2: [CHANGED], 3: [CHANGED]}


async def test_one_that_has_gone_holds_up_nobody(autojump_clock: trio.testing.MockClock):
    async with party() as here:
        here.controls[3].close()
        await wait_all_tasks_blocked()
        here.controls[1].post("list changed", *CHANGED, once=True)
        await wait_all_tasks_blocked()
        assert here.told == {1: [], 2: [CHANGED], 3: []}
