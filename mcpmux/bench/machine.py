"""Facts about the machine that makes the load, so that a result can be judged later. No names of it."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path

from mcpmux import __version__

TOOL = f"mcpmux {__version__}"


def machine_facts() -> dict[str, str | int | float]:
    """What matters for speed: system, processor, how many of them may be used, Python."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": platform.machine(),
        "processors": usable_processors(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def usable_processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def waited_seconds() -> float:
    """How long this process's first thread was ready to run and had no processor. 0 where nobody counts."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    return 0.0
