"""Exchanges with one upstream over Streamable HTTP, in both eras: one POST each.

Promises: the answer may come as JSON or as an event stream, over as many connections as a legacy server
makes of it; cancelling an exchange closes its response, and tells a legacy server. A call in which a legacy
server may ask something is carried by a task of its own, as it may have to be parked.

Source: "Streamable HTTP" of 2026-07-28, "Transports" of 2025-03-26, 2025-06-18 and 2025-11-25.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import structlog
import trio

from mcpmux.errors import LocalProtocolError, Overdue, RpcError, TransportClosed, TransportError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call, Event, Notify
from mcpmux.protocol.codes import HEADER_MISMATCH
from mcpmux.protocol.envelope import ErrorReply, Notification, Reply, encode_notification, first_byte, raw
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.headers import Headers
from mcpmux.protocol.inflight import Ticket, encode_call
from mcpmux.protocol.meta import PROGRESS_TOKEN, VERSION
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.runtime.calls import Calls, FindClient, Hear, result_of
from mcpmux.runtime.incoming import Answer
from mcpmux.runtime.link import Link
from mcpmux.runtime.term import Term, limited
from mcpmux.runtime.upstreams.carried import CarriedCalls
from mcpmux.runtime.upstreams.http_answers import AnswerReader
from mcpmux.runtime.upstreams.http_events import is_event_stream, retry_seconds
from mcpmux.runtime.upstreams.http_intake import Intake, unheard
from mcpmux.runtime.upstreams.http_own_stream import hear_own_stream, stream_of
from mcpmux.runtime.upstreams.http_peer import FAREWELL_SECONDS, HttpPeer
from mcpmux.runtime.upstreams.http_posting import SentTicket
from mcpmux.runtime.upstreams.http_refusal import SessionExpired
from mcpmux.runtime.upstreams.http_waiting import Waiting
from mcpmux.transports.http.unsent import was_unsent
from mcpmux.transports.sse import SseDecoder

log = structlog.get_logger()

OpenOlder = Callable[[], Awaitable[Link | None]]
"""Opens a link to the same server over HTTP+SSE; None when it does not speak that."""

# For the server to open its own stream; some send no headers before there is an event.
LISTEN_SECONDS: Final = 2.0
TOOL_PAGES: Final = 100  # of a server's tools that are searched for annotations before a call is repeated

_NOT_STREAMABLE: Final = (400, 404, 405)
"""What a server of HTTP+SSE answers to an `initialize` that is POSTed to its event stream's URL."""

_MAY_BE_PARKED: Final = m.ASKED_DURING - {m.RESOURCES_READ}
"""Reading a resource is not among them: no legacy server asks for input there, and it is the hot path."""

_TEACH: Final = frozenset({m.TOOLS_LIST, m.TOOLS_CALL})
"""What tells which headers a tool's arguments need."""


class HttpChannel:
    """One upstream over HTTP. Made by `open_http_channel`, see below."""

    legacy_only = False

    def __init__(
        self, peer: HttpPeer, answer: Answer, hear: Hear, nursery: trio.Nursery, older: OpenOlder | None
    ) -> None:
        self._peer = peer
        self._open_older = older
        self._hear = hear
        self._nursery = nursery
        self._calls = Calls(peer.tell, hear)
        self._intake = Intake(peer, self._calls, answer, hear, nursery)
        self._reader = AnswerReader(peer, self._intake)
        self._carried = CarriedCalls(self._calls, nursery, self._perform)
        self.closed = peer.closed

    def __repr__(self) -> str:
        return f"<HttpChannel {self._peer!r} {self._calls!r}>"

    @property
    def close_reason(self) -> TransportError:
        """Why it ended, once `closed` is set."""
        return self._peer.close_reason

    @property
    def doubtful(self) -> bool:
        """Whether the server has refused something as one of another era would, since it was last asked."""
        return self._peer.doubtful

    @property
    def hearing(self) -> bool:
        """Whether what a legacy server says of its own accord is heard at the moment."""
        return self._peer.hearing

    def believe(self) -> None:
        """Forget the doubts so far."""
        self._peer.doubtful = False

    def give_up(self, reason: TransportError) -> None:
        """What was agreed with the server does not hold any more."""
        self._peer.lose(reason)

    async def older(self) -> Link | None:
        """The server over HTTP+SSE, if it refused `initialize` as those do and has an event stream there.

        Raises RemoteProtocolError when it has one that must not be used.
        """
        if self._open_older is None or self._peer.initialize_status not in _NOT_STREAMABLE:
            return None
        link = await self._open_older()
        if link is not None:
            link.ask_clients_by(self._calls.find_client)
        return link

    def head_of(self, call: Call) -> tuple[str, Headers]:
        """Path, query and headers with which a call is POSTed, for who sends it without us."""
        return self._peer.head_of(call)

    def settle(self, facts: ServerFacts) -> None:
        """From now on every request carries what the agreed revision asks for."""
        self._peer.settle(facts)
        self._calls.revision = facts.revision

    def exchange(self, call: Call, notify: Notify, term: Term | None = None) -> Awaitable[Fields]:
        """Send one request and wait for its answer.

        Raises RpcError (the server's answer), SessionExpired, HttpStatusError or another TransportError,
        Overdue; all of them when it is awaited.
        """
        if self._may_be_parked(call):
            return self._within(term, self._carried.exchange(call, notify))
        exchange = self._exchange_or_learn if call.method in _TEACH else self._exchange
        if self._peer.shows_token:
            return self._within(term, exchange(call, notify, term))
        return exchange(call, notify, term)

    def post(self, call: Call, term: Term | None = None) -> Ticket | None:
        """See PromptChannel."""
        if term is None or not self._peer.may_post or self.closed.is_set():
            return None
        ticket = SentTicket(self._calls.outgoing.next_id(), call, term, self._peer)
        if not ticket.post(term):
            return None
        if self._may_be_parked(call):
            self._calls.outgoing.adopt(ticket)
        return ticket

    def take(self, ticket: Ticket) -> Fields | None:
        """See PromptChannel."""
        if not isinstance(ticket, SentTicket) or ticket.events or ticket.asked:
            return None
        try:
            result = ticket.take_result()
        except BaseException:
            self._calls.outgoing.close(ticket)
            raise
        if result is not None:
            self._calls.outgoing.close(ticket)
        return result

    def go_on(self, ticket: Ticket, notify: Notify, term: Term | None = None) -> Awaitable[Fields]:
        """See PromptChannel. Raises as `exchange` does."""
        if isinstance(ticket, SentTicket) and self._may_be_parked(ticket.call):
            return self._within(term, self._carried.go_on(ticket, notify))
        exchange = self._exchange_or_learn if ticket.call.method in _TEACH else self._exchange
        return exchange(ticket.call, notify, term, ticket if isinstance(ticket, SentTicket) else None)

    def _may_be_parked(self, call: Call) -> bool:
        return self._peer.legacy and call.method in _MAY_BE_PARKED

    async def _within(self, term: Term | None, exchange: Awaitable[Fields]) -> Fields:
        with limited(term):
            return await exchange

    async def _exchange_or_learn(
        self, call: Call, notify: Notify, term: Term | None, posted: SentTicket | None = None
    ) -> Fields:
        if call.method == m.TOOLS_LIST:
            result = await self._exchange(call, notify, term)
            return self._without_invalid(result) if VERSION in call.meta else result
        try:
            return await self._exchange(call, notify, term, posted)
        except RpcError as error:
            if error.code != HEADER_MISMATCH:
                raise
        await self._learn_tools(call, term)
        return await self._exchange(call, notify, term)

    def _without_invalid(self, result: Fields) -> Fields:
        for tool, reason in self._peer.tools.learn(result):
            log.warning("tool left out: its header annotations are invalid", tool=tool, reason=reason)
        return result

    async def _learn_tools(self, call: Call, term: Term | None) -> None:
        """The server misses headers for an argument: list its tools anew to see which."""
        cursor: Raw | None = None
        for _ in range(TOOL_PAGES):
            params = {} if cursor is None else {"cursor": cursor}
            result = await self._exchange(Call(m.TOOLS_LIST, params, call.meta), unheard, term)
            self._peer.tools.learn(result)
            cursor = result.get("nextCursor")
            if cursor is None or first_byte(cursor) != b'"':
                return

    async def _exchange(
        self, call: Call, notify: Notify, term: Term | None, posted: SentTicket | None = None
    ) -> Fields:
        """`posted`: what `post` gave for the call."""
        request_id = self._calls.outgoing.next_id() if posted is None else posted.id
        token = call.meta.get(PROGRESS_TOKEN)

        async def pass_on(event: Event) -> None:
            if call.method == m.LISTEN and event.method != m.ACKNOWLEDGED:
                self._hear(Notification(event.method, raw(event.params)))
            elif event.method != m.PROGRESS:
                await notify(event)
            elif token is not None:
                await notify(Event(event.method, {**event.params, PROGRESS_TOKEN: token}))

        waiting = Waiting(request_id, pass_on, None, term)
        try:
            answer = await self._answer_to(call, waiting, posted)
        except BaseException:
            if self._peer.legacy:
                await self._say_cancelled(waiting)
            raise
        return result_of(answer)

    async def _answer_to(
        self, call: Call, waiting: Waiting, posted: SentTicket | None = None
    ) -> Reply | ErrorReply:
        """Send a call and read until its answer, over as many connections as its stream takes."""
        body, term = encode_call(waiting.request_id, call), waiting.term
        until = math.inf if term is None else term.deadline
        try:
            response = await self._peer.ask(call, body, until, posted.sent if posted is not None else None)
        except BaseException as error:
            waiting.unsent = was_unsent(error)
            raise
        begun, whole = (None, None) if posted is None else (posted.stream, posted.whole)
        try:
            if is_event_stream(response):
                response.take_time()
                with limited(term):
                    answer = await self._reader.read_stream(response, waiting, begun)
                if answer is not None:
                    response.finish()
            else:
                answer = await self._reader.read(response, waiting, whole)
        except SessionExpired as expired:
            self._peer.lose(expired)
            raise
        finally:
            response.release()
        while answer is None and waiting.decoder is not None:
            with limited(term):
                answer = await self._resume_stream(waiting, waiting.decoder)
        if answer is None:
            raise LocalProtocolError("no answer, and no stream that it could come in")
        return answer

    async def _perform(self, ticket: Ticket) -> Reply | ErrorReply:
        """Send the call of a ticket, if that was not done; what comes before its answer goes into it."""

        async def pass_on(event: Event) -> None:
            ticket.push(event)

        waiting = Waiting(ticket.id, pass_on, ticket)
        posted = ticket if isinstance(ticket, SentTicket) else None
        try:
            return await self._answer_to(ticket.call, waiting, posted)
        except (trio.Cancelled, Overdue):
            if ticket.answer is None:
                await self._say_cancelled(waiting)
            raise

    def fail_calls(self) -> None:
        """The channel is over: whoever still waits hears it."""
        self._carried.end(self.close_reason)
        self._calls.outgoing.fail_all(self.close_reason)

    async def resume(self, call: Call, notify: Notify) -> Fields:
        """Go on with a parked call. Raises RpcError for a state that is not known (any more)."""
        return await self._carried.resume(call, notify)

    async def reply(self, call: Call) -> None:
        """Answer what a parked call asked, and wait for it no more. Raises like `resume`."""
        await self._carried.reply(call)

    def abandon(self, state: str) -> bool:
        """The client of a parked call has gone; False when no call was parked with that state."""
        return self._carried.abandon(state)

    async def _resume_stream(self, waiting: Waiting, decoder: SseDecoder) -> Reply | ErrorReply | None:
        """Go on reading a broken event stream where it broke off (2025-11-25 and earlier)."""
        await trio.sleep(retry_seconds(decoder))
        async with stream_of(self._peer, decoder.last_event_id) as response:
            if not is_event_stream(response):
                raise TransportClosed("the response stream ended without an answer and is not resumed")
            return await self._reader.read_stream(response, waiting)

    async def _say_cancelled(self, waiting: Waiting) -> None:
        """Closing the stream says nothing to a legacy server: only a notification does."""
        if waiting.unsent or self.closed.is_set():
            return
        params = {"requestId": waiting.request_id, "reason": "the client gave up"}
        with trio.move_on_after(FAREWELL_SECONDS, shield=True), suppress(TransportError):
            await self._peer.tell(encode_notification(m.CANCELLED, params))

    def ask_clients_by(self, find: FindClient) -> None:
        """Who is asked when the server asks something that no call has caused."""
        self._calls.find_client = find

    async def listen(self) -> None:
        """Hear what a legacy server says of its own accord, from now on; it may not offer that."""
        listening = trio.Event()
        self._nursery.start_soon(
            hear_own_stream, self._peer, self._intake, self._hear, listening, name="http listen"
        )
        with trio.move_on_after(LISTEN_SECONDS):
            await listening.wait()

    async def notify(self, method: str, params: Fields | None = None) -> None:
        """Send a notification. Raises TransportError."""
        await self._peer.tell(encode_notification(method, params))
