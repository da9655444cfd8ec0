"""Facts about a peer: how to install and start it, its settings, and its names for things."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.naming import READ, Load, name_of
from benchmarks.peers.install import Environment, Installed
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
