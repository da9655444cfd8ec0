"""Decide when to ask an unresponsive upstream again. Times: seconds of any clock; chances: from 0 to 1.

Connected, but silent: its circuit breaker (`Breaker`)

    closed    --failures in a row--> suspect       (calls go on; a probe shall find out now)
    suspect   --probe failed--> open
    open      --probe failed--> open, for longer   (one probe whenever its pause is over)
    any       --answered--> closed                 (a call or a probe; an error of the server is an answer)

While it is open no call is made. Probes are mcpmux's own requests, so that no client's call has to fail to
find out, and so that a server whose calls merely take too long is never shut off.

Lost: the next attempt to connect (`Comeback`) comes at once, then exponentially later, jittered, capped. A
crash loop is DEATHS losses within WINDOW_SECONDS: sessions that were open, or processes that ended before
their session was. An attempt that reaches no server is not a death. In a loop every attempt waits for
LOOP_SECONDS, until a connection holds for STABLE_SECONDS.

Refused, though connected: the server may have forgotten its session, and another one is opened beside it
(`Renewals`). A renewal that helped may be repeated at once. After an attempt that did not help, because no
session could be opened or because the new one is refused as well, the next one waits, each time for longer.

Laws: no wait is longer than its cap; without a death, waits never become shorter until a connection held;
after one that held the next attempt comes at once.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from typing import Final

GROWTH: Final = 2.0  # of pauses, from one to the next

FAILURES: Final = 5  # in a row; fewer happen to a server that is restarted behind a proxy
FIRST_PAUSE_SECONDS = 5.0
LAST_PAUSE_SECONDS = 60.0
PROBE_JITTER: Final = 0.25  # upstreams behind one broken proxy are not probed all at once

FIRST_SECONDS: Final = 0.2  # an upstream that restarts is usually back within a second
LAST_SECONDS: Final = 30.0  # a dead upstream is asked twice a minute
JITTER: Final = 0.5  # a hundred upstreams that died together must not come back together
STABLE_SECONDS: Final = 10.0  # a connection that held so long was a good one: the next loss starts afresh
DEATHS: Final = 5  # the quick attempts of the first seconds; a server that survives none will not soon
WINDOW_SECONDS: Final = 60.0
LOOP_SECONDS: Final = 60.0


class BreakerState(enum.Enum):
    CLOSED = "closed"
    SUSPECT = "suspect"
    OPEN = "open"


class Breaker:
    """The breaker of one upstream. `retry_at`: the time of the next probe, while the breaker is open.

    `doubtful`: the only member to check around a call; False until the first failure.
    """

    __slots__ = ("_pause", "doubtful", "failures", "retry_at", "state")

    def __init__(self) -> None:
        self.state = BreakerState.CLOSED
        self.doubtful = False
        self.failures = 0
        self.retry_at: float | None = None
        self._pause = FIRST_PAUSE_SECONDS

    @property
    def blocks(self) -> bool:
        """Whether calls are refused at the moment."""
        return self.state is BreakerState.OPEN

    def fail(self) -> bool:
        """Note that a call got no answer. Return True when the server is now suspect: a probe is due."""
        # A suspect or open breaker has its probe already; more failures must not start another one.
        if self.state is not BreakerState.CLOSED:
            return False
        self.failures += 1
        self.doubtful = True
        return self.failures >= FAILURES and self.suspect()

    def suspect(self) -> bool:
        """Note evidence against the server other than a failed call. Return True when a probe is due."""
        if self.state is not BreakerState.CLOSED:
            return False
        self.state, self.doubtful = BreakerState.SUSPECT, True
        return True

    def answered(self) -> bool:
        """Note that the server has answered. Return True when that lets calls through again."""
        again = self.blocks
        self.state, self.doubtful, self.failures = BreakerState.CLOSED, False, 0
        self.retry_at, self._pause = None, FIRST_PAUSE_SECONDS
        return again

    def probe_failed(self, now: float, chance: float, wish: float = 0.0) -> bool:
        """Note that a probe got no answer. Return True when that shuts calls off.

        `wish`: seconds that the server asked to wait, of which at most LAST_PAUSE_SECONDS count.
        """
        begins = not self.blocks
        pause = min(max(self._pause, wish), LAST_PAUSE_SECONDS)
        self.state, self.doubtful = BreakerState.OPEN, True
        # Jitter only shortens the pause, so that no wait is longer than its cap.
        self.retry_at = now + pause * (1 - PROBE_JITTER * chance)
        self._pause = min(self._pause * GROWTH, LAST_PAUSE_SECONDS)
        return begins


class Renewals:
    """The attempts to open a session beside a refused one.

    Call `begin` for each attempt that is `allowed`, and `helped` if it succeeded.
    """

    __slots__ = ("_not_before", "_pause")

    def __init__(self) -> None:
        self._not_before, self._pause = -math.inf, FIRST_PAUSE_SECONDS

    def allowed(self, now: float) -> bool:
        """Return whether an attempt may begin."""
        return now >= self._not_before

    def begin(self, now: float) -> None:
        """Note an attempt, which counts as failed until `helped` is called."""
        # The pause starts with the attempt: concurrent refusals must not open a session each.
        self._not_before = now + self._pause
        self._pause = min(self._pause * GROWTH, LAST_PAUSE_SECONDS)

    def helped(self) -> None:
        """Note that the new session answers a request that was refused before."""
        self._not_before, self._pause = -math.inf, FIRST_PAUSE_SECONDS


class Comeback:
    """The attempts to connect to one upstream.

    `looping`: whether it is in a crash loop. `deaths`: the losses within WINDOW_SECONDS, or all of the loop.
    """

    __slots__ = ("_next", "_recent", "deaths", "looping")

    def __init__(self) -> None:
        self._next = 0.0
        self._recent: deque[float] = deque(maxlen=DEATHS)
        self.looping = False
        self.deaths = 0

    def wait(self, now: float, *, died: bool, held: float, chance: float) -> float:
        """Return the seconds until the next attempt, after one that ended at `now`.

        `held`: seconds for which the attempt had a connection; `died`: whether it counts as a death.
        """
        if held > STABLE_SECONDS:
            self._next, self.looping = 0.0, False
        if died:
            self._recent.append(now)
        while self._recent and self._recent[0] <= now - WINDOW_SECONDS:
            self._recent.popleft()
        # Once in a loop, it stays there although LOOP_SECONDS between deaths empty the window.
        self.deaths = self.deaths + died if self.looping else len(self._recent)
        self.looping = self.looping or len(self._recent) == DEATHS
        seconds = LOOP_SECONDS if self.looping else self._next
        self._next = min(max(self._next * GROWTH, FIRST_SECONDS), LAST_SECONDS)
        return seconds * (1 - JITTER * chance)
