"""The servers behind mcpmux in tests of faults: child processes, and what is done to them."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from subprocess import PIPE

import trio

from mcpmux.config import Http, Stdio, Upstream
from tests.chaos.fault_proxy import MODES, FaultProxy

HERE = Path(__file__).parent
PYTHON = [sys.executable, "-I", "-S"]
WRAPPER_MODES = ("garbage", "cut", "ids", "twice", "silent", "slow")
SHORTEST, LONGEST = 0.3, 1.5  # seconds that a fault lasts
ANSWER_SECONDS = 3.0
DEADLINES = {
    "request_timeout": ANSWER_SECONDS,
    "timeouts": {"tools/call": ANSWER_SECONDS},
    "list_timeout": 2.0,
    "connect_timeout": 5.0,
    "health_interval": 2.0,
}


class Victim:
    """One server. `faults` are what can be done to it; each lasts until `heal`."""

    def __init__(self, name: str, era: str, pids: Path) -> None:
        self.name = name
        self._pids = pids
        self.command = [*PYTHON, str(HERE / "server.py"), name, era, str(pids)]
        self._paused: list[int] = []
        self.faults: dict[str, Callable[[], None]] = {"kill": self._kill, "pause": self._pause}
        self.deaths = 0

    def __repr__(self) -> str:
        return f"<Victim {self.name}>"

    def upstream(self, **settings: object) -> Upstream:
        """Return its configuration."""
        target = Stdio(self.command[0], tuple(self.command[1:]))
        return Upstream(name=self.name, target=target, **{**DEADLINES, **settings})  # type: ignore[arg-type]

    def heal(self) -> None:
        """End the fault."""
        for pid in self._paused:
            _signal(pid, signal.SIGCONT)
        self._paused.clear()

    def pids(self) -> list[int]:
        """Return the ids of all processes that were ever started."""
        return [int(path.name.partition(".")[0]) for path in self._pids.glob(f"*.{self.name}")]

    def _living(self) -> list[int]:
        return [pid for pid in self.pids() if is_alive(pid)]

    def _kill(self) -> None:
        self.deaths += 1
        for pid in self._living():
            _signal(pid, signal.SIGKILL)

    def _pause(self) -> None:
        self._paused = self._living()
        for pid in self._paused:
            _signal(pid, signal.SIGSTOP)


class Wrapped(Victim):
    """A server on standard input and output behind a wrapper that spoils what it says."""

    def __init__(self, name: str, era: str, pids: Path) -> None:
        super().__init__(name, era, pids)
        self._mode = pids / f"mode-{name}"
        self._mode.write_text("")
        self.command = [*PYTHON, str(HERE / "wrapper.py"), str(self._mode), *self.command]
        for mode in WRAPPER_MODES:
            self.faults[mode] = partial(self._mode.write_text, mode)  # type: ignore[assignment]

    def heal(self) -> None:
        super().heal()
        self._mode.write_text("")


class Web(Victim):
    """A server over HTTP, behind a proxy that spoils what passes. `run` has to run; it is started again."""

    def __init__(self, name: str, era: str, pids: Path, chance: random.Random) -> None:
        super().__init__(name, era, pids)
        self._proxy = FaultProxy(chance)
        self._port = 0
        for mode in MODES:
            self.faults[mode] = partial(self._proxy.become, mode)

    def upstream(self, **settings: object) -> Upstream:
        target = Http(self.url)
        return Upstream(name=self.name, target=target, **{**DEADLINES, **settings})  # type: ignore[arg-type]

    @property
    def url(self) -> str:
        """The URL at which mcpmux finds it."""
        return f"http://127.0.0.1:{self._port}/mcp"

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Serve until cancelled; the process is started anew whenever it has ended."""
        async with trio.open_nursery() as nursery:
            self._port = await nursery.start(self._proxy.serve)
            await nursery.start(self._keep_process)
            task_status.started()

    @property
    def connections(self) -> int:
        """The number of connections between mcpmux and it."""
        return self._proxy.passing

    async def _keep_process(self, task_status: trio.TaskStatus[None]) -> None:
        while True:
            process = await trio.lowlevel.open_process([*self.command, "--http"], stdout=PIPE)
            assert process.stdout is not None
            try:
                async with process.stdout:
                    self._proxy.port = int(await process.stdout.receive_some())
                    task_status.started()
                    task_status = trio.TASK_STATUS_IGNORED
                    await process.wait()
            finally:
                process.kill()
                with trio.CancelScope(shield=True):
                    await process.wait()

    def heal(self) -> None:
        super().heal()
        self._proxy.become("pass")


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
