"""Message streams over WebSocket (RFC 6455): one message per text frame, subprotocol `mcp`.

Promises: a message past the limit, in bytes, closes the connection with 1009, a binary message with 1003,
much without any message with 1008; goodbyes and pings are answered; closing says goodbye and is bounded. A
peer that breaks the rules of WebSocket is disconnected. Both ends are alike but for their handshakes.
trio-websocket speaks the protocol; no other module knows that.

To a server: the error of a refused handshake has its status and the server's words.

To a client: only one that may connect, asks for the right path and speaks our subprotocol gets through; any
other gets the reason, in a status and a sentence. The handshake is bounded in time and in size.

    404  another path                  403  a Host or Origin that the listener does not accept
    401  and 403 as `guard` says, which finds out who a client is
    400  no WebSocket handshake        503  too many connections, or mcpmux is stopping
    400  subprotocols offered, none of them `mcp`; a client that offers none at all is accepted
"""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import structlog
import trio
from trio_websocket import (
    CloseReason,
    ConnectionClosed,
    WebSocketConnection,
    WebSocketRequest,
    wrap_client_stream,
    wrap_server_stream,
)

from mcpmux.config import ClientTls
from mcpmux.errors import ConnectFailed, RemoteProtocolError, TransportClosed
from mcpmux.printable import printable
from mcpmux.protocol.headers import OriginPolicy
from mcpmux.transports.body_budget import BodyBudget, Holding
from mcpmux.transports.http.message import HeaderFields, ResponseParser, encode_response_head
from mcpmux.transports.http.route import HttpOrigin, target_of
from mcpmux.transports.message_stream import LATE, RECEIVE_BYTES, MessageStream, linger_on, receive_held
from mcpmux.transports.send_queue import BROKEN, SendQueue
from mcpmux.transports.stream import PatientStream, open_tcp

SUBPROTOCOL = "mcp"  # what the SDKs' own WebSocket transports say; MCP itself specifies none

NORMAL, GOING_AWAY, UNSUPPORTED_DATA, ABNORMAL = 1000, 1001, 1003, 1006  # RFC 6455 section 7.4.1
POLICY_VIOLATION, TOO_BIG = 1008, 1009
TRY_AGAIN_LATER = 1013  # of the registry of IANA for RFC 6455
TEXT_FRAME, CLOSE_FRAME, PONG_FRAME = 0x81, 0x88, 0x8A  # first bytes of what is sent
FINAL, OPCODE, CONTROL, BINARY, MASKED = 0x80, 0x0F, 0x08, 0x02, 0x80  # in heads of frames (section 5.2)

HANDSHAKE_SECONDS = 10.0  # from the connection to the end of its request's head, TLS included
CLOSE_SECONDS = 2.0  # for each of: the last messages, and the goodbyes of both sides
LINGER_RECEIVES = 64  # receives of what a refused client still sends, so that it reads why, not a reset
HEAD_BYTES = 16 * 1024  # of a handshake, after which the library refuses it
END_OF_HEAD = b"\r\n\r\n"
HOST = re.compile(rb"\nhost:[ \t]*([^\r\n]*?)[ \t]*\r?\n", re.IGNORECASE)
BODY_BYTES = 200  # of a server's refusal that are worth telling
ALLOWANCE_BYTES = 2**20  # that parts may take and pings within a message, beside twice the limit
PART_BYTES: Final = 64  # that a part of a message takes beside what is in it
FRAMES_IN_A_ROW = 256  # after which other tasks get their turn: frames may be tiny
LOST = "the connection was lost"

log = structlog.get_logger()


class _Wire:
    """The stream that the library gets: it meters what comes, and collects the frames that go.

    `head`: what came before the handshake was done. `refusal`: code and reason for which this side ends it.
    """

    def __init__(
        self, stream: PatientStream, queue: SendQueue, limit: int, on_refusal: Callable[[str], None]
    ) -> None:
        self.stream = stream
        self._queue = queue
        self._limit = limit
        self._on_refusal = on_refusal
        self.head: bytes | None = None
        self._rest = b""  # came behind the head
        self.opened = trio.Event()
        self.holding = Holding(BodyBudget(sys.maxsize), "")
        self._next = 0  # bytes up to the head of the next frame
        self._cut = b""  # what has come of that head
        self._is_inside = False  # a message whose last frame has not begun
        self._size = 0  # bytes of the message, by the heads of its frames
        self._kept = 0  # bytes that the library keeps of it
        self.refusal: tuple[int, str] | None = None
        self.has_said_goodbye = False
        self._is_closed = False
        self.frames: list[bytes] = []
        self._pong = b""
        self._is_torn = False  # a frame was cut off

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if self.head is None:
            return await self._receive_head()
        await self.opened.wait()
        if self._is_closed:
            return b""
        if self.refusal is None:
            data, self._rest = self._rest, b""
            if data:
                await trio.lowlevel.checkpoint()
            else:
                if not self._is_inside and not self._next:  # the receiver has all messages, and counts them
                    self.holding.hold(0)
                with trio.CancelScope() as patience:
                    data = bytes(await receive_held(self.stream, patience, self.holding))
                if patience.cancelled_caught:
                    self.refusal = POLICY_VIOLATION, LATE
            data = data and data[: self._meter(data)]
            if data or self.refusal is None:
                return data
        self.holding.hold(0)
        self._on_refusal(self.refusal[1])
        await self.linger()
        return b""

    def _meter(self, data: bytes) -> int:
        """Count what comes of a message. Return how much the library may have: all, or up to `refusal`."""
        # The library limits a message only when it is whole, and keeps a part for each frame and for each
        # receive.
        begun = len(self._cut)
        self._kept += len(data) + PART_BYTES
        data, place = self._cut + data, self._next
        for _ in range(FRAMES_IN_A_ROW):
            if place > len(data):
                break
            if not self._is_inside:
                self._size, self._kept = 0, len(data) - place
            head = data[place : place + 10]
            size = head[1] & 0x7F if len(head) > 1 else 0
            end = 2 + {126: 2, 127: 8}.get(size, 0)
            if len(head) < end:
                break
            size = int.from_bytes(head[2:end], "big") if end > 2 else size
            if not head[0] & CONTROL:
                self._is_inside = not head[0] & FINAL
                self._size += size
                self._kept += PART_BYTES
                if head[0] & OPCODE == BINARY:
                    self.refusal = UNSUPPORTED_DATA, "a binary message came; MCP messages are text"
                elif self._size > self._limit:
                    self.refusal = TOO_BIG, f"a message is over the limit of {self._limit} bytes"
                if self.refusal is not None:
                    return max(0, place - begun)
            place += end + (4 if head[1] & MASKED else 0) + size
        else:  # the rest comes later
            self._rest, data = data[place:], data[:place]
            self._kept -= len(self._rest)
        self._cut, self._next = data[place:], max(0, place - len(data))
        if self._kept > 2 * self._limit + ALLOWANCE_BYTES:
            self.refusal = POLICY_VIOLATION, "much comes, and no message"
        elif (self._is_inside or self._next) and not self.holding.hold(self._kept):
            self.refusal = TRY_AGAIN_LATER, "too many large messages are in flight; try again later"
        return len(data) - begun if self.refusal is None else 0

    async def _receive_head(self) -> bytes:
        """Return a whole head, the frames behind it later; b"" when there is none, or a server refuses."""
        await self.flush()  # a client's request
        head = b""
        while END_OF_HEAD not in head and len(head) <= HEAD_BYTES:
            data = await self.stream.receive_some(RECEIVE_BYTES)
            if not data:
                break
            head += data
        self.head = head
        start, end, self._rest = head.partition(END_OF_HEAD)
        is_refused = head.startswith(b"HTTP/1.") and head[9:12] != b"101"
        return b"" if is_refused or not data else start + end

    async def linger(self) -> None:
        """Discard what still comes."""
        # Closing on unread bytes would reset our goodbye away.
        with suppress(*BROKEN):
            while await self.stream.receive_some(RECEIVE_BYTES):
                pass

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Collect a frame."""
        # Not sent at once: the library holds a lock meanwhile, and must not wait until the peer reads.
        if data[0] == PONG_FRAME:
            self._pong = bytes(data)  # in place of one that still waits (RFC 6455 section 5.5.3)
        else:
            self.frames.append(bytes(data))
        if data[0] == CLOSE_FRAME:
            self.has_said_goodbye = True
        if self._queue.done.is_set():
            await self.flush()
        elif data[0] != TEXT_FRAME:  # what is sent for us is flushed anyway
            self._queue.wake()

    async def flush(self) -> None:
        """Send what was collected. Raises trio.BrokenResourceError behind a frame that was cut off."""
        if self._is_torn:
            raise trio.BrokenResourceError("a frame was cut off")
        data = self._pong + b"".join(self.frames)
        self._pong = b""
        self.frames.clear()
        if data:
            self._is_torn = True
            await self.stream.send_all(data)
            self._is_torn = False

    async def aclose(self) -> None:
        self._is_closed = True
        await trio.lowlevel.checkpoint()


class WebSocketStream(MessageStream):
    """A message stream over `stream`, which stays the caller's. The library reads it in a task of `nursery`.

    `close_code` is what it is closed with when this side closes it.
    """

    def __init__(self, stream: PatientStream, max_message_bytes: int, nursery: trio.Nursery) -> None:
        self.close_code = NORMAL
        self.queue = SendQueue(self._send, shield=True)
        self.wire = _Wire(stream, self.queue, max_message_bytes, self._stop_receiving)
        self.waiting = trio.CancelScope()  # for the library's reader
        self._nursery = nursery
        self._living = trio.CancelScope(shield=True)  # of the reader, which a goodbye needs
        self._receiving = trio.CancelScope()
        self._connection: WebSocketConnection | None = None
        self._end: str | None = None  # why receiving and sending are over

    def wrap(self, wrap: Callable[..., Awaitable[Any]], **options: Any) -> Awaitable[Any]:
        """Begin a handshake by a function of the library. If there is none, `waiting` is cancelled."""
        # The wire limits messages; without a queue, the next ones wait in the socket.
        return wrap(
            self, self.wire, message_queue_size=0, max_message_size=2**62, receive_buffer_size=None, **options
        )

    def start_soon(self, reader: Callable[[], Awaitable[None]]) -> None:
        """Run the library's reader: to the library, this is its nursery."""
        self._nursery.start_soon(self._read, reader, name="websocket reader")

    async def _read(self, reader: Callable[[], Awaitable[None]]) -> None:
        with self._living:
            try:
                await reader()
            except Exception as error:  # the library fails on what comes behind a goodbye, and in handshakes
                log.debug("websocket failed", error=repr(error))
                if self._connection is not None:
                    await self.wire.linger()
        self.waiting.cancel()

    def open(self, connection: WebSocketConnection) -> None:
        """Begin to send and receive."""
        self._connection = connection
        # There may be secrets in it.
        self.wire.head = b""
        self.wire.opened.set()
        self._nursery.start_soon(self.queue.run, name="message writer")

    async def send(self, message: bytes) -> None:
        await self.queue.room()
        if not self.offer(message):
            raise TransportClosed(self._end or LOST)

    def offer(self, message: bytes) -> bool:
        return self.queue.offer(message)

    async def _send(self, messages: list[bytes]) -> None:
        assert self._connection is not None
        with suppress(ConnectionClosed):  # no message follows a goodbye
            for message in messages:
                await self._connection.send_message(message.decode(errors="replace"))
        await self.wire.flush()

    async def receive(self) -> bytes:
        """Return the next message. Raises TransportClosed at the end, every time from then on."""
        connection = self._connection
        assert connection is not None
        if self._end is None:
            with self.queue.reading() as self._receiving, suppress(ConnectionClosed):
                message = await connection.get_message()
                self.wire.holding.hold(0)  # from here on the receiver counts it
                return message.encode() if isinstance(message, str) else message
            self._end = self._end or self._reason(connection.closed)
            self.queue.finish()
        raise TransportClosed(self._end)

    def _reason(self, closed: CloseReason | None) -> str:
        """Return why the library receives no more."""
        if closed is None or closed.code == ABNORMAL:
            return LOST
        said = f": {closed.reason}" if closed.reason else ""
        if self.wire.has_said_goodbye:  # the library has answered one
            return f"the connection was closed with {int(closed.code)}{said}"
        return f"the peer breaks the rules of WebSocket{said}"

    def _stop_receiving(self, reason: str) -> None:
        self._end = reason
        self.queue.finish()
        self._receiving.cancel(reason="the connection is refused")

    async def aclose(self) -> None:
        """Send what is queued and say goodbye, each within bounds. May be called again."""
        self._end = self._end or "the stream is closed"
        self.queue.finish()
        try:
            if self._connection is not None:
                with trio.move_on_after(CLOSE_SECONDS):
                    await self.queue.done.wait()
        finally:
            self.wire.holding.hold(0)
            self.queue.drop()
            if self._connection is not None:
                with trio.move_on_after(CLOSE_SECONDS, shield=True) as self.waiting:
                    await self.queue.done.wait()
                    await self._connection.aclose(*(self.wire.refusal or (self.close_code, None)))
            self.queue.stop()
            self._living.cancel(reason="the connection is closed")


class HandshakeRefused(ConnectFailed):
    """The server answered the handshake with an HTTP status. `challenge`: its WWW-Authenticate."""

    def __init__(self, text: str, status: int, challenge: str) -> None:
        super().__init__(text)
        self.status = status
        self.challenge = challenge


@asynccontextmanager
async def open_websocket(
    url: str, headers: HeaderFields, tls: ClientTls, max_message_bytes: int, patience: float
) -> AsyncIterator[WebSocketStream]:
    """Yield a message stream to the server at `url`, ws:// or wss://; `patience`: seconds for the handshake.

    Raises ConnectFailed, and ConfigError for a file of the TLS settings.
    """
    origin = HttpOrigin.from_url("http" + url.removeprefix("ws"))
    late = f"within {patience:g} s of `connect_timeout`"
    deadline = trio.current_time() + patience
    stream: PatientStream | None = None
    try:
        with trio.move_on_at(deadline):
            stream = PatientStream(await open_tcp(origin.host, origin.port, tls if origin.secure else None))
        if stream is None:
            raise ConnectFailed(f"cannot connect to {origin.host}:{origin.port}: not {late}")
        async with trio.open_nursery() as nursery:
            messages = WebSocketStream(stream, max_message_bytes, nursery)
            try:
                failure = await shake_hands(
                    messages, origin.authority, target_of(url), headers, deadline, late
                )
                if failure is None:
                    yield messages
            finally:
                await messages.aclose()
        # Here, outside of the nursery, it leaves in no group.
        if failure is not None:
            raise failure
    finally:
        if stream is not None:
            await trio.aclose_forcefully(stream)


async def shake_hands(
    messages: WebSocketStream, host: str, target: str, headers: HeaderFields, deadline: float, late: str
) -> ConnectFailed | None:
    """Ask a server for a WebSocket, and open `messages`. Return why there is none."""
    extra = [(key.encode("latin-1"), value.encode("latin-1")) for key, value in headers]
    request = {"host": host, "resource": target, "subprotocols": [SUBPROTOCOL], "extra_headers": extra}
    with trio.move_on_at(deadline) as messages.waiting:
        # A server that chooses no subprotocol is accepted: some use `mcp` without saying so.
        messages.open(await messages.wrap(wrap_client_stream, **request))
        return None
    head = messages.wire.head or b""
    answer = ResponseParser(RECEIVE_BYTES)
    with trio.move_on_at(deadline), suppress(RemoteProtocolError, TransportClosed, *BROKEN):
        answer.feed(head)
        while not answer.complete and answer.body_bytes < BODY_BYTES:
            answer.feed(bytes(await messages.wire.stream.receive_some(RECEIVE_BYTES)))
    # Without the query, which may hold secrets.
    nothing_there = f"no WebSocket at {host}{target.partition('?')[0]}"
    if answer.status:
        text = printable(answer.take_body()[:BODY_BYTES].decode(errors="replace").strip())
        refused = f"{nothing_there}: the server answered {answer.status}"
        challenge = answer.headers.get("www-authenticate", "")
        return HandshakeRefused(refused, answer.status, challenge).quoting(f": {text}" if text else "")
    if END_OF_HEAD in head:
        return ConnectFailed(f"{nothing_there}: the server's handshake makes no sense")
    if trio.current_time() >= deadline:
        return ConnectFailed(f"{nothing_there}: no answer {late}")
    return ConnectFailed(f"{nothing_there}: the server closed the connection within the handshake")


HandshakeRefusal = tuple[int, str, HeaderFields]
"""Status, sentence and header fields for a client that does not get through."""
WhyBusy = Callable[[], str | None]  # why no new client is served at the moment, None when one is

AdmitClient = Callable[[str, Mapping[str, str]], Awaitable[HandshakeRefusal | None]]
"""Finds out who a client is, by its target and headers (lower-case names): None, or why it is refused."""


@dataclass(frozen=True, slots=True)
class HandshakePolicy:
    """The requests that get through: at which path, from where.

    `opens_below`: also at paths of one more segment.
    """

    path: str
    policy: OriginPolicy
    opens_below: bool = False

    @property
    def elsewhere(self) -> HandshakeRefusal:
        """The refusal of a request to another path."""
        return 404, f"the WebSocket endpoint is at {self.path}", ()

    def refuses(self, request: WebSocketRequest, headers: dict[str, str]) -> HandshakeRefusal | None:
        """Return the refusal of a request; None if it gets through."""
        path = request.path.partition("?")[0]
        is_below = self.opens_below and path.rpartition("/")[0] == self.path.rstrip("/")
        if path != self.path and not is_below:
            return self.elsewhere
        reason = self.policy.refuses(headers.get("host", ""), headers.get("origin"))
        if reason is not None:
            return 403, reason, ()
        # Behind the head come the frames.
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return 400, "a WebSocket handshake has no body", ()
        if request.proposed_subprotocols and SUBPROTOCOL not in request.proposed_subprotocols:
            return 400, f"the subprotocol here is {SUBPROTOCOL!r}; offer it, or none", ()
        return None


def _headers(request: WebSocketRequest, head: bytes) -> dict[str, str]:
    """Lower-case names; of several Origins all, which no policy accepts."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in request.headers:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    # The library does not show it.
    if (host := HOST.search(head)) is not None:
        headers["host"] = host[1].decode("latin-1")
    return headers


@asynccontextmanager
async def open_websocket_client(
    stream: PatientStream,
    door: HandshakePolicy,
    busy: WhyBusy,
    max_message_bytes: int,
    guard: AdmitClient | None = None,
    hold: Callable[[], Holding | None] = lambda: None,
) -> AsyncIterator[WebSocketStream | None]:
    """Yield the messages of a client that got through the door, and by `guard`; else None. Closes `stream`.

    `hold`: makes what counts what it has sent, once it got through.
    """
    try:
        async with trio.open_nursery() as nursery:
            messages = WebSocketStream(stream, max_message_bytes, nursery)
            try:
                with suppress(*BROKEN):
                    await _admit(messages, door, busy, guard)
                if is_open := messages.wire.opened.is_set():
                    messages.wire.holding = hold() or messages.wire.holding
                yield messages if is_open else None
            finally:
                await messages.aclose()
    finally:
        await trio.aclose_forcefully(stream)


async def _admit(
    messages: WebSocketStream, door: HandshakePolicy, busy: WhyBusy, guard: AdmitClient | None
) -> None:
    """Open `messages`, or tell the client why not. Raises trio.BrokenResourceError."""
    request: WebSocketRequest | None = None
    refusal: HandshakeRefusal | None = None
    with trio.move_on_after(HANDSHAKE_SECONDS) as messages.waiting:
        request = await messages.wrap(wrap_server_stream)
    head = messages.wire.head
    if head is None:
        log.debug("no websocket handshake")
        return
    if request is None:
        status = int(b"".join(messages.wire.frames)[9:12] or 400)  # the library's answer, without a sentence
        version = (("Sec-WebSocket-Version", "13"),)
        refusal = status, "no WebSocket handshake of version 13 (RFC 6455)", version
    else:
        headers = _headers(request, head)
        refusal = door.refuses(request, headers)
        if refusal is None and (reason := busy()) is not None:
            refusal = 503, reason, ()
        if refusal is None and guard is not None:
            refusal = await guard(request.path, headers)
        if refusal is None:
            chosen = SUBPROTOCOL if request.proposed_subprotocols else None
            messages.open(await request.accept(subprotocol=chosen))
            return
    status, sentence, fields = refusal
    log.debug("websocket refused", status=status, reason=sentence)
    body = sentence.encode()
    head = encode_response_head(status, (("Content-Type", "text/plain; charset=utf-8"), *fields))
    answer = b"%bConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (head, len(body), body)
    with trio.move_on_after(CLOSE_SECONDS):
        await messages.wire.stream.send_all(answer)
        await linger_on(messages.wire.stream, LINGER_RECEIVES)  # so that the client has time to read it
