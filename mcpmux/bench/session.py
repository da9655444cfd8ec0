"""MCP sessions with one target, over any transport and revision, as many as the load wants.

Promises: each is opened as any client of mcpmux would, in the revision that was asked for; leaving ends them
all, each step bounded. Refuses to know when and what is asked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial

import trio

from mcpmux.bench.answer import Answer, Checker, describe, judge, size_of
from mcpmux.bench.http_lane import CLIENT_INFO, HttpLane, open_lane
from mcpmux.bench.operation import Ask, Kind
from mcpmux.bench.results import OK
from mcpmux.config import Http, Upstream
from mcpmux.errors import McpmuxError, RemoteProtocolError, RpcError, TransportError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call, Event, Notify
from mcpmux.protocol.codes import HEADER_MISMATCH
from mcpmux.protocol.envelope import Fields, Notification, decode_list, raw, text_of
from mcpmux.protocol.revisions import NEWEST, NEWEST_LEGACY, is_modern
from mcpmux.runtime.calls import Hear
from mcpmux.runtime.tap import Watch
from mcpmux.runtime.upstreams.connection import Channel, Connection, Eras, connect, unheard
from mcpmux.runtime.upstreams.http_peer import HttpStatusError

NO_CAPABILITIES = raw({})
OPENING_AT_ONCE = 16  # a server should not be brought down by the hellos alone
PAGE_LIMIT = 10_000  # of a list; a longer one never ends

OpenChannel = Callable[[Upstream, Hear, Watch | None], AbstractAsyncContextManager[Channel]]

Connected = Callable[[float, str], None]
"""Told of each session: the seconds until it was ready or had failed, and `ok` or what it failed of."""


class Session:
    """One open conversation. `facts` is what the server said about itself."""

    def __init__(self, connection: Connection, checker: Checker | None, lane: HttpLane | None = None) -> None:
        """`lane`: a shorter way for single requests."""
        self._connection = connection
        self._lane = lane
        self._judge = checker.judge if checker is not None else _judge_only
        self.facts = connection.facts
        self.modern = is_modern(connection.facts.revision)
        self.last_words: str | None = None

    def __repr__(self) -> str:
        return f"<Session {self._connection!r}>"

    async def exchange(self, call: Call) -> Fields:
        """One call. Raises McpmuxError."""
        return await self._connection.exchange(call, unheard)

    async def listen(self, call: Call, notify: Notify) -> Fields:
        """A call whose notifications matter. Raises McpmuxError."""
        return await self._connection.exchange(call, notify)

    async def perform(self, ask: Ask) -> Answer:
        """Make one request of the load; whatever comes of it is an answer."""
        call = ask.call
        sent = size_of(call.params)
        try:
            if ask.kind is Kind.ONCE:
                result = await self._ask(ask)
                return Answer(self._judge(ask, result), sent, size_of(result))
            if ask.kind is Kind.WALK:
                return await self._walk(call, sent)
            await self._subscribe(call)
            return Answer(OK, sent, 0)
        except (RpcError, RemoteProtocolError, TransportError) as error:
            lost = isinstance(error, TransportError) and not isinstance(error, HttpStatusError)
            return Answer(describe(error), sent, 0, str(error) if lost else None)

    async def _ask(self, ask: Ask) -> Fields:
        if self._lane is None:
            return await self._connection.exchange(ask.call, unheard)
        try:
            return await self._lane.exchange(ask)
        except RpcError as error:
            if error.code != HEADER_MISMATCH:
                raise
        return await self._connection.exchange(ask.call, unheard)  # it learns the headers of tools

    async def _walk(self, call: Call, sent: int) -> Answer:
        received = 0
        cursors: set[str] = set()
        while True:
            result = await self._connection.exchange(call, unheard)
            received += size_of(result)
            if m.LISTS[call.method].items not in result:
                raise RemoteProtocolError(f"the answer to {call.method} has no list in it")
            cursor = text_of(result.get("nextCursor"))
            if cursor is None:
                return Answer(OK, sent, received)
            if cursor in cursors or len(cursors) >= PAGE_LIMIT:
                raise RemoteProtocolError(f"{call.method} never ends")
            cursors.add(cursor)
            call = call.with_params({"cursor": result["nextCursor"]})
            sent += size_of(call.params)

    async def _subscribe(self, call: Call) -> None:
        """Until the server has agreed to tell of the resource; then it need not any more."""
        if not self.modern:
            await self.exchange(call)
            await self.exchange(Call(m.RESOURCES_UNSUBSCRIBE, call.params, {}))
            return
        with trio.CancelScope() as scope:

            async def hear(event: Event) -> None:
                if event.method == m.ACKNOWLEDGED:
                    scope.cancel(reason="acknowledged")

            uri = text_of(call.params["uri"])
            wish = {"notifications": raw({"resourceSubscriptions": [uri]})}
            await self._connection.exchange(Call(m.LISTEN, wish, {}), hear)
        if not scope.cancelled_caught:
            raise RemoteProtocolError("the listen ended before it was acknowledged")

    async def list_uris(self) -> tuple[str, ...]:
        """Every resource that the server lists. Raises McpmuxError."""
        uris: list[str] = []
        params: Fields = {}
        for _ in range(PAGE_LIMIT):
            result = await self.exchange(Call(m.RESOURCES_LIST, params, {}))
            with suppress(KeyError, ValueError):
                found = (text_of(item.get("uri")) for item in decode_list(result["resources"]))
                uris += [uri for uri in found if uri is not None]
            if text_of(result.get("nextCursor")) is None:
                return tuple(uris)
            params = {"cursor": result["nextCursor"]}
        raise RemoteProtocolError(f"{m.RESOURCES_LIST} never ends")


def _judge_only(_ask: Ask, result: Fields) -> str:
    return judge(result)


@asynccontextmanager
async def open_sessions(
    open_channel: OpenChannel,
    upstream: Upstream,
    count: int,
    revision: str | None,
    connected: Connected,
    checker: Checker | None = None,
    hear: Callable[[int, Notification], None] | None = None,
    *,
    short: bool = False,
) -> AsyncIterator[list[Session]]:
    """`count` sessions with `upstream` in the order of their numbers, opened OPENING_AT_ONCE at a time.

    `hear` is told what a session (its number) hears that belongs to no request. `short`: single requests may
    go over connections of their own where that is cheaper, see `http_lane`. Leaving ends them all. Raises
    TransportError, RpcError or RemoteProtocolError when one cannot be opened.
    """
    sessions: dict[int, Session] = {}
    failures: list[McpmuxError] = []
    limit = trio.CapacityLimiter(OPENING_AT_ONCE)
    over = trio.Event()
    async with trio.open_nursery() as nursery:

        async def open_one(number: int) -> None:
            async with limit:
                heard = partial(hear, number) if hear is not None else _ignore
                holding = partial(_hold, open_channel, upstream, revision, checker, heard, over, short)
                began = trio.current_time()
                try:
                    session: Session = await nursery.start(holding)
                except McpmuxError as error:
                    failures.append(error)
                    connected(trio.current_time() - began, describe(error))
                    opening.cancel_scope.cancel()
                else:
                    connected(trio.current_time() - began, OK)
                    sessions[number] = session

        async with trio.open_nursery() as opening:
            await open_one(0)  # alone: where this fails, the others need not be tried
            for number in range(1, count):
                opening.start_soon(open_one, number)
        try:
            if failures:
                raise failures[0]
            yield [sessions[number] for number in range(count)]
        finally:
            over.set()


async def _hold(
    open_channel: OpenChannel,
    upstream: Upstream,
    revision: str | None,
    checker: Checker | None,
    hear: Hear,
    over: trio.Event,
    short: bool,
    task_status: trio.TaskStatus[Session],
) -> None:
    """One session until it is over, or its stream has ended; then its last words are kept."""
    session: Session | None = None
    failure: McpmuxError | None = None
    try:
        async with AsyncExitStack() as stack:
            channel = await stack.enter_async_context(open_channel(upstream, hear, None))
            connection = await _connect(channel, upstream, revision)
            lane = open_lane(upstream, connection) if short else None
            if lane is not None:
                stack.callback(lane.close)
            session = Session(connection, checker, lane)
            task_status.started(session)
            if isinstance(upstream.target, Http):
                await over.wait()
            else:
                await _first_of(over, channel.closed)
    except* McpmuxError as group:
        failure = _first_leaf(group)
    if failure is not None:
        if session is None:
            raise failure
        session.last_words = str(failure)


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


def _first_leaf(group: BaseExceptionGroup[McpmuxError]) -> McpmuxError:
    error = group.exceptions[0]
    return _first_leaf(error) if isinstance(error, BaseExceptionGroup) else error


def _ignore(_notification: Notification) -> None:
    """What the server says unasked is no part of this load."""
