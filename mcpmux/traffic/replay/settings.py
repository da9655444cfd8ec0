"""How a replay is to go: to whom, how fast, what of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

from mcpmux.runtime.calls import Hear
from mcpmux.runtime.upstreams.connection import Channel
from mcpmux.traffic.replay.difference import Pattern

OpenChannel = Callable[[Hear], AbstractAsyncContextManager[Channel]]
"""A new connection to the server."""


class Settings(NamedTuple):
    """How to replay. `speed`: 2 is twice as fast as it was, inf as fast as possible.

    `timeout`: seconds for one answer, and for a session to be opened. `sessions`: that are open at a time
    at infinite speed; at others there are as many as there were.
    """

    speed: float = math.inf
    with_tools: bool = False
    timeout: float = 60.0
    sessions: int = 16
    ignore: Sequence[Pattern] = ()


class Clock(NamedTuple):
    """When what was captured at a moment is due."""

    first: float
    began: float
    speed: float

    def due(self, moment: float) -> float:
        """When `moment` of the capture, in seconds since 1970, is due, on the event loop's clock."""
        return self.began + max(0.0, moment - self.first) / self.speed
