"""The configuration file, looked at while mcpmux runs.

Looked at, not listened to: that works on every file system, and however an editor writes, in place or by
renaming. A file that is gone for a moment, or is written at the moment, is left alone until two looks in a
row show the same.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import trio

from mcpmux.config import Config
from mcpmux.errors import ConfigError

LOOK_SECONDS = 0.5  # between two looks; each is one stat in a thread

Look = tuple[int, int, int]
"""When it was written (ns), which file it is, its size."""


class Sightings:
    """When a file has changed and is complete again. `known`: how it looked when it was read last.

    State: unchanged --other look--> changing --same look again--> changed --read--> unchanged
    """

    def __init__(self, known: Look | None) -> None:
        self.known = known
        self._last = known

    def __repr__(self) -> str:
        return f"<Sightings {self.known} {self._last}>"

    def see(self, look: Look | None) -> bool:
        """One more look, None when there is no file; whether it is to be read."""
        settled = look == self._last
        self._last = look
        return settled and look is not None and look != self.known


class ConfigFile:
    """One file, and how to read it. `read` is called in a thread; it raises ConfigError."""

    def __init__(self, path: str, read: Callable[[], Config]) -> None:
        self.path = path
        self._read = read
        self._sightings = Sightings(None)

    def __repr__(self) -> str:
        return f"ConfigFile({self.path!r})"

    def load(self) -> Config:
        """What the file says now. Raises ConfigError. Looked at first, so that no change is missed."""
        self._sightings.known = look_at(self.path)
        if Path(self.path).is_fifo():  # reading it would wait for a writer, and everybody for us
            raise ConfigError([f"{self.path}: expected a file, this is a pipe"])
        return self._read()

    async def changed(self) -> None:
        """Wait until the file is another one than was loaded last, and complete."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            if self._sightings.see(await self._look()):
                return

    async def _look(self) -> Look | None:
        return await trio.to_thread.run_sync(look_at, self.path, abandon_on_cancel=True)


def look_at(path: str) -> Look | None:
    """How the file looks; None when there is none."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
