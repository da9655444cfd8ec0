"""Exchanges with one upstream over Streamable HTTP, in both eras: one POST each.

Promises: headers say what the body says, in the revision that was agreed; the answer may come as JSON or as
an event stream; cancelling an exchange closes its response, which is how HTTP says "cancelled". When the
server cannot be reached any more, or has forgotten our session, `closed` is set.

Source: "Streamable HTTP" of 2026-07-28, "Transports" of 2025-03-26, 2025-06-18 and 2025-11-25.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress

import structlog
import trio

from mcpmux.errors import (
    ConnectFailed,
    McpmuxError,
    RemoteProtocolError,
    RpcError,
    TransportClosed,
    TransportError,
)
from mcpmux.protocol import method as m
from mcpmux.protocol.asking import ASKS
from mcpmux.protocol.call import PROGRESS_TOKEN, VERSION, Call, Event, Notify, with_meta
from mcpmux.protocol.envelope import (
    ErrorReply,
    Fields,
    Message,
    Notification,
    Reply,
    Request,
    decode_fields,
    decode_message,
    encode_error,
    encode_notification,
    encode_reply,
    encode_request,
    id_of,
    raw,
)
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.headers import SESSION_HEADER, request_headers
from mcpmux.protocol.inflight import Ticket
from mcpmux.protocol.revisions import NEWEST, V_2025_06_18, is_modern
from mcpmux.runtime.calls import PARK_SECONDS, Calls, Hear, result_of
from mcpmux.runtime.link import Answer
from mcpmux.transports.http_client import HttpPool, HttpResponse
from mcpmux.transports.sse import SseDecoder

log = structlog.get_logger()

Headers = tuple[tuple[str, str], ...]

_MAY_BE_PARKED = frozenset({m.TOOLS_CALL, m.PROMPTS_GET})
"""Reading a resource is not among them: no legacy server asks for input there, and it is the hot path."""

JSON_TYPE = "application/json"
EVENT_STREAM = "text/event-stream"
RESUME_SECONDS = 1.0  # before a broken event stream is opened again, when the server did not say `retry`
LISTEN_SECONDS = 2.0  # for the server to open its own stream; some send no headers before there is an event
FAREWELL_SECONDS = 2.0  # for ending a session at the server while we stop
ERROR_TEXT_LIMIT = 200  # characters of a foreign error page that are worth showing


class SessionExpired(TransportError):
    """The server no longer knows our session: the request was not carried out."""


class HttpStatusError(TransportError):
    """The server answered with a status that carries no MCP message."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(_explain(status, text))
        self.status = status


def _explain(status: int, text: str) -> str:
    hints = {
        401: "it asks for credentials: give them in the upstream's `headers`",
        403: "it refuses these credentials or this caller",
        404: "nothing there speaks MCP: check the URL's path",
        405: "nothing there accepts MCP messages: check the URL's path",
    }
    shown = " ".join(text.split())[:ERROR_TEXT_LIMIT]
    return f"HTTP status {status}" + (
        f": {hints[status]}" if status in hints else f": {shown}" if shown else ""
    )


class _Waiting:
    """One request whose answer has not come, and how far its event stream has been read.

    `ticket` is set when the answer is waited for elsewhere: then what comes before it goes there.
    """

    def __init__(self, request_id: int, notify: Notify, message_limit: int, ticket: Ticket | None) -> None:
        self.request_id = request_id
        self.notify = notify
        self.decoder = SseDecoder(message_limit)
        self.ticket = ticket


class HttpChannel:
    """One upstream over HTTP. Made by `open_http_channel`."""

    def __init__(
        self,
        pool: HttpPool,
        target: str,
        headers: Headers,
        message_limit: int,
        answer: Answer,
        hear: Hear,
        nursery: trio.Nursery,
    ) -> None:
        self._pool = pool
        self._target = target
        self._fixed = (*headers, ("Content-Type", JSON_TYPE), ("Accept", f"{JSON_TYPE}, {EVENT_STREAM}"))
        self._session: str | None = None
        self._leg_headers: Headers = ()
        self._message_limit = message_limit
        self._answer = answer
        self._hear = hear
        self._nursery = nursery
        self._legacy = False
        self._listening = trio.Event()
        self._calls = Calls(self._send, hear)
        self._carriers: dict[int, trio.CancelScope] = {}
        self.closed = trio.Event()
        self.close_reason: TransportError = TransportClosed("not reachable")

    def __repr__(self) -> str:
        return f"<HttpChannel {self._target} session={self._session!r}>"

    def settle(self, facts: ServerFacts) -> None:
        """From now on every request carries what the agreed revision asks for."""
        headers = []
        self._legacy = not is_modern(facts.revision)
        if self._legacy and facts.revision >= V_2025_06_18:
            headers.append(("MCP-Protocol-Version", facts.revision))
        if self._session is not None:
            headers.append(("Mcp-Session-Id", self._session))
        self._leg_headers = tuple(headers)

    async def exchange(self, call: Call, notify: Notify) -> Fields:
        """Send one request and wait for its answer.

        Raises RpcError (the server's answer), SessionExpired, HttpStatusError or another TransportError.
        """
        if self._legacy and call.method in _MAY_BE_PARKED:
            return await self._exchange_apart(call, notify)
        request_id = self._calls.outgoing.next_id()
        token = call.meta.get(PROGRESS_TOKEN)

        async def pass_on(event: Event) -> None:
            if event.method != m.PROGRESS:
                await notify(event)
            elif token is not None:
                await notify(Event(event.method, {**event.params, PROGRESS_TOKEN: token}))

        finished = False
        try:
            waiting = _Waiting(request_id, pass_on, self._message_limit, None)
            answer = await self._answer_to(call, waiting)
            finished = True
        finally:
            if not finished and self._legacy:
                await self._say_cancelled(request_id)
        return result_of(answer)

    async def _answer_to(self, call: Call, waiting: _Waiting) -> Reply | ErrorReply:
        """Send a call and read until its answer, over as many connections as its stream takes."""
        meta = call.meta
        if PROGRESS_TOKEN in meta:
            meta = {**meta, PROGRESS_TOKEN: raw(waiting.request_id)}
        body = encode_request(waiting.request_id, call.method, with_meta(call.params, meta) or None)
        answer = await self._ask(call, body, waiting)
        while answer is None:
            answer = await self._resume_stream(waiting)
        return answer

    # Calls in which a legacy server may ask something: carried by a task, as they can be parked

    async def _exchange_apart(self, call: Call, notify: Notify) -> Fields:
        ticket = self._calls.outgoing.open(call)
        self._nursery.start_soon(self._carry, ticket, name=f"carry {call.method}")
        return await self._wait(ticket, notify)

    async def _carry(self, ticket: Ticket) -> None:
        async def pass_on(event: Event) -> None:
            ticket.push(event)

        with trio.CancelScope() as scope:
            self._carriers[ticket.id] = scope
            try:
                waiting = _Waiting(ticket.id, pass_on, self._message_limit, ticket)
                ticket.settle(await self._answer_to(ticket.call, waiting))
            except McpmuxError as error:
                ticket.settle(error)
            finally:
                del self._carriers[ticket.id]

    async def resume(self, call: Call, notify: Notify) -> Fields:
        """Go on with a parked call. Raises RpcError for a state that is not known (any more)."""
        return await self._wait(await self._calls.resume(call), notify)

    async def _wait(self, ticket: Ticket, notify: Notify) -> Fields:
        try:
            return await self._calls.wait(ticket, notify)
        finally:
            if ticket.parked_until is not None:
                self._nursery.start_soon(self._expire, ticket, name="parked call")
            else:
                await self._end(ticket)

    async def _end(self, ticket: Ticket) -> None:
        """Nobody waits any more: a server that still works on it is told."""
        if self._calls.outgoing.close(ticket):
            if (carrier := self._carriers.get(ticket.id)) is not None:
                carrier.cancel(reason="the client gave up")
            await self._say_cancelled(ticket.id)

    def abandon(self, state: str) -> bool:
        """The client of a parked call has gone; False when no call was parked with that state."""
        ticket = self._calls.take_back(state)
        if ticket is not None:
            self._nursery.start_soon(self._give_up, ticket)
        return ticket is not None

    async def _expire(self, ticket: Ticket) -> None:
        await trio.sleep(PARK_SECONDS)
        for late in self._calls.overdue():
            await self._give_up(late)

    async def _give_up(self, ticket: Ticket) -> None:
        await self._calls.refuse_questions(ticket)
        await self._end(ticket)

    async def _ask(self, call: Call, body: bytes, waiting: _Waiting) -> Reply | ErrorReply | None:
        """Send the request; its answer, or None when its event stream broke off and can be resumed."""
        async with self._post(self._headers(call), body, idempotent=call.method in m.IDEMPOTENT) as response:
            if call.method == m.INITIALIZE:
                self._session = response.headers.get(SESSION_HEADER)
            return await self._answer_in(response, waiting)

    async def _resume_stream(self, waiting: _Waiting) -> Reply | ErrorReply | None:
        """Go on reading a broken event stream where it broke off (2025-11-25 and earlier)."""
        await trio.sleep(_retry_seconds(waiting.decoder))
        async with self._get(waiting.decoder.last_event_id) as response:
            if not _is_event_stream(response):
                raise TransportClosed("the response stream ended without an answer and is not resumed")
            return await self._answer_in_stream(response, waiting)

    async def _say_cancelled(self, request_id: int) -> None:
        """Closing the stream says nothing to a legacy server: only a notification does."""
        if self.closed.is_set():
            return
        params = {"requestId": request_id, "reason": "the client gave up"}
        with trio.move_on_after(FAREWELL_SECONDS, shield=True), suppress(TransportError):
            await self._send(encode_notification(m.CANCELLED, params))

    async def listen(self) -> None:
        """Hear what a legacy server says of its own accord, from now on; it may not offer that."""
        self._nursery.start_soon(self._listen, name="http listen")
        with trio.move_on_after(LISTEN_SECONDS):
            await self._listening.wait()

    async def _listen(self) -> None:
        decoder = SseDecoder(self._message_limit)
        while not self.closed.is_set():
            try:
                async with self._get(decoder.last_event_id) as response:
                    self._listening.set()
                    if not _is_event_stream(response):
                        return
                    decoder = _continued(decoder, self._message_limit)
                    async for chunk in response:
                        for message in _messages_in(decoder, chunk):
                            await self._take_unasked(message)
            except TransportError as error:
                log.debug("the server's stream broke off", reason=str(error))
            await trio.sleep(_retry_seconds(decoder))

    async def notify(self, method: str, params: Fields | None = None) -> None:
        """Send a notification. Raises TransportError."""
        await self._send(encode_notification(method, params))

    async def end_session(self) -> None:
        """Tell the server that the session is over; it may not care."""
        if self._session is None or self.closed.is_set():
            return
        headers = (*self._fixed, *self._leg_headers)
        with trio.move_on_after(FAREWELL_SECONDS, shield=True):
            try:
                async with self._pool.request("DELETE", self._target, headers, b"", idempotent=True):
                    pass
            except TransportError as error:
                log.debug("the session could not be ended", reason=str(error))

    def _headers(self, call: Call) -> Headers:
        if VERSION in call.meta:
            return (*self._fixed, *request_headers(call.method, call.params, NEWEST))
        return (*self._fixed, *self._leg_headers)

    @asynccontextmanager
    async def _post(self, headers: Headers, body: bytes, *, idempotent: bool) -> AsyncIterator[HttpResponse]:
        try:
            async with self._pool.request(
                "POST", self._target, headers, body, idempotent=idempotent
            ) as response:
                yield response
        except (ConnectFailed, SessionExpired) as error:
            self._lose(error)
            raise

    @asynccontextmanager
    async def _get(self, last_event_id: str | None) -> AsyncIterator[HttpResponse]:
        headers = (*self._fixed, *self._leg_headers)
        if last_event_id:
            headers = (*headers, ("Last-Event-ID", last_event_id))
        try:
            async with self._pool.request("GET", self._target, headers, b"", idempotent=True) as response:
                yield response
        except ConnectFailed as error:
            self._lose(error)
            raise

    def _lose(self, reason: TransportError) -> None:
        if not self.closed.is_set():
            self.close_reason = reason
            self.closed.set()

    async def _send(self, body: bytes) -> None:
        """Send a message that is not answered."""
        async with self._post((*self._fixed, *self._leg_headers), body, idempotent=False) as response:
            if response.status >= 400:
                raise HttpStatusError(response.status, await _text_of(response))

    async def _answer_in(self, response: HttpResponse, waiting: _Waiting) -> Reply | ErrorReply | None:
        if _is_event_stream(response):
            return await self._answer_in_stream(response, waiting)
        body = await response.read()
        message = _message_in(body)
        if isinstance(message, Reply | ErrorReply) and message.id in (waiting.request_id, None):
            return message
        if response.status == 404 and self._session is not None:
            raise SessionExpired("the server has forgotten the session")
        if response.status != 200:
            raise HttpStatusError(response.status, body[:4096].decode(errors="replace"))
        raise RemoteProtocolError("its answer is no JSON-RPC response to the request")

    async def _answer_in_stream(self, response: HttpResponse, waiting: _Waiting) -> Reply | ErrorReply | None:
        """The answer in an event stream; None when it breaks off before that and can be resumed."""
        waiting.decoder = _continued(waiting.decoder, self._message_limit)
        try:
            async for chunk in response:
                for message in _messages_in(waiting.decoder, chunk):
                    if isinstance(message, Reply | ErrorReply) and message.id == waiting.request_id:
                        return message
                    await self._take(message, waiting)
        except TransportClosed:
            if not waiting.decoder.last_event_id:
                raise
        if waiting.decoder.last_event_id and self._legacy:
            return None
        raise TransportClosed("the response stream ended without an answer")

    async def _take(self, message: Message, waiting: _Waiting) -> None:
        if isinstance(message, Notification):
            await self._take_notification(message, waiting.notify)
        elif isinstance(message, Request):
            await self._take_question(message, waiting.ticket)

    async def _take_question(self, request: Request, ticket: Ticket | None) -> None:
        if request.method in ASKS:
            await self._calls.take_question(request, ticket)
        else:
            await self._serve(request)

    async def _take_unasked(self, message: Message) -> None:
        if isinstance(message, Notification):
            await self._take_notification(message, _unheard)
        elif isinstance(message, Request):
            await self._take_question(message, None)

    async def _take_notification(self, message: Notification, notify: Notify) -> None:
        try:
            params = decode_fields(message.params)
        except ValueError:
            return
        if message.method in (m.PROGRESS, m.LOG_MESSAGE, m.ACKNOWLEDGED):
            await notify(Event(message.method, params))
        elif message.method == m.CANCELLED:
            self._calls.withdraw_question(id_of(params.get("requestId")))
        else:
            self._hear(message)

    async def _serve(self, request: Request) -> None:
        """A legacy server asks something while it works on our request: answer in a POST of its own."""

        async def unheard(_event: Event) -> None:
            """The server's own requests have no notifications that it could hear."""

        try:
            data = encode_reply(request.id, await self._answer(request, unheard))
        except RpcError as error:
            data = encode_error(request.id, error)
        await self._send(data)


async def _unheard(_event: Event) -> None:
    """On the server's own stream nothing belongs to one of our requests."""


def _message_in(body: bytes) -> Message | None:
    try:
        return decode_message(body)
    except RpcError:
        return None


def _messages_in(decoder: SseDecoder, chunk: bytes) -> Iterator[Message]:
    """The messages that a chunk of an event stream completes; events without one only carry an id."""
    for event in decoder.feed(chunk):
        message = _message_in(event.data) if event.data else None
        if message is not None:
            yield message


def _is_event_stream(response: HttpResponse) -> bool:
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    return response.status == 200 and kind == EVENT_STREAM


def _continued(decoder: SseDecoder, limit: int) -> SseDecoder:
    """A decoder for the next connection of the same stream: only its place in it is kept."""
    fresh = SseDecoder(limit)
    fresh.last_event_id = decoder.last_event_id
    fresh.retry_milliseconds = decoder.retry_milliseconds
    return fresh


def _retry_seconds(decoder: SseDecoder) -> float:
    milliseconds = decoder.retry_milliseconds
    return RESUME_SECONDS if milliseconds is None else milliseconds / 1000


async def _text_of(response: HttpResponse) -> str:
    return (await response.read())[:4096].decode(errors="replace")


@asynccontextmanager
async def open_http_channel(
    pool: HttpPool,
    target: str,
    headers: Sequence[tuple[str, str]],
    message_limit: int,
    answer: Answer,
    hear: Hear,
) -> AsyncIterator[HttpChannel]:
    """A channel to `target` (path and query) over `pool`; leaving ends the session at the server."""
    async with trio.open_nursery() as nursery:
        channel = HttpChannel(pool, target, tuple(headers), message_limit, answer, hear, nursery)
        try:
            yield channel
        finally:
            await channel.end_session()
            nursery.cancel_scope.cancel()
