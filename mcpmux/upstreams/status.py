"""The status of one upstream: its state, its health checks, and the errors that explain it to people.

`Limiter` limits the exchanges at a time; the rules are in `mux/fair_queue`.

A health check of a connected server is a request that every server answers: `ping`, or `server/discover` in
2026-07-28. It is sent

    * when there was no answer for `health_interval` and no call is on its way: traffic is proof enough;
    * when the breaker suspects the server, and again whenever its pause is over.

Any answer is good, even an error. A server that fails to answer twice in a row is given up: its connection
ends, and it is started or connected anew. But some servers ignore requests that they do not know: one that
has never answered a health check is not judged by its silence while it is idle.

State

    connecting --connected--> ready --lost--> down (or crash-loop) --pause over--> connecting
    connecting --failed-----> down (or crash-loop)
    ready --ended with status 0, after an answer--> resting, shown as ready --needed--> connecting
    ready --breaker opens--> failing --breaker closes--> ready
    any --hold--> draining (no new exchange; those in flight go on), drained --release--> as before

Promises: every error names the upstream, its state, and when to try again. Refuses to know how the upstream
is connected and asked.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection
from typing import Final

import structlog
import trio

from mcpmux.channels.http_peer import HttpStatusError
from mcpmux.config import Upstream as UpstreamConfig
from mcpmux.errors import MORE, McpmuxError, RpcError, TransportClosed, TransportError
from mcpmux.mux.breaker import Breaker, Comeback, State
from mcpmux.mux.fair_queue import FairQueue
from mcpmux.mux.item import Problem
from mcpmux.mux.listing import Listing
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call
from mcpmux.protocol.codes import BUSY, TOO_MANY_REQUESTS, UPSTREAM_TIMEOUT, UPSTREAM_UNAVAILABLE, Busy
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.transports.http.server_connection import CONNECTION
from mcpmux.upstreams.connection import Connection
from mcpmux.upstreams.response_cache import ResponseCache
from mcpmux.upstreams.subscriber import Subscriber

log = structlog.get_logger()

BREATH_SECONDS: Final = 0.05  # between the exchanges of one call, such as the pages of a list
ANSWER_SECONDS = 10.0  # for the answer to a health check
SILENCES: Final = 2  # unanswered health checks after which a server is given up
AGAIN_SECONDS = 1.0  # between the first unanswered health check of an idle server and the next one
DEAF: Final = f"it did not answer a health check within {ANSWER_SECONDS:g} s"

OnChange = Callable[[str, Collection[str]], None]
"""Report that lists of an upstream may have changed: (its name, the capabilities of the lists)."""


class Limiter(FairQueue[trio.Event]):
    """The slots for exchanges with one upstream. Call `enter` or `wait`, then `leave`, and set its event.

    A free slot is taken without waiting. No slot is lost by cancelling. An exchange that is refused gets Busy
    at once.
    """

    __slots__ = ("_refused", "_upstream")

    def __init__(self, upstream: str, slots: int, room: int) -> None:
        super().__init__(slots, room)
        self._upstream = upstream
        self._refused: set[trio.Event] = set()  # of exchanges that gave way to another client's

    async def wait(self, call: Call) -> bool:
        """Wait for a slot, after `enter` returned that none is free. Return True. Raises Busy.

        Clients take turns: a client is a principal with a name, else a session or stream, else a connection.
        The caller owns the deadline.
        """
        client, turn = call.principal.name or call.client or CONNECTION.get(), trio.Event()
        displaced = self.enqueue(client, turn)
        if displaced is not None:
            self._refused.add(displaced)
            displaced.set()
        try:
            await turn.wait()
            if turn in self._refused:
                raise self.busy()
        except BaseException:
            # Cancelled after it got its slot, but before it could run: the next one gets the slot.
            has_none = self.withdraw(client, turn) or turn in self._refused
            if not has_none and (following := self.leave()) is not None:
                following.set()
            raise
        finally:
            self._refused.discard(turn)
        return True

    def become_one_of(self, replicas: int) -> None:
        """Divide the limits of this upstream equally among so many replicas."""
        for following in self.divide(replicas):
            following.set()

    def busy(self) -> Busy:
        sentence = f"upstream {self._upstream!r} works on {self.running} exchanges and {self.waiting} wait"
        return Busy(sentence, f"upstreams.{self._upstream}.max_waiting", upstream=self._upstream)


class UpstreamStatus:
    """The status of one upstream.

    `name`: the configured one. `connection`: set while it is ready or failing. `reason`: why it is not, in
    words; `quoted`: the server's words about that, for the operator. `last_error`: the last failure, with
    them. `connects` counts connections. `listings`: what is known of its lists, by method.
    """

    def __init__(self, config: UpstreamConfig, on_change: OnChange, subscriber: Subscriber) -> None:
        self.config = config
        self.subscriber = subscriber
        self.name = config.name
        self._on_change = on_change
        self.connection: Connection | None = None
        self.reason, self.quoted = "it is still starting", ""
        self.last_error: str | None = None
        self.connects = 0
        self.output: Collection[str] = ()  # the last lines of its process, also after its end
        self.since = trio.current_time()  # when the present `state` began
        self.limiter = Limiter(config.name, config.max_in_flight, config.max_waiting)
        self.reported: set[tuple[str, Problem]] = set()  # by list; all sessions with the server share it
        self.listings = {m.TOOLS_LIST: Listing(), m.PROMPTS_LIST: Listing()}
        self.unasked_logs = 0  # log messages during modern calls that had not asked for any
        self.in_flight = 0  # exchanges without an answer so far
        self._idle: trio.Event | None = None  # set by the last exchange, while `idle` waits for it
        self.held: str | None = None  # why it gets no exchange any more
        self.memory: ResponseCache | None = None  # its cached answers; None without a cache
        self.breaker = Breaker()
        # Whether there was no answer since the last look at this; always true while the breaker has doubts,
        # so that exchanges skip the breaker's methods on most calls.
        self.silent = True
        self.speaks_up = False  # whether it is known to answer health checks
        self._silences = 0  # health checks in a row without an answer
        self.alarm = trio.Event()  # set when the breaker's state has changed
        self._comeback = Comeback()
        self._retry_at: float | None = None
        self._settled = trio.Event()
        self._has_answered = False  # whether it has answered anything on the present connection
        self._needed: trio.Event | None = None  # while it rests: set to start it

    @property
    def state(self) -> str:
        """The state, see above; `draining` or `drained` while it gets no exchange."""
        if self.held is not None:
            return "draining" if self.in_flight else "drained"
        if self.connection is not None:
            return "failing" if self.breaker.blocks else "ready"
        if self._needed is not None:
            return "ready"
        if not self._settled.is_set():
            return "connecting"
        return "crash-loop" if self._comeback.looping else "down"

    @property
    def running(self) -> int:
        """The number of exchanges in flight that have a deadline."""
        return self.limiter.running

    @property
    def restarts(self) -> int:
        return max(0, self.connects - 1)

    @property
    def retry_seconds(self) -> float | None:
        """The seconds until the next attempt to connect, or the next probe; None when none is due."""
        at = self.breaker.retry_at if self.connection is not None else self._retry_at
        return max(0.0, at - trio.current_time()) if at is not None else None

    @property
    def facts(self) -> ServerFacts | None:
        """The server's facts while it is connected, else None."""
        return self.connection.facts if self.connection is not None else None

    async def idle(self) -> None:
        """Wait until no exchange is in flight, and none begins within BREATH_SECONDS."""
        await trio.sleep(BREATH_SECONDS)
        while self.in_flight:
            self._idle = trio.Event()
            await self._idle.wait()
            await trio.sleep(BREATH_SECONDS)
        self._idle = None

    def hold(self, reason: str | None) -> None:
        """Take no more exchanges; None: take them again. Exchanges in flight are not touched.

        `reason`: the rest of a sentence that begins with the upstream's name.
        """
        self.held = reason
        self.turned()
        self.forget()

    def release(self) -> None:
        self.hold(None)

    def remember(self, memory: ResponseCache | None) -> None:
        """Cache answers in `memory` from now on, None: nowhere, and drop the cached ones."""
        self.forget()
        self.memory = memory
        self.announce()

    def announce(self) -> None:
        """Inform the cache which list changes arrive now."""
        if self.memory is not None and self.connection is not None:
            self.memory.follow(
                self.connection.facts, self.subscriber.lists, hearing=self.connection.channel.hearing
            )

    def forget(self) -> None:
        """Drop the cached answers, and keep none that is on its way."""
        if self.memory is not None:
            self.memory.drop()

    def heard(self) -> None:
        """Take note that the server has answered something, even an error."""
        self.silent = False
        self._has_answered = True
        if self.breaker.doubtful and self.breaker.answered():
            self.alarm.set()
            self.turned()
            log.info("upstream answers again")
            self._tell_change()

    def failed(self) -> None:
        """Take note that a call got no answer, or a late one, though there is a connection."""
        if self.connection is not None and not self.connection.closed.is_set():
            self.silent = True
            if self.breaker.fail():
                self.alarm.set()

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

    def block(self, error: McpmuxError, wish: float, chance: float) -> None:
        """Block calls after a failed probe, until one is answered. `wish`: the server's, in seconds."""
        self.explain(str(error), error.quoted)
        self.last_error = error.in_full
        if self.breaker.probe_failed(trio.current_time(), chance, wish):
            self.turned()
            log.warning("upstream failing", reason=error.in_full, retry_seconds=self.retry_seconds)
            self._tell_change()

    async def check_health(self, connection: Connection) -> None:
        """Send health checks when they are due, until cancelled or until the connection is given up."""
        self._silences = 0
        while True:
            await self._until_due()
            trouble, wish = await self._ask_health(connection)
            # Some servers ignore unknown requests: silence counts only if this one has answered before, or
            # if calls failed, too.
            counts = self.speaks_up or self.breaker.doubtful
            if trouble is None:
                self._silences = 0
                self.speaks_up = True
                self.heard()
            elif self._silences >= SILENCES and counts:
                connection.channel.give_up(TransportClosed(f"{DEAF}, {SILENCES} times in a row"))
                return
            elif counts and self.breaker.suspect():
                self.silent = True  # the first failure of an idle server: it gets a second chance at once
                await trio.sleep(AGAIN_SECONDS)
            elif counts:
                self.block(trouble, wish, random.random())

    async def _until_due(self) -> None:
        while self.breaker.state is not State.SUSPECT:
            self.alarm = trio.Event()
            if (at := self.breaker.retry_at) is not None:
                with trio.move_on_at(at):
                    await self.alarm.wait()
                if self.breaker.retry_at is not None:
                    return
            else:
                # An answer in the meantime sets this to False, and no health check is needed.
                self.silent = True
                with trio.move_on_after(self.config.health_interval or math.inf) as patience:
                    await self.alarm.wait()
                # Traffic is proof enough, and a server that works on a call may be too busy for a health
                # check.
                is_idle = patience.cancelled_caught and self.silent and not self.running
                if is_idle and not self.breaker.blocks:
                    return

    async def _ask_health(self, connection: Connection) -> tuple[McpmuxError | None, float]:
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
            if await self.renewed(connection, error):
                return None, 0.0
            await connection.holds()
        if isinstance(error, HttpStatusError):  # an answer, but 5xx may come from a proxy
            self._silences = 0
            return (error if error.status >= 500 else None), error.retry_after or 0.0
        return (None if isinstance(error, RpcError) else error), 0.0

    async def renewed(self, connection: Connection, error: McpmuxError) -> bool:
        """Return whether another session serves after `error`, having opened one if that may help."""
        raise NotImplementedError

    def check_breaker(self) -> None:
        if self.connection is not None and self.breaker.blocks:
            again = when_again(self.retry_seconds)
            raise self.absent("does not answer any more", again)

    def _tell_change(self) -> None:
        self.forget()
        if self.connection is not None:
            self._on_change(self.name, self.connection.facts.capabilities)

    def turned(self) -> None:
        self.since = trio.current_time()

    def lost(self, error: TransportError) -> RpcError:
        status = error.status if isinstance(error, HttpStatusError) else None
        # A status below 500 is an answer: the server is alive, though it refuses this request.
        if status is None or status >= 500:
            self.failed()
        else:
            self.heard()
        code, what = (BUSY, "is busy") if status == TOO_MANY_REQUESTS else (UPSTREAM_UNAVAILABLE, "was lost")
        wish = error.retry_after if isinstance(error, HttpStatusError) else None
        if error.quoted and self.last_error != error.in_full:
            log.warning("upstream failed a request", reason=error.in_full)
        self.last_error = error.in_full
        return self.error(code, f"{what}: {error.told}" + when_again(wish), wish, error.quoted)

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
