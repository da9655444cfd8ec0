"""Judge whether a connected server still answers: by the calls to it, and by health checks.

A health check is a request that every server answers: `ping`, or `server/discover` in 2026-07-28. It is sent

    * when there was no answer for `health_interval` and no call is on its way: traffic is proof enough;
    * when the breaker suspects the server, and again whenever its pause is over.

Any answer is good, even an error. A server that fails to answer twice in a row is given up: its connection
ends, and it is started or connected anew. But some servers ignore requests that they do not know: one that
has never answered a health check is not judged by its silence while it is idle.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
import trio

from mcpmux.channels.http_peer import HttpStatusError
from mcpmux.errors import McpmuxError, RpcError, TransportClosed, TransportError
from mcpmux.mux.breaker import Breaker, BreakerState
from mcpmux.protocol.codes import BUSY, TOO_MANY_REQUESTS, UPSTREAM_UNAVAILABLE
from mcpmux.upstreams.connection import Connection
from mcpmux.upstreams.limiter import Limiter
from mcpmux.upstreams.status import UpstreamStatus, when_again

log = structlog.get_logger()

ANSWER_SECONDS = 10.0  # for the answer to a health check
SILENCES: Final = 2  # unanswered health checks after which a server is given up
AGAIN_SECONDS = 1.0  # between the first unanswered health check of an idle server and the next one
DEAF: Final = f"it did not answer a health check within {ANSWER_SECONDS:g} s"

Renew = Callable[[Connection, McpmuxError], Awaitable[bool]]
"""Return whether another session serves after an error, having opened one if that may help."""


class Health:
    """The evidence about one server. It moves the breaker of its `status`.

    `silent`: whether there was no answer since the last look at this; always true while the breaker has
    doubts, so that exchanges skip the breaker's methods on most calls. `has_answered`: whether the server has
    answered anything on the present connection; `speaks_up`: whether it is known to answer health checks.
    """

    def __init__(self, status: UpstreamStatus, limiter: Limiter, on_turn: Callable[[], None]) -> None:
        """`limiter`: of the exchanges. `on_turn` reports that calls are blocked, or let through again."""
        self._status = status
        self._limiter = limiter
        self._on_turn = on_turn
        self.silent = True
        self.has_answered = False
        self.speaks_up = False
        self._silences = 0  # health checks in a row without an answer
        self._alarm = trio.Event()  # set when the breaker's state, or the configuration, has changed

    def begin(self, *, speaks_up: bool) -> None:
        """Note a new connection. `speaks_up`: the server has answered a request like a health check."""
        self.has_answered = False
        self.speaks_up |= speaks_up

    def end(self) -> None:
        """Note the end of a connection, whose failures are not those of the next one."""
        self._status.breaker, self.silent = Breaker(), True

    def answered(self) -> None:
        """Note that the server has answered something, even an error."""
        self.silent = False
        self.has_answered = True
        breaker = self._status.breaker
        if breaker.doubtful and breaker.answered():
            self._alarm.set()
            self._status.turn()
            log.info("upstream answers again")
            self._on_turn()

    def failed(self) -> None:
        """Note that a call got no answer, or a late one, though there is a connection."""
        connection = self._status.connection
        if connection is not None and not connection.closed.is_set():
            self.silent = True
            if self._status.breaker.fail():
                self._alarm.set()

    def lost(self, error: TransportError) -> RpcError:
        """Note that a call was lost, and return the error for its client."""
        refusal = error if isinstance(error, HttpStatusError) else None
        # A status below 500 is an answer: the server is alive, though it refuses this request.
        if refusal is None or refusal.status >= 500:
            self.failed()
        else:
            self.answered()
        is_busy = refusal is not None and refusal.status == TOO_MANY_REQUESTS
        code, what = (BUSY, "is busy") if is_busy else (UPSTREAM_UNAVAILABLE, "was lost")
        wish = refusal.retry_after if refusal is not None else None
        status = self._status
        if error.quoted and status.last_error != error.in_full:
            log.warning("upstream failed a request", reason=error.in_full)
        status.last_error = error.in_full
        return status.error(code, f"{what}: {error.told}" + when_again(wish), wish, error.quoted)

    def look_again(self) -> None:
        """Note that health checks may be due at other times."""
        self._alarm.set()

    async def check(self, connection: Connection, renew: Renew) -> None:
        """Send health checks when they are due, until cancelled or until the connection is given up."""
        self._silences = 0
        while True:
            await self._until_due()
            trouble, wish = await self._ask(connection, renew)
            # Some servers ignore unknown requests: silence counts only if this one has answered before, or
            # if calls failed, too.
            counts = self.speaks_up or self._status.breaker.doubtful
            if trouble is None:
                self._silences = 0
                self.speaks_up = True
                self.answered()
            elif self._silences >= SILENCES and counts:
                connection.channel.give_up(TransportClosed(f"{DEAF}, {SILENCES} times in a row"))
                return
            elif counts and self._status.breaker.suspect():
                self.silent = True  # the first failure of an idle server: it gets a second chance at once
                await trio.sleep(AGAIN_SECONDS)
            elif counts:
                self._block(trouble, wish, random.random())

    async def _until_due(self) -> None:
        status = self._status
        while status.breaker.state is not BreakerState.SUSPECT:
            self._alarm = trio.Event()
            if (at := status.breaker.retry_at) is not None:
                with trio.move_on_at(at):
                    await self._alarm.wait()
                if status.breaker.retry_at is not None:
                    return
            else:
                # An answer in the meantime sets this to False, and no health check is needed.
                self.silent = True
                with trio.move_on_after(status.config.health_interval or math.inf) as patience:
                    await self._alarm.wait()
                # Traffic is proof enough, and a server that works on a call may be too busy for a health
                # check.
                is_idle = patience.cancelled_caught and self.silent and not self._limiter.running
                if is_idle and not status.breaker.blocks:
                    return

    async def _ask(self, connection: Connection, renew: Renew) -> tuple[McpmuxError | None, float]:
        """Return (the fault or None, the seconds for which the server asks for no requests)."""
        error: McpmuxError | None = None
        with trio.move_on_after(ANSWER_SECONDS) as patience:
            try:
                await connection.check()
            except McpmuxError as failure:
                error = failure
        if patience.cancelled_caught:
            self._silences += 1
            return TransportError(DEAF), 0.0
        if error is not None and connection.doubts_session(error):
            if await renew(connection, error):
                return None, 0.0
            await connection.holds()
        if isinstance(error, HttpStatusError):  # an answer, but 5xx may come from a proxy
            self._silences = 0
            return (error if error.status >= 500 else None), error.retry_after or 0.0
        return (None if isinstance(error, RpcError) else error), 0.0

    def _block(self, error: McpmuxError, wish: float, chance: float) -> None:
        """Block calls after a failed probe, until one is answered. `wish`: the server's, in seconds."""
        status = self._status
        status.explain(str(error), error.quoted)
        status.last_error = error.in_full
        if status.breaker.probe_failed(trio.current_time(), chance, wish):
            status.turn()
            log.warning("upstream failing", reason=error.in_full, retry_seconds=status.retry_seconds)
            self._on_turn()
