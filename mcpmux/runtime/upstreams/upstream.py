"""One upstream: kept connected by one supervised task, used by any number of exchanges.

State

    connecting --connected--> ready --lost--> down --backoff over--> connecting
    connecting --failed-----> down

Promises: a crash, hang or garbage of this upstream stays here; an exchange gets its answer, or an RpcError
that names the upstream and says what is wrong, within the upstream's deadline; an idempotent exchange is
sent a second time when the first connection was lost under it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

import structlog
import trio
from msgspec import Raw

from mcpmux.config import Upstream as UpstreamConfig
from mcpmux.errors import (
    LocalProtocolError,
    McpmuxError,
    RemoteProtocolError,
    RpcError,
    TransportClosed,
    TransportError,
)
from mcpmux.mux.namespace import Space
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call, Event, Notify
from mcpmux.protocol.codes import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    SERVER_ERROR,
    UNSUPPORTED_VERSION,
    UPSTREAM_TIMEOUT,
    UPSTREAM_UNAVAILABLE,
)
from mcpmux.protocol.envelope import Fields, Notification, raw
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.revisions import is_modern
from mcpmux.runtime.calls import FindClient, Hear
from mcpmux.runtime.tap import EXCHANGE, Watch
from mcpmux.runtime.upstreams.backoff import Backoff
from mcpmux.runtime.upstreams.connection import Channel, Connection, Eras, connect
from mcpmux.runtime.upstreams.http_peer import SessionExpired
from mcpmux.runtime.upstreams.subscriber import Subscriber

log = structlog.get_logger()

NEWS_LIMIT = 256  # notifications of clients that wait for a server; more is a flood
STABLE_SECONDS = 10.0  # a connection that held so long was a good one: the next loss starts a fresh backoff

# It may have died of the first question: the next attempt begins with another one.
_AFTER_A_DEATH = {
    Eras.MODERN_FIRST: Eras.LEGACY_FIRST,
    Eras.LEGACY_FIRST: Eras.MODERN_FIRST,
    Eras.LEGACY_ONLY: Eras.LEGACY_ONLY,
}

# What servers answer to a request of the other era before they look at what it asks.
_NOT_UNDERSTOOD = frozenset({INVALID_REQUEST, SERVER_ERROR, UNSUPPORTED_VERSION})

OpenChannel = Callable[[UpstreamConfig, Hear, Watch | None], AbstractAsyncContextManager[Channel]]
"""Opens a channel to a server; whoever watches its leg sees every message."""

OnChange = Callable[[str, ServerFacts], None]
"""An upstream has come or gone: its name, and what it said about itself."""

OnNotification = Callable[[str, Notification], None]


class Upstream:
    """One configured server and one session with it: the shared one, or a client's own.

    `key` tells sessions apart; `capabilities` are what a legacy server is told that its clients offer.

    `connection` is set while it is ready; `trouble` says in words why it is not. `connects` counts them.
    """

    def __init__(
        self,
        config: UpstreamConfig,
        key: str,
        capabilities: Raw,
        eras: Eras,
        space: Space,
        client_info: Raw,
        open_channel: OpenChannel,
        subscriber: Subscriber,
        find_client: FindClient,
        on_change: OnChange,
        on_notification: OnNotification,
        watch: Watch | None = None,
    ) -> None:
        self.config = config
        self.watch = watch
        self.key = key
        self.space = space
        self.connection: Connection | None = None
        self.trouble = "it is still starting"
        self.connect_seconds: float | None = None
        self.connects = 0
        self._client_info = client_info
        self._capabilities = capabilities
        self._open_channel = open_channel
        self.subscriber = subscriber
        self._find_client = find_client
        self._on_change = on_change
        self._on_notification = on_notification
        self._settled = trio.Event()
        self._news: dict[tuple[str, bytes], Fields] = {}
        self._news_arrival = trio.Event()
        self._eras = eras

    def __repr__(self) -> str:
        return f"<Upstream {self.name} {self.state}>"

    @property
    def name(self) -> str:
        """The configured name."""
        return self.config.name

    @property
    def state(self) -> str:
        """`ready`, `connecting` or `down`."""
        if self.connection is not None:
            return "ready"
        return "down" if self._settled.is_set() else "connecting"

    @property
    def facts(self) -> ServerFacts | None:
        """What the server said about itself, while it is ready."""
        return self.connection.facts if self.connection is not None else None

    async def settled(self) -> None:
        """Wait for the first attempt to connect, or the one right after a loss; later ones hold up nobody."""
        await self._settled.wait()

    async def exchange(self, call: Call, notify: Notify) -> Fields:
        """One call to this upstream, within its deadline, which every progress notification renews.

        Raises RpcError: the upstream's own, or one that says why there is no answer.
        """
        # The result of a task comes when the task is done, however long that takes.
        seconds = math.inf if call.method == m.TASKS_RESULT else self.config.request_timeout
        with trio.move_on_after(seconds) as scope:

            async def pass_on(event: Event) -> None:
                scope.deadline = max(scope.deadline, trio.current_time() + seconds)
                await notify(event)

            if self.watch is not None and self.watch.trace is not None:
                return await self.watch.trace(self.watch.leg, call, partial(self._exchange, notify=pass_on))
            return await self._exchange(call, pass_on)
        raise self.error(UPSTREAM_TIMEOUT, f"did not answer {call.method} within {seconds:g} s")

    async def reply(self, call: Call) -> None:
        """Answer what a parked call of a legacy server asked, and wait for it no more. Raises RpcError."""
        connection = await self._connected()
        try:
            await connection.reply(call)
        except TransportError as error:
            raise self.error(UPSTREAM_UNAVAILABLE, f"was lost: {error}") from None

    async def _exchange(self, call: Call, notify: Notify) -> Fields:
        if self.watch is not None:
            self.watch.tap.routed(EXCHANGE.get(), self.name)
        for attempt in (1, 2):
            connection = await self._connected()
            try:
                return await connection.exchange(call, notify)
            except RpcError as error:
                if attempt == 2 or not _may_repeat(call, error) or await connection.holds():
                    raise
                self._forget(connection)
            except TransportError as error:
                await connection.holds()
                if attempt == 2 or not _may_repeat(call, error):
                    raise self.error(UPSTREAM_UNAVAILABLE, f"was lost: {error}") from None
                self._forget(connection)
            except RemoteProtocolError as error:
                raise self.error(UPSTREAM_UNAVAILABLE, f"makes no sense: {error}") from None
        raise LocalProtocolError("unreachable")

    async def _connected(self) -> Connection:
        """The open connection. Raises RpcError when there is none and none is about to be."""
        while self.connection is None:
            if self._settled.is_set():
                raise self.error(UPSTREAM_UNAVAILABLE, f"is not available: {self.trouble}")
            await self._settled.wait()
        return self.connection

    def _forget(self, connection: Connection) -> None:
        """`connection` has ended: exchanges from now on wait for the attempt that follows."""
        if self.connection is connection and connection.closed.is_set():
            self._settled = trio.Event()
            self.connection = None
            self._on_change(self.name, connection.facts)

    async def expect(self, capability: str, option: str) -> None:
        """The server is there and may offer an option of a capability. Raises RpcError when it does not.

        A legacy server that has the capability is to be asked itself: the Python SDK 1.x says
        `subscribe: false` whatever the server can do.
        """
        connection = await self._connected()
        offered = connection.facts.capabilities.get(capability)
        says_all = is_modern(connection.facts.revision)
        if not isinstance(offered, dict) or (says_all and offered.get(option) is not True):
            raise self.error(METHOD_NOT_FOUND, f"does not offer {capability}.{option}")

    def error(self, code: int, what: str) -> RpcError:
        """An error that names this upstream."""
        return RpcError(code, f"Upstream {self.name!r} {what}", {"upstream": self.name, "state": self.state})

    async def run(self) -> None:
        """Keep it connected until cancelled. Closes its process or connections on the way out."""
        structlog.contextvars.bind_contextvars(upstream=self.key)  # for every task below this one
        backoff = Backoff()
        told = ""
        while True:
            began, eras = trio.current_time(), self._eras
            was_ready = await self._attempt()
            if was_ready:
                told = ""
                if trio.current_time() - began > STABLE_SECONDS:
                    backoff.reset()
            wait = backoff.next()
            died_of_probe = (eras, self._eras) == (Eras.MODERN_FIRST, Eras.LEGACY_FIRST)
            if wait > 0 or not (was_ready or died_of_probe):
                self._settled.set()
            if self.trouble != told:
                log.warning("upstream down", reason=self.trouble)
            told = self.trouble
            await trio.sleep(wait)

    async def run_while_it_lasts(self) -> None:
        """Connect, and again after each loss, until an attempt fails or its connection does not hold."""
        structlog.contextvars.bind_contextvars(upstream=self.key)
        try:
            while True:
                began = trio.current_time()
                if not await self._attempt() or trio.current_time() - began < STABLE_SECONDS:
                    return
        finally:
            self._settled.set()

    async def _attempt(self) -> bool:
        """Connect and stay until the connection is lost; tells whether there was one. Sets `trouble`."""
        was_ready = False
        try:
            async with self._open_channel(self.config, self._heard, self.watch) as channel:
                connection = await self._connect(channel)
                was_ready = True
                self._greet(connection)
                try:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self.subscriber.run, connection, name=f"subscriber {self.name}")
                        nursery.start_soon(self._tell, connection, name=f"teller {self.name}")
                        await connection.closed.wait()
                        nursery.cancel_scope.cancel()
                    self.trouble = str(connection.close_reason)
                finally:
                    self._forget(connection)
        except* McpmuxError as group:  # the wall around one attempt
            self.trouble = "; ".join(str(error) for error in _leaves(group))
        return was_ready

    async def _connect(self, channel: Channel) -> Connection:
        began = trio.current_time()
        seconds = self.config.connect_timeout
        eras = self._eras
        channel.ask_clients_by(self._find_client)
        with trio.move_on_after(seconds):
            try:
                connection = await connect(channel, self._client_info, self._capabilities, eras)
            except TransportClosed:
                self._eras = _AFTER_A_DEATH[eras]
                raise
            except RpcError as error:
                raise RemoteProtocolError(f"it refused to initialize: {error.message}") from None
            self.connect_seconds = trio.current_time() - began
            return connection
        raise RemoteProtocolError(f"it did not answer initialize within {seconds:g} s")

    def tell_nowait(self, method: str, params: Fields | None = None) -> None:
        """Have a notification of the clients passed on, once, when the server is there and its era has it."""
        key = (method, bytes(raw(params or {})))
        if self.connection is None or (len(self._news) >= NEWS_LIMIT and key not in self._news):
            log.debug("notification not passed on", method=method)
            return
        self._news[key] = params or {}
        self._news_arrival.set()

    async def _tell(self, connection: Connection) -> None:
        while True:
            await self._news_arrival.wait()
            news, self._news = self._news, {}
            self._news_arrival = trio.Event()
            for (method, _), params in news.items():
                try:
                    await connection.tell(method, params)
                except TransportError as error:
                    log.debug("notification not passed on", method=method, reason=str(error))

    def _greet(self, connection: Connection) -> None:
        log.info("upstream ready", revision=connection.facts.revision)
        self.connection = connection
        self.connects += 1
        if self.watch is not None:
            self.watch.leg.revision = connection.facts.revision
        self._settled.set()
        self._on_change(self.name, connection.facts)

    def _heard(self, notification: Notification) -> None:
        if notification.method != m.MISSED:
            self._on_notification(self.key, notification)
        elif self.facts is not None:
            self.subscriber.catch_up()
            self._on_change(self.name, self.facts)


def _may_repeat(call: Call, error: McpmuxError) -> bool:
    """Whether a call can be sent again after an error: it changes nothing, or was not carried out."""
    if call.method in m.IDEMPOTENT or isinstance(error, SessionExpired):
        return True
    return isinstance(error, RpcError) and error.code in _NOT_UNDERSTOOD


def _leaves(group: BaseExceptionGroup[McpmuxError]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found.extend(_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found
