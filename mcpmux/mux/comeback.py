"""When an upstream that was lost is tried again: at once, then exponentially later, jittered, capped.

A crash loop is DEATHS losses within WINDOW_SECONDS: sessions that were open, or processes that ended before
theirs was. An attempt that finds nobody is no death. Then every attempt waits for LOOP_SECONDS, until a
connection holds for STABLE_SECONDS.

Laws: no wait is longer than its cap; without a death, waits never become shorter until a connection held;
after one that held the next attempt comes at once. Times are seconds of any clock; chances are from 0 to 1.
"""

from __future__ import annotations

from collections import deque
from typing import Final

FIRST_SECONDS: Final = 0.2  # an upstream that restarts is usually back within a second
LAST_SECONDS: Final = 30.0  # a dead upstream is asked twice a minute
GROWTH: Final = 2.0
JITTER: Final = 0.5  # a hundred upstreams that died together must not come back together
STABLE_SECONDS: Final = 10.0  # a connection that held so long was a good one: the next loss starts afresh
# The quick attempts of the first seconds; a server that survives none will not soon.
DEATHS: Final = 5
WINDOW_SECONDS: Final = 60.0
LOOP_SECONDS: Final = 60.0


class Comeback:
    """The attempts to connect to one upstream. `looping`: whether it is in a crash loop."""

    __slots__ = ("_deaths", "_next", "looping")

    def __init__(self) -> None:
        self._next = 0.0
        self._deaths: deque[float] = deque(maxlen=DEATHS)
        self.looping = False

    def __repr__(self) -> str:
        return f"Comeback(next={self._next:.1f}s{', looping' if self.looping else ''})"

    @property
    def deaths(self) -> int:
        """Losses that count at the moment."""
        return len(self._deaths)

    def reset(self) -> None:
        """Begin again: the next attempt comes at once."""
        self._next, self.looping = 0.0, False
        self._deaths.clear()

    def wait(self, now: float, *, died: bool, held: float, chance: float) -> float:
        """Seconds until the next attempt, after one that ended `now`.

        `held`: seconds for which it had a connection; `died`: whether it counts as a death.
        """
        if held > STABLE_SECONDS:
            self._next, self.looping = 0.0, False
        if died:
            self._deaths.append(now)
        while self._deaths and self._deaths[0] <= now - WINDOW_SECONDS:
            self._deaths.popleft()
        self.looping = self.looping or len(self._deaths) == DEATHS
        seconds = LOOP_SECONDS if self.looping else self._next
        self._next = min(max(self._next * GROWTH, FIRST_SECONDS), LAST_SECONDS)
        return seconds * (1 - JITTER * chance)
