"""How the process holds on to memory that it will need again in a moment.

glibc gives what is free at the end of the heap back to the system as soon as it is more than a message or
two. With large messages that is after each of them: for the next, the kernel has to find and clear the pages
again, which costs more than all the work on it.
"""

from __future__ import annotations

import ctypes
import sys

KEPT_BYTES = 32 * 2**20  # of free memory at the end of the heap: eight messages of 2 MB, in and out
SEPARATE_BYTES = 16 * 2**20  # blocks from this size on are the system's own, and go back to it at once

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's malloc.h


def keep_freed_memory() -> None:
    """Have freed memory be used again; nothing happens where the C library is not glibc."""
    if (library := _c_library()) is not None:
        library.mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        library.mallopt(_MMAP_THRESHOLD, SEPARATE_BYTES)


def give_back_memory() -> None:
    """Once give back all that is free, wherever in the heap: what starting has left, a megabyte or so."""
    if (library := _c_library()) is not None:
        library.malloc_trim(0)


def _c_library() -> ctypes.CDLL | None:
    """The process's own, if it has what we ask of glibc."""
    if sys.platform != "linux":
        return None
    try:
        library = ctypes.CDLL(None)
    except OSError:  # an interpreter that loads nothing
        return None
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
