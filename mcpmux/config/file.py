"""A file that is read as a whole: a bounded part of it, and never for as long as a pipe or a device likes.

All errors are an OSError with a text in `strerror`, or a ValueError for what cannot be the name of a file.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

CONFIG_BYTES: Final = 8 * 1024 * 1024  # Claude Code's file grows with each project, to some MiB at most

_AT_ONCE: Final = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
"""Opening a pipe waits for no writer. Windows has neither flag, and no pipes in folders."""


def read_file(path: str | Path, limit: int = CONFIG_BYTES) -> bytes:
    """Return what is in a regular file of at most `limit` bytes. Raises OSError and ValueError.

    For files that are where mcpmux looks for them, or that a file names.
    """
    with open(path, "rb", opener=_open_at_once) as file:  # Path.open has no opener
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        return _bounded(file.read(limit + 1), limit)


def read_named_file(path: str | Path, limit: int = CONFIG_BYTES) -> bytes:
    """Do the same with a file that the user names: it may be a pipe, as `<(…)` of a shell is one."""
    with Path(path).open("rb") as file:
        return _bounded(file.read(limit + 1), limit)


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | _AT_ONCE)


def _bounded(data: bytes, limit: int) -> bytes:
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit} bytes")
    return data
