"""One worker as the supervisor sees it: its process, its messages, its heartbeat.

No worker outlives its supervisor: it ends when its control channel does, and an orphan guard ends one that
does not.

| no answer for | what follows |
| --- | --- |
| SILENT_SECONDS | it gets no connections until it answers again |
| HUNG_SECONDS | it hangs: `watch_heartbeat` returns, and the pool kills it |
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import structlog
import trio

from mcpmux.app.workers import control_channel as cc
from mcpmux.app.workers.traffic_forwarder import TrafficBatch
from mcpmux.errors import ConfigError, McpmuxError, TransportClosed
from mcpmux.transports.handing import ConnectionChannel

log = structlog.get_logger()

HEARTBEAT_SECONDS = 2.0  # between two questions
SILENT_SECONDS = 5.0
HUNG_SECONDS = 30.0
ANSWER_SECONDS = 10.0  # for a worker to answer an administrator
END_SECONDS = 5.0  # for a worker to end by itself when its control channel is closed
BOOT = (  # every module is found where the supervisor has found it
    "import os, sys; sys.path[:] = sys.argv.pop(1).split(os.pathsep); "
    "from mcpmux.app.workers.worker import main; main()"
)


@dataclass(eq=False)
class WorkerProcess:
    """A worker from its start to its end."""

    number: int
    process: trio.Process
    control: cc.ControlChannel
    connection_channel: ConnectionChannel
    ready: trio.Event = field(default_factory=trio.Event)
    failure: Exception | None = None
    leaving: bool = False
    silent: bool = False
    ended: bool = False

    def __post_init__(self) -> None:
        self._questions: dict[int, trio.MemorySendChannel[Any]] = {}
        self._asked = 0

    def __repr__(self) -> str:
        state = "ended" if self.ended else "ready" if self.ready.is_set() else "starting"
        return f"<WorkerProcess {self.number} {state}>"

    @property
    def serves(self) -> bool:
        """Whether it can be given connections."""
        return self.ready.is_set() and not (self.leaving or self.silent or self.ended)

    async def run(self, handle: Callable[[WorkerProcess, TrafficBatch | cc.ListsChanged], None]) -> None:
        """Send it what is posted, and handle what it sends, until it has gone.

        `handle` is called with what it has seen and with what all other workers have to know.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.control.send_posted)
            with suppress(TransportClosed):
                while True:
                    match await self.control.receive():
                        case cc.Word.READY:
                            self.ready.set()
                        case cc.Failed(reason, mistakes):
                            self.failure = ConfigError(list(mistakes)) if mistakes else McpmuxError(reason)
                        case cc.Word.LEAVING:
                            self.leaving = True
                            self.control.post(cc.Word.STOP)
                        case cc.Answer(number, value) if number in self._questions:
                            self._questions[number].send_nowait(value)
                        case list() | cc.ListsChanged() as told:
                            handle(self, told)
            self.ended = True
            for answered in self._questions.values():
                answered.close()
            nursery.cancel_scope.cancel(reason="the worker has gone")

    async def ask(self, about: str, seconds: float = ANSWER_SECONDS) -> Any:
        """Ask the worker. Returns its answer; raises TransportClosed if there is none in time."""
        self._asked += 1
        number = self._asked
        answered, answer = trio.open_memory_channel[Any](1)
        self._questions[number] = answered
        self.control.post(cc.Ask(number, about))
        try:
            with trio.move_on_after(0 if self.ended else seconds), suppress(trio.EndOfChannel):
                return await answer.receive()
        finally:
            del self._questions[number]
        raise TransportClosed(f"worker {self.number} {'has gone' if self.ended else 'does not answer'}")

    async def watch_heartbeat(self, on_recovery: Callable[[], object]) -> None:
        """Ask it until it hangs. `on_recovery` is called when it was silent and serves again."""
        while True:
            await trio.sleep(HEARTBEAT_SECONDS)
            if await self._answers(SILENT_SECONDS):
                continue
            self.silent = True
            log.warning("worker does not answer: the others get its connections", worker=self.number)
            if not await self._answers(HUNG_SECONDS - SILENT_SECONDS):
                return
            self.silent = False
            log.warning("worker answers again", worker=self.number)
            on_recovery()

    async def _answers(self, seconds: float) -> bool:
        with suppress(TransportClosed):
            await self.ask("heartbeat", seconds)
            return True
        return False

    def kill(self) -> None:
        """End it at once, with everything that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    async def end(self) -> None:
        """Close its channels, after which it ends by itself, and wait for that; else kill it."""
        self.ended = True
        self.control.close()
        self.connection_channel.close()
        with trio.CancelScope(shield=True):
            with trio.move_on_after(END_SECONDS):
                await self.process.wait()
            if self.process.returncode is None:
                log.error("worker does not end, killing it", pid=self.process.pid)
                self.kill()
                await self.process.wait()


async def start_process(number: int, count: int, fds: tuple[int, int, int]) -> trio.Process:
    """Start worker `number` of `count`, in a session of its own: signals of a terminal must not reach it.

    `fds`: the worker's ends of both channels, and the counters that all workers share.
    """
    return await trio.lowlevel.open_process(
        [sys.executable, "-P", "-c", BOOT, os.pathsep.join(sys.path), *map(str, (number, count, *fds))],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=fds,
    )
