"""The status of one upstream, and the judge of whether its server still answers.

State

    connecting --connected--> ready --lost--> down (or crash-loop) --pause over--> connecting
    connecting --failed-----> down (or crash-loop)
    ready --ended with status 0, after an answer--> resting, shown as ready --needed--> connecting
    ready --breaker opens--> failing --breaker closes--> ready
    any --hold--> draining (no new exchange; those in flight go on), drained --release--> as before

Promises: every error names the upstream, its state, and when to try again. `supervision` and `Health` change
the state; refuses to know how the upstream is connected and asked.

Health goes by the calls to the server, and by health checks: requests that every server answers, `ping`, or
`server/discover` in 2026-07-28. A server that fails to answer twice in a row is given up: its connection
ends, and it is started or connected anew.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Collection
from typing import Final

import structlog
import trio

from mcpmux.channels.http_peer import HttpStatusError
from mcpmux.channels.questions import ParkedCall, ParkedCalls
from mcpmux.config import Upstream as UpstreamConfig
from mcpmux.errors import MORE, McpmuxError, RpcError, TransportClosed, TransportError
from mcpmux.mux.breaker import Breaker, BreakerState, Comeback
from mcpmux.protocol import method as m
from mcpmux.protocol.codes import BUSY, UPSTREAM_TIMEOUT, UPSTREAM_UNAVAILABLE
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.revisions import is_modern
from mcpmux.upstreams.connection import Connection
from mcpmux.upstreams.limiter import Limiter

log = structlog.get_logger()

ANSWER_SECONDS = 10.0  # for the answer to a health check
SILENCES: Final = 2  # unanswered health checks after which a server is given up
AGAIN_SECONDS = 1.0  # between the first unanswered health check of an idle server and the next one
DEAF: Final = f"it did not answer a health check within {ANSWER_SECONDS:g} s"

Renew = Callable[[Connection, McpmuxError], Awaitable[bool]]
"""Return whether another session serves after an error, having opened one if that may help."""


class UpstreamStatus:
    """The status of one upstream.

    `name`: the configured one. `connection`: set while it is ready or failing. `reason`: why it is not, in
    words; `quoted`: the server's words about that, for the operator. `last_error`: the last failure, with
    them. `held`: why it gets no exchange any more, None while it does. `in_flight`: exchanges without an
    answer so far. `retry_at`: trio's time of the next attempt to connect. `settled`: set unless calls are to
    wait for a connection. `needed`: exists while it rests; set, it starts it. `attempts` counts
    attempts to connect, `connects` those that succeeded. `output`: the last lines of its process, also after
    its end.
    """

    def __init__(self, config: UpstreamConfig) -> None:
        self.config = config
        self.name = config.name
        self.connection: Connection | None = None
        self.reason, self.quoted = "it is still starting", ""
        self.last_error: str | None = None
        self.since = trio.current_time()  # when the present `state` began
        self.held: str | None = None
        self.in_flight = 0
        self.breaker = Breaker()
        self.comeback = Comeback()
        self.retry_at: float | None = None
        self.settled = trio.Event()
        self.needed: trio.Event | None = None
        self.attempts = 0
        self.connects = 0
        self.connect_seconds: float | None = None
        self.output: Collection[str] = ()

    @property
    def state(self) -> str:
        """The state, see above; `draining` or `drained` while it gets no exchange."""
        if self.held is not None:
            return "draining" if self.in_flight or self.parked else "drained"
        if self.connection is not None:
            return "failing" if self.breaker.blocks else "ready"
        if self.needed is not None:
            return "ready"
        if not self.settled.is_set():
            return "connecting"
        return "crash-loop" if self.comeback.looping else "down"

    @property
    def restarts(self) -> int:
        """The number of attempts to connect after the first one, also of those that failed."""
        return max(0, self.attempts - 1)

    @property
    def retry_seconds(self) -> float | None:
        """The seconds until the next attempt to connect, or the next probe; None when none is due."""
        at = self.breaker.retry_at if self.connection is not None else self.retry_at
        return max(0.0, at - trio.current_time()) if at is not None else None

    @property
    def parked(self) -> ParkedCalls[ParkedCall] | tuple[()]:
        """The calls that wait for their clients' answers, by state."""
        return self.connection.channel.questions.parked if self.connection is not None else ()

    @property
    def facts(self) -> ServerFacts | None:
        """The server's facts while it is connected, else None."""
        return self.connection.facts if self.connection is not None else None

    @property
    def is_modern(self) -> bool:
        """Whether a server of 2026-07-28 is connected."""
        return self.connection is not None and is_modern(self.connection.facts.revision)

    @property
    def trouble(self) -> str:
        """The reason why it is not connected, for clients."""
        return f"{self.reason}{MORE}" if self.quoted else self.reason

    @property
    def trouble_in_full(self) -> str:
        """The reason why it is not connected, with the server's words, for the operator."""
        return f"{self.reason}{self.quoted}"

    def explain(self, reason: str, quoted: str = "") -> None:
        """Set the reason why it is not connected. `quoted`: see McpmuxError."""
        self.reason, self.quoted = reason, quoted

    def turn(self) -> None:
        """Note that the state has changed."""
        self.since = trio.current_time()

    def check_breaker(self) -> None:
        """Raise RpcError while the breaker blocks calls."""
        if self.connection is not None and self.breaker.blocks:
            raise self.absent("does not answer any more", when_again(self.retry_seconds))

    def late(
        self, method: str, seconds: float, *, exhausted: bool = False, unanswered: tuple[str, ...] = ()
    ) -> RpcError:
        """Return the error of a request that got no answer in time, with the setting that allows more time.

        `exhausted`: progress had renewed the deadline up to its maximum. `unanswered`: methods of questions
        to the client that were open then.
        """
        config, setting = self.config, "request_timeout"
        if method == m.TOOLS_CALL or method in config.timeouts:
            setting = f'timeouts."{method}"'
        if method in m.PAGED and seconds == config.list_timeout:
            setting = "list_timeout"
        what = f"did not answer {method} within {seconds:g} s"
        if unanswered:
            questions = ", ".join(unanswered)
            what = f"got no answer to {questions} from the client within the {seconds:g} s of {method}"
        if exhausted:
            seconds, setting = max(seconds, config.max_request_timeout), "max_request_timeout"
            what = f"did not finish {method} within {seconds:g} s, progress or not"
        return self.error(UPSTREAM_TIMEOUT, f"{what}; to allow more, raise `upstreams.{self.name}.{setting}`")

    def absent(self, what: str, again: str = "") -> RpcError:
        """Return the error of a request while it is not connected. `again`: see `when_again`."""
        return self.error(UPSTREAM_UNAVAILABLE, f"{what}: {self.trouble}{again}", None, self.quoted)

    def error(self, code: int, what: str, wish: float | None = None, quoted: str = "") -> RpcError:
        """Return an error that names this upstream.

        `what`: the rest of the sentence. `wish`: seconds after which the server asks to be tried again.
        `quoted`: see McpmuxError.
        """
        data: dict[str, object] = {"upstream": self.name, "state": self.state}
        seconds = wish if wish is not None else self.retry_seconds
        if seconds is not None:
            data["retryAfterSeconds"] = math.ceil(seconds)
        return RpcError(code, f"Upstream {self.name!r} {what}", data).quoting(quoted)


def when_again(seconds: float | None) -> str:
    """Return the end of a sentence with the time of the next attempt; "" if there is none."""
    return f"; next try in {seconds:.3g} s" if seconds else ""


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
        is_busy = refusal is not None and refusal.is_busy
        # A status below 500 is an answer: the server is alive, though it refuses this request.
        if refusal is None or (refusal.status >= 500 and not is_busy):
            self.failed()
        else:
            self.answered()
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
            # Some servers ignore requests that they do not know: silence counts only if this one has answered
            # a health check before, or if calls failed, too.
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
                # Calls are blocked until a probe is answered: they would all wait for their whole time.
                status = self._status
                status.explain(str(trouble), trouble.quoted)
                status.last_error = trouble.in_full
                if status.breaker.probe_failed(trio.current_time(), random.random(), wish):
                    status.turn()
                    log.warning(
                        "upstream failing", reason=trouble.in_full, retry_seconds=status.retry_seconds
                    )
                    self._on_turn()

    async def _until_due(self) -> None:
        status = self._status
        # A suspect is asked at once, a server whose calls are blocked when its pause is over, any other one
        # when it was silent for `health_interval`.
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
        # Any answer is good, even an error.
        if isinstance(error, HttpStatusError):  # an answer, but 5xx may come from a proxy
            self._silences = 0
            return (error if error.status >= 500 else None), error.retry_after or 0.0
        return (None if isinstance(error, RpcError) else error), 0.0
