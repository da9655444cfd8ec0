"""Whether an upstream that is connected may be asked anything: its circuit breaker.

State

    closed    --failures in a row--> suspect       (calls go on; a probe shall find out now)
    suspect   --probe failed--> open
    open      --its pause is over--> half-open     (one probe)
    half-open --probe failed--> open, for longer
    any       --answered--> closed                 (a call or a probe; an error of the server is an answer)

While it is open or half-open no call is made. Probes are questions of our own, so that no call has to be the
victim, and so that a server whose calls merely take too long, but which is alive, is never shut off.

`doubtful` is all that has to be looked at around a call: it is False as long as nothing has failed.
Nothing outside this file changes its state. Times are seconds of any clock; chances are from 0 to 1.
"""

from __future__ import annotations

import enum

FAILURES = 5  # in a row; fewer happen to a server that is restarted behind a proxy
FIRST_PAUSE_SECONDS = 5.0
LAST_PAUSE_SECONDS = 60.0
GROWTH = 2.0
JITTER = 0.25  # upstreams behind one broken proxy are not probed all at once


class State(enum.Enum):
    """See the table above."""

    CLOSED = "closed"
    SUSPECT = "suspect"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker:
    """The breaker of one upstream. `retry_at`: when it is probed again, while it is open."""

    __slots__ = ("_pause", "doubtful", "failures", "retry_at", "state")

    def __init__(self) -> None:
        self.state = State.CLOSED
        self.doubtful = False
        self.failures = 0
        self.retry_at: float | None = None
        self._pause = FIRST_PAUSE_SECONDS

    def __repr__(self) -> str:
        return f"Breaker({self.state.value}, failures={self.failures})"

    @property
    def blocks(self) -> bool:
        """Whether calls are refused."""
        return self.state in (State.OPEN, State.HALF_OPEN)

    def fail(self) -> bool:
        """A call got no answer. True when that makes the server suspect, so that a probe is wanted."""
        if self.state is not State.CLOSED:
            return False
        self.failures += 1
        self.doubtful = True
        return self.failures >= FAILURES and self.suspect()

    def suspect(self) -> bool:
        """Something else than calls speaks against the server. True when a probe is wanted."""
        if self.state is not State.CLOSED:
            return False
        self.state, self.doubtful = State.SUSPECT, True
        return True

    def answered(self) -> bool:
        """The server has answered. True when that lets calls through again."""
        again = self.blocks
        self.state, self.doubtful, self.failures = State.CLOSED, False, 0
        self.retry_at, self._pause = None, FIRST_PAUSE_SECONDS
        return again

    def begin_probe(self) -> None:
        """The pause is over."""
        if self.state is State.OPEN:
            self.state = State.HALF_OPEN

    def probe_failed(self, now: float, chance: float, wish: float = 0.0) -> bool:
        """A probe got no answer; `wish`: seconds that the server asks for. True when that shuts calls off."""
        begins = not self.blocks
        pause = min(max(self._pause, wish), LAST_PAUSE_SECONDS)
        self.state, self.doubtful = State.OPEN, True
        self.retry_at = now + pause * (1 - JITTER * chance)
        self._pause = min(self._pause * GROWTH, LAST_PAUSE_SECONDS)
        return begins
