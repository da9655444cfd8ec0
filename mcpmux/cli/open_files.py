"""How many files and sockets this process may have open: as many as the system lets us, when we need them."""

from __future__ import annotations

import sys

if sys.platform != "win32":
    import resource


def may_open(needed: int) -> int:
    """Allow this process `needed` open files; how many it may open now, fewer where the system says no."""
    if sys.platform == "win32":
        return needed
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return needed
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(wanted, soft), hard))
    except (OSError, ValueError):  # some systems have a lower limit than the hard one they tell
        return soft
    return max(wanted, soft)
