"""One upstream: kept connected by one supervised task, used by any number of exchanges.

Promises: a crash, a hang or invalid messages of this upstream affect no other; an exchange gets its answer,
or an RpcError that names the upstream and the reason, within the upstream's deadline; an idempotent exchange
is sent a second time when its first connection was lost, or when the server asks to repeat it soon. The
states are those of `status`.

A legacy server that refuses a request may have forgotten its session. Then another session is opened beside
it, once for all calls that are refused in the meantime:

    serving --refusal that may mean it--> asked for a list --answered--> serving
            --404---------------------> opening            --refused---> opening
    opening --opened--> the new session serves, the old one ends when no call is in flight there
            --refused-> serving; the client gets the refusal

Subscriptions are made again in the new session, as after a reconnect. `Renewals` limits the attempts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from contextvars import Context, copy_context
from functools import partial
from typing import Final

import structlog
import trio

from mcpmux.channels.channel import Channel
from mcpmux.channels.http_peer import may_repeat, pause_before_repeating
from mcpmux.channels.questions import FindClient
from mcpmux.channels.tap import EXCHANGE, Watch
from mcpmux.config import TOOL_SECONDS, Missing
from mcpmux.config import Upstream as UpstreamConfig
from mcpmux.errors import (
    LocalProtocolError,
    McpmuxError,
    Overdue,
    PeerFinished,
    RemoteProtocolError,
    RpcError,
    TransportClosed,
    TransportError,
)
from mcpmux.mux.breaker import STABLE_SECONDS, Breaker, Renewals
from mcpmux.mux.cache import Generations
from mcpmux.mux.rewrite import Space
from mcpmux.protocol import method as m
from mcpmux.protocol.call import LOG_LEVEL, Call, Event, Hear, Notify, upgrade_result
from mcpmux.protocol.codes import METHOD_NOT_FOUND, UPSTREAM_UNAVAILABLE
from mcpmux.protocol.envelope import Notification, error_body, members_of, raw
from mcpmux.protocol.era import upgrade_refusal
from mcpmux.protocol.input_requests import ERROR, WITHDRAWN
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.revisions import is_modern
from mcpmux.transports.http.sse_streams import SessionEnded
from mcpmux.transports.inline import in_task
from mcpmux.transports.waiting import Deadline, clock, limited
from mcpmux.transports.wall import walled
from mcpmux.upstreams.connection import Connection, Eras, SessionOpener
from mcpmux.upstreams.rate_counter import RateCounter
from mcpmux.upstreams.status import BREATH_SECONDS, OnChange, UpstreamStatus, when_again
from mcpmux.upstreams.subscriber import Subscriber

log = structlog.get_logger()

SOON_SECONDS: Final = 1.0  # calls wait for the next attempt after a loss if it comes that soon

STARTUP_SECONDS: Final = 7.0  # until clients are served without it: some give mcpmux and all servers 10 s
STARTUP_PART: Final = 0.7  # of `list_timeout`, where that is more: its user has clients that wait so long

LISTEN_SECONDS: Final = 2.0  # for a server to acknowledge a listen, before it gets any other request

LINGER_SECONDS: Final = 30.0  # for exchanges in flight in a session that another one has replaced

OpenChannel = Callable[[UpstreamConfig, Hear, Watch | None], AbstractAsyncContextManager[Channel]]
"""Open a channel to a server. The watch, if there is one, sees every message."""
OnNotification = Callable[[str, Notification], None]

_KNOWN_EVENTS: Final = frozenset({m.PROGRESS, m.ACKNOWLEDGED})


class Upstream(UpstreamStatus):
    """One configured server and one session with it: the shared one, or a client's private one.

    `key` identifies the session.
    """

    def __init__(
        self,
        config: UpstreamConfig,
        key: str,
        opener: SessionOpener,
        space: Space,
        open_channel: OpenChannel,
        subscriber: Subscriber,
        find_client: FindClient,
        on_change: OnChange,
        on_notification: OnNotification,
        watch: Watch | None,
        generations: Generations,
        rates: RateCounter,
    ) -> None:
        super().__init__(config, on_change, subscriber)
        self._generations = generations
        self._rates = rates
        self._clock = clock()
        self.watch = watch
        self.key = key
        self.space = space
        self.connect_seconds: float | None = None
        self._opener = opener
        self._open_channel = open_channel
        self._find_client = find_client
        self._on_notification = on_notification
        self.scope = trio.CancelScope()  # around the task that keeps it connected
        self.ended = trio.Event()
        self._is_news = False  # see `left_out`
        self._awaited_until = self._startup_end()
        self._gone: Collection[str] = ()  # capabilities of a lost connection, until clients are notified
        self._waiting = 0  # tasks that wait until it is connected
        self._finished = False  # whether the last connection ended in order, after an answer
        self._nursery: trio.Nursery | None = None  # of the sessions of one attempt, with its `_context`
        self._context: Context | None = None
        self._renewals = Renewals()
        self._renewing: trio.Event | None = None  # set when the attempt to open another session has ended
        self._term = trio.CancelScope()  # around the tasks of the serving session, without its exchanges
        self._vacant = trio.Event()  # set when that session does not serve any more
        subscriber.on_lists = self.announce

    async def settled(self) -> None:
        """Wait for the first attempt to connect, or the one soon after a loss, but not for later attempts.

        A resting server is started.
        """
        self._wake()
        self._waiting += 1
        try:
            await self._settled.wait()
        except trio.Cancelled:
            self.left_out()
            raise
        finally:
            self._waiting -= 1

    async def appear(self) -> None:
        """Wait like `settled`, but only as long as clients wait for a starting server. Raises RpcError."""
        self._wake()
        with trio.move_on_at(self._awaited_until):
            await self.settled()
        if not self._settled.is_set():
            raise self.absent("is not available yet")

    def _startup_end(self) -> float:
        """Return the time, of trio's, until which clients wait for it to start."""
        return trio.current_time() + max(STARTUP_SECONDS, STARTUP_PART * self.config.list_timeout)

    def _wake(self) -> None:
        if self._needed is not None and not self._needed.is_set():
            self._awaited_until = self._startup_end()
            self._needed.set()

    async def _rest(self) -> None:
        """Wait until a server that ended in order, after an answer, is needed again."""
        self._is_news, self._gone = False, ()  # its lists stay as they were: clients need not ask again
        if self._waiting:
            return
        self.explain("it ended by itself, and is started when it is needed")
        log.info("upstream rests", reason=self.trouble)
        self._needed = trio.Event()
        try:
            await self._needed.wait()
        finally:
            self._needed = None

    def left_out(self) -> None:
        """Note that clients may know outdated lists: they are notified once the upstream is connected."""
        self._is_news = True

    async def exchange(self, call: Call, notify: Notify, deadline: Deadline | None = None) -> Fields:
        """Return the result of one call within this upstream's deadline, renewed by progress up to a maximum.

        `deadline`: another one, if it is sooner. Raises RpcError: the upstream's, or the reason why there is
        no answer.
        """
        seconds = self.patience(call.method)
        if self.held is not None:
            raise self.error(UPSTREAM_UNAVAILABLE, self.held)
        if self.silent:  # only then can the breaker be open: most calls skip the look
            self.check_breaker()
        now = self._clock()
        if self._rates.counts_exchanges:
            await self._rates.begin(call, self.name)
        if deadline is None or deadline.at > now + seconds:
            deadline = Deadline(seconds, 0.0, self.config.max_request_timeout, now)

        async def pass_on(event: Event) -> None:
            deadline.renew()
            if self._passes(event, call):
                await notify(event)

        entered, acts = False, call.method not in m.READ_ONLY
        self.in_flight += 1
        if acts:  # cached answers may be wrong as soon as the call begins; and again at its end, below
            self._generations.act(self.name)
        try:
            if seconds < math.inf:  # an exchange without end would take a slot for ever
                entered = self.limiter.enter()
                if not entered:
                    await in_task()
                    with deadline.limit():
                        entered = await self.limiter.wait(call)
            if self.watch is None or self.watch.trace is None:
                return await self._ask(call, pass_on, deadline)
            ask = partial(self._ask, notify=pass_on, deadline=deadline)
            return await self.watch.trace(self.watch.leg, call, ask)
        except RemoteProtocolError as nonsense:
            self.failed()
            if nonsense.quoted:
                log.warning("upstream makes no sense", reason=nonsense.in_full)
            raise self.error(
                UPSTREAM_UNAVAILABLE, f"makes no sense: {nonsense.told}", None, nonsense.quoted
            ) from None
        except Overdue as late:
            unanswered = late.unanswered  # raised below, as the error depends on what the time was spent on
        finally:
            if acts:
                self._generations.act(self.name)
            if entered and (following := self.limiter.leave()) is not None:
                following.set()
            self.in_flight -= 1
            if self._idle is not None and not self.in_flight:
                self._idle.set()
        if not entered:
            raise self.limiter.busy()
        if not unanswered:  # else the client was late, not the server
            self.failed()
        raise self.late(call.method, deadline.seconds, exhausted=deadline.exhausted, unanswered=unanswered)

    def patience(self, method: str) -> float:
        """Return the seconds that a request may take without progress."""
        seconds = self.config.timeouts.get(method)
        if seconds is not None:
            return seconds
        if method == m.TASKS_RESULT:  # it comes when the task is done, however long that takes
            return math.inf
        return max(self.config.request_timeout, TOOL_SECONDS if method == m.TOOLS_CALL else 0.0)

    def _passes(self, event: Event, call: Call) -> bool:
        """Return whether a notification during `call` is passed on to its client.

        With a single upstream without a prefix mcpmux is transparent: unknown notifications pass, too.
        """
        if event.method in _KNOWN_EVENTS:
            return True
        if event.method != m.LOG_MESSAGE:
            return self.space.transparent
        if call.legacy or LOG_LEVEL in call.meta:
            return True
        if self.facts is None or not is_modern(self.facts.revision):
            return False  # a legacy session logs for all its clients; this call has not asked for it
        self.unasked_logs += 1
        return self.space.transparent

    def retire(self) -> None:
        """Stop reporting changed lists and caching answers, as this session gets no calls any more."""
        self._on_change = lambda _name, _capabilities: None
        self.remember(None)

    def end(self, reason: str) -> None:
        """Fail the tasks that wait for a connection with `reason`, as `run` was cancelled."""
        self.explain(reason)
        self.remember(None)
        self.ended.set()
        self._settled.set()

    async def reply(self, call: Call) -> None:
        """Answer the questions of a parked call of a legacy server, without its result. Raises RpcError."""
        connection = await self._connected()
        self._generations.act(self.name)
        try:
            await connection.channel.questions.reply(call)
        except TransportError as error:
            raise self.error(UPSTREAM_UNAVAILABLE, f"was lost: {error.told}", None, error.quoted) from None
        finally:
            self._generations.act(self.name)

    async def _ask(self, call: Call, notify: Notify, deadline: Deadline) -> Fields:
        if self.watch is not None:
            self.watch.routed(self.name)
        renewed = False
        # Twice at most: a server that refuses everything must not be asked for ever.
        for last in (False, True):
            connection = self.connection or await self._connected(deadline)
            try:
                result = await connection.exchange(call, notify, deadline)
            except (RpcError, TransportError) as error:
                renewed = await self._get_over(error, connection, call, deadline, last=last)
            else:
                if self.silent:
                    self.heard()
                if renewed:
                    self._renewals.helped()
                return upgrade_result(call.method, result)
        raise LocalProtocolError("unreachable")

    async def _get_over(
        self,
        error: RpcError | TransportError,
        connection: Connection,
        call: Call,
        deadline: Deadline,
        *,
        last: bool,
    ) -> bool:
        """Wait until a call may be sent again after an error, or raise the error for its client.

        An error of the server is its answer, unless it has forgotten the session or its era has changed.
        `last`: the call is not sent again. Return whether another session has taken over.
        """
        answer: RpcError | None = None
        if isinstance(error, RpcError):
            self.heard()
            answer = error if call.method != m.RESOURCES_READ else upgrade_refusal(call.params, error)
            if not connection.doubts_session(error) and (last or not may_repeat(call, error, holds=False)):
                raise answer from None
        await in_task()
        with deadline.limit():
            renewed = await self.renewed(connection, error)
            holds = not renewed and await connection.holds()
            if answer is not None and (holds or last):
                raise answer from None
            pause = 0.0 if renewed else pause_before_repeating(error, deadline.left)
            if last or pause is None or not may_repeat(call, error, holds=holds):
                if answer is not None:
                    raise answer from None
                assert isinstance(error, TransportError)
                raise self.lost(error) from None
            self._forget(connection)
            await trio.sleep(pause)
        return renewed

    async def renewed(self, connection: Connection, error: McpmuxError) -> bool:
        """Return whether another session serves after `error`, having opened one if that may help."""
        if isinstance(error, SessionEnded):
            # Over HTTP+SSE the stream ends soon after: a new session begins with a new connection.
            await connection.closed.wait()
            self._forget(connection)
        if not connection.doubts_session(error):
            return False
        if self._renewing is None and self.connection is connection:
            self._renew(connection, error)
        if self._renewing is not None:
            await self._renewing.wait()
        return self.connection is not connection

    def _renew(self, connection: Connection, error: McpmuxError) -> None:
        """Start a task that checks whether the session of `connection` is forgotten, and replaces it."""
        # In the context of the attempt, not of the call that failed: the session outlives the call.
        if self._renewals.allowed(trio.current_time()) and self._nursery is not None:
            assert self._context is not None
            self._renewing = trio.Event()
            self._context.run(self._nursery.start_soon, self._replace, connection, error)

    async def _replace(self, connection: Connection, error: McpmuxError) -> None:
        """Replace the session of `connection` if the server refuses it and opens another one."""
        assert self._renewing is not None and self._nursery is not None
        failures: list[BaseException] = []
        try:
            if await connection.lacks_session(error) and self.connection is connection:
                self._renewals.begin(trio.current_time())
                opening = self._nursery.start(self._stay, [], connection, name=f"session {self.key}")
                await walled(opening, McpmuxError, failures.extend)
                own_failures = [failure for failure in failures if isinstance(failure, McpmuxError)]
                reason = "; ".join(failure.in_full for failure in own_failures)
                if failures:
                    log.warning(
                        "session refused, and no other to be had", refusal=error.in_full, reason=reason
                    )
                else:
                    log.info("session replaced", refusal=str(error))
        finally:
            self._renewing.set()
            self._renewing = None

    async def _connected(self, deadline: Deadline | None = None) -> Connection:
        """Return the open connection, waiting for one. Raises RpcError when none will be there soon."""
        await in_task()
        with limited(deadline):
            # Again after each wait: the connection may be lost before this task has its turn.
            while self.connection is None:
                if self._settled.is_set():
                    again = when_again(self.retry_seconds)
                    raise self.absent("is not available", again)
                await self.settled()
            return self.connection

    def _forget(self, connection: Connection, *, replaced: bool = False) -> None:
        """Stop using a connection that has ended or is `replaced`. Later exchanges wait for the next one."""
        if self.connection is connection and (replaced or connection.closed.is_set()):
            if not self.ended.is_set():
                self._settled = trio.Event()
                self._awaited_until = self._startup_end()
            self.connection = None
            self.forget()
            self.breaker, self.silent = Breaker(), True  # failures of this connection are not the next one's
            self.turned()
            self.left_out()
            self._gone = connection.facts.capabilities

    async def expect(self, capability: str, option: str) -> None:
        """Wait for the server and check that it may offer an option of a capability.

        Raises RpcError if the server is not there, or does not offer it. A legacy server with the capability
        may have the option in any case.
        """
        connection = self.connection
        if connection is None:
            with trio.move_on_after(self.config.list_timeout):
                connection = await self._connected()
            if connection is None:
                raise self.absent("is not available yet")
        offered = connection.facts.capabilities.get(capability)
        # The Python SDK 1.x states `subscribe: false` for every server, so a legacy server is asked anyway.
        says_all = is_modern(connection.facts.revision)
        if not isinstance(offered, dict) or (says_all and offered.get(option) is not True):
            raise self.error(METHOD_NOT_FOUND, f"does not offer {capability}.{option}")

    async def run(self) -> None:
        """Keep it connected until cancelled. Closes its process or connections on the way out."""
        structlog.contextvars.bind_contextvars(upstream=self.key)  # inherited by all tasks below this one
        if isinstance(self.config.target, Missing):  # only another configuration can help
            self.explain(self.config.target.reason)
            self.last_error = self.trouble
            self._settled.set()
            self.turned()
            log.warning("upstream down", reason=self.trouble, state=self.state)
            await trio.sleep_forever()
        logged = ""
        while True:
            self._retry_at, self._finished = None, False
            eras = self._opener.eras
            held, died = await self._attempt()
            if held is not None:
                logged = ""
            # A server that exits after its work has not failed. With subscriptions it has to run anyway.
            if self._finished and not self.subscriber.is_needed:
                await self._rest()
                continue
            died = died and not self._finished
            now, looping = trio.current_time(), self._comeback.looping
            wait = self._comeback.wait(now, died=died, held=held or 0.0, chance=random.random())
            died_of_probe = (eras, self._opener.eras) == (Eras.MODERN_FIRST, Eras.LEGACY_FIRST)
            self._retry_at = now + wait
            self.last_error = reason = self.trouble_in_full
            if self._comeback.looping:
                loop = f"crash loop (ended {self._comeback.deaths} times), "
                self.explain(loop + self.reason, self.quoted)
            # Calls wait for an attempt that comes soon and is likely to succeed; for any other they fail now.
            if wait > SOON_SECONDS or not (held is not None or died_of_probe):
                self._settled.set()
                self.left_out()
                self.turned()
                if self._gone:
                    self._on_change(self.name, self._gone)
                    self._gone = ()
            if reason != logged or self._comeback.looping is not looping:
                log.warning(
                    "upstream down",
                    reason=self.trouble_in_full,
                    state=self.state,
                    retry_seconds=round(wait, 1),
                )
            logged = reason
            await trio.sleep(wait)

    async def run_while_it_lasts(self) -> None:
        """Connect, and reconnect after each loss, until an attempt fails or its connection is lost early."""
        structlog.contextvars.bind_contextvars(upstream=self.key)
        while True:
            began = trio.current_time()
            held, _ = await self._attempt()
            if held is None or trio.current_time() - began < STABLE_SECONDS:
                return

    async def _attempt(self) -> tuple[float | None, bool]:
        """Connect and stay until the connection is lost. Sets `trouble`.

        Return (seconds for which there was a connection, None for none, whether its end counts as a death).
        """
        began: list[float] = []
        errors: list[BaseException] = []
        await walled(self._connect_and_stay(began), McpmuxError, errors.extend)  # the wall around one attempt
        if errors:
            own_errors = [error for error in errors if isinstance(error, McpmuxError)]
            self.explain("; ".join(map(str, own_errors)), "".join(error.quoted for error in own_errors))
        if not began:
            return None, any(isinstance(error, TransportClosed) for error in errors)
        return trio.current_time() - began[0], True

    async def _connect_and_stay(self, began: list[float]) -> None:
        """Open a connection and stay until it is lost. Raises McpmuxError, also in groups.

        `began`: a list to which the time of the connection is added.
        """
        self._context = copy_context()
        try:
            async with trio.open_nursery() as self._nursery:
                await self._stay(began)
        finally:
            self._nursery = None

    async def _stay(
        self,
        began: list[float],
        before: Connection | None = None,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Open a session and stay until it is lost, or replaced and without exchanges in flight.

        `before`: the connection that it replaces once it is open. Raises like `_connect_and_stay`.
        """
        # The handshake belongs to the client's request that opens the session, if one does. The tasks that
        # read the channel do not: they outlive that request, and serve others.
        cause = EXCHANGE.get()
        EXCHANGE.set(0)
        async with self._open_channel(self.config, self._heard, self.watch) as channel:
            EXCHANGE.set(cause)
            channel.questions.find_client, channel.asks_progress = self._find_client, True
            self.output = channel.output
            connecting_since = trio.current_time()
            try:
                connection = await self._opener.connect(channel, self.config.connect_timeout)
            finally:
                EXCHANGE.set(0)
            began.append(trio.current_time())
            self.connect_seconds = began[-1] - connecting_since
            if before is not None:
                self._forget(before, replaced=True)
                self._term.cancel(reason="another session takes over")
                await self._vacant.wait()  # its subscriber must have ended: both use the same `Wanted`
            vacant = self._vacant = trio.Event()
            try:
                async with trio.open_nursery() as nursery:
                    self._term = nursery.cancel_scope
                    await nursery.start(self.subscriber.run, connection, name=f"subscriber {self.name}")
                    # Before any list is fetched, so that no change of it is missed.
                    await self.subscriber.hears_lists(LISTEN_SECONDS)
                    self._greet(connection)
                    task_status.started()
                    nursery.start_soon(connection.keep_telling, name=f"teller {self.name}")
                    nursery.start_soon(self.check_health, connection, name=f"health {self.name}")
                    await connection.closed.wait()
                    self.explain(str(channel.close_reason), channel.close_reason.quoted)
                    self._finished = self._has_answered and isinstance(channel.close_reason, PeerFinished)
                    nursery.cancel_scope.cancel()
            finally:
                self._forget(connection)
                vacant.set()
            if not connection.closed.is_set():  # replaced: its exchanges in flight may still be answered
                with trio.move_on_after(LINGER_SECONDS):
                    while channel.pending_requests:  # noqa: ASYNC110  # no event tells of the last one
                        await trio.sleep(BREATH_SECONDS)

    def tell_nowait(self, method: str, params: Fields | None = None) -> None:
        """Queue a notification of clients for the server, if it is connected. Equal ones are sent once."""
        self._generations.act(self.name)
        if self.connection is not None:
            self.connection.tell_nowait(method, params or {})

    def _greet(self, connection: Connection) -> None:
        log.info("upstream ready", revision=connection.facts.revision)
        self.connection = connection
        self.forget()
        self.announce()
        self.connects += 1
        self._has_answered = False
        self.speaks_up |= is_modern(connection.facts.revision)  # it answered `server/discover`
        self.turned()
        if self.watch is not None:
            self.watch.leg.revision = connection.facts.revision
        self._settled.set()
        self._gone = ()
        if self._is_news:
            # After `_settled`: a client that is notified may ask for the lists at once.
            self._is_news = False
            for listing in self.listings.values():
                listing.changed()
            self._on_change(self.name, connection.facts.capabilities)

    def _lost_with(self, withdrawn: Notification) -> Notification:
        """Return a notification that a call is no longer parked, with the error of the lost connection."""
        connection = self.connection
        reason = self.trouble if connection is None else connection.channel.close_reason.told
        error = self.error(UPSTREAM_UNAVAILABLE, f"was lost while its client was asked something: {reason}")
        return Notification(WITHDRAWN, raw({**members_of(withdrawn.params), ERROR: error_body(error)}))

    def _heard(self, notification: Notification) -> None:
        """Take a notification of the server, or one of the channel about itself."""
        if notification.method == m.HEARING:
            self.announce()
            return
        if notification.method == m.FORGOTTEN:  # the server refuses the session's own stream
            if self._renewing is None and self.connection is not None:
                self._renew(self.connection, TransportError("its own stream is refused"))
            return
        # The call is lost with its connection: its client gets that error, and does not repeat the call.
        if notification.method == WITHDRAWN and (self.connection is None or self.connection.closed.is_set()):
            notification = self._lost_with(notification)
        # The cache first: a client that is notified may ask at once, and must not get the old answer.
        if self.memory is not None:
            self.memory.hear(notification)
        if notification.method != m.MISSED:
            self._on_notification(self.key, notification)
        # Some were lost: all announced lists and all resources may have changed.
        elif self.facts is not None:
            self.forget()
            self.subscriber.catch_up()
            self._on_change(self.name, list(filter(self.facts.announces, self.facts.capabilities)))
