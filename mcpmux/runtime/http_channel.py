"""Exchanges with one upstream over Streamable HTTP, in both eras: one POST each.

Promises: headers say what the body says, in the revision that was agreed; the answer may come as JSON or as
an event stream; cancelling an exchange closes its response, which is how HTTP says "cancelled". When the
server cannot be reached any more, or has forgotten our session, `closed` is set.

Source: "Streamable HTTP" of 2026-07-28, "Transports" of 2025-03-26, 2025-06-18 and 2025-11-25.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress

import structlog
import trio
from msgspec import Raw

from mcpmux.errors import ConnectFailed, RemoteProtocolError, RpcError, TransportClosed, TransportError
from mcpmux.protocol import method as m
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
    raw,
)
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.headers import SESSION_HEADER, request_headers
from mcpmux.protocol.revisions import NEWEST, V_2025_06_18, is_modern
from mcpmux.runtime.link import Answer, Hear
from mcpmux.transports.http_client import HttpPool, HttpResponse
from mcpmux.transports.sse import SseDecoder

log = structlog.get_logger()

Headers = tuple[tuple[str, str], ...]

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
    """One request whose answer has not come, and how far its event stream has been read."""

    def __init__(self, request_id: int, token: Raw | None, notify: Notify, message_limit: int) -> None:
        self.request_id = request_id
        self.token = token
        self.notify = notify
        self.decoder = SseDecoder(message_limit)


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
        self._ids = itertools.count(1)
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
        request_id = next(self._ids)
        token = call.meta.get(PROGRESS_TOKEN)
        meta = call.meta if token is None else {**call.meta, PROGRESS_TOKEN: raw(request_id)}
        body = encode_request(request_id, call.method, with_meta(call.params, meta) or None)
        waiting = _Waiting(request_id, token, notify, self._message_limit)
        finished = False
        try:
            answer = await self._ask(call, body, waiting)
            while answer is None:
                answer = await self._resume(waiting)
            finished = True
        finally:
            if not finished and self._legacy:
                await self._say_cancelled(request_id)
        if isinstance(answer, ErrorReply):
            raise answer.as_error()
        try:
            return decode_fields(answer.result)
        except ValueError:
            raise RemoteProtocolError("its result is not an object") from None

    async def _ask(self, call: Call, body: bytes, waiting: _Waiting) -> Reply | ErrorReply | None:
        """Send the request; its answer, or None when its event stream broke off and can be resumed."""
        async with self._post(self._headers(call), body, idempotent=call.method in m.IDEMPOTENT) as response:
            if call.method == m.INITIALIZE:
                self._session = response.headers.get(SESSION_HEADER)
            return await self._answer_in(response, waiting)

    async def _resume(self, waiting: _Waiting) -> Reply | ErrorReply | None:
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
            await self._take_notification(message, waiting.token, waiting.notify)
        elif isinstance(message, Request):
            await self._serve(message)

    async def _take_unasked(self, message: Message) -> None:
        if isinstance(message, Notification):
            self._hear(message)
        elif isinstance(message, Request):
            await self._serve(message)

    async def _take_notification(self, message: Notification, token: Raw | None, notify: Notify) -> None:
        try:
            params = decode_fields(message.params)
        except ValueError:
            return
        if message.method == m.PROGRESS:
            if token is not None:
                await notify(Event(message.method, {**params, PROGRESS_TOKEN: token}))
        elif message.method in (m.LOG_MESSAGE, m.ACKNOWLEDGED):
            await notify(Event(message.method, params))
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
