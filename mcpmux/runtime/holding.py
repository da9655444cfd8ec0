"""Exchanges that wait for a person at the admin page, each with a deadline.

Promises: at most HELD_LIMIT wait, another one ends at once as at its deadline; an exchange that is cancelled
waits no more; each is decided once. Refuses to know who decides, and by what.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

import structlog
import trio

from mcpmux.mux.intercept import PASS, InterceptedMessage, Refuse, Verdict
from mcpmux.transports.inline import in_task

log = structlog.get_logger()

HELD_LIMIT: Final = 100  # exchanges; each keeps its message, of up to `limits.max_message_bytes`

TryOn = Callable[[Verdict], object]
"""Checks a person's verdict without an effect. Raises BadVerdict."""


class Held:
    """One held exchange. `until`: trio's time at which it ends as `at_timeout` says ("refuse" or "pass").

    `by`: the name of the interceptor. `reason`: why, in its words.
    """

    def __init__(
        self,
        number: int,
        exchange: int,
        by: str,
        reason: str,
        message: InterceptedMessage,
        until: float,
        at_timeout: str,
        try_on: TryOn,
    ) -> None:
        self.number, self.exchange, self.by, self.reason = number, exchange, by, reason
        self.message, self.until, self.at_timeout = message, until, at_timeout
        self.try_on = try_on
        self._decided = trio.Event()
        self._verdict: Verdict = Refuse("nobody decided in time") if at_timeout == "refuse" else PASS

    def __repr__(self) -> str:
        return f"<Held {self.number} by {self.by} until {self.until:.0f}>"

    def end(self, verdict: Verdict) -> None:
        """Let the exchange go on by a verdict."""
        self._verdict = verdict
        self._decided.set()

    async def decided(self) -> Verdict:
        """Wait for the verdict, until the deadline."""
        with trio.move_on_at(self.until):
            await self._decided.wait()
        return self._verdict


class HeldExchanges:
    """All held exchanges of this process, by number, the oldest first."""

    def __init__(self) -> None:
        self.held: dict[int, Held] = {}
        self._numbers = itertools.count(1)

    def __repr__(self) -> str:
        return f"<Holding of {len(self.held)}>"

    def decide(self, number: int, verdict: Verdict) -> bool:
        """Let an exchange go on by a person's verdict; return False if it is not held any more.

        Raises BadVerdict, and then it is still held.
        """
        held = self.held.get(number)
        if held is None:
            return False
        held.try_on(verdict)
        # Not when its task goes on: a second verdict may come before that.
        del self.held[number]
        held.end(verdict)
        return True

    async def hold(
        self,
        exchange: int,
        by: str,
        reason: str,
        message: InterceptedMessage,
        seconds: float,
        at_timeout: str,
        try_on: TryOn,
    ) -> Verdict:
        """Hold an exchange until a person decides or `seconds` have passed. Return the verdict."""
        await in_task()
        is_full = len(self.held) >= HELD_LIMIT
        until = trio.current_time() + (0.0 if is_full else seconds)
        held = Held(next(self._numbers), exchange, by, reason, message, until, at_timeout, try_on)
        if is_full:
            log.warning("too many exchanges are held", interceptor=by, limit=HELD_LIMIT)
            return await held.decided()
        self.held[held.number] = held
        try:
            return await held.decided()
        finally:
            self.held.pop(held.number, None)
