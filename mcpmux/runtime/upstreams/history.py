"""What became of one upstream lately, for people: its changes of state, and why they came."""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

KEPT = 50  # changes of one upstream; those of a crash loop fill an hour


class StateChange(NamedTuple):
    """`at`: seconds since 1970. `reason`: why, in words; "" for a good end."""

    at: float
    state: str
    reason: str


class History:
    """The latest changes, oldest first. Says nothing twice."""

    def __init__(self) -> None:
        self._changes: deque[StateChange] = deque(maxlen=KEPT)

    def __repr__(self) -> str:
        return f"<History {len(self._changes)} changes>"

    def note(self, state: str, reason: str = "") -> None:
        """It is in this state now."""
        if not self._changes or self._changes[-1][1:] != (state, reason):
            self._changes.append(StateChange(time.time(), state, reason))

    @property
    def changes(self) -> tuple[StateChange, ...]:
        """The latest, oldest first."""
        return tuple(self._changes)
