"""A peer's process: in a new session on one core, with its output in a file, ended with all its children."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.peers.install import SILENT, CannotRun, complaint
from benchmarks.peers.peer import Launch
from benchmarks.process import Process

PROBE_SECONDS = 0.3  # between two looks at whether it is ready
QUIET_SECONDS, QUIET_SHARE = 0.5, 0.1  # so much of a core is taken for idle
QUIET_WAIT_SECONDS = 20
LOG_BYTES = 64 * 1024  # of the end of what it printed


class Running(Process):
    """The process. Its output is kept in a file of `folder`."""

    def __init__(self, launch: Launch, core: int, folder: Path) -> None:
        """Raises CannotRun."""
        self._log = folder / "output"
        settings = {**SILENT, "HOME": str(folder), **launch.environment}
        place = launch.directory or folder
        try:
            super().__init__(
                launch.command, (core,), folder=place, environment=settings, log=self._log, leads=True
            )
        except OSError as error:
            raise CannotRun(f"it cannot be started: {error}") from None

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


def listening(port: int) -> None:
    """Raise OSError unless connections to the port are accepted."""
    socket.create_connection(("127.0.0.1", port), 5).close()
