"""Whether a worker still does anything: it is asked again and again, and hears nothing else of it.

| it has been silent for | what follows |
| --- | --- |
| SILENT_SECONDS | it is given no connections, until it answers again |
| HUNG_SECONDS | it hangs: `keep_pulse` returns, and its owner ends it |
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import structlog
import trio

from mcpmux.app.workers.changes import Changes, open_counters
from mcpmux.app.workers.control_channel import (
    Answer,
    Ask,
    Begin,
    Changed,
    Desk,
    Failed,
    Leaving,
    Passed,
    Ready,
    Saying,
    Stop,
)
from mcpmux.app.workers.traffic_forwarder import Parcel
from mcpmux.errors import ConfigError, McpmuxError, TransportClosed, TransportError
from mcpmux.mux.comeback import Comeback
from mcpmux.transports.handing import Hatch, Note, hatch_pair
from mcpmux.transports.process import OrphanGuard
from mcpmux.transports.wire import reason_of

log = structlog.get_logger()

BEAT_SECONDS = 2.0  # between two questions
SILENT_SECONDS = 5.0
HUNG_SECONDS = 30.0


async def keep_pulse(worker: Worker, awake: Callable[[], None]) -> None:
    """Ask until the worker hangs. `awake` is called when one that was silent serves again."""
    await worker.ready.wait()
    while True:
        await trio.sleep(BEAT_SECONDS)
        if await _answers(worker, SILENT_SECONDS):
            continue
        worker.silent = True
        log.warning("worker does not answer: the others get its connections", worker=worker.number)
        if not await _answers(worker, HUNG_SECONDS - SILENT_SECONDS):
            return
        worker.silent = False
        log.warning("worker answers again", worker=worker.number)
        awake()


async def _answers(worker: Worker, seconds: float) -> bool:
    try:
        await worker.ask("pulse", seconds)
    except TransportClosed:
        return False
    return True


# One worker as its keeper sees it: a process, what it says and is told, and its end.
#
# Promises: no worker outlives its keeper: it ends when its desk does, and a reaper ends one that does not.


ANSWER_SECONDS = 10.0  # for a worker to answer an administrator
END_SECONDS = 5.0  # for a worker to end by itself when its desk is closed
BOOT = (  # every module is found where the keeper has found it
    "import os, sys; sys.path[:] = sys.argv.pop(1).split(os.pathsep); "
    "from mcpmux.app.workers.program import main; main()"
)

Take = Callable[[int, Parcel], None]
"""Takes what a worker has brought."""

Spread = Callable[["Worker", Changed], None]
"""Takes what a worker has heard that all others have to know."""


class Worker:
    """One process, from its start to its end. `ready` is set when it can be given connections.

    `changes`: what it is still to be told.
    """

    def __init__(
        self, number: int, desk: Desk, hatch: Hatch, take: Take, spread: Spread | None = None
    ) -> None:
        self._take = take
        self._spread = spread
        self.changes = Changes()
        self.number = number
        self.desk = desk
        self.hatch = hatch
        self.ready = trio.Event()
        self.failure: Exception | None = None
        self.leaving = False
        self.silent = False
        self.ended = False
        self._questions: dict[int, trio.MemorySendChannel[Any]] = {}
        self._asked = 0

    def __repr__(self) -> str:
        state = "ended" if self.ended else "ready" if self.ready.is_set() else "starting"
        return f"<Worker {self.number} {state}>"

    @property
    def serves(self) -> bool:
        """Whether it can be given connections."""
        return self.ready.is_set() and not (self.leaving or self.silent or self.ended)

    async def listen(self) -> None:
        """Hear what it says until it has gone."""
        try:
            while True:
                saying = await self.desk.hear()
                if isinstance(saying, Ready):
                    self.ready.set()
                elif isinstance(saying, Failed):
                    mistakes = list(saying.mistakes)
                    self.failure = ConfigError(mistakes) if mistakes else McpmuxError(saying.reason)
                elif isinstance(saying, Leaving):
                    self.leaving = True
                    await self.desk.say(Stop())
                elif isinstance(saying, Passed):
                    self._take(self.number, saying.parcel)
                elif isinstance(saying, Changed) and self._spread is not None:
                    self._spread(self, saying)
                elif isinstance(saying, Answer) and saying.number in self._questions:
                    self._questions[saying.number].send_nowait(saying.value)
        except TransportClosed:
            self.ended = True
            for answered in self._questions.values():
                answered.close()

    def put(self, note: Note, sock: socket.socket) -> bool:
        """Whether it has taken a connection, which the caller still has to close."""
        try:
            return self.hatch.send_nowait(note, sock.fileno())
        except TransportClosed:
            return False

    async def ask(self, about: str, seconds: float = ANSWER_SECONDS) -> Any:
        """Its answer. Raises TransportClosed when there is none in time."""
        self._asked += 1
        number = self._asked
        answered, answer = trio.open_memory_channel[Any](1)
        self._questions[number] = answered
        try:
            with trio.move_on_after(seconds), suppress(trio.EndOfChannel):
                await self.desk.say(Ask(number, about))
                return await answer.receive()
        finally:
            del self._questions[number]
        raise TransportClosed(f"worker {self.number} {'has gone' if self.ended else 'does not answer'}")


async def start_worker(number: int, count: int, fds: tuple[int, int, int]) -> trio.Process:
    """A session of its own: what a terminal sends goes to the keeper alone.

    `fds`: its ends of desk and hatch, and the counters that all workers share.
    """
    return await trio.lowlevel.open_process(
        [sys.executable, "-P", "-c", BOOT, os.pathsep.join(sys.path), *map(str, (number, count, *fds))],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=fds,
    )


def kill_worker(process: trio.Process) -> None:
    """End it at once, with everything that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


async def end_worker(process: trio.Process) -> None:
    """Wait for a process whose desk is closed; end it when it does not end by itself."""
    with trio.CancelScope(shield=True):
        with trio.move_on_after(END_SECONDS):
            await process.wait()
        if process.returncode is None:
            log.error("worker does not end, it is killed", pid=process.pid)
            kill_worker(process)
            await process.wait()


# The workers as their keeper sees them: started, given connections, told things, started again, ended.
#
# Promises: connections go to the workers in turn, so that a handful of lasting ones is spread as evenly as
# many; one that a worker hands over goes to the worker that it names, or to any when it names none. A
# worker that ends without being asked to is told in the log and started again, at once at first, later when
# it keeps ending; one that hangs is ended. One that is asked to end gives back what it has not begun with,
# and none of that is lost.


FIRST_ATTEMPTS = 3  # to have a worker ready for the first time, if it ends without a reason
BACK_SECONDS = 10.0  # for a worker that is started again to take what is for it alone
FULL_SECONDS = 0.05  # until a worker is tried again that takes nothing more for now
FORWARDED = 256  # connections handed over that wait for a worker; more are closed
LAST_SECONDS = 5.0  # for what a worker has handed over when it has ended

BeginningOf = Callable[[int], Begin]
"""What the worker with that number is told first."""


class Crew:
    """All workers. `run` has to run."""

    def __init__(self, count: int, beginning_of: BeginningOf, take: Take) -> None:
        self._take = take
        self.count = count
        self._beginning_of = beginning_of
        self._workers: dict[int, Worker] = {}
        self._changed = trio.Event()
        self._next = 0
        self._stopping = False
        self._guard = OrphanGuard()
        self._forwarding = trio.CapacityLimiter(FORWARDED)
        self.lives: dict[int, int] = {}
        """How often each worker was started."""

    def __repr__(self) -> str:
        return f"<Crew {list(self._workers.values())}>"

    @property
    def serving(self) -> list[Worker]:
        """Those that can be given connections, in order."""
        return [worker for _, worker in sorted(self._workers.items()) if worker.serves]

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the workers running; returns when all have ended after `stop`.

        Started when all are ready. Raises what keeps one from beginning for the first time; one that just
        ends is given FIRST_ATTEMPTS. Cancelling ends them at once.
        """
        self._counters = open_counters(self.count)
        try:
            async with trio.open_nursery() as forwards:
                async with trio.open_nursery() as nursery:
                    for number in range(1, self.count + 1):
                        nursery.start_soon(self._keep, number, forwards, name=f"worker {number}")
                    while len(self.serving) < self.count:
                        await self._changed.wait()
                    task_status.started()
                forwards.cancel_scope.cancel(reason="all workers have ended")
        finally:
            os.close(self._counters)

    async def _keep(self, number: int, forwards: trio.Nursery) -> None:
        """One worker, and the next when it is lost."""
        comeback, came_up, attempts = Comeback(), False, 0
        while not self._stopping:
            attempts += 1
            began = trio.current_time()
            try:
                worker = await self._live(number, forwards)
            except OSError as error:
                failure: Exception | None = TransportError(f"a worker cannot be started: {reason_of(error)}")
                ready = False
            else:
                failure, ready = worker.failure, worker.ready.is_set()
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

    async def _live(self, number: int, forwards: trio.Nursery) -> Worker:
        """One process from its start to its end. Raises OSError when there is none."""
        desk, their_desk = socket.socketpair()
        hatch, their_hatch = hatch_pair()
        with their_desk, their_hatch:
            fds = (their_desk.fileno(), their_hatch.fileno(), self._counters)
            try:
                process = await start_worker(number, self.count, fds)
            except BaseException:
                desk.close()
                hatch.close()
                raise
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(desk))
        worker = Worker(number, Desk(stream), Hatch(hatch), self._take, self._spread)
        self._workers[number] = worker
        self.lives[number] = self.lives.get(number, 0) + 1
        watching = trio.CancelScope()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._guard.watch, process.pid, watching, name=f"guard {number}")
                forwarded = trio.Event()
                nursery.start_soon(self._forward_all, worker, forwards, forwarded, name=f"hatch {number}")
                nursery.start_soon(self._tell_when_ready, worker)
                nursery.start_soon(self._end_when_hung, worker, process, name=f"pulse {number}")
                await self._tell(worker, self._beginning_of(number))
                nursery.start_soon(self._tell_changes, worker, name=f"changes {number}")
                if self._stopping:
                    await self._tell(worker, Stop())
                await worker.listen()
                with trio.move_on_after(LAST_SECONDS):
                    await forwarded.wait()
                nursery.cancel_scope.cancel(reason="the worker has ended")
        finally:
            worker.ended = True
            worker.desk.close()
            worker.hatch.close()
            await end_worker(process)
            watching.cancel(reason="the worker has ended")
        return worker

    async def _tell_when_ready(self, worker: Worker) -> None:
        await worker.ready.wait()
        self._tell_of_change()

    async def _end_when_hung(self, worker: Worker, process: trio.Process) -> None:
        await keep_pulse(worker, self._tell_of_change)
        worker.failure = TransportError("it has hung")
        kill_worker(process)

    def _tell_of_change(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    # Connections

    async def give(self, note: Note, sock: socket.socket) -> None:
        """Have the next worker serve a connection; waits while there is none."""
        while True:
            if self._give_now(note, sock):
                return
            if self.serving:
                await trio.sleep(FULL_SECONDS)
            else:
                await self._changed.wait()

    def _give_now(self, note: Note, sock: socket.socket) -> bool:
        serving = self.serving
        for _ in serving:
            self._next += 1
            if serving[self._next % len(serving)].put(note, sock):
                return True
        return False

    async def _forward_all(self, worker: Worker, forwards: trio.Nursery, forwarded: trio.Event) -> None:
        """What a worker hands over goes to the one that it names, until it has ended."""
        try:
            while True:
                note, sock = await worker.hatch.receive()
                if self._pass(note, sock):
                    sock.close()
                elif self._forwarding.available_tokens:
                    self._forwarding.acquire_on_behalf_of_nowait(sock)
                    forwards.start_soon(self._forward_later, note, sock)
                else:
                    log.warning("connection closed: too many wait for a worker")
                    sock.close()
        except TransportClosed:
            forwarded.set()

    def _pass(self, note: Note, sock: socket.socket) -> bool:
        """Whether a worker has it that it is for."""
        if not note.worker:
            return self._give_now(note, sock)
        target = self._workers.get(note.worker)
        return target is not None and target.serves and target.put(note, sock)

    async def _forward_later(self, note: Note, sock: socket.socket) -> None:
        """Whoever it is for is busy or being started again."""
        try:
            with sock, trio.move_on_after(BACK_SECONDS):
                while True:
                    if self._pass(note, sock):
                        return
                    await trio.sleep(FULL_SECONDS)
        finally:
            self._forwarding.release_on_behalf_of(sock)
        log.warning("connection closed: nobody serves it", worker=note.worker or "any")

    # Sayings

    async def tell(self, saying_for: Callable[[int], Saying]) -> None:
        """Tell every worker; one that is started later begins with the configuration of then."""
        for number, worker in list(self._workers.items()):
            if not worker.ended:
                await self._tell(worker, saying_for(number))

    async def _tell(self, worker: Worker, saying: Saying) -> None:
        try:
            await worker.desk.say(saying)
        except TransportClosed:
            log.debug("a worker has gone that was to be told something", worker=worker.number)

    def _spread(self, teller: Worker, changed: Changed) -> None:
        """The other workers hear it."""
        for worker in self._workers.values():
            if worker is not teller and not worker.ended:
                worker.changes.add(changed.lists)

    async def _tell_changes(self, worker: Worker) -> None:
        while True:
            await self._tell(worker, Changed(await worker.changes.take()))

    async def stop(self) -> None:
        """Have all finish what they do, and start none any more."""
        self._stopping = True
        for worker in self._workers.values():
            worker.leaving = True
        await self.tell(lambda _number: Stop())

    async def heard(self) -> None:
        """Wait until each worker, one that starts too, has done what it was told, or is late."""
        await self._ask("pulse", [each for each in self._workers.values() if not (each.ended or each.silent)])

    async def ask(self, about: str) -> dict[int, Any]:
        """What each worker answers, by its number; those that do not are left out."""
        return await self._ask(about, self.serving)

    async def _ask(self, about: str, workers: Iterable[Worker]) -> dict[int, Any]:
        answers: dict[int, Any] = {}

        async def ask_one(worker: Worker) -> None:
            try:
                answers[worker.number] = await worker.ask(about)
            except TransportClosed as error:
                log.warning("part of an answer is missing", worker=worker.number, reason=str(error))

        async with trio.open_nursery() as nursery:
            for worker in workers:
                nursery.start_soon(ask_one, worker)
        return dict(sorted(answers.items()))
