"""The MCP sessions with a target: they perform the requests of the load, and are opened again when lost.

Promises: each is opened as any client of mcpmux would, in the revision that was asked for; leaving ends
them all, each step bounded. One that is lost (its process, its socket, or the server forgot it) is opened
again after a pause that grows, and its requests wait meanwhile; after REOPENINGS losses in a row, none of
them STEADY_SECONDS or more after it was opened, it is given up. Refuses to know when and what is asked.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial

import trio
from attrs import define, field

from mcpmux.bench.answer import Answer, Chain, Follow, Judge, describe, size_of, words_of
from mcpmux.bench.http_pool import CLIENT_INFO, Connector, LoadPool, open_connector
from mcpmux.bench.operation import SEVERAL, Ask
from mcpmux.bench.plan import Plan
from mcpmux.bench.tally import Tally
from mcpmux.channels.channel import Channel, ignore_event
from mcpmux.channels.http_channel import HttpChannel
from mcpmux.channels.http_peer import HttpStatusError, SessionExpired
from mcpmux.config import Upstream
from mcpmux.errors import McpmuxError, RemoteProtocolError, RpcError, TransportClosed, TransportError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call, Event, Hear, Notify
from mcpmux.protocol.codes import HEADER_MISMATCH
from mcpmux.protocol.envelope import EMPTY_OBJECT, Notification, decode_list, raw, text_of
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.revisions import is_modern
from mcpmux.runtime.merger import walk_pages
from mcpmux.traffic.outcome import OK, TOOL_ERROR
from mcpmux.transports.wall import leaves_of
from mcpmux.upstreams.connection import Connection, Eras, SessionOpener

LOST = "connection lost"
OPENING_AT_ONCE = 16  # opening alone should not bring a server down
REOPENINGS = 5  # in a row; a server that dies of every request is not started for ever
STEADY_SECONDS = 5.0  # a session that held so long was no failed opening
PAUSE_SECONDS = 0.1  # before the first opening again; doubled each time

OpenChannel = Callable[[Upstream, Hear], AbstractAsyncContextManager[Channel]]


@asynccontextmanager
async def open_sessions(
    make: Callable[..., Session], upstream: Upstream, plan: Plan
) -> AsyncIterator[list[Session]]:
    """Open the sessions of a plan; leaving ends them. `make` gets number, limit and
    connector. Raises McpmuxError when one cannot be opened the first time.
    """
    limit = trio.CapacityLimiter(OPENING_AT_ONCE)
    count = plan.sessions + (plan.push is not None)  # one more makes the changes
    async with open_connector(upstream, OPENING_AT_ONCE) as connector, trio.open_nursery() as nursery:
        if plan.connections is not None and plan.connections < plan.workers:
            connector = None  # or more connections would be taken than were asked for
        sessions = [make(number, limit, connector) for number in range(count)]
        try:
            await nursery.start(sessions[0].run)  # alone: where this fails, the others need not be tried
            async with trio.open_nursery() as opening:
                for session in sessions[1:]:
                    opening.start_soon(nursery.start, session.run)
            yield sessions
        finally:
            for session in sessions:
                session.end()


@define(eq=False, repr=False)
class Session:
    """One conversation. `facts`: what the server said about itself; `last_words`: why it was lost last.

        being opened --> open -- lost --> being opened, or given up
        `end`: it is over, from wherever it is

    `hear` gets its number and each notification that belongs to no request. `_connection` is there while it
    is open; `_pool` has its own connections for single requests.
    """

    _open_channel: OpenChannel
    _upstream: Upstream
    _plan: Plan
    _judge: Judge
    _tally: Tally
    _hear: Callable[[int, Notification], None]
    _number: int
    _limit: trio.CapacityLimiter
    _connector: Connector | None
    facts: ServerFacts = field(init=False)
    modern: bool = field(init=False)
    last_words: str | None = None
    _connection: Connection | None = None
    _pool: LoadPool | None = None
    _over: bool = False
    _decided: trio.Event = field(factory=trio.Event)  # set when it is open, or given up
    _expired: trio.Event = field(factory=trio.Event)  # set when the server does not know it any more
    _scope: trio.CancelScope = field(factory=trio.CancelScope)
    _holding: trio.CancelScope | None = None

    async def exchange(self, call: Call, notify: Notify = ignore_event) -> Fields:
        """Make one call. Raises McpmuxError."""
        if self._connection is None:
            raise TransportClosed(self.last_words or LOST)
        return await self._connection.exchange(call, notify)

    async def perform(self, ask: Ask, follow: Follow | None = None) -> Answer:
        """Make one request of the load and those that `follow`. Return the outcome of the last."""
        chain = Chain(ask, self._judge, follow)
        answer = await self._perform(chain)
        while chain.pending:
            chain.pending = False
            answer = await self._perform(chain)
        return answer

    async def _perform(self, chain: Chain) -> Answer:
        while (connection := self._connection) is None:
            if self._decided.is_set():
                return Answer(LOST, size_of(chain.ask.call.params), 0, self.last_words or LOST)
            await self._decided.wait()
        try:
            if chain.ask.call.method not in SEVERAL:
                return await self._perform_once(chain, connection)
            if chain.ask.call.method in m.LISTS:
                return await _walk(chain.ask.call, connection)
            params = chain.ask.call.params
            with trio.CancelScope() as scope:  # a listen ends as soon as the server has agreed
                await self.listen((text_of(params["uri"]) or "",), scope.cancel)
            if not self.modern:
                await self.exchange(Call(m.RESOURCES_UNSUBSCRIBE, params, {}))
            return Answer(OK, size_of(params), 0)
        except (RpcError, RemoteProtocolError, TransportError) as error:
            if isinstance(error, SessionExpired) and self._connection is connection:
                self._expired.set()
            kind, words = describe(error), error.in_full
            self._tally.explain(chain.ask.operation, kind, lambda: words)
            lost = isinstance(error, TransportError) and not isinstance(error, HttpStatusError)
            return Answer(kind, size_of(chain.ask.call.params), 0, words if lost else None)

    async def _perform_once(self, chain: Chain, connection: Connection) -> Answer:
        result: Fields | None = None
        if self._pool is not None:
            try:
                result = await self._pool.exchange(chain)
            except RpcError as error:
                if error.code != HEADER_MISMATCH:
                    raise
        if result is None:  # the channel learns the headers of tools
            result = await connection.exchange(chain.ask.call, ignore_event)
        if chain.pending:
            return Answer(OK, 0, 0)  # of an ask that was counted already
        outcome = chain.judge(chain.ask, result)
        if outcome == TOOL_ERROR:
            self._tally.explain(chain.ask.operation, outcome, lambda: words_of(result))
        return Answer(outcome, size_of(chain.ask.call.params), size_of(result))

    async def listen(self, uris: Sequence[str], agree: Callable[[], object]) -> None:
        """Listen to changes of resources; `agree` is called once, when the server has agreed.

        It lasts until the server ends it, but in a legacy session, which has no such end. Raises McpmuxError.
        """
        agreed = False

        async def hear(event: Event) -> None:
            nonlocal agreed
            if event.method == m.ACKNOWLEDGED and not agreed:
                agreed = True
                agree()

        if self.modern:
            wish = raw({"resourceSubscriptions": uris})
            await self.exchange(Call(m.LISTEN, {"notifications": wish}, {}), hear)
            if not agreed:
                raise RemoteProtocolError("the listen ended before it was acknowledged")
            return
        for uri in uris:
            await self.exchange(Call(m.RESOURCES_SUBSCRIBE, {"uri": raw(uri)}, {}))
        agree()

    async def list_uris(self) -> tuple[str, ...]:
        """Return every resource that the server lists. Raises McpmuxError."""
        uris: list[str] = []

        def note(_call: Call, result: Fields) -> None:
            with suppress(KeyError, ValueError):
                listed = (text_of(item.get("uri")) for item in decode_list(result["resources"]))
                uris.extend(uri for uri in listed if uri is not None)

        await walk_pages(Call(m.RESOURCES_LIST, {}, {}), self.exchange, note)
        return tuple(uris)

    def end(self) -> None:
        """End an open session properly; one that is being opened is left at once."""
        self._over = True
        (self._holding or self._scope).cancel(reason="the run is over")

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Keep it open until `end`. Raises McpmuxError when it cannot be opened the first time."""
        losses, was_open = 0, False
        most = REOPENINGS if self._plan.push is None else 0  # a lost subscriber missed changes
        with self._scope:
            while losses <= most and not self._over:
                if losses:
                    await trio.sleep(PAUSE_SECONDS * 2 ** (losses - 1))
                began, ready = trio.current_time(), math.inf
                try:
                    async with self._open() as lost:
                        ready = trio.current_time()
                        self._tally.connected(ready - began)
                        self._decided.set()
                        if not was_open:
                            was_open = True
                            task_status.started()
                        await self._hold(lost)
                except* McpmuxError as group:
                    failure = next(error for error in leaves_of(group) if isinstance(error, McpmuxError))
                    self.last_words = failure.in_full
                    if math.isinf(ready):
                        self._tally.connected(trio.current_time() - began, describe(failure))
                    if not was_open:
                        raise
                losses = 1 if trio.current_time() - ready >= STEADY_SECONDS else losses + 1
            self._decided.set()

    async def _hold(self, lost: trio.Event) -> None:
        try:
            with trio.CancelScope() as self._holding:
                await lost.wait()
        finally:
            self._holding = None
            if not self._over:
                self._connection = self._pool = None
                self._decided = trio.Event()
                if self._plan.push is None:
                    self._tally.lost_connection()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[trio.Event]:
        """Open it; gives what is set when it is lost. Raises McpmuxError."""
        pool: LoadPool | None = None
        async with AsyncExitStack() as stack:
            async with self._limit:
                opening = self._open_channel(self._upstream, partial(self._hear, self._number))
                channel = await stack.enter_async_context(opening)
                opener = SessionOpener(CLIENT_INFO, EMPTY_OBJECT, Eras.MODERN_FIRST, self._plan.revision)
                connection = await opener.connect(channel, self._upstream.connect_timeout)
                self.facts, self.modern = connection.facts, is_modern(connection.facts.revision)
                if self._connector is not None and isinstance(connection.channel, HttpChannel):
                    client_info = CLIENT_INFO if self.modern else None
                    pool = LoadPool(self._connector, connection.channel, client_info)
                    stack.callback(pool.close)
                    await pool.prepare()
            self._connection, self._pool = connection, pool
            self._expired = trio.Event()
            # The sockets of a session over HTTP come and go.
            yield self._expired if isinstance(channel, HttpChannel) else channel.closed


async def _walk(call: Call, connection: Connection) -> Answer:
    sent = received = 0

    def count(asked: Call, result: Fields) -> None:
        nonlocal sent, received
        sent += size_of(asked.params)
        received += size_of(result)
        if m.LISTS[call.method].items not in result:
            raise RemoteProtocolError(f"the answer to {call.method} has no list in it")

    await walk_pages(call, connection.exchange, count)
    return Answer(OK, sent, received)
