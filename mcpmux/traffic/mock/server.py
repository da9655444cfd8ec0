"""A server that answers from a capture, in place of the mux: to be served by the same listeners.

Promises: clients of every revision are served; an answer of the era that was captured is given as it was,
another is translated. What came during a call comes again, under the new progress token; what a legacy server
asked is asked again, and the captured answer follows whatever the client says. Changes are told to those who
subscribe, in their order. What is not in the capture is refused with the nearest that is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import structlog
import trio

from mcpmux.errors import RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call, Event, Notify
from mcpmux.protocol.envelope import Request, decode_fields, raw, value_of
from mcpmux.protocol.era import upgrade_error, upgrade_result
from mcpmux.protocol.meta import META, PROGRESS_TOKEN, SUBSCRIPTION_ID
from mcpmux.protocol.principal import ANYONE, Principal
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.protocol.revisions import NEWEST
from mcpmux.protocol.shapes import Id
from mcpmux.runtime.downstreams.front import read_call
from mcpmux.runtime.downstreams.listen import Filter, read_filter
from mcpmux.runtime.downstreams.session import Ask
from mcpmux.runtime.tap import Tap
from mcpmux.traffic.mock.facts import find_discover, find_initialize, make_discover, make_initialize
from mcpmux.traffic.mock.matching import Book, answer_of
from mcpmux.traffic.mock.session import MockSession
from mcpmux.traffic.reading.turn import Dialogue, Said, Turn

log = structlog.get_logger()


class Mock:
    """See runtime.service.Service. Made by `open_mock`. `close` ends the listens."""

    tap: Tap | None = None

    def __init__(self, book: Book, nursery: trio.Nursery, *, latency: bool) -> None:
        """`latency`: whether everything takes as long as it did."""
        self.book = book
        self.latency = latency
        self._nursery = nursery
        self._closing = trio.Event()

    def __repr__(self) -> str:
        return f"<Mock {self.book!r}>"

    def close(self) -> None:
        """Nothing more is told: listens end."""
        self._closing.set()

    def leave(self, client: object) -> None:
        """See Service."""

    def roots_changed(self) -> None:
        """See Service."""

    async def answer(self, request_id: Id, call: Call, notify: Notify) -> Fields:
        """See Service."""
        if call.method == m.LISTEN:
            return await self._listen(request_id, call, notify)
        turn = self.find(call, NEWEST)
        if turn is None and call.method == m.DISCOVER:
            return make_discover(self.book)
        if turn is None:
            raise self.refuse(call)
        return await self.answer_modern(turn, call, notify)

    async def initialize(self, request: Request, principal: Principal = ANYONE) -> tuple[MockSession, Fields]:
        """See Service."""
        call = read_call(request)
        turn = find_initialize(self.book, call.params)
        if turn is None:
            requested = value_of(call.params.get("protocolVersion"))
            result = make_initialize(self.book, requested if isinstance(requested, str) else "")
        else:
            result = await self.play(turn, call, _unheard, None)
        session = MockSession(self, result, self._nursery)
        session.principal = principal
        session.follow(turn)
        return session, result

    def find(self, call: Call, revision: str) -> Turn | None:
        """The captured request that this one repeats."""
        if call.method == m.DISCOVER:
            return find_discover(self.book, call, revision)
        return self.book.find(call.method, call.params, revision)

    def refuse(self, call: Call) -> RpcError:
        """What to say to what is not in the capture."""
        error = self.book.unknown(call.method, call.params)
        log.warning("not in the capture", method=call.method, told=error.message)
        return error

    async def answer_modern(self, turn: Turn, call: Call, notify: Notify) -> Fields:
        """A captured answer in the shape of 2026-07-28. Raises RpcError."""
        if turn.modern:
            return await self.play(turn, call, notify, None)
        try:
            return upgrade_result(call.method, await self.play(turn, call, notify, None))
        except RpcError as error:
            raise upgrade_error(call.method, call.params, error) from None

    async def play(self, turn: Turn, call: Call, notify: Notify, ask: Ask | None) -> Fields:
        """What came before a captured answer, then the answer as it was. `ask` asks the client back.

        Raises RpcError.
        """
        began = trio.current_time()
        for said in turn.said:
            await self.wait(began, said.after)
            if not said.question:
                await _tell(said, call, notify)
            elif ask is not None:
                with suppress(RpcError):
                    await ask(said.method, said.params)
        await self.wait(began, (turn.ms or 0.0) / 1000)
        return answer_of(turn)

    async def wait(self, began: float, after: float) -> None:
        """Until what came `after` seconds is due."""
        if self.latency:
            await trio.sleep_until(began + after)

    async def _listen(self, request_id: Id, call: Call, notify: Notify) -> Fields:
        tag = raw({SUBSCRIPTION_ID: request_id})
        wish = read_filter(call)
        turn = self.book.find(m.LISTEN, call.params, NEWEST)
        if turn is not None and turn.answer is not None and not turn.said:
            return answer_of(turn)
        began = trio.current_time()
        for said in turn.said if turn is not None else self._events_for(wish, call):
            await self.wait(began, said.after)
            await notify(Event(said.method, {**said.params, META: _tagged(said.params.get(META), tag)}))
        await self._closing.wait()
        return {"resultType": raw("complete"), META: tag}

    def _events_for(self, wish: Filter, call: Call) -> list[Said]:
        """For a listen that nobody made then: what subscribers to its resources were told."""
        agreed = Said(0.0, m.ACKNOWLEDGED, {"notifications": call.params["notifications"]})
        updates = [said for uri in wish.uris for said in self.book.updates(uri)]
        return [agreed, *sorted(updates, key=lambda said: said.after)]


async def _tell(said: Said, call: Call, notify: Notify) -> None:
    """A notification of a call, with this call's progress token; no progress for a call without one."""
    params = said.params
    if said.method == m.PROGRESS:
        if not call.wants_progress:
            return
        params = {**params, PROGRESS_TOKEN: call.meta[PROGRESS_TOKEN]}
    await notify(Event(said.method, params))


def _tagged(meta: Raw | None, tag: Raw) -> Raw:
    """`_meta` with the id of the new listen."""
    return raw({**(decode_fields(meta) if meta is not None else {}), **decode_fields(tag)})


async def _unheard(_event: Event) -> None:
    """A handshake has no notifications."""


@asynccontextmanager
async def open_mock(
    dialogues: Sequence[Dialogue], *, latency: bool = False, cycle: bool = False
) -> AsyncIterator[Mock]:
    """A server that stands for the one in the dialogues. Leaving ends what it still tells.

    `latency`: everything takes as long as it did; `cycle`: after the last answer to the same comes the first.
    """
    async with trio.open_nursery() as nursery:
        yield Mock(Book(dialogues, cycle=cycle), nursery, latency=latency)
        nursery.cancel_scope.cancel(reason="the mock is closed")
