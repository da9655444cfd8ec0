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
    """One exchange to hold. `by`: the name of the interceptor. `reason`: why, in its words.

    `seconds`: until it ends as `at_timeout` says ("refuse" or "pass"); `until`: trio's time of that.
    """

    def __init__(
        self,
        exchange: int,
        by: str,
        reason: str,
        message: InterceptedMessage,
        seconds: float,
        at_timeout: str,
        try_on: TryOn,
    ) -> None:
        self.exchange, self.by, self.reason, self.message = exchange, by, reason, message
        self.at_timeout, self.try_on = at_timeout, try_on
        self.until = trio.current_time() + seconds
        self._decided = trio.Event()
        self._verdict: Verdict = Refuse("nobody decided in time") if at_timeout == "refuse" else PASS

    def __repr__(self) -> str:
        return f"<Held by {self.by} until {self.until:.0f}>"

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
        return f"<HeldExchanges: {len(self.held)}>"

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

    async def hold(self, held: Held) -> Verdict:
        """Hold an exchange until a person decides or its time has passed. Return the verdict."""
        await in_task()
        if len(self.held) >= HELD_LIMIT:
            log.warning("too many exchanges are held", interceptor=held.by, limit=HELD_LIMIT)
            held.until = trio.current_time()
            return await held.decided()
        number = next(self._numbers)
        self.held[number] = held
        try:
            return await held.decided()
        finally:
            self.held.pop(number, None)
