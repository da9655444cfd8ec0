"""A peer's process: started on one core in a new session, ended with all its children."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.peers.install import SILENT, CannotRun, complaint
from benchmarks.peers.peer import Launch
from benchmarks.process import STOP_SECONDS, cpu_seconds_of

PROBE_SECONDS = 0.3  # between two looks at whether it is ready
QUIET_SECONDS, QUIET_SHARE = 0.5, 0.1  # so much of a core is taken for idle
QUIET_WAIT_SECONDS = 20
LOG_BYTES = 64 * 1024  # of the end of what it printed


class Running:
    """The process. Its output is kept in a file of `folder`."""

    def __init__(self, launch: Launch, core: int, folder: Path) -> None:
        """Raises CannotRun."""
        self._log = folder / "output"
        settings = {**os.environ, **SILENT, "HOME": str(folder), **launch.environment}
        with self._log.open("wb") as log:
            try:
                self._process = subprocess.Popen(
                    launch.command,
                    cwd=launch.directory or folder,
                    env=settings,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=lambda: os.sched_setaffinity(0, {core}),  # before it has threads
                )
            except OSError as error:
                raise CannotRun(f"it cannot be started: {error}") from None

    def __repr__(self) -> str:
        return f"<Running, id {self._process.pid}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        self._signal(signal.SIGKILL)  # what it started and did not end
        self._process.wait()

    def wait_until(self, ready: Callable[[], object], seconds: float) -> None:
        """Return once `ready` raises no error. Raises CannotRun with its last one, or if the process ends."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                ready()
                return
            except CannotRun:
                raise
            except Exception as error:  # its errors are no reason to stop the others
                if self._process.poll() is not None:
                    raise CannotRun(f"it ended with {self._process.returncode}: {self.said()}") from None
                if time.monotonic() > deadline:
                    reason = f"{error}"[:300] or type(error).__name__
                    raise CannotRun(f"it was not ready after {seconds:.0f} s: {reason}") from None
            time.sleep(PROBE_SECONDS)

    def said(self) -> str:
        """Return its complaint in one line."""
        with self._log.open("rb") as file:
            file.seek(max(self._log.stat().st_size - LOG_BYTES, 0))
            return complaint(file.read().decode(errors="replace")) or "it said nothing"

    def settle(self) -> None:
        """Return once it is idle: what it has to do after a load is not part of the next one.

        One that is never idle is not waited for longer than QUIET_WAIT_SECONDS.
        """
        deadline = time.monotonic() + QUIET_WAIT_SECONDS
        while time.monotonic() < deadline:
            used = self.cpu_seconds()
            time.sleep(QUIET_SECONDS)
            if self.cpu_seconds() - used <= QUIET_SECONDS * QUIET_SHARE:
                return

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop it, with all that it has started, while another one is measured on its core."""
        self._signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal(signal.SIGCONT)

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of its first process, in which every peer does its work."""
        return cpu_seconds_of(self._process.pid)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # all have ended
            os.killpg(self._process.pid, number)


@contextmanager
def paused(process_id: int) -> Iterator[None]:
    """Stop one process meanwhile."""
    os.kill(process_id, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process_id, signal.SIGCONT)


def free_port() -> int:
    """Return a free port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def listening(port: int) -> None:
    """Raise OSError unless connections to the port are accepted."""
    socket.create_connection(("127.0.0.1", port), 5).close()
