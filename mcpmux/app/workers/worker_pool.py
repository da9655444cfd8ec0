"""All workers: starts them, gives them connections and messages, and starts them again.

Connections go to the workers in turn, so even a few lasting ones are spread evenly. A connection that a
worker hands over goes to the worker that it names, else to any. A worker that ends unasked is logged and
started again, at first at once, later with a pause. A worker that hangs is killed. One that is asked to end
gives back the connections that it has not begun with, and none of them is lost.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import structlog
import trio

from mcpmux.app.workers import control_channel as cc
from mcpmux.app.workers.traffic_forwarder import TrafficBatch
from mcpmux.app.workers.worker_process import WorkerProcess, start_process
from mcpmux.errors import TransportClosed, TransportError
from mcpmux.mux.breaker import Comeback
from mcpmux.transports.byte_stream import reason_of
from mcpmux.transports.handing import ConnectionChannel, Note, connection_channel_pair
from mcpmux.transports.process import OrphanGuard

log = structlog.get_logger()

FIRST_ATTEMPTS = 3  # to have a worker ready for the first time, if it ends without a reason
FORWARD_SECONDS = 10.0  # for a worker that is started again to take what is for it alone
FULL_SECONDS = 0.05  # until a worker is tried again that takes nothing more for now
FORWARDED = 256  # connections handed over that wait for a worker; more are closed
LAST_SECONDS = 5.0  # for what a worker has handed over when it has ended


class WorkerPool:
    """`run` has to run. `starts`: how often each worker was started.

    `on_traffic` is called with a worker's number and what it has seen.
    """

    def __init__(self, count: int, start_for: Callable[[int], cc.Start]) -> None:
        """`start_for`: what the worker with that number is told first."""
        self.count = count
        self.starts: dict[int, int] = {}
        self._start_for = start_for
        self.on_traffic: Callable[[int, TrafficBatch], None] = lambda _worker, _batch: None
        self._workers: dict[int, WorkerProcess] = {}
        self._changed = trio.lowlevel.ParkingLot()
        self._turn = 0
        self._stopping = False
        self._guard = OrphanGuard()

    def __repr__(self) -> str:
        return f"<WorkerPool {list(self._workers.values())}>"

    @property
    def serving(self) -> list[WorkerProcess]:
        """Those that can be given connections, in order."""
        return [worker for _, worker in sorted(self._workers.items()) if worker.serves]

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the workers running. Returns when all have ended after `stop`. Cancelling ends them at once.

        Started when all are ready. Raises what keeps a worker from starting for the first time; a worker that
        ends without a reason gets FIRST_ATTEMPTS.
        """
        self._counters = cc.open_counters(self.count)
        try:
            async with trio.open_nursery() as forwards:
                async with trio.open_nursery() as nursery:
                    for number in range(1, self.count + 1):
                        nursery.start_soon(self._supervise, number, forwards, name=f"worker {number}")
                    while len(self.serving) < self.count:
                        await self._changed.park()
                    task_status.started()
                forwards.cancel_scope.cancel(reason="all workers have ended")
        finally:
            os.close(self._counters)

    async def _supervise(self, number: int, forwards: trio.Nursery) -> None:
        comeback, came_up, attempts = Comeback(), False, 0
        while not self._stopping:
            attempts += 1
            began = trio.current_time()
            ready, failure = await self._run_worker(number, forwards)
            if self._stopping:
                return
            came_up = came_up or ready
            if not came_up and (failure is not None or attempts == FIRST_ATTEMPTS):
                raise failure or TransportError(f"worker {number} has ended before it was ready")
            held = trio.current_time() - began if ready else 0.0
            wait = comeback.wait(trio.current_time(), died=True, held=held, chance=random.random())
            reason = str(failure) if failure is not None else "it has ended"
            what = "worker lost with its sessions" if came_up else "worker has ended before it was ready"
            log.error(what, worker=number, reason=reason, again=round(wait, 1))
            await trio.sleep(wait)

    async def _run_worker(self, number: int, forwards: trio.Nursery) -> tuple[bool, Exception | None]:
        """Run one process to its end. Returns whether it was ready, and why it failed."""
        try:
            async with self._open_worker(number) as worker, trio.open_nursery() as nursery:
                start = nursery.start_soon
                start(self._guard.watch, worker.process.pid, trio.CancelScope(), name=f"guard {number}")
                start(self._watch, worker, name=f"heartbeat {number}")
                async with trio.open_nursery() as talking:  # which ends when the worker has ended
                    talking.start_soon(self._forward_all, worker, forwards, name=f"connections of {number}")
                    await worker.run(self._hear)
                    talking.cancel_scope.deadline = trio.current_time() + LAST_SECONDS
                nursery.cancel_scope.cancel(reason="the worker has ended")
        except OSError as error:
            return False, TransportError(f"a worker cannot be started: {reason_of(error)}")
        return worker.ready.is_set(), worker.failure

    @asynccontextmanager
    async def _open_worker(self, number: int) -> AsyncIterator[WorkerProcess]:
        """A new process; it has ended when this is left. Raises OSError when there is none."""
        control, their_control = socket.socketpair()
        connection_channel, their_connection_channel = connection_channel_pair()
        with their_control, their_connection_channel:
            fds = (their_control.fileno(), their_connection_channel.fileno(), self._counters)
            try:
                process = await start_process(number, self.count, fds)
            except BaseException:
                control.close()
                connection_channel.close()
                raise
        channel = cc.ControlChannel(control)
        worker = WorkerProcess(number, process, channel, ConnectionChannel(connection_channel))
        worker.control.post(self._start_for(number))
        if self._stopping:
            worker.control.post(cc.Word.STOP)
        self._workers[number] = worker
        self.starts[number] = self.starts.get(number, 0) + 1
        try:
            yield worker
        finally:
            await worker.end()

    async def _watch(self, worker: WorkerProcess) -> None:
        await worker.ready.wait()
        self._changed.unpark_all()
        await worker.watch_heartbeat(self._changed.unpark_all)
        worker.failure = TransportError("it has hung")
        worker.kill()

    # Connections

    async def give(self, note: Note, sock: socket.socket) -> None:
        """Have a worker serve a connection: the one that `note` names, else the next. Waits for one."""
        while not self._give_nowait(note, sock):
            if self.serving:
                await trio.sleep(FULL_SECONDS)
            else:
                await self._changed.park()

    def _give_nowait(self, note: Note, sock: socket.socket) -> bool:
        able = [worker for worker in self.serving if note.worker in (0, worker.number)]
        for _ in able:
            self._turn += 1
            with suppress(TransportClosed):
                if able[self._turn % len(able)].connection_channel.send_nowait(note, sock.fileno()):
                    return True
        return False

    async def _forward_all(self, worker: WorkerProcess, forwards: trio.Nursery) -> None:
        with suppress(TransportClosed):
            while True:
                note, sock = await worker.connection_channel.receive()
                if self._give_nowait(note, sock):
                    sock.close()
                elif len(forwards.child_tasks) < FORWARDED:
                    forwards.start_soon(self._forward_later, note, sock)
                else:
                    log.warning("connection closed: too many wait for a worker")
                    sock.close()

    async def _forward_later(self, note: Note, sock: socket.socket) -> None:
        """Try again while its worker is busy or being started again."""
        with sock, trio.move_on_after(FORWARD_SECONDS) as scope:
            await self.give(note, sock)
        if scope.cancelled_caught:
            log.warning("connection closed: no worker serves it", worker=note.worker or "any")

    # Messages

    def tell(self, message_for: Callable[[int], cc.Message]) -> None:
        """Tell every worker that runs. Later ones begin with the configuration of their time."""
        for number, worker in self._workers.items():
            if not worker.ended:
                worker.control.post(message_for(number))

    def _hear(self, teller: WorkerProcess, told: TrafficBatch | cc.ListsChanged) -> None:
        if isinstance(told, list):
            self.on_traffic(teller.number, told)
            return
        for worker in self._workers.values():
            if worker is not teller and not worker.ended:
                worker.control.post(told)

    def stop(self) -> None:
        """Have all workers finish their work, and start no new ones."""
        self._stopping = True
        for worker in self._workers.values():
            worker.leaving = True
        self.tell(lambda _number: cc.Word.STOP)

    async def caught_up(self) -> None:
        """Wait until each worker, one that starts too, has done what it was told, or is late."""
        workers = [each for each in self._workers.values() if not (each.ended or each.silent)]
        await self.ask("heartbeat", workers)

    async def ask(self, about: str, workers: Iterable[WorkerProcess] | None = None) -> dict[int, Any]:
        """The answers of `workers`, else of all that serve, by number. Who does not answer is left out."""
        answers: dict[int, Any] = {}

        async def ask_one(worker: WorkerProcess) -> None:
            try:
                answers[worker.number] = await worker.ask(about)
            except TransportClosed as error:
                log.warning("worker left out of an answer", worker=worker.number, reason=str(error))

        async with trio.open_nursery() as nursery:
            for worker in self.serving if workers is None else workers:
                nursery.start_soon(ask_one, worker)
        return dict(sorted(answers.items()))
