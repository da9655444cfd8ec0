"""HTTP+SSE as a MessageStream, at both ends: an event stream one way, messages in POSTs the other way.

Promises of the client: POSTs go to the address that the stream's `endpoint` event names, if it is of the same
origin; messages of one task stay in order; `send` raises the server's refusal of its message. `send` waits
until the server has taken the message, and for ACCEPT_SECONDS at most.

Promises of the server: a message goes out whole or not at all; a slow reader makes `send` wait, in bounded
memory, until the HTTP server ends its connection; a quiet stream gets comments. The
caller finds the stream that a POST belongs to.

Source: "HTTP with SSE" in "Transports", 2024-11-05.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urljoin

import structlog
import trio

from mcpmux.errors import ConnectFailed, MessageTooLarge, RemoteProtocolError, TransportClosed, TransportError
from mcpmux.printable import QUOTED_BYTES, excerpt
from mcpmux.transports.body_budget import Holding
from mcpmux.transports.http.client import EVENT_STREAM, HttpPool, HttpResponse
from mcpmux.transports.http.message import HeaderFields
from mcpmux.transports.http.reply import HttpReply
from mcpmux.transports.http.route import HttpOrigin, target_of
from mcpmux.transports.message_stream import MessageStream, sending
from mcpmux.transports.send_queue import BROKEN, FLUSH_SECONDS, SendQueue
from mcpmux.transports.sse import (
    STREAM_HEADERS,
    SseDecoder,
    SseEvent,
    encode_event,
)

log = structlog.get_logger()

ACCEPT_SECONDS = 1.0  # for which `send` waits for the answer to its POST
POST_SECONDS = 600.0  # for the answer to a POST in all; then others need the connection more
POSTS_AT_ONCE = 128  # half of the connections to one server; the next `send` waits
SHOWN_BYTES = 100  # of a bad address in an error

_FORGOTTEN = (404, 410)  # with which servers answer a session that they do not have any more
_URI = re.compile(r"[\x21-\x7e]+")

FreshHeaders = Callable[[], Awaitable[HeaderFields]]
"""Returns the headers that change while a stream is open. Raises TransportError."""


class NoEventStream(RemoteProtocolError):
    """The server at the URL does not speak HTTP+SSE. `status` and `challenge`: of its refusal."""

    def __init__(self, text: str, status: int = 0, challenge: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.challenge = challenge


class MessageRefused(TransportError):
    """The server answered a POST with `status`, a 4xx or 5xx of HTTP."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class SessionEnded(MessageRefused, TransportClosed):
    """The refusal ends the stream: the message was not taken, and has to be sent on another one."""


@dataclass(eq=False)
class EventStream:
    """The events of one response, as they come. `next` raises TransportClosed at the end, every time."""

    _response: HttpResponse
    _decoder: SseDecoder
    _received: deque[SseEvent] = field(default_factory=deque)
    _reading: trio.CancelScope = field(default_factory=trio.CancelScope, repr=False)
    end: str | None = None

    async def next(self) -> SseEvent:
        """Return the next event; one that was too large is marked as `oversized`."""
        while not self._received:
            if self.end is not None:
                raise TransportClosed(self.end)
            try:
                with trio.CancelScope() as self._reading:
                    chunk = await self._response.receive_some()
                    self._received += self._decoder.feed(chunk)
                    if not chunk:
                        self.finish("the event stream has ended")
            except (TransportError, RemoteProtocolError) as error:
                self.finish(f"the event stream broke off: {error}")
        return self._received.popleft()

    def finish(self, reason: str) -> None:
        """End the stream for its reader, with `reason`. Only the first call counts."""
        if self.end is None:
            self.end = reason
            self._reading.cancel(reason=reason)


@dataclass(eq=False)
class _Post:
    """One message on its way. `error`: why it was not taken. `left`: its sender waits no longer."""

    message: bytes
    answered: trio.Event = field(default_factory=trio.Event)
    error: TransportError | None = None
    left: bool = False


@dataclass(eq=False, repr=False)
class SseClientStream(MessageStream):
    """A message stream to one server; `target` is where POSTs go. Made by `open_sse_client_stream`."""

    _pool: HttpPool
    target: str
    _headers: HeaderFields
    _events: EventStream
    _nursery: trio.Nursery
    _shown: FreshHeaders | None = None
    _hide: Callable[[str], str] = str
    _slots: trio.Semaphore = field(default_factory=lambda: trio.Semaphore(POSTS_AT_ONCE))
    _under_way: set[_Post] = field(default_factory=set)

    async def send(self, message: bytes) -> None:
        """Send a message. Raises TransportError, also when the server refuses the message."""
        await self._slots.acquire()
        if self._events.end is not None:
            self._slots.release()
            raise TransportClosed(self._events.end)
        # In a task, as a POST may be answered much later than its sender waits.
        post = _Post(message)
        self._under_way.add(post)
        self._nursery.start_soon(self._post, post, name="sse post")
        try:
            # Some servers answer a POST only when the work is done, and may ask something before that.
            with trio.move_on_after(ACCEPT_SECONDS):
                await post.answered.wait()
        finally:
            post.left = True
        if post.error is not None:
            raise post.error

    async def receive(self) -> bytes:
        while True:
            event = await self._events.next()
            if event.oversized:
                limit = "over the limit of a message (`limits.max_message_bytes`)"
                raise MessageTooLarge(f"an event is {limit}", event.data)
            if event.event == "message" and event.data:
                return event.data

    async def aclose(self) -> None:
        self._events.finish("the stream is closed")
        # The last message may be an answer or a cancellation for which the server waits.
        with trio.move_on_after(FLUSH_SECONDS):
            for post in list(self._under_way):
                await post.answered.wait()
        self._nursery.cancel_scope.cancel(reason="the stream is closed")

    async def _post(self, post: _Post) -> None:
        try:
            with trio.move_on_after(POST_SECONDS) as patience:
                await self._deliver(post)
            if patience.cancelled_caught and not post.answered.is_set():
                raise TransportError(f"a POST was not answered within {POST_SECONDS:g} s")
        except ConnectFailed as error:  # the server is gone, and its event stream with it
            self._events.finish(str(error))
            post.error = TransportClosed(str(error))
        except TransportError as error:
            post.error = error
        except RemoteProtocolError as error:
            post.error = TransportError(str(error)).quoting(error.quoted)
        finally:
            if post.error is not None and post.left:
                log.warning("a message that was sent is refused late", reason=str(post.error))
            post.answered.set()
            self._under_way.discard(post)
            self._slots.release()

    async def _deliver(self, post: _Post) -> None:
        headers = self._headers if self._shown is None else (*self._headers, *await self._shown())
        response = await self._pool.send("POST", self.target, headers, post.message, idempotent=False)
        try:
            if 200 <= response.status < 300:
                post.answered.set()
                try:  # the body is of no interest, but once it is read, the connection can be used again
                    await response.read()
                except (TransportError, RemoteProtocolError) as error:
                    log.debug("the answer to a POST broke off", reason=str(error))
                return
            # A refused token ends the stream, as only connecting again gets another one.
            refused = response.status == 401 and self._shown is not None
            if response.status in _FORGOTTEN or refused:
                what = "refuses the token" if refused else "has forgotten the session"
                reason = f"the server {what} (HTTP status {response.status})"
                self._events.finish(reason)
                raise SessionEnded(reason, response.status)
            body = b""
            while len(body) < QUOTED_BYTES and (data := await response.receive_some()):
                body += data
            text = excerpt(body, self._hide)
            refusal = f"the message was refused with HTTP status {response.status}"
            refused_with = MessageRefused(refusal, response.status)
            raise refused_with.quoting(f": {text}" if text else "")
        finally:
            response.release()


def resolve_endpoint(url: str, reference: bytes) -> str:
    """Return the URL in an `endpoint` event; `reference` may be relative to `url`, that of the stream.

    Raises RemoteProtocolError if it is no URL, or one of another origin.
    """
    try:
        text = reference.decode("ascii")
        resolved = urljoin(url, text) if _URI.fullmatch(text) else ""
        origin = HttpOrigin.from_url(resolved)
    except ValueError:
        shown = reference[:SHOWN_BYTES].decode(errors="replace")
        what = "its `endpoint` event holds no usable URI"
        raise RemoteProtocolError(what).quoting(f": {shown!r}") from None
    # POSTs carry our headers, with credentials in them.
    if origin != HttpOrigin.from_url(url):
        what = "its `endpoint` event names another origin, which is not to see our headers"
        raise RemoteProtocolError(what).quoting(f": {origin.authority}")
    return resolved


@asynccontextmanager
async def open_sse_client_stream(
    pool: HttpPool,
    url: str,
    headers: HeaderFields,
    max_message_bytes: int,
    patience: float,
    shown: FreshHeaders | None = None,
    hide: Callable[[str], str] = str,
) -> AsyncIterator[SseClientStream]:
    """Open a message stream to the server at `url`, of the pool's origin.

    `patience`: seconds for its `endpoint` event. `shown`: returns headers
    that change, such as a token. `hide` removes secrets from the server's text in errors. Raises
    NoEventStream, another RemoteProtocolError for an unusable `endpoint`, TransportError. Leaving waits a
    moment for POSTs under way, then closes the stream, which ends the session.
    """
    fields = (*headers, ("Accept", EVENT_STREAM), ("Cache-Control", "no-store"))
    with ExitStack() as stack:
        with trio.move_on_after(patience) as waiting:
            if shown is not None:
                fields += await shown()
            response = await pool.send("GET", target_of(url), fields, b"", idempotent=True)
            stack.callback(response.release)
            what = "no event stream there: GET was answered with"
            if response.status != 200:
                challenge = response.headers.get("www-authenticate", "")
                raise NoEventStream(f"{what} HTTP status {response.status}", response.status, challenge)
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != EVENT_STREAM:
                raise NoEventStream(f"{what} another Content-Type").quoting(
                    f": {kind[:SHOWN_BYTES] or 'none'!r}"
                )
            events = EventStream(response, SseDecoder(max_message_bytes, skips=True))
            try:
                # Some servers send others before it.
                while (event := await events.next()).event != "endpoint" or event.oversized:
                    log.debug("an event before `endpoint` is skipped", name=event.event[:SHOWN_BYTES])
            except TransportClosed as error:
                raise NoEventStream(f"no `endpoint` event came: {error}") from None
            target = target_of(resolve_endpoint(url, event.data))
        if waiting.cancelled_caught:
            late = f"within {patience:g} s of `connect_timeout`"
            raise NoEventStream(f"GET brought no event stream with an `endpoint` event {late}")
        async with trio.open_nursery() as nursery:
            posted = (*headers, ("Content-Type", "application/json"))
            messages = SseClientStream(pool, target, posted, events, nursery, shown, hide)
            try:
                yield messages
            finally:
                await messages.aclose()


CLOSED = "the client's event stream has ended"


class SseServerStream(MessageStream):
    """A message stream to one client. Made by `open_sse_server_stream`."""

    def __init__(self, queue: SendQueue) -> None:
        self._queue = queue
        # No message is queued here: a POST waits, with its message, until the reader takes it.
        self._posted, self._inbox = trio.open_memory_channel[tuple[bytes, Holding | None]](0)

    async def take(self, message: bytes, holding: Holding | None = None) -> None:
        """Take a message that the client has POSTed; wait until it is received. Raises TransportClosed.

        `holding`: counts the message until then. If the receiver keeps it, it must count it itself.
        """
        try:
            await self._posted.send((message, holding))
        except BROKEN:
            raise TransportClosed(CLOSED) from None

    async def send(self, message: bytes) -> None:
        await self._queue.room()
        if not self._queue.offer(encode_event(message, event="message")):
            raise TransportClosed(CLOSED)

    async def receive(self) -> bytes:
        try:
            message, holding = await self._inbox.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            raise TransportClosed(CLOSED) from None
        if holding is not None:  # from here on the receiver counts it
            holding.hold(0)
        return message

    async def aclose(self) -> None:
        self._inbox.close()
        self._posted.close()
        await self._queue.close()


@asynccontextmanager
async def open_sse_server_stream(reply: HttpReply, endpoint: str) -> AsyncIterator[SseServerStream]:
    """Answer a GET with an event stream that names `endpoint`, the URI to POST to, and then carries messages.

    Leaving writes the queue, within bounds; the reply is the caller's to finish.
    """
    await reply.open(200, STREAM_HEADERS, encode_event(endpoint.encode(), event="endpoint"))
    write = reply.write
    queue = SendQueue(lambda events: write(b"".join(events)))
    async with sending(SseServerStream(queue), queue) as messages:
        yield messages
