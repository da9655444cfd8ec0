"""How a replay is to go: to whom, how fast, what of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

import trio

from mcpmux.protocol import method as m
from mcpmux.runtime.calls import Hear
from mcpmux.runtime.channel import Channel
from mcpmux.traffic.reading.dialogue import CapturedRequest
from mcpmux.traffic.replay.difference import Pattern

OpenChannel = Callable[[Hear], AbstractAsyncContextManager[Channel]]
"""A new connection to the server."""


class Settings(NamedTuple):
    """How to replay. `speed`: 2 is twice as fast as captured, inf as fast as possible.

    `timeout`: seconds for one answer, and for opening a session. `sessions`: how many are open at a time at
    infinite speed; at others there are as many as in the capture.
    """

    speed: float = math.inf
    with_tools: bool = False
    timeout: float = 60.0
    sessions: int = 16
    ignore: Sequence[Pattern] = ()


# Which of a capture's requests are sent again.

READING = {m.INITIALIZE, m.DISCOVER, m.PING, *m.LISTS, m.RESOURCES_READ, m.PROMPTS_GET, m.COMPLETE}
READING |= {m.RESOURCES_SUBSCRIBE, m.RESOURCES_UNSUBSCRIBE, m.LISTEN, m.SET_LEVEL}
"""What changes nothing at a server but a session of its own."""

CANCELLED = "the client took it back"
UNANSWERED = "no answer to it is in the capture"


def why_not(captured: CapturedRequest, *, with_tools: bool) -> str | None:
    """Why a request is not sent again; None when it is."""
    if captured.problem is not None:
        return f"the request is {captured.problem}"
    if captured.method not in READING and not with_tools:
        kind = "calls a tool" if captured.method == m.TOOLS_CALL else "may change something"
        return f"it {kind}; --with-tools sends it"
    if captured.method == m.LISTEN:
        return None
    if captured.cancelled:  # what came nevertheless depends on how far the server was
        return CANCELLED
    return UNANSWERED if captured.answered_position is None else None


class Pace:
    """When what was captured is due, and whether the server can be reached at all, for all sessions together.

    When the first session fails as there is no connection, later ones are not waited for. A server that has
    answered once is reachable: a connection that is lost afterwards costs one session.
    """

    def __init__(self, first: float, speed: float) -> None:
        """`first`: when the capture began, in seconds since 1970; it is repeated from now on."""
        self.trouble: str | None = None
        self._first = first
        self._began = trio.current_time()
        self._speed = speed
        self._reached = False
        self._failed = trio.Event()

    def __repr__(self) -> str:
        return f"<Pace reached={self._reached} trouble={self.trouble!r}>"

    def succeeded(self) -> None:
        """The server has answered something."""
        self._reached = True

    def failed(self, trouble: str) -> None:
        """A session could not be opened, or was lost, as there was no connection."""
        if not self._reached and self.trouble is None:
            self.trouble = trouble
            self._failed.set()

    async def wait(self, at: float) -> None:
        """Until what was captured `at` is due, or until the server is known to be unreachable."""
        with trio.move_on_at(self._began + max(0.0, at - self._first) / self._speed):
            await self._failed.wait()
