"""One MCP session with a target: what performs the requests of the load, whatever comes of them.

While it is being opened again after its connection was lost, requests wait for it. Refuses to know how it is
opened (see below), and when and what is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import trio

from mcpmux.bench.answer import TOOL_ERROR, Answer, Checker, describe, judge, size_of, words_of
from mcpmux.bench.chain import Chain, Follow
from mcpmux.bench.http_lane import HttpLane
from mcpmux.bench.operation import Ask, Kind
from mcpmux.bench.results import OK
from mcpmux.errors import RemoteProtocolError, RpcError, TransportClosed, TransportError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call, Event, Notify
from mcpmux.protocol.codes import HEADER_MISMATCH
from mcpmux.protocol.envelope import decode_list, raw, text_of
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.revisions import is_modern
from mcpmux.runtime.upstreams.connection import Connection, unheard
from mcpmux.runtime.upstreams.http_refusal import HttpStatusError, SessionExpired

PAGE_LIMIT = 10_000  # of a list; a longer one never ends
LOST = "connection lost"

Explain = Callable[[str, str, Callable[[], str]], None]
"""Told of each error: the operation, the kind, and what the server or the system says of it."""


class Session:
    """One conversation. `facts` is what the server said about itself, `last_words` why it was lost last.

    `expired` is set when the server says that it knows it no more.
    """

    def __init__(
        self,
        connection: Connection,
        checker: Checker | None = None,
        lane: HttpLane | None = None,
        explain: Explain | None = None,
    ) -> None:
        """`lane`: a shorter way for single requests."""
        self._explain = explain or _explain_nothing
        self._connection: Connection | None = connection
        self._lane = lane
        self._judge = checker.judge if checker is not None else _judge_only
        self._decided = trio.Event()
        self._lost_for_good = False
        self.expired = trio.Event()
        self.facts = connection.facts
        self.modern = is_modern(connection.facts.revision)
        self.last_words: str | None = None

    def __repr__(self) -> str:
        return f"<Session {self._connection!r}>"

    def suspend(self) -> None:
        """It is lost; until `resume` or `give_up` its requests wait."""
        self._connection = self._lane = None
        self._decided = trio.Event()

    def resume(self, connection: Connection, lane: HttpLane | None) -> None:
        """It was opened again."""
        self._connection, self._lane = connection, lane
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
            sent = size_of(chain.ask.call.params)
            if chain.ask.kind is Kind.WALK:
                return await _walk(chain.ask.call, connection, sent)
            await self._subscribe(chain.ask.call, connection)
            return Answer(OK, sent, 0)
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
        if self._lane is None:
            return await connection.exchange(chain.ask.call, unheard)
        try:
            return await self._lane.exchange(chain)
        except RpcError as error:
            if error.code != HEADER_MISMATCH:
                raise
        return await connection.exchange(chain.ask.call, unheard)  # it learns the headers of tools

    async def _subscribe(self, call: Call, connection: Connection) -> None:
        """Until the server has agreed to tell of the resource; then it need not any more."""
        if not self.modern:
            await connection.exchange(call, unheard)
            await connection.exchange(Call(m.RESOURCES_UNSUBSCRIBE, call.params, {}), unheard)
            return
        with trio.CancelScope() as scope:

            async def hear(event: Event) -> None:
                if event.method == m.ACKNOWLEDGED:
                    scope.cancel(reason="acknowledged")

            uri = text_of(call.params["uri"])
            wish = {"notifications": raw({"resourceSubscriptions": [uri]})}
            await connection.exchange(Call(m.LISTEN, wish, {}), hear)
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


def _explain_nothing(_operation: str, _kind: str, _words: Callable[[], str]) -> None:
    """Nobody wants to know."""


def _judge_only(_ask: Ask, result: Fields) -> str:
    return judge(result)


async def _walk(call: Call, connection: Connection, sent: int) -> Answer:
    """Every page of a list. `sent`: bytes that the first request has."""
    received = 0
    cursors: set[str] = set()
    while True:
        result = await connection.exchange(call, unheard)
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
