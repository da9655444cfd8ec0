"""A legacy client of a server that is played from a capture.

Promises: it has the captured answers of its own revision as they were, others in the words of its revision.
What it is told without asking comes after the answer it came after then; updates of a resource come once it
has subscribed to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from mcpmux.errors import RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call, Event, Notify
from mcpmux.protocol.codes import INVALID_REQUEST, METHOD_NOT_FOUND
from mcpmux.protocol.content import downgrade_content
from mcpmux.protocol.envelope import Notification, Request, decode_fields, raw, text_of
from mcpmux.protocol.era import downgrade_error, downgrade_result
from mcpmux.protocol.input_requests import (
    Wish,
    downgrade_question,
    error_response,
    repeated,
    upgrade_answer,
    wishes_in,
)
from mcpmux.protocol.principal import ANYONE
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.revisions import negotiate_legacy
from mcpmux.runtime.downstreams.front import read_call
from mcpmux.runtime.downstreams.session import Ask
from mcpmux.runtime.mailbox import Mailbox
from mcpmux.traffic.reading.turn import Said, Turn

if TYPE_CHECKING:
    from mcpmux.traffic.mock.server import Mock

GAP_SECONDS = 0.01  # between changes: without one, several of the same resource would be told as one
ROUNDS = 100  # of questions in one call; more are a circle

_MODERN_ONLY = frozenset({m.DISCOVER, m.LISTEN, m.TASKS_UPDATE})
_CHANGES_NOTHING = frozenset({m.SET_LEVEL, m.RESOURCES_SUBSCRIBE, m.RESOURCES_UNSUBSCRIBE})


class MockSession:
    """See runtime.service.Session."""

    def __init__(self, mock: Mock, result: Fields, nursery: trio.Nursery) -> None:
        """`result` answered its `initialize`; `nursery` is the mock's."""
        self.revision = negotiate_legacy(text_of(result.get("protocolVersion")) or "")
        self.mailbox = Mailbox(frozenset())
        self.ask_unasked: Ask | None = None
        self.principal = ANYONE
        self._mock = mock
        self._nursery = nursery
        self._feeds: dict[str, trio.CancelScope] = {}  # by the URI that is subscribed to
        self._others: list[trio.CancelScope] = []

    def __repr__(self) -> str:
        return f"<MockSession {self.revision} {len(self._feeds)} subscriptions>"

    def take_notification(self, notification: Notification) -> None:
        """See Session."""

    def close(self) -> None:
        """See Session."""
        for scope in (*self._feeds.values(), *self._others):
            scope.cancel(reason="the client has gone")
        self.mailbox.close()

    def follow(self, turn: Turn | None) -> None:
        """Tell what followed a captured answer, but for updates: these depend on subscriptions."""
        told = [said for said in turn.afterwards if said.method != m.RESOURCE_UPDATED] if turn else []
        if told:
            self._others.append(trio.CancelScope())
            self._nursery.start_soon(self._feed, told, self._others[-1])

    async def _feed(self, told: Sequence[Said], until: trio.CancelScope) -> None:
        began = trio.current_time()
        with until:
            for said in told:
                await trio.sleep(GAP_SECONDS)
                await self._mock.wait(began, said.after)
                self.mailbox.put(Event(said.method, said.params))

    async def answer(self, request: Request, notify: Notify, ask: Ask) -> Fields:
        """See Session."""
        if request.method == m.PING:
            return {}
        if request.method == m.INITIALIZE:
            raise RpcError(INVALID_REQUEST, "Invalid request: this session is initialized already")
        if request.method in _MODERN_ONLY:
            raise RpcError(METHOD_NOT_FOUND, f"Method not found: {request.method}")
        call = read_call(request)
        turn = self._mock.find(call, self.revision)
        if turn is None and call.method not in _CHANGES_NOTHING:
            raise downgrade_error(call.method, self._mock.refuse(call))
        result = await self._answer(turn, call, notify, ask) if turn is not None else {}
        self._subscribe(call)
        self.follow(turn)
        return result

    async def _answer(self, turn: Turn, call: Call, notify: Notify, ask: Ask) -> Fields:
        if not turn.modern:
            result = await self._mock.play(turn, call, notify, ask)
            return result if turn.revision == self.revision else self._in_own_words(call, result)
        try:
            result = await self._mock.play(turn, call, notify, None)
            for _ in range(ROUNDS):
                wishes = wishes_in(result)
                if wishes is None:
                    break
                responses = {key: raw(await self._ask(wish, ask)) for key, wish in wishes.items()}
                call = repeated(call, result, responses)
                again = self._mock.find(call, self.revision)
                if again is None:
                    raise self._mock.refuse(call)
                result = await self._mock.play(again, call, notify, None)
        except RpcError as error:
            raise downgrade_error(call.method, error) from None
        return self._in_own_words(call, downgrade_result(result))

    def _in_own_words(self, call: Call, result: Fields) -> Fields:
        return downgrade_content(call.method, result, self.revision)

    async def _ask(self, wish: Wish, ask: Ask) -> Fields:
        """The client's answer to what a modern server wanted to know, as a modern client would give it."""
        try:
            params = downgrade_question(wish.method, wish.params, self.revision, "mock")
            return upgrade_answer(wish.method, wish.params, await ask(wish.method, params), self.revision)
        except RpcError as error:
            return decode_fields(error_response(error))

    def _subscribe(self, call: Call) -> None:
        uri = call.text("uri") or ""
        if call.method == m.RESOURCES_UNSUBSCRIBE and uri in self._feeds:
            self._feeds.pop(uri).cancel(reason="unsubscribed")
        elif call.method == m.RESOURCES_SUBSCRIBE and uri not in self._feeds:
            self._feeds[uri] = trio.CancelScope()
            self._nursery.start_soon(self._feed, self._mock.book.updates(uri), self._feeds[uri])
