"""Keep one session with an upstream connected. The states are those of `status`.

Promises: a lost connection is opened again, after pauses that grow; a crash or invalid messages of the server
end an attempt, and no other task.

A legacy server that refuses a request may have forgotten its session. Then another session is opened beside
it, once for all calls that are refused in the meantime:

    serving --refusal that may mean it--> asked for a list --answered--> serving
            --404---------------------> opening            --refused---> opening
    opening --opened--> the new session serves, the old one ends when no call is in flight there
            --refused-> serving; the client gets the refusal

Subscriptions are made again in the new session, as after a reconnect. `Renewals` limits the attempts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from contextvars import Context, copy_context
from typing import Final, NamedTuple, Protocol

import structlog
import trio

from mcpmux.channels.channel import Channel
from mcpmux.channels.questions import FindClient
from mcpmux.channels.tap import EXCHANGE, Watch
from mcpmux.config import Missing
from mcpmux.config import Upstream as UpstreamConfig
from mcpmux.errors import McpmuxError, PeerFinished, TransportClosed
from mcpmux.mux.breaker import STABLE_SECONDS, Renewals
from mcpmux.protocol.call import Hear
from mcpmux.protocol.codes import METHOD_NOT_FOUND
from mcpmux.protocol.envelope import Notification
from mcpmux.protocol.revisions import is_modern
from mcpmux.transports.http.sse_streams import SessionEnded
from mcpmux.transports.inline import in_task
from mcpmux.transports.waiting import Deadline, limited
from mcpmux.transports.wall import walled
from mcpmux.upstreams.connection import Connection, Eras, SessionOpener
from mcpmux.upstreams.health import Health, UpstreamStatus, when_again
from mcpmux.upstreams.relisting import Relisting
from mcpmux.upstreams.subscriber import Subscriber

log = structlog.get_logger()

BREATH_SECONDS: Final = 0.05  # between two looks whether a replaced session has calls in flight

SOON_SECONDS: Final = 1.0  # calls wait for the next attempt after a loss if it comes that soon

STARTUP_SECONDS: Final = 7.0  # until clients are served without it: some give mcpmux and all servers 10 s
STARTUP_PART: Final = 0.7  # of `list_timeout`, where that is more: its user has clients that wait so long

LISTEN_SECONDS: Final = 2.0  # for a server to acknowledge a listen, before it gets any other request

LINGER_SECONDS: Final = 30.0  # for exchanges in flight in a session that another one has replaced

OpenChannel = Callable[[UpstreamConfig, Hear, Watch | None], AbstractAsyncContextManager[Channel]]
"""Open a channel to a server. The watch, if there is one, sees every message."""


class Supervised(Protocol):
    """The upstream that is kept connected. `key` identifies the session."""

    key: str
    watch: Watch | None
    subscriber: Subscriber

    def take(self, notification: Notification) -> None:
        """Take a notification of the server, or one of the channel about itself."""

    def forget(self) -> None:
        """Drop the cached answers."""

    def announce(self) -> None:
        """Inform the cache which list changes arrive now."""

    async def ask_list(self, method: str) -> None:
        """Ask for the first page of a list, within the time that clients would wait. Raises RpcError."""

    def lists_changed(self, capabilities: Collection[str]) -> None:
        """Report that lists of these capabilities may have changed."""


class Attempt(NamedTuple):
    """One attempt to connect: the nursery of its sessions, and the context in which they begin."""

    nursery: trio.Nursery
    context: Context


class SessionTerm:
    """The time in which one session serves. `scope`: around its tasks, without its exchanges.

    `vacant` is set when it does not serve any more.
    """

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.vacant = trio.Event()


class Supervision:
    """Keeps one upstream connected. `scope`: around the task that does; `ended`: set when it is over.

    `relisting`: the lists that clients have missed though it was connected.
    """

    def __init__(
        self,
        upstream: Supervised,
        status: UpstreamStatus,
        health: Health,
        opener: SessionOpener,
        open_channel: OpenChannel,
        find_client: FindClient,
    ) -> None:
        self._upstream = upstream
        self._status = status
        self._health = health
        self._opener = opener
        self._open_channel = open_channel
        self._find_client = find_client
        self.scope = trio.CancelScope()
        self.relisting = Relisting(upstream.ask_list, upstream.take)
        self.ended = trio.Event()
        self._is_news = False  # see `left_out`
        self._awaited_until = self._startup_end()
        self._gone: Collection[str] = ()  # capabilities of a lost connection, until clients are notified
        self._waiting = 0  # tasks that wait until it is connected
        self._finished = False  # whether the last connection ended in order, after an answer
        self._attempt: Attempt | None = None
        self._renewals = Renewals()
        self._renewing: trio.Event | None = None  # set when the attempt to open another session has ended
        self._term = SessionTerm()  # of the serving session

    # Waiting for a connection

    async def settled(self) -> None:
        """Wait for the first attempt to connect, or the one soon after a loss, but not for later attempts.

        A resting server is started.
        """
        self._wake()
        self._waiting += 1
        try:
            await self._status.settled.wait()
        except trio.Cancelled:
            self.left_out()
            raise
        finally:
            self._waiting -= 1

    async def appear(self) -> None:
        """Wait like `settled`, but only as long as clients wait for a starting server. Raises RpcError."""
        self._wake()
        # Until one time, not for seconds each: a client's first answers together must not take longer.
        with trio.move_on_at(self._awaited_until):
            await self.settled()
        if not self._status.settled.is_set():
            raise self._status.absent("is not available yet")

    async def connected(self, deadline: Deadline | None = None) -> Connection:
        """Return the open connection, waiting for one. Raises RpcError when none will be there soon."""
        status = self._status
        await in_task()
        with limited(deadline):
            # Again after each wait: the connection may be lost before this task has its turn.
            while status.connection is None:
                if status.settled.is_set():
                    raise status.absent("is not available", when_again(status.retry_seconds))
                await self.settled()
            return status.connection

    async def expect(self, capability: str, option: str) -> None:
        """Wait for the server and check that it may offer an option of a capability.

        Raises RpcError if the server is not there, or does not offer it. A legacy server with the capability
        may have the option in any case.
        """
        status = self._status
        connection = status.connection
        if connection is None:
            with trio.move_on_after(status.config.list_timeout):
                connection = await self.connected()
            if connection is None:
                raise status.absent("is not available yet")
        offered = connection.facts.capabilities.get(capability)
        # The Python SDK 1.x states `subscribe: false` for every server, so a legacy server is asked anyway.
        says_all = is_modern(connection.facts.revision)
        if not isinstance(offered, dict) or (says_all and offered.get(option) is not True):
            raise status.error(METHOD_NOT_FOUND, f"does not offer {capability}.{option}")

    def left_out(self) -> None:
        """Note that clients may know outdated lists: they are notified once the upstream is connected."""
        self._is_news = True

    def _startup_end(self) -> float:
        """Return the time, of trio's, until which clients wait for it to start."""
        return trio.current_time() + max(STARTUP_SECONDS, STARTUP_PART * self._status.config.list_timeout)

    def _wake(self) -> None:
        needed = self._status.needed
        if needed is not None and not needed.is_set():
            self._awaited_until = self._startup_end()
            needed.set()

    # Attempts to connect

    async def run(self) -> None:
        """Keep it connected until cancelled. Closes its process or connections on the way out."""
        structlog.contextvars.bind_contextvars(upstream=self._upstream.key)  # inherited by all tasks below
        status = self._status
        if isinstance(status.config.target, Missing):  # only another configuration can help
            status.explain(status.config.target.reason)
            status.last_error = status.trouble
            status.settled.set()
            status.turn()
            log.warning("upstream down", reason=status.trouble, state=status.state)
            await trio.sleep_forever()
        comeback, logged = status.comeback, ""
        while True:
            status.retry_at, self._finished = None, False
            eras = self._opener.eras
            held, died = await self._connect()
            if held is not None:
                logged = ""
            # A server that exits after its work has not failed. With subscriptions it has to run anyway.
            if self._finished and not self._upstream.subscriber.is_needed:
                await self._rest()
                continue
            died = died and not self._finished
            now, looping = trio.current_time(), comeback.looping
            wait = comeback.wait(now, died=died, held=held or 0.0, chance=random.random())
            died_of_probe = (eras, self._opener.eras) == (Eras.MODERN_FIRST, Eras.LEGACY_FIRST)
            status.retry_at = now + wait
            status.last_error = reason = status.trouble_in_full
            if comeback.looping:
                loop = f"crash loop (ended {comeback.deaths} times), "
                status.explain(loop + status.reason, status.quoted)
            # Calls wait for an attempt that comes soon and is likely to succeed; for any other they fail now.
            if wait > SOON_SECONDS or not (held is not None or died_of_probe):
                status.settled.set()
                self.left_out()
                status.turn()
                if self._gone:
                    self._upstream.lists_changed(self._gone)
                    self._gone = ()
            if reason != logged or comeback.looping is not looping:
                log.warning(
                    "upstream down",
                    reason=status.trouble_in_full,
                    state=status.state,
                    retry_seconds=round(wait, 1),
                )
            logged = reason
            await trio.sleep(wait)

    async def run_while_it_lasts(self) -> None:
        """Connect, and reconnect after each loss, until an attempt fails or its connection is lost early."""
        structlog.contextvars.bind_contextvars(upstream=self._upstream.key)
        while True:
            began = trio.current_time()
            held, _ = await self._connect()
            # The shared session serves its clients from now on.
            if held is None or trio.current_time() - began < STABLE_SECONDS:
                return

    def end(self, reason: str) -> None:
        """Fail the tasks that wait for a connection with `reason`, as `run` was cancelled."""
        self._status.explain(reason)
        self.ended.set()
        self._status.settled.set()

    async def _rest(self) -> None:
        """Wait until a server that ended in order, after an answer, is needed again."""
        self._is_news, self._gone = False, ()  # its lists stay as they were: clients need not ask again
        if self._waiting:
            return
        status = self._status
        status.explain("it ended by itself, and is started when it is needed")
        log.info("upstream rests", reason=status.trouble)
        status.needed = trio.Event()
        try:
            await status.needed.wait()
        finally:
            status.needed = None

    async def _connect(self) -> tuple[float | None, bool]:
        """Connect and stay until the connection is lost. Sets the status's `trouble`.

        Return (seconds for which there was a connection, None for none, whether its end counts as a death).
        """
        began: list[float] = []
        errors: list[BaseException] = []
        self._status.attempts += 1
        await walled(self._connect_and_stay(began), McpmuxError, errors.extend)  # the wall around one attempt
        if errors:
            own_errors = [error for error in errors if isinstance(error, McpmuxError)]
            reason = "; ".join(map(str, own_errors))
            self._status.explain(reason, "".join(error.quoted for error in own_errors))
        if not began:
            return None, any(isinstance(error, TransportClosed) for error in errors)
        return trio.current_time() - began[0], True

    async def _connect_and_stay(self, began: list[float]) -> None:
        """Open a connection and stay until it is lost. Raises McpmuxError, also in groups.

        `began`: a list to which the time of the connection is added.
        """
        context = copy_context()
        try:
            async with trio.open_nursery() as nursery:
                self._attempt = Attempt(nursery, context)
                await self._stay(began)
        finally:
            self._attempt = None

    async def _stay(
        self,
        began: list[float],
        before: Connection | None = None,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Open a session and stay until it is lost, or replaced and without exchanges in flight.

        `before`: the connection that it replaces once it is open. Raises like `_connect_and_stay`.
        """
        status, upstream = self._status, self._upstream
        # The handshake belongs to the client's request that opens the session, if one does. The tasks that
        # read the channel do not: they outlive that request, and serve others.
        cause = EXCHANGE.get()
        EXCHANGE.set(0)
        async with self._open_channel(status.config, upstream.take, upstream.watch) as channel:
            EXCHANGE.set(cause)
            channel.questions.find_client, channel.asks_progress = self._find_client, True
            status.output = channel.output
            connecting_since = trio.current_time()
            try:
                connection = await self._opener.connect(channel, status.config.connect_timeout)
            finally:
                EXCHANGE.set(0)
            began.append(trio.current_time())
            status.connect_seconds = began[-1] - connecting_since
            if before is not None:
                # Its calls in flight go on: one that failed here might be repeated, and carried out twice.
                self.forget(before, replaced=True)
                self._term.scope.cancel(reason="another session takes over")
                await self._term.vacant.wait()  # its subscriber must have ended: both use the same `Wanted`
            self._term = term = SessionTerm()
            try:
                with term.scope:
                    await self._serve(connection, task_status)
            finally:
                self.forget(connection)
                term.vacant.set()
            if not connection.closed.is_set():  # replaced: its exchanges in flight may still be answered
                with trio.move_on_after(LINGER_SECONDS):
                    while channel.pending_requests:  # noqa: ASYNC110  # no event tells of the last one
                        await trio.sleep(BREATH_SECONDS)

    async def _serve(self, connection: Connection, task_status: trio.TaskStatus[None]) -> None:
        """Use a connection for all exchanges until it is lost. Sets `_finished`."""
        subscriber = self._upstream.subscriber
        status, upstream, revision = self._status, self._upstream, connection.facts.revision
        async with trio.open_nursery() as nursery:
            await nursery.start(subscriber.run, connection, name=f"subscriber {status.name}")
            # Before any list is fetched, so that no change of it is missed.
            await subscriber.hears_lists(LISTEN_SECONDS)
            log.info("upstream ready", revision=revision)
            status.connection = connection
            # The server behind this connection may be another one than before.
            upstream.forget()
            upstream.announce()
            status.connects += 1
            self._health.begin(speaks_up=is_modern(revision))  # such a server answered `server/discover`
            status.turn()
            if upstream.watch is not None:
                upstream.watch.leg.revision = revision
            status.settled.set()
            self._gone = ()
            if self._is_news:
                # After `settled`: a client that is notified may ask for the lists at once.
                self._is_news = False
                upstream.lists_changed(connection.facts.capabilities)
            task_status.started()
            nursery.start_soon(connection.keep_telling, name=f"teller {status.name}")
            self.relisting.begin(nursery)
            check = self._health.check
            nursery.start_soon(check, connection, self.renewed, name=f"health {status.name}")
            try:
                await connection.closed.wait()
            finally:
                self.relisting.end()
            reason = connection.channel.close_reason
            status.explain(str(reason), reason.quoted)
            self._finished = self._health.has_answered and isinstance(reason, PeerFinished)
            nursery.cancel_scope.cancel()

    def forget(self, connection: Connection, *, replaced: bool = False) -> None:
        """Stop using a connection that has ended or is `replaced`. Later exchanges wait for the next one."""
        status = self._status
        if status.connection is connection and (replaced or connection.closed.is_set()):
            if not self.ended.is_set():
                status.settled = trio.Event()
                self._awaited_until = self._startup_end()
            status.connection = None
            self._upstream.forget()
            self._health.end()
            status.turn()
            self.left_out()
            self._gone = connection.facts.capabilities

    # Another session in place of a forgotten one

    async def renewed(self, connection: Connection, error: McpmuxError) -> bool:
        """Return whether another session serves after `error`, having opened one if that may help."""
        if isinstance(error, SessionEnded):
            # Over HTTP+SSE the stream ends soon after: a new session begins with a new connection.
            await connection.closed.wait()
            self.forget(connection)
        if not connection.doubts_session(error):
            return False
        if self._status.connection is connection:
            self.renew(connection, error)
        if self._renewing is not None:
            await self._renewing.wait()
        return self._status.connection is not connection

    def renew(self, connection: Connection, error: McpmuxError) -> None:
        """Start a task that replaces the session of `connection` if it is forgotten, unless one runs."""
        attempt = self._attempt
        is_due = self._renewing is None and self._renewals.allowed(trio.current_time())
        if is_due and attempt is not None:
            self._renewing = trio.Event()
            # In the context of the attempt, not of the call that failed: the session outlives the call.
            attempt.context.run(attempt.nursery.start_soon, self._replace, attempt, connection, error)

    def renewal_helped(self) -> None:
        """Note that the new session answers a request that the former one refused."""
        self._renewals.helped()

    async def _replace(self, attempt: Attempt, connection: Connection, error: McpmuxError) -> None:
        """Replace the session of `connection` if the server refuses it and opens another one."""
        assert self._renewing is not None
        failures: list[BaseException] = []
        try:
            # Only another session proves that the former one is forgotten: servers refuse for many reasons.
            if await connection.lacks_session(error) and self._status.connection is connection:
                self._renewals.begin(trio.current_time())
                name = f"session {self._upstream.key}"
                opening = attempt.nursery.start(self._stay, [], connection, name=name)
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
