"""Start the workers, give them connections and messages, and restart them.

A worker that ends unexpectedly is logged and started again, at first at once, later after a pause. A worker
that is asked to end returns the connections on which it serves no request, so that none is lost.

| no answer for | action |
| --- | --- |
| SILENT_SECONDS | the worker gets no connections until it answers again |
| HUNG_SECONDS | it hangs and is killed |
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import structlog
import trio

from mcpmux.app.workers.channel import (
    STORE,
    ControlChannel,
    Handlers,
    MemberStore,
    map_counters,
    open_counters,
)
from mcpmux.cluster.store import MemoryStore
from mcpmux.errors import ConfigError, McpmuxError, TransportClosed, TransportError
from mcpmux.mux.breaker import Comeback
from mcpmux.transports.byte_stream import reason_of
from mcpmux.transports.handing import ConnectionChannel, connection_channel_pair
from mcpmux.transports.orphan_guard import OrphanGuard
from mcpmux.transports.thread import starting_thread

log = structlog.get_logger()

FIRST_ATTEMPTS = 3  # to have a worker ready for the first time, if it ends without a reason
FULL_SECONDS = 0.05  # until a connection is offered again after no worker took it
HEARTBEAT_SECONDS = 2.0  # between two heartbeats
SILENT_SECONDS = 5.0
HUNG_SECONDS = 30.0
END_SECONDS = 5.0  # for a worker to end after its control channel is closed; then it is killed
BOOT = (  # the path of the supervisor, so that a worker imports the same modules
    "import os, sys; sys.path[:] = sys.argv.pop(1).split(os.pathsep); "
    "from mcpmux.app.workers.worker import main; main()"
)


@dataclass(eq=False)
class WorkerProcess:
    """A worker from its start to its end."""

    number: int
    process: trio.Process
    control: ControlChannel
    connection_channel: ConnectionChannel
    store: MemberStore
    ready: trio.Event = field(default_factory=trio.Event)
    failure: Exception | None = None
    leaving: bool = False
    silent: bool = False

    @property
    def serves(self) -> bool:
        """Whether the worker can get connections."""
        return self.ready.is_set() and not (self.leaving or self.silent or self.control.gone)

    def fail(self, reason: str, mistakes: list[str]) -> None:
        """Note why the worker cannot start. `mistakes`: in the configuration, if they are the reason."""
        self.failure = ConfigError(mistakes) if mistakes else McpmuxError(reason)

    def leave(self) -> None:
        """Ask the worker to end. It gets no more connections, and returns those that it does not need."""
        self.leaving = True
        self.control.post("stop")
        self.connection_channel.end()

    async def watch_heartbeat(self, on_recovery: Callable[[], object]) -> None:
        """Send heartbeats until the worker hangs. `on_recovery` is called when a silent one answers again."""
        while True:
            await trio.sleep(HEARTBEAT_SECONDS)
            if await self._answers(SILENT_SECONDS):
                continue
            # One that is only busy keeps the connections that it has, with the requests on them.
            self.silent = True
            log.warning("worker does not answer: the others get its connections", worker=self.number)
            if not await self._answers(HUNG_SECONDS - SILENT_SECONDS):
                return
            self.silent = False
            log.warning("worker answers again", worker=self.number)
            on_recovery()

    async def _answers(self, seconds: float) -> bool:
        with suppress(TransportClosed):
            await self.control.ask("heartbeat", seconds=seconds)
            return True
        return False

    def kill(self) -> None:
        """Kill the worker with all processes that it has started."""
        # Its group: a worker that hangs does not end the servers that it has started.
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    async def end(self) -> None:
        """Close the control channel and wait until the worker ends, at most END_SECONDS; then kill it."""
        self.control.close()
        with trio.CancelScope(shield=True):
            with trio.move_on_after(END_SECONDS):
                await self.process.wait()
            if self.process.returncode is None:
                log.error("worker does not end, killing it", pid=self.process.pid)
                self.kill()
                await self.process.wait()


@dataclass(eq=False)
class WorkerPool:
    """All workers, kept running by `run`. `starts`: how often each worker was started.

    `start_for` returns the first arguments of the worker with that number; see `Worker.run`. `handlers_for`
    returns functions that it can call.
    """

    count: int
    _start_for: Callable[[int], tuple[Any, ...]]
    _handlers_for: Callable[[int], Handlers]
    store: MemoryStore = field(default_factory=lambda: MemoryStore(trio.current_time))

    def __post_init__(self) -> None:
        self.starts: Counter[int] = Counter()
        self._workers: dict[int, WorkerProcess] = {}
        self._changed = trio.lowlevel.ParkingLot()
        self._turn = 0
        self._stopping = False
        self._guard = OrphanGuard()

    @property
    def running(self) -> list[WorkerProcess]:
        """The workers that can get messages, in order of their numbers."""
        return [worker for _, worker in sorted(self._workers.items()) if not worker.control.gone]

    @property
    def serving(self) -> list[WorkerProcess]:
        return [worker for worker in self.running if worker.serves]

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the workers running. Returns when all have ended after `stop`. Cancelling ends them at once.

        Started when all are ready. Raises the error that prevents a worker's first start; a worker that ends
        without a reason gets FIRST_ATTEMPTS.
        """
        with self.counting():
            # Around the workers: a connection that a worker has returned may wait beyond its end.
            async with trio.open_nursery() as returns:
                async with trio.open_nursery() as nursery:
                    for number in range(1, self.count + 1):
                        nursery.start_soon(self._supervise, number, returns, name=f"worker {number}")
                    while len(self.serving) < self.count:
                        await self._changed.park()
                    task_status.started()
                returns.cancel_scope.cancel(reason="all workers have ended")

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Hold the counters that workers share. No worker can be started outside of this context."""
        self._counters = open_counters(self.count)
        try:
            numbers = range(1, self.count + 1)
            self._rows = {
                number: map_counters(os.dup(self._counters), number, self.count) for number in numbers
            }
            yield
        finally:
            os.close(self._counters)

    async def _supervise(self, number: int, returns: trio.Nursery) -> None:
        comeback, came_up, attempts = Comeback(), False, 0
        while not self._stopping:
            attempts += 1
            began = trio.current_time()
            ready, failure = await self._run_worker(number, returns)
            if self._stopping:
                return
            came_up = came_up or ready
            # A wrong setting that prevents the first start would prevent each later one.
            if not came_up and (failure is not None or attempts == FIRST_ATTEMPTS):
                raise failure or TransportError(f"worker {number} has ended before it was ready")
            held = trio.current_time() - began if ready else 0.0
            wait = comeback.wait(trio.current_time(), died=True, held=held, chance=random.random())
            reason = str(failure) if failure is not None else "it has ended"
            what = "worker lost" if came_up else "worker has ended before it was ready"
            log.error(what, worker=number, reason=reason, again=round(wait, 1))
            await trio.sleep(wait)

    async def _run_worker(self, number: int, returns: trio.Nursery) -> tuple[bool, Exception | None]:
        """Run one process to its end. Return (whether it was ready, why it failed)."""
        try:
            worker = await self.start(number)
        except OSError as error:
            return False, TransportError(f"a worker cannot be started: {reason_of(error)}")
        returns.start_soon(self.take_back, worker, name=f"connections of {number}")
        try:
            async with trio.open_nursery() as nursery:
                # No worker outlives its supervisor: it ends with its control channel, or else by the guard.
                start = nursery.start_soon
                start(self._guard.watch, worker.process.pid, trio.CancelScope(), name=f"guard {number}")
                start(self._watch, worker, name=f"heartbeat {number}")
                await self.listen(worker)
                nursery.cancel_scope.cancel(reason="the worker has ended")
        finally:
            await self.end(worker)
        return worker.ready.is_set(), worker.failure

    async def end(self, worker: WorkerProcess) -> None:
        """End a worker. Cached answers become invalid, and the others may take its sessions over."""
        await worker.end()
        # It may have been killed during a call that changed something at an upstream, without counting it.
        self._rows[worker.number].act_everywhere()
        # Before the others learn of it: the first request in one of its sessions claims that at once.
        await worker.store.end()
        self.tell("worker gone", but=worker)

    async def start(self, number: int) -> WorkerProcess:
        """Start a worker, and return it. Raises OSError."""
        control, their_control = socket.socketpair()
        connection_channel, their_connection_channel = connection_channel_pair()
        # Their ends are closed here in any case, as the process has copies; ours only if it does not start.
        with their_control, their_connection_channel, ExitStack() as ours:
            ours.push(control)
            ours.push(connection_channel)
            fds = (their_control.fileno(), their_connection_channel.fileno(), self._counters)
            process = await self.open_process(number, fds)
            ours.pop_all()
        channel = ControlChannel(control)
        connections, store = ConnectionChannel(connection_channel), MemberStore(self.store)
        worker = WorkerProcess(number, process, channel, connections, store)
        # Posted before the worker is in `_workers`: no other call may come before its start.
        channel.post("start", *self._start_for(number))
        self._workers[number] = worker
        if self._stopping:
            worker.leave()
        self.starts[number] += 1
        return worker

    async def open_process(self, number: int, fds: tuple[int, int, int]) -> trio.Process:
        """Start the process of a worker, with its ends of both channels and the counters. Raises OSError."""
        arguments = [os.pathsep.join(sys.path), *map(str, (number, self.count, *fds))]
        with starting_thread():
            return await trio.lowlevel.open_process(
                [sys.executable, "-P", "-c", BOOT, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # signals of a terminal must not reach it
                pass_fds=fds,
            )

    async def listen(self, worker: WorkerProcess) -> None:
        """Send a worker the posted calls, and make its calls, until it has gone."""
        await worker.control.run(
            {
                "ready": worker.ready.set,
                "leaving": worker.leave,
                "failed": worker.fail,
                STORE: worker.store.answer,
                **self._handlers_for(worker.number),
            }
        )

    async def _watch(self, worker: WorkerProcess) -> None:
        await worker.ready.wait()
        self._changed.unpark_all()
        await worker.watch_heartbeat(self._changed.unpark_all)
        worker.failure = TransportError("it has hung")
        worker.kill()

    # Connections

    async def give(self, listener: int, sock: socket.socket) -> None:
        """Give a new connection to the next worker, waiting for one.

        After `stop` no worker gets it, and the caller closes it.
        """
        while not (self._give_nowait(listener, sock) or self._stopping):
            if self.serving:
                await trio.sleep(FULL_SECONDS)
            else:
                await self._changed.park()

    def _give_nowait(self, listener: int, sock: socket.socket) -> bool:
        # In turn: even a few lasting connections are spread evenly.
        able = self.serving
        for _ in able:
            self._turn += 1
            with suppress(TransportClosed):
                if able[self._turn % len(able)].connection_channel.send_nowait(listener, sock.fileno()):
                    return True
        return False

    async def take_back(self, worker: WorkerProcess) -> None:
        """Give the connections that a worker returns to others, until its last one. Closes the channel."""
        try:
            with suppress(TransportClosed):
                while True:
                    listener, sock = await worker.connection_channel.receive()
                    with sock:
                        await self.give(listener, sock)
        finally:
            worker.connection_channel.close()

    # Messages

    def tell(self, name: str, *told: Any, but: WorkerProcess | None = None) -> None:
        """Post a call to every running worker `but` one. Later workers start with the state of that time."""
        for worker in self.running:
            if worker is not but:
                worker.control.post(name, *told)

    def stop(self) -> None:
        """Ask all workers to end, and start no new ones."""
        self._stopping = True
        self._changed.unpark_all()
        for worker in self._workers.values():
            worker.leave()

    async def ask(
        self, name: str, workers: Iterable[WorkerProcess] | None = None, *arguments: Any
    ) -> dict[int, Any]:
        """Return the answers of `workers`, or of all that serve, by number, without those that fail."""
        answers: dict[int, Any] = {}

        async def ask_one(worker: WorkerProcess) -> None:
            try:
                answers[worker.number] = await worker.control.ask(name, *arguments)
            except TransportClosed as error:
                log.warning("worker left out of an answer", worker=worker.number, reason=str(error))

        async with trio.open_nursery() as nursery:
            for worker in self.serving if workers is None else workers:
                nursery.start_soon(ask_one, worker)
        return dict(sorted(answers.items()))
