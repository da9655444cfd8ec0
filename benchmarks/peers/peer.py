"""A peer: how to install and start it, its settings, its names for things, and its process.

The process is in a new session on one core, with its output in a file, and ended with all its children.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.naming import READ, Load, name_of
from benchmarks.peers.install import SILENT, CannotRun, Environment, Installed, complaint
from benchmarks.process import Process
from benchmarks.upstream import LEGACY, item_uri

READ_ITEMS = 100  # of each upstream; fewer than in other rows, for some peers walk all lists to find one
START_SECONDS = 90
LEGACY_READ = READ._replace(era=LEGACY, subjects=[item_uri(number) for number in range(READ_ITEMS)])


class Shape(NamedTuple):
    """Shape of the load: connections, and the sessions that they share; 0: each has its own."""

    connections: int
    sessions: int = 0

    def __str__(self) -> str:
        if self.sessions:
            together = "1 session" if self.sessions == 1 else f"{self.sessions} sessions"
            return f"{self.connections} connections, {together}"
        return f"{self.connections} connections"


class Site(NamedTuple):
    """Place and task of a peer. An aggregator gets `urls`, a bridge the `command` of its one server."""

    installed: Installed
    folder: Path  # for its files; empty, and removed afterwards
    port: int  # to listen on
    urls: Sequence[str] = ()
    command: Sequence[str] = ()

    def write(self, name: str, text: str) -> str:
        """Write a file into the folder and return its path."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)


class Launch(NamedTuple):
    """A command line, what is added to the environment, and where it runs if not in its own folder."""

    command: Sequence[str]
    environment: Mapping[str, str] = {}
    directory: Path | None = None


class Peer(NamedTuple):
    """One program that mcpmux is compared with.

    `expose`: (upstream's name, URI or tool) to what clients ask for. `settings`: how it is run, in words.
    `sse`: its clients speak HTTP+SSE. `shapes`: those among which it shows at which it is best.
    `compiled`: it is machine code, and less is expected of mcpmux beside it.
    """

    name: str
    environment: Environment
    settings: str
    start: Callable[[Site], Launch]
    expose: Callable[[str, str], str]
    path: str = "/mcp"
    bridge: bool = False
    load: Load = LEGACY_READ
    sse: bool = False
    compiled: bool = False
    shapes: Sequence[Shape] = (Shape(64), Shape(8))
    prepare: Callable[[Site], None] = lambda _site: None  # once the process listens
    start_seconds: float = START_SECONDS

    def url(self, site: Site) -> str:
        """Return the URL for its clients."""
        return f"http://127.0.0.1:{site.port}{self.path}"

    def subjects(self, upstreams: int) -> list[str]:
        """Return the names to ask for, those of all upstreams in turn."""
        own = self.load.subjects
        turns = range(max(len(own), upstreams))
        return [self.expose(name_of(turn % upstreams), own[turn % len(own)]) for turn in turns]


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
