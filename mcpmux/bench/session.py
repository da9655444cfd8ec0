"""The MCP sessions with a target: they perform the requests of the load, and are opened again when lost.

While a session is being opened again its requests wait. Refuses to know when and what is asked.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager, suppress
from functools import partial

import trio
from attrs import frozen

from mcpmux.bench.answer import TOOL_ERROR, Answer, Chain, Follow, Judge, describe, size_of, words_of
from mcpmux.bench.http_connection import Connector
from mcpmux.bench.http_pool import CLIENT_INFO, HttpPool, open_connector
from mcpmux.bench.operation import Ask, Kind
from mcpmux.bench.results import OK
from mcpmux.config import Upstream
from mcpmux.errors import McpmuxError, RemoteProtocolError, RpcError, TransportClosed, TransportError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call, Event, Exchange, Notify
from mcpmux.protocol.codes import HEADER_MISMATCH
from mcpmux.protocol.envelope import Notification, decode_list, raw, text_of
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.revisions import NEWEST, NEWEST_LEGACY, is_modern
from mcpmux.runtime.calls import Hear, unheard
from mcpmux.runtime.channel import Channel
from mcpmux.runtime.upstreams.connection import Connection, Eras, connect
from mcpmux.runtime.upstreams.http_channel import HttpChannel
from mcpmux.runtime.upstreams.http_refusal import HttpStatusError, SessionExpired
from mcpmux.transports.wall import leaves_of

PAGE_LIMIT = 10_000  # of a list; a longer one never ends
LOST = "connection lost"
NOT_ACKNOWLEDGED = "the listen ended before it was acknowledged"

Explain = Callable[[str, str, Callable[[], str]], None]
"""Called for each error: the operation, the kind, and a function for what the server or system says of it."""


class Session:
    """One conversation. `facts`: what the server said about itself; `last_words`: why it was lost last.

    `expired` is set when the server says that it does not know the session any more.
    """

    def __init__(self, connection: Connection, pool: HttpPool | None, judge: Judge, explain: Explain) -> None:
        """`pool`: its own connections for single requests."""
        self._explain = explain
        self._connection: Connection | None = connection
        self._pool = pool
        self._judge = judge
        self._decided = trio.Event()
        self._lost_for_good = False
        self.expired = trio.Event()
        self.facts = connection.facts
        self.modern = is_modern(connection.facts.revision)
        self.last_words: str | None = None

    def __repr__(self) -> str:
        return f"<Session {self._connection!r}>"

    def suspend(self) -> None:
        """It is lost: its requests wait until `resume` or `give_up`."""
        self._connection = self._pool = None
        self._decided = trio.Event()

    def resume(self, connection: Connection, pool: HttpPool | None) -> None:
        """It was opened again."""
        self._connection, self._pool = connection, pool
        self.expired = trio.Event()
        self._decided.set()

    def give_up(self) -> None:
        """It is not opened any more: all its requests fail."""
        self._lost_for_good = True
        self._decided.set()

    async def exchange(self, call: Call) -> Fields:
        """One call. Raises McpmuxError."""
        return await self.listen(call, unheard)

    async def listen(self, call: Call, notify: Notify) -> Fields:
        """A call whose notifications matter. Raises McpmuxError."""
        if self._connection is None:
            raise TransportClosed(self.last_words or LOST)
        return await self._connection.exchange(call, notify)

    async def perform(self, ask: Ask, follow: Follow | None = None) -> Answer:
        """Make one request of the load, and those that `follow`; whatever comes of the last is an answer."""
        chain = Chain(ask, self._judge, follow)
        while True:
            answer = await self._perform(chain)
            if not chain.pending:
                return answer
            chain.pending = False

    async def _perform(self, chain: Chain) -> Answer:
        while (connection := self._connection) is None:
            if self._lost_for_good:
                return Answer(LOST, size_of(chain.ask.call.params), 0, self.last_words or LOST)
            await self._decided.wait()
        try:
            if chain.ask.kind is Kind.ONCE:
                return await self._perform_once(chain, connection)
            if chain.ask.kind is Kind.WALK:
                return await _walk(chain.ask.call, connection)
            await self._subscribe(chain.ask.call, connection)
            return Answer(OK, size_of(chain.ask.call.params), 0)
        except (RpcError, RemoteProtocolError, TransportError) as error:
            if isinstance(error, SessionExpired) and self._connection is connection:
                self.expired.set()
            kind, words = describe(error), str(error)
            self._explain(chain.ask.operation, kind, lambda: words)
            lost = isinstance(error, TransportError) and not isinstance(error, HttpStatusError)
            return Answer(kind, size_of(chain.ask.call.params), 0, words if lost else None)

    async def _perform_once(self, chain: Chain, connection: Connection) -> Answer:
        result = await self._ask(chain, connection)
        if chain.pending:
            return Answer(OK, 0, 0)  # of an ask that was counted already
        outcome = chain.judge(result)
        if outcome == TOOL_ERROR:
            self._explain(chain.ask.operation, outcome, lambda: words_of(result))
        return Answer(outcome, size_of(chain.ask.call.params), size_of(result))

    async def _ask(self, chain: Chain, connection: Connection) -> Fields:
        if self._pool is None:
            return await connection.exchange(chain.ask.call, unheard)
        try:
            return await self._pool.exchange(chain)
        except RpcError as error:
            if error.code != HEADER_MISMATCH:
                raise
        return await connection.exchange(chain.ask.call, unheard)  # it learns the headers of tools

    async def _subscribe(self, call: Call, connection: Connection) -> None:
        """Subscribe to a resource, and unsubscribe as soon as the server has agreed."""
        if not self.modern:
            await connection.exchange(call, unheard)
            await connection.exchange(Call(m.RESOURCES_UNSUBSCRIBE, call.params, {}), unheard)
            return
        with trio.CancelScope() as scope:
            uri = text_of(call.params["uri"]) or ""
            await listen_to(connection.exchange, (uri,), lambda: scope.cancel(reason="acknowledged"))
        if not scope.cancelled_caught:
            raise RemoteProtocolError(NOT_ACKNOWLEDGED)

    async def list_uris(self) -> tuple[str, ...]:
        """Every resource that the server lists. Raises McpmuxError."""
        uris: list[str] = []
        async with aclosing(_pages(Call(m.RESOURCES_LIST, {}, {}), self.exchange)) as pages:
            async for _, result in pages:
                with suppress(KeyError, ValueError):
                    found = (text_of(item.get("uri")) for item in decode_list(result["resources"]))
                    uris += [uri for uri in found if uri is not None]
        return tuple(uris)


async def listen_to(exchange: Exchange, uris: Sequence[str], agree: Callable[[], None]) -> None:
    """Listen to changes of resources until the server ends it; `agree` is called when it acknowledges.

    Raises McpmuxError.
    """

    async def hear(event: Event) -> None:
        if event.method == m.ACKNOWLEDGED:
            agree()

    await exchange(Call(m.LISTEN, {"notifications": raw({"resourceSubscriptions": uris})}, {}), hear)


async def _pages(
    call: Call, exchange: Callable[[Call], Awaitable[Fields]]
) -> AsyncGenerator[tuple[Call, Fields], None]:
    """Every page of a list: the call for it, and its result. Raises McpmuxError."""
    cursors: set[str] = set()
    while True:
        result = await exchange(call)
        yield call, result
        cursor = text_of(result.get("nextCursor"))
        if cursor is None:
            return
        if cursor in cursors or len(cursors) >= PAGE_LIMIT:
            raise RemoteProtocolError(f"{call.method} never ends")
        cursors.add(cursor)
        call = call.with_params({"cursor": result["nextCursor"]})


async def _walk(call: Call, connection: Connection) -> Answer:
    """All pages of a list as one request."""
    sent = received = 0
    async with aclosing(_pages(call, lambda each: connection.exchange(each, unheard))) as pages:
        async for asked, result in pages:
            sent += size_of(asked.params)
            received += size_of(result)
            if m.LISTS[call.method].items not in result:
                raise RemoteProtocolError(f"the answer to {call.method} has no list in it")
    return Answer(OK, sent, received)


# Opening the sessions of a run, over any transport and in any revision.
#
# Promises: each is opened as any client of mcpmux would, in the revision that was asked for; leaving ends
# them all, each step bounded. One that is lost (its process, its socket, or the server forgot it) is opened
# again after a pause that grows; after REOPENINGS losses in a row, none of them STEADY_SECONDS or more
# after it was opened, it is given up.

NO_CAPABILITIES = raw({})
OPENING_AT_ONCE = 16  # opening alone should not bring a server down
REOPENINGS = 5  # in a row; a server that dies of every request is not started for ever
STEADY_SECONDS = 5.0  # a session that held so long was no failed opening
PAUSE_SECONDS = 0.1  # before the first opening again; doubled each time

OpenChannel = Callable[[Upstream, Hear], AbstractAsyncContextManager[Channel]]

Connected = Callable[[float, str], None]
"""Called for each opening: the seconds until it was ready or had failed, and `ok` or what it failed of."""


@frozen(kw_only=True)
class Setup:
    """How the sessions of a run are opened.

    `lost` is called for each that was open and is lost; without it none is opened again. `hear` is called
    with a session's number and each notification that belongs to no request. `pooled`: single requests may
    go over connections of their own where that is cheaper, see `http_pool`.
    """

    open_channel: OpenChannel
    upstream: Upstream
    revision: str | None
    judge: Judge
    connected: Connected
    hear: Callable[[int, Notification], None]
    lost: Callable[[], None] | None
    explain: Explain
    pooled: bool


@asynccontextmanager
async def open_sessions(setup: Setup, count: int) -> AsyncIterator[list[Session]]:
    """`count` sessions in the order of their numbers, opened OPENING_AT_ONCE at a time; leaving ends them.

    Raises TransportError, RpcError or RemoteProtocolError when one cannot be opened the first time.
    """
    sessions: dict[int, Session] = {}
    failures: list[McpmuxError] = []
    limit = trio.CapacityLimiter(OPENING_AT_ONCE)
    async with (
        open_connector(setup.upstream, OPENING_AT_ONCE) as connector,
        trio.open_nursery() as nursery,
    ):
        supervisors = [_SessionSupervisor(setup, number, limit, connector) for number in range(count)]

        async def open_one(number: int) -> None:
            try:
                sessions[number] = await nursery.start(supervisors[number].run)
            except McpmuxError as error:
                failures.append(error)
                opening.cancel_scope.cancel()

        async with trio.open_nursery() as opening:
            await open_one(0)  # alone: where this fails, the others need not be tried
            for number in range(1, count):
                opening.start_soon(open_one, number)
        try:
            if failures:
                raise failures[0]
            yield [sessions[number] for number in range(count)]
        finally:
            for supervisor in supervisors:
                supervisor.end()


class _SessionSupervisor:
    """Opens one session, and opens it again when it is lost, until `end`."""

    def __init__(
        self, setup: Setup, number: int, limit: trio.CapacityLimiter, connector: Connector | None
    ) -> None:
        self._setup = setup
        self._connector = connector if setup.pooled else None
        self._hear: Hear = partial(setup.hear, number)
        self._limit = limit
        self._over = trio.Event()
        self._scope = trio.CancelScope()
        self._session: Session | None = None
        self._open = False

    def __repr__(self) -> str:
        return f"<_SessionSupervisor of {self._session!r}{'' if self._open else ', not open'}>"

    def end(self) -> None:
        """End an open session properly; one that is being opened is left at once."""
        self._over.set()
        if not self._open:
            self._scope.cancel(reason="the run is over")

    async def run(self, task_status: trio.TaskStatus[Session]) -> None:
        """Supervise it until `end`. Raises McpmuxError when it cannot be opened the first time."""
        losses = 0
        with self._scope:
            while not self._over.is_set():
                held, failure = await self._hold(task_status)
                if self._session is None:
                    assert failure is not None
                    raise failure
                if failure is not None:
                    self._session.last_words = str(failure)
                losses = 1 if held >= STEADY_SECONDS else losses + 1
                if self._setup.lost is None or losses > REOPENINGS:
                    self._session.give_up()
                    return
                await trio.sleep(PAUSE_SECONDS * 2 ** (losses - 1))

    async def _hold(self, task_status: trio.TaskStatus[Session]) -> tuple[float, McpmuxError | None]:
        """Open it once and wait until it is lost or over: how many seconds it held, and what it failed of."""
        failure: McpmuxError | None = None
        began, ready = trio.current_time(), None
        try:
            async with AsyncExitStack() as stack:
                session, lost = await self._enter(stack, task_status)
                ready = trio.current_time()
                self._setup.connected(ready - began, OK)
                await self._hold_open(session, lost)
        except* McpmuxError as group:
            failure = next(error for error in leaves_of(group) if isinstance(error, McpmuxError))
        if ready is None:
            assert failure is not None
            self._setup.connected(trio.current_time() - began, describe(failure))
            return 0.0, failure
        return trio.current_time() - ready, failure

    async def _enter(
        self, stack: AsyncExitStack, task_status: trio.TaskStatus[Session]
    ) -> tuple[Session, trio.Event]:
        """Open it: the session, and what is set when it is lost. Raises McpmuxError."""
        setup = self._setup
        pool: HttpPool | None = None
        async with self._limit:
            channel = await stack.enter_async_context(setup.open_channel(setup.upstream, self._hear))
            connection = await _connect(channel, setup.upstream, setup.revision)
            if self._connector is not None and isinstance(connection.channel, HttpChannel):
                client_info = CLIENT_INFO if is_modern(connection.facts.revision) else None
                pool = HttpPool(self._connector, connection.channel, client_info)
                stack.callback(pool.close)
                await pool.prepare()
        if self._session is None:
            self._session = Session(connection, pool, setup.judge, setup.explain)
            task_status.started(self._session)
        else:
            self._session.resume(connection, pool)
        # The sockets of a session over HTTP come and go.
        return self._session, self._session.expired if isinstance(channel, HttpChannel) else channel.closed

    async def _hold_open(self, session: Session, lost: trio.Event) -> None:
        self._open = True
        try:
            await _first_of(self._over, lost)
        finally:
            self._open = False
            if not self._over.is_set():
                session.suspend()
                if self._setup.lost is not None:
                    self._setup.lost()


async def _connect(channel: Channel, upstream: Upstream, revision: str | None) -> Connection:
    """Raises RemoteProtocolError when it does not speak `revision`, or not in time."""
    eras = Eras.MODERN_FIRST if revision in (None, NEWEST) else Eras.LEGACY_ONLY
    legacy = NEWEST_LEGACY if revision is None or revision == NEWEST else revision
    with trio.move_on_after(upstream.connect_timeout):
        try:
            connection = await connect(channel, CLIENT_INFO, NO_CAPABILITIES, eras, legacy)
        except RpcError as error:
            raise RemoteProtocolError(f"it refused to initialize: {error.message}") from None
        spoken = connection.facts.revision
        if revision is not None and spoken != revision:
            raise RemoteProtocolError(f"it does not speak revision {revision}; it answered with {spoken}")
        return connection
    raise RemoteProtocolError(f"it did not answer initialize within {upstream.connect_timeout:g} s")


async def _first_of(*events: trio.Event) -> None:
    async def wait(event: trio.Event) -> None:
        await event.wait()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for event in events:
            nursery.start_soon(wait, event)
