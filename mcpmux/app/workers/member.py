"""One worker as its keeper sees it: a process, what it says and is told, and its end.

Promises: no worker outlives its keeper: it ends when its desk does, and a reaper ends one that does not.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog
import trio

from mcpmux.app.workers.changes import Changes
from mcpmux.app.workers.courier import Parcel
from mcpmux.app.workers.desk import Answer, Ask, Changed, Desk, Failed, Leaving, Passed, Ready, Stop
from mcpmux.errors import ConfigError, McpmuxError, TransportClosed
from mcpmux.transports.handing import Hatch, Note

log = structlog.get_logger()

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
