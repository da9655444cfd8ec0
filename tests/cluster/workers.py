"""Several workers in one process: the supervisor's pool, its channels and its store, scripted upstreams.

What is missing of the real thing is what a process is: that it is started, found to hang, killed and started
again. A worker that is killed here loses its channels and stops in the middle of its work.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from tempfile import TemporaryDirectory
from typing import Any, cast

import trio

from mcpmux.app.listeners import open_address
from mcpmux.app.workers.channel import ControlChannel, map_counters
from mcpmux.app.workers.pool import WorkerPool
from mcpmux.app.workers.supervisor import _accept
from mcpmux.app.workers.worker import Worker
from mcpmux.cluster.store import MemoryStore
from mcpmux.config import Config
from mcpmux.transports.handing import ConnectionChannel
from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.http.route import HttpOrigin
from tests.cluster.nodes import PATIENCE, Line, Member, Members
from tests.peers.http_client import HttpClient
from tests.peers.server import ScriptedServer
from tests.runtime.world import World

MOST = 4
"""Workers in one pool."""


class InsteadOfProcess:
    """A worker as the pool knows its process, and what runs in it. `wait` until it has ended."""

    def __init__(self, number: int, fds: tuple[int, int, int], world: World) -> None:
        control, connections, counters = map(os.dup, fds)
        self._control = ControlChannel(socket.socket(fileno=control))
        self._connections = ConnectionChannel(socket.socket(fileno=connections))
        self._generations = map_counters(counters, number, MOST)
        self.worker = Worker(number, self._generations, self._control, self._connections, world.open_channel)
        self.scope = trio.CancelScope()
        self.ready = trio.Event()
        self.returncode: int | None = None
        self._ended = trio.Event()

    async def run(self) -> None:
        try:
            with self.scope:
                _, _, (started, config, folder, drained) = await self._control.receive()
                await self.worker.run(started, config, folder, drained, self.ready.set)
        finally:
            self.close()
            self.returncode = 0
            self._ended.set()

    def close(self) -> None:
        """Cut it off from all others, until it has stopped."""
        self._generations._counts = memoryview(bytearray(self._generations._counts)).cast("Q")
        self._control.close()
        self._connections.close()

    async def wait(self) -> int:
        await self._ended.wait()
        return 0


class WorkerMember(Member):
    """Its line to the store is that of all."""

    process: InsteadOfProcess

    async def kill(self) -> None:
        self.process.close()
        self.scope.cancel()
        await self.ended.wait()


class Pool(WorkerPool):
    """Runs workers in `nursery`. `worlds`: what each has behind it, by number."""

    nursery: trio.Nursery
    worlds: dict[int, World]
    started: dict[int, InsteadOfProcess]

    async def open_process(self, number: int, fds: tuple[int, int, int]) -> Any:
        process = self.started[number] = InsteadOfProcess(number, fds, self.worlds[number])
        self.nursery.start_soon(process.run)
        return process


class Workers(Members):
    """A port for each, where its client connects; numbers in the order in which names came up."""

    def __init__(self, nursery: trio.Nursery, folder: str) -> None:
        """`folder`: for their sockets."""
        super().__init__(nursery)
        self.line = Line(self.store)
        self._configs: dict[int, Config] = {}
        self.pool = Pool(
            MOST,
            lambda number: (self._configs[number], self._configs[number], folder, ()),
            lambda _number: {},
            cast("MemoryStore", self.line),  # it has all that this has
        )
        self.pool.nursery, self.pool.worlds, self.pool.started = self.nursery, {}, {}
        self._numbers: dict[str, int] = {}

    async def run(
        self, name: str, config: Config, world: World, *, task_status: Any = trio.TASK_STATUS_IGNORED
    ) -> None:
        number = self._numbers.setdefault(name, len(self._numbers) + 1)
        self._configs[number], self.pool.worlds[number] = config, world
        ended = trio.Event()
        worker = await self.pool.start(number)
        self.nursery.start_soon(self.pool.take_back, worker)
        process = self.pool.started[number]
        try:
            async with AsyncExitStack() as stack:
                url, (listener,) = await stack.enter_async_context(open_address(config.listeners.http[0]))
                stack.callback(listener.socket.close)
                pool = stack.enter_context(HttpPool(HttpOrigin.from_url(url)))
                nursery = await stack.enter_async_context(trio.open_nursery())

                async def give(sock: socket.socket) -> None:
                    await worker.connection_channel.send(0, sock.fileno())

                async def serve_when_ready() -> None:
                    await worker.ready.wait()
                    await process.ready.wait()
                    member = WorkerMember(
                        name=name,
                        world=world,
                        line=self.line,
                        scope=process.scope,
                        client=HttpClient(pool, world),
                        ended=ended,
                        node=process.worker.replica,
                        mux=process.worker.mux,
                    )
                    member.process = process
                    task_status.started(member)
                    await _accept(listener, give)

                nursery.start_soon(serve_when_ready)
                await self.pool.listen(worker)
                nursery.cancel_scope.cancel()
        finally:
            await self.pool.end(worker)
            ended.set()


@asynccontextmanager
async def open_workers(**servers: ScriptedServer) -> AsyncIterator[Workers]:
    """Open a worker for each server, by name; they know each other."""
    with trio.fail_after(PATIENCE), ExitStack() as ends:
        async with trio.open_nursery() as nursery:
            folder = ends.enter_context(TemporaryDirectory())
            workers = Workers(nursery, folder)
            ends.enter_context(workers.pool.counting())
            for name, server in servers.items():
                await workers.start(name, server)
            await workers.know_each_other()
            yield workers
            nursery.cancel_scope.cancel()
