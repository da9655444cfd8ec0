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


class ConfigFile:
    """One file, and how to read it. `read` is called in a thread; it raises ConfigError.

    unchanged --another look--> changing --the same look again--> changed --read--> unchanged

    `known`: how the file looked when it was last read.
    """

    def __init__(self, path: str, read: Callable[[], Config]) -> None:
        self.path = path
        self.known: Look | None = None
        self._last: Look | None = None
        self._read = read

    def __repr__(self) -> str:
        return f"ConfigFile({self.path!r})"

    def see(self, look: Look | None) -> bool:
        """Take one more look (None: no file). Returns whether the file is to be read."""
        settled, self._last = look == self._last, look
        return settled and look is not None and look != self.known

    def load(self) -> Config:
        """Read the file. It is looked at first, so that no change is missed. Raises ConfigError."""
        self.known = look_at(self.path)
        if Path(self.path).is_fifo():  # reading it would wait for a writer, and everybody for us
            raise ConfigError([f"{self.path}: expected a file, this is a pipe"])
        return self._read()

    async def changed(self) -> None:
        """Wait until the file has changed since it was last loaded, and is complete."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            if self.see(await trio.to_thread.run_sync(look_at, self.path, abandon_on_cancel=True)):
                return


def look_at(path: str) -> Look | None:
    """How the file looks, or None if there is no file."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
