"""The configuration file, and how its changes are noticed.

The file is polled, one `stat` each LOOK_SECONDS. That works on every file system, through symbolic links, and
however an editor writes. A file counts as changed once two looks in a row are alike, so a half-written or
missing file is left alone. The `watchfiles` package takes 2.3 MB, and its inotify misses changes on network
file systems and behind symbolic links.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import trio

from mcpmux.config import Config
from mcpmux.errors import ConfigError

LOOK_SECONDS = 0.5  # between two looks

Look = tuple[int, int, int]
"""When the file was written (ns), its inode, its size."""


class ChangeDetector:
    """Tells when a file has changed and is complete again. `known`: how it looked when it was last read.

    unchanged --another look--> changing --the same look again--> changed --read--> unchanged
    """

    def __init__(self, known: Look | None) -> None:
        self.known = known
        self._last = known

    def __repr__(self) -> str:
        return f"<ChangeDetector {self.known} {self._last}>"

    def see(self, look: Look | None) -> bool:
        """Take one more look (None: no file). Returns whether the file is to be read."""
        settled = look == self._last
        self._last = look
        return settled and look is not None and look != self.known


class ConfigFile:
    """One file, and how to read it. `read` is called in a thread; it raises ConfigError."""

    def __init__(self, path: str, read: Callable[[], Config]) -> None:
        self.path = path
        self._read = read
        self._detector = ChangeDetector(None)

    def __repr__(self) -> str:
        return f"ConfigFile({self.path!r})"

    def load(self) -> Config:
        """Read the file. It is looked at first, so that no change is missed. Raises ConfigError."""
        self._detector.known = look_at(self.path)
        if Path(self.path).is_fifo():  # reading it would wait for a writer, and everybody for us
            raise ConfigError([f"{self.path}: expected a file, this is a pipe"])
        return self._read()

    async def changed(self) -> None:
        """Wait until the file has changed since it was last loaded, and is complete."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            look = await trio.to_thread.run_sync(look_at, self.path, abandon_on_cancel=True)
            if self._detector.see(look):
                return


def look_at(path: str) -> Look | None:
    """How the file looks, or None if there is no file."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
