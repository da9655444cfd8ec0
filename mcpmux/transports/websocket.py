"""Message streams over WebSocket (RFC 6455): one message per text frame, subprotocol `mcp`.

Promises: a message past the limit, in bytes, closes the connection with 1009, a binary message with 1003,
much without any message with 1008, and what is no WebSocket with 1002 or 1007, as its parser says; a peer's
goodbye and its pings are answered; closing says goodbye and is bounded. Both ends are alike but for their
handshakes. The parser does no I/O: whoever receives reads the stream for it, and one queue sends.

To a server: a refused handshake is told with its status and what the server said. A server that chooses no
subprotocol is taken as it is: some accept `mcp` without saying so.

To a client: only one that may connect, asks for the right path and speaks our subprotocol gets through; any
other hears why, in a status and a sentence. The handshake is bounded in time (HANDSHAKE_SECONDS) and in size
(80 KiB: 16 that the parser waits with, and one receive).

    404  another path                  403  a Host or Origin that the listener does not accept
    401  and 403 as `guard` says, which finds out who a client is
    400  no WebSocket handshake        503  too many connections, or mcpmux is stopping
    400  subprotocols offered, none of them `mcp`; a client that offers none at all is accepted
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import structlog
import trio
from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Message,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.utilities import ProtocolError, RemoteProtocolError

from mcpmux.config import ClientTls
from mcpmux.errors import ConnectFailed, TransportClosed
from mcpmux.printable import printable
from mcpmux.protocol.headers import OriginPolicy
from mcpmux.transports.body_budget import Holding
from mcpmux.transports.http.message import HeaderFields, encode_response_head
from mcpmux.transports.http.route import HttpOrigin, target_of
from mcpmux.transports.message_stream import LATE, RECEIVE_BYTES, MessageStream, receive_held, sending
from mcpmux.transports.send_queue import BROKEN, SendQueue
from mcpmux.transports.stream import PatientStream, open_tcp

SUBPROTOCOL = "mcp"  # what the SDKs' own WebSocket transports say; MCP itself specifies none

NORMAL, GOING_AWAY, UNSUPPORTED_DATA, TOO_BIG = 1000, 1001, 1003, 1009  # RFC 6455 section 7.4.1
POLICY_VIOLATION = 1008
TRY_AGAIN_LATER = 1013  # of the registry of IANA for RFC 6455

CLOSE_SECONDS = 2.0  # for each of: the last messages, and the goodbyes of both sides
LINGER_RECEIVES = 64  # receives of what a peer still sends, so that it reads our goodbye, not a reset
ALLOWANCE_SHARES = 4  # messages' worth of bytes without a message, which only frames without end need
ALLOWANCE_BYTES = 2**20  # and pings
EVENTS_IN_A_ROW = 256  # without a message, after which other tasks get their turn: frames may be tiny
LOST = "the connection was lost"


class WebSocketStream(MessageStream):
    """A message stream over `stream`, where the handshake of `protocol` is done. `stream` stays the caller's.

    `close_code` is what it is closed with when this side closes it. `send` and `receive` are checkpoints only
    when they have to wait. Frames are left to `receive`, which gives other tasks their turn.
    """

    def __init__(
        self,
        protocol: WSConnection,
        stream: PatientStream,
        max_message_bytes: int,
        holding: Holding | None = None,
    ) -> None:
        """`holding`: counts what has come of a message; one that does not fit ends the connection."""
        self._holding = holding
        self.close_code = NORMAL
        self._protocol = protocol
        self._stream = stream
        self._limit = max_message_bytes
        self._allowance = ALLOWANCE_SHARES * max_message_bytes + ALLOWANCE_BYTES
        self.queue = SendQueue(stream.send_all, shield=True)
        self._partial = bytearray()
        self._received = 0  # since the last message was whole
        self._garbled = False  # the parser has given up
        self._end: str | None = None  # why nothing more is received, nor taken to be sent

    async def send(self, message: bytes) -> None:
        await self.queue.room()
        if not self.offer(message):
            raise TransportClosed(self._end or LOST)

    def offer(self, message: bytes) -> bool:
        if not self.queue.takes_more:
            return False
        return self.queue.offer(self._protocol.send(TextMessage(message.decode(errors="replace"))))

    async def receive(self) -> bytes:
        """The next message. Raises TransportClosed at the end, every time from then on."""
        while self._end is None:
            # The parser goes on where it was left.
            for number, event in enumerate(self._protocol.events(), 1):
                message = self._take(event)
                if message is not None:
                    self._received = 0
                    if self._holding is not None:
                        self._holding.hold(0)
                    return message
                if number % EVENTS_IN_A_ROW == 0:
                    await trio.lowlevel.checkpoint()
                if self._end is not None:
                    break
            else:
                await self._read_more()
        raise TransportClosed(self._end)

    async def _read_more(self) -> None:
        data: bytes | bytearray = b""
        holding = self._holding
        with self.queue.reading() as scope, suppress(*BROKEN):
            if holding is None or not holding.size:
                data = await self._stream.receive_some(RECEIVE_BYTES)
            else:
                data = await receive_held(self._stream, scope, holding)
        if scope.cancelled_caught and self.queue.end is None and self._end is None:
            self._refuse(POLICY_VIOLATION, LATE)
        elif not data:
            self._end = self._end or LOST
            self.queue.finish()
            self.queue.stop()
        elif self._end is None:
            self._received += len(data)
            if self._received > self._allowance:
                self._refuse(POLICY_VIOLATION, "much comes, and no message")
            elif holding is not None and not holding.hold(len(self._partial) + len(data)):
                self._refuse(TRY_AGAIN_LATER, "too many large messages are in flight; try again later")
            else:
                self._protocol.receive_data(bytes(data))

    def _take(self, event: Event) -> bytes | None:
        """A whole message, when the event makes one whole."""
        if isinstance(event, TextMessage):
            return self._take_text(event)
        if isinstance(event, BytesMessage):
            self._refuse(UNSUPPORTED_DATA, "a binary message came; MCP messages are text")
        elif isinstance(event, Ping):
            # In place of a pong that still waits (RFC 6455 section 5.5.3).
            self.queue.put_first(self._protocol.send(event.response()))
        elif isinstance(event, CloseConnection):
            self._take_close(event)
        return None

    def _take_text(self, event: Message[str]) -> bytes | None:
        part = event.data.encode()
        if len(self._partial) + len(part) > self._limit:
            self._refuse(TOO_BIG, f"a message is over the limit of {self._limit} bytes")
            return None
        if event.message_finished and not self._partial:
            return part
        self._partial += part
        if not event.message_finished:
            return None
        message = bytes(self._partial)
        self._partial.clear()
        return message

    def _take_close(self, event: CloseConnection) -> None:
        """The peer says goodbye, or the parser that what came is no WebSocket, and with which code to go."""
        if self._protocol.state is ConnectionState.REMOTE_CLOSING:
            said = f": {event.reason}" if event.reason else ""
            self._end = f"the connection was closed with {int(event.code)}{said}"
            self.queue.finish(self._protocol.send(event.response()))
        else:
            self._garbled = True
            self._refuse(event.code, f"the peer breaks the rules of WebSocket: {event.reason}")

    def _refuse(self, code: int, reason: str) -> None:
        """End the connection from this side: nothing more is received, nor taken to be sent."""
        self._end = reason
        self._partial.clear()
        if self._holding is not None:
            self._holding.hold(0)
        self.queue.finish(self._protocol.send(CloseConnection(code, reason)))

    async def aclose(self) -> None:
        """Send what is queued and say goodbye, each within bounds. May be called again."""
        if self._end is None:
            self._end = "the stream is closed"
            self.queue.finish(self._protocol.send(CloseConnection(self.close_code)))
        try:
            with trio.move_on_after(CLOSE_SECONDS):
                await self.queue.done.wait()
        finally:
            if self._holding is not None:
                self._holding.hold(0)
            self.queue.drop()
            with trio.move_on_after(CLOSE_SECONDS, shield=True):
                await self.queue.done.wait()
                await self._await_goodbye()
            self.queue.stop()

    async def _await_goodbye(self) -> None:
        """Receive the rest: closing on bytes that nobody received would reset our last words away."""
        with suppress(*BROKEN, trio.BusyResourceError):  # busy: somebody still receives
            if self._garbled:
                await self._stream.send_eof()
            for _ in range(LINGER_RECEIVES):
                if self._protocol.state is not ConnectionState.LOCAL_CLOSING:
                    return
                if not (data := await self._stream.receive_some(RECEIVE_BYTES)):
                    return
                if not self._garbled:
                    self._protocol.receive_data(bytes(data))
                    if any(isinstance(event, CloseConnection) for event in self._protocol.events()):
                        return


BODY_BYTES = 200  # of a refusal that are worth telling


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
    """A message stream to the server at `url`, ws:// or wss://; `patience`: seconds for the handshake.

    Raises ConnectFailed, and ConfigError for a file of the TLS settings.
    """
    origin = HttpOrigin.from_url("http" + url.removeprefix("ws"))
    target = target_of(url)
    where = origin.authority + target.partition("?")[0]  # a query may hold secrets
    stream: PatientStream | None = None
    protocol: WSConnection | None = None
    try:
        with trio.move_on_after(patience):
            stream = PatientStream(await open_tcp(origin.host, origin.port, tls if origin.secure else None))
            protocol = await _shake_hands(stream, origin.authority, target, headers)
        late = f"within {patience:g} s of `connect_timeout`"
        if stream is None:
            raise ConnectFailed(f"cannot connect to {origin.host}:{origin.port}: not {late}")
        if protocol is None:
            raise ConnectFailed(f"no WebSocket at {where}: no answer {late}")
        messages = WebSocketStream(protocol, stream, max_message_bytes)
        async with sending(messages, messages.queue):
            yield messages
    finally:
        if stream is not None:
            await trio.aclose_forcefully(stream)


async def _shake_hands(stream: PatientStream, host: str, target: str, headers: HeaderFields) -> WSConnection:
    """What goes on with the frames. Raises ConnectFailed."""
    nothing_there = f"no WebSocket at {host}{target.partition('?')[0]}"  # a query may hold secrets
    protocol = WSConnection(ConnectionType.CLIENT)
    extra = [(key.encode("latin-1"), value.encode("latin-1")) for key, value in headers]
    request = Request(host, target, extra_headers=extra, subprotocols=[SUBPROTOCOL])
    rejected: RejectConnection | None = None
    body = b""
    is_whole = False  # or so much of a refusal as is worth telling
    try:
        await stream.send_all(protocol.send(request))
        while not is_whole and (data := await stream.receive_some(RECEIVE_BYTES)):
            protocol.receive_data(bytes(data))
            while not is_whole and (event := next(protocol.events(), None)) is not None:
                if isinstance(event, AcceptConnection):
                    return protocol
                if isinstance(event, RejectConnection):
                    rejected, is_whole = event, not event.has_body
                elif isinstance(event, RejectData):
                    body += event.data
                    is_whole = event.body_finished or len(body) >= BODY_BYTES
    except BROKEN:
        pass
    except (ProtocolError, UnicodeError) as error:  # the latter of a header that should be ASCII
        nonsense = ConnectFailed(f"{nothing_there}: the server's handshake makes no sense")
        raise nonsense.quoting(f": {printable(str(error))}") from None
    if rejected is None:
        raise ConnectFailed(f"{nothing_there}: the server closed the connection within the handshake")
    text = printable(body[:BODY_BYTES].decode(errors="replace").strip())
    said = [bytes(value) for name, value in rejected.headers if bytes(name) == b"www-authenticate"]
    challenge = b", ".join(said).decode("latin-1")
    refused = f"{nothing_there}: the server answered {rejected.status_code}"
    raise HandshakeRefused(refused, rejected.status_code, challenge).quoting(f": {text}" if text else "")


log = structlog.get_logger()

HANDSHAKE_SECONDS = 10.0  # from the connection to the end of its request's head, TLS included
END_OF_HEAD = b"\r\n\r\n"

HandshakeRefusal = tuple[int, str, HeaderFields]
"""Status, sentence and header fields for a client that does not get through."""
WhyBusy = Callable[[], str | None]  # why nobody new is served at the moment, None when somebody is

AdmitClient = Callable[[str, Mapping[str, str]], Awaitable[HandshakeRefusal | None]]
"""Finds out who a client is, by its target and headers (lower-case names): None, or why it is refused."""


@dataclass(frozen=True, slots=True)
class HandshakePolicy:
    """Who gets through: at which path, from where. `opens_below`: also at paths of one more segment."""

    path: str
    policy: OriginPolicy
    opens_below: bool = False

    @property
    def elsewhere(self) -> HandshakeRefusal:
        """For a request to another path."""
        return 404, f"the WebSocket endpoint is at {self.path}", ()

    def refuses(self, request: Request, headers: dict[str, str]) -> HandshakeRefusal | None:
        """For a request that does not get through."""
        path = request.target.partition("?")[0]
        is_below = self.opens_below and path.rpartition("/")[0] == self.path.rstrip("/")
        if path != self.path and not is_below:
            return self.elsewhere
        reason = self.policy.refuses(headers.get("host", ""), headers.get("origin"))
        if reason is not None:
            return 403, reason, ()
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return 400, "a WebSocket handshake has no body", ()  # behind it come the frames
        if request.subprotocols and SUBPROTOCOL not in request.subprotocols:
            return 400, f"the subprotocol here is {SUBPROTOCOL!r}; offer it, or none", ()
        return None


def _headers(request: Request) -> dict[str, str]:
    """Lower-case names; of several Origins all, which no policy accepts."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in request.extra_headers:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    headers["host"] = request.host  # which the library keeps apart
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
    """The messages of a client that got through the door, and by `guard`; else None. Closes `stream`.

    `hold`: makes what counts what it has sent, once it got through.
    """
    try:
        protocol = None
        with suppress(*BROKEN):
            protocol = await _admit(stream, door, busy, guard)
        if protocol is None:
            yield None
        else:
            messages = WebSocketStream(protocol, stream, max_message_bytes, hold())
            async with sending(messages, messages.queue):
                yield messages
    finally:
        await trio.aclose_forcefully(stream)


async def _admit(
    stream: PatientStream, door: HandshakePolicy, busy: WhyBusy, guard: AdmitClient | None
) -> WSConnection | None:
    """What goes on with the frames; None for a client that does not get through, and was told why."""
    protocol = WSConnection(ConnectionType.SERVER)
    request: Request | None = None
    refusal: HandshakeRefusal | None = None
    head = b""
    with trio.move_on_after(HANDSHAKE_SECONDS):
        while request is None and (data := await stream.receive_some(RECEIVE_BYTES)):
            head += data
            try:
                protocol.receive_data(bytes(data))
                request = next((event for event in protocol.events() if isinstance(event, Request)), None)
            except RemoteProtocolError as error:
                hint = error.event_hint
                wrong = hint if isinstance(hint, RejectConnection) else RejectConnection()
                fields = tuple((name.decode(), value.decode()) for name, value in wrong.headers)
                refusal = wrong.status_code, str(error), fields
                break
            except UnicodeError:  # in a header that should be ASCII
                refusal = 400, "the request's head makes no sense", ()
                break
    if request is not None:
        headers = _headers(request)
        refusal = door.refuses(request, headers)
        if refusal is None and (reason := busy()) is not None:
            refusal = 503, reason, ()
        if refusal is None and guard is not None:
            refusal = await guard(request.target, headers)
        if refusal is None:
            chosen = SUBPROTOCOL if request.subprotocols else None
            await stream.send_all(protocol.send(AcceptConnection(chosen)))
            protocol.receive_data(head.partition(END_OF_HEAD)[2])
            return protocol
    if refusal is None:
        log.debug("no websocket handshake")
    else:
        await _reject(stream, *refusal)
    return None


async def _reject(stream: PatientStream, status: int, sentence: str, fields: HeaderFields) -> None:
    """Answer, then receive a bounded rest: closing on unread bytes would reset the answer away."""
    log.debug("websocket refused", status=status, reason=sentence)
    body = sentence.encode()
    head = encode_response_head(status, (("Content-Type", "text/plain; charset=utf-8"), *fields))
    answer = b"%bConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (head, len(body), body)
    with trio.move_on_after(CLOSE_SECONDS):
        await stream.send_all(answer)
        await stream.send_eof()
        for _ in range(LINGER_RECEIVES):
            if not await stream.receive_some(RECEIVE_BYTES):
                return
