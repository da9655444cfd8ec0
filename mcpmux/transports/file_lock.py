"""Locks on files between processes, which end with the process that has them."""

from __future__ import annotations

import os
import sys
from typing import Final

BINARY: Final[int] = getattr(os, "O_BINARY", 0)
"""A flag for `os.open`. Without it Windows translates line ends."""

OWN_FILE: Final[int] = getattr(os, "O_NOFOLLOW", 0)
"""A flag for `os.open` of a file to write: refuse a link, which may lead to another user's file."""

if sys.platform == "win32":
    import msvcrt

    _FAR: Final = 2**40  # a byte that is locked cannot be read by others, so this is none of the contents

    def lock_file(descriptor: int) -> None:
        """Lock an open file until its descriptor is closed. Raises BlockingIOError when another has it."""
        # `locking` locks at the current position, so that is moved and put back.
        position = os.lseek(descriptor, 0, os.SEEK_CUR)
        try:
            os.lseek(descriptor, _FAR, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError(error.errno, "another process has the file") from None
        finally:
            os.lseek(descriptor, position, os.SEEK_SET)

else:
    import fcntl

    def lock_file(descriptor: int) -> None:
        """Lock an open file until its descriptor is closed. Raises BlockingIOError when another has it."""
        # Not `lockf`: POSIX locks end as soon as the process closes any descriptor of the file.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
