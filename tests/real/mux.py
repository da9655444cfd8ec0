"""mcpmux as users run it: a process with a configuration file, in front of real servers."""

from __future__ import annotations

import json
import os
import select
import time
from pathlib import Path
from typing import Any

from tests.process.running import Running

Json = dict[str, Any]

START_SECONDS = 90.0  # for all upstreams of one test to start on a busy machine
PAGE_SIZE = 1000  # the default, which a few small servers do not fill


def stdio(command: list[str], **settings: Any) -> Json:
    """Return the table of an upstream that mcpmux starts, with time for a slow start."""
    patience = {"connect_timeout": START_SECONDS, "list_timeout": START_SECONDS}
    return {"command": command[0], "args": command[1:], **patience, **settings}


def write_config(
    directory: Path, upstreams: dict[str, Json], *, page_size: int = PAGE_SIZE, **settings: Json
) -> Path:
    """Write a configuration file with these upstreams, in this order."""
    path = directory / "mcpmux.json"
    document = {"upstreams": upstreams, "merging": {"page_size": page_size}, **settings}
    path.write_text(json.dumps(document))
    return path


class Mux(Running):
    """A running `mcpmux serve`."""

    def __init__(self, config: Path, *options: str, env: dict[str, str] | None = None) -> None:
        super().__init__("serve", str(config), *options, "--log-level", "error", env=env)

    @property
    def pid(self) -> int:
        """The process id of mcpmux."""
        return self._process.pid


class HttpMux(Mux):
    """A running `mcpmux serve --http`, ready at `url`."""

    def __init__(self, config: Path, *, port: int = 0, env: dict[str, str] | None = None) -> None:
        super().__init__(config, "--http", f"127.0.0.1:{port}", env=env)
        self.url = self.line().strip()


class StdioMux(Mux):
    """A running `mcpmux serve --stdio`."""

    def __init__(self, config: Path) -> None:
        super().__init__(config, "--stdio")


def descendants(pid: int) -> set[int]:
    """Return the ids of all running processes below `pid`."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = stat.read_text().rpartition(") ")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if after_name[0] != "Z":
            parents[int(stat.parent.name)] = int(after_name[1])
    pids, generation = set(), {pid}
    while generation:
        generation = {child for child, parent in parents.items() if parent in generation}
        pids |= generation
    return pids


class Watch:
    """Tells when processes have ended. Made while they run, for their ids may be used again later."""

    def __init__(self, pids: set[int]) -> None:
        self._running = {os.pidfd_open(pid): pid for pid in pids}

    def wait(self, seconds: float) -> set[int]:
        """Wait for the end of all of them: the ids of those that still run."""
        deadline = time.monotonic() + seconds
        while self._running:
            ended = select.select(self._running, [], [], max(0, deadline - time.monotonic()))[0]
            if not ended:
                break
            for descriptor in ended:
                del self._running[descriptor]
                os.close(descriptor)
        return set(self._running.values())
