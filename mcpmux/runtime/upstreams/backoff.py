"""How long to wait before the next attempt: at once, then exponentially longer, jittered, capped."""

from __future__ import annotations

import random

FIRST_SECONDS = 0.2  # an upstream that restarts is usually back within a second
LAST_SECONDS = 30.0  # a dead upstream is asked twice a minute
GROWTH = 2.0
JITTER = 0.5  # a hundred upstreams that died together must not come back together


class Backoff:
    """The waits of one upstream. `reset` after it has worked."""

    def __init__(self) -> None:
        self._next = 0.0

    def __repr__(self) -> str:
        return f"Backoff(next={self._next:.1f}s)"

    def reset(self) -> None:
        """Begin again: the next attempt comes at once."""
        self._next = 0.0

    def next(self) -> float:
        """Seconds to wait now; the following wait is longer."""
        seconds = self._next
        self._next = min(max(seconds * GROWTH, FIRST_SECONDS), LAST_SECONDS)
        return seconds * random.uniform(1 - JITTER, 1)
