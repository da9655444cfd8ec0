"""One server's MCP endpoint over HTTP: requests with the right headers, and what comes back.

Promises: headers say what the body says, in the revision that was agreed; a server that cannot be reached,
or has forgotten our session, sets `closed`. Refuses to know what a message means.

Source: "Streamable HTTP" of 2026-07-28, "Transports" of 2025-03-26, 2025-06-18 and 2025-11-25.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import structlog
import trio

from mcpmux.errors import ConnectFailed, RpcError, TransportClosed, TransportError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import VERSION, Call
from mcpmux.protocol.envelope import Message, decode_message
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.headers import SESSION_HEADER, request_headers
from mcpmux.protocol.revisions import NEWEST, V_2025_06_18, is_modern
from mcpmux.protocol.tool_headers import ToolHeaders
from mcpmux.transports.http_client import HttpPool, HttpResponse
from mcpmux.transports.sse import SseDecoder

log = structlog.get_logger()

Headers = tuple[tuple[str, str], ...]

JSON_TYPE = "application/json"
EVENT_STREAM = "text/event-stream"
RETRY_SECONDS = 1.0  # before a broken event stream is opened again, when the server did not say `retry`
LEAST_RETRY_SECONDS = 0.05  # a server that says 0 and closes at once must not keep us spinning
FAREWELL_SECONDS = 2.0  # for ending a session at the server while we stop
ERROR_TEXT_BYTES = 4096  # of a foreign error page that are looked at
ERROR_TEXT_LIMIT = 200  # characters of it that are worth showing

_HINTS = {
    401: "it asks for credentials: give them in the upstream's `headers`",
    403: "it refuses these credentials or this caller",
    404: "nothing there speaks MCP: check the URL's path",
    405: "nothing there accepts MCP messages: check the URL's path",
}


class SessionExpired(TransportError):
    """The server no longer knows our session: the request was not carried out."""


class HttpStatusError(TransportError):
    """The server answered with a status that carries no MCP message."""

    def __init__(self, status: int, body: bytes) -> None:
        text = " ".join(body[:ERROR_TEXT_BYTES].decode(errors="replace").split())[:ERROR_TEXT_LIMIT]
        more = _HINTS.get(status, text)
        super().__init__(f"HTTP status {status}" + (f": {more}" if more else ""))
        self.status = status


class HttpPeer:
    """The endpoint of one server. `session` is the id that a legacy server gave us."""

    def __init__(self, pool: HttpPool, target: str, headers: Headers, message_limit: int) -> None:
        self._pool = pool
        self._target = target
        self._fixed = (*headers, ("Content-Type", JSON_TYPE), ("Accept", f"{JSON_TYPE}, {EVENT_STREAM}"))
        self._of_session: Headers = ()
        self.message_limit = message_limit
        self.session: str | None = None
        self.legacy = False
        self.tools = ToolHeaders()
        self.closed = trio.Event()
        self.close_reason: TransportError = TransportClosed("not reachable")

    def __repr__(self) -> str:
        return f"<HttpPeer {self._target} session={self.session!r}>"

    def settle(self, facts: ServerFacts) -> None:
        """From now on every request carries what the agreed revision asks for."""
        headers = []
        self.legacy = not is_modern(facts.revision)
        if self.legacy and facts.revision >= V_2025_06_18:
            headers.append(("MCP-Protocol-Version", facts.revision))
        if self.session is not None:
            headers.append(("Mcp-Session-Id", self.session))
        self._of_session = tuple(headers)

    def _headers(self, call: Call) -> Headers:
        if VERSION not in call.meta:
            return (*self._fixed, *self._of_session)
        headers = (*self._fixed, *request_headers(call.method, call.params, NEWEST))
        return (*headers, *self.tools.headers_of(call)) if call.method == m.TOOLS_CALL else headers

    @asynccontextmanager
    async def ask(self, call: Call, body: bytes) -> AsyncIterator[HttpResponse]:
        """POST a call that was encoded as `body`; leaving early is how HTTP says "cancelled".

        Raises ConnectFailed and other TransportErrors; SessionExpired may be raised into it by the reader.
        """
        headers, idempotent = self._headers(call), call.method in m.IDEMPOTENT
        try:
            async with self._pool.request(
                "POST", self._target, headers, body, idempotent=idempotent
            ) as response:
                if call.method == m.INITIALIZE:
                    self.session = response.headers.get(SESSION_HEADER)
                yield response
        except (ConnectFailed, SessionExpired) as error:
            self._lose(error)
            raise

    async def tell(self, body: bytes) -> None:
        """POST a message that is not answered. Raises TransportError."""
        headers = (*self._fixed, *self._of_session)
        try:
            async with self._pool.request("POST", self._target, headers, body, idempotent=False) as response:
                if response.status >= 400:
                    raise HttpStatusError(response.status, await response.read())
        except ConnectFailed as error:
            self._lose(error)
            raise

    @asynccontextmanager
    async def stream(self, last_event_id: str | None) -> AsyncIterator[HttpResponse]:
        """GET the server's own stream, or go on with the one that broke off behind an event.

        Raises and may have raised into it the same as `ask`.
        """
        headers = (*self._fixed, *self._of_session)
        if last_event_id:
            headers = (*headers, ("Last-Event-ID", last_event_id))
        try:
            async with self._pool.request("GET", self._target, headers, b"", idempotent=True) as response:
                yield response
        except (ConnectFailed, SessionExpired) as error:
            self._lose(error)
            raise

    async def end_session(self) -> None:
        """Tell the server that the session is over; it may not care."""
        if self.session is None or self.closed.is_set():
            return
        headers = (*self._fixed, *self._of_session)
        with trio.move_on_after(FAREWELL_SECONDS, shield=True):
            try:
                async with self._pool.request("DELETE", self._target, headers, b"", idempotent=True):
                    pass
            except TransportError as error:
                log.debug("the session could not be ended", reason=str(error))

    def _lose(self, reason: TransportError) -> None:
        if not self.closed.is_set():
            self.close_reason = reason
            self.closed.set()


def message_in(body: bytes) -> Message | None:
    """The message that a body or an event holds; None when it holds none."""
    try:
        return decode_message(body)
    except RpcError:
        return None


def messages_in(decoder: SseDecoder, chunk: bytes) -> Iterator[Message]:
    """The messages that a chunk of an event stream completes; events without one only carry an id."""
    for event in decoder.feed(chunk):
        message = message_in(event.data) if event.data else None
        if message is not None:
            yield message


def is_event_stream(response: HttpResponse) -> bool:
    """Whether a response is a stream of events to come."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    return response.status == 200 and kind == EVENT_STREAM


def continued(decoder: SseDecoder, limit: int) -> SseDecoder:
    """A decoder for the next connection of the same stream: only its place in it is kept."""
    fresh = SseDecoder(limit)
    fresh.last_event_id = decoder.last_event_id
    fresh.retry_milliseconds = decoder.retry_milliseconds
    return fresh


def retry_seconds(decoder: SseDecoder) -> float:
    """How long to wait before a broken stream is opened again: as the server said, or a moment."""
    milliseconds = decoder.retry_milliseconds
    return RETRY_SECONDS if milliseconds is None else max(LEAST_RETRY_SECONDS, milliseconds / 1000)
