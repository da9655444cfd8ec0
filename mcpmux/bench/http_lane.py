"""A shorter way for single requests over plain HTTP, so that the generator is not what is measured.

Promises: what is sent is what the session's own channel would send, on keep-alive connections of its own; a
request is encoded once for each subject and sent again with another id. Refuses to follow redirects, to go on
with broken event streams and to tell a legacy server of requests that were cut off (their connection closes).
"""

from __future__ import annotations

import socket

import msgspec
import trio
from msgspec import UNSET, Raw, UnsetType

from mcpmux import __version__
from mcpmux.bench.operation import Ask
from mcpmux.config import Http, Limits, Upstream
from mcpmux.errors import ConnectFailed, MessageTooLarge, RemoteProtocolError, RpcError, TransportClosed
from mcpmux.protocol import method as m
from mcpmux.protocol.call import with_meta
from mcpmux.protocol.envelope import Fields, decode_fields, encode_request, raw
from mcpmux.protocol.era import modern_meta
from mcpmux.protocol.revisions import is_modern
from mcpmux.runtime.upstreams.connection import Connection
from mcpmux.runtime.upstreams.http_channel import HttpChannel
from mcpmux.runtime.upstreams.http_events import EVENT_STREAM
from mcpmux.runtime.upstreams.http_peer import HttpStatusError, SessionExpired
from mcpmux.transports.http.connection import HttpOrigin
from mcpmux.transports.http.message import encode_request_head
from mcpmux.transports.http.proxy import choose_proxy
from mcpmux.transports.http.response import ResponseParser
from mcpmux.transports.sse import SseDecoder

FIRST_ID = 1_000_000  # ids of one width keep the Content-Length; those of the channel are far below
LAST_ID = 9_999_999
RECEIVE_BYTES = 256 * 1024
REMEMBERED = 10_000  # encoded requests; more subjects are encoded anew
NO_SESSION = 404
DEFAULTS = Limits()
CLIENT_INFO = raw({"name": "mcpmux-bench", "version": __version__})


class _Error(msgspec.Struct):
    code: int
    message: str = ""


class _Answer(msgspec.Struct):
    id: int | str | None = None
    result: Raw | UnsetType = UNSET
    error: _Error | UnsetType = UNSET


_decode = msgspec.json.Decoder(_Answer).decode


class _Socket:
    """One connection and the parser of what comes from it."""

    __slots__ = ("parser", "socket")

    def __init__(self, opened: socket.socket, head_limit: int) -> None:
        self.socket = opened
        self.parser = ResponseParser(head_limit)


class HttpLane:
    """The connections of one session. `close` it."""

    def __init__(
        self, url: str, channel: HttpChannel, client_info: Raw | None, limits: Limits = DEFAULTS
    ) -> None:
        """`client_info`: of a modern client, None in a legacy session."""
        self._origin = HttpOrigin.from_url(url)
        self._channel = channel
        self._client_info = client_info
        self._limits = limits
        self._idle: list[_Socket] = []
        self._number = FIRST_ID
        self._encoded: dict[tuple[str, str], tuple[bytes, bytes]] = {}

    def __repr__(self) -> str:
        return f"<HttpLane {self._origin.authority} {len(self._idle)} idle>"

    def close(self) -> None:
        """Close what is idle; the rest closes as its requests end."""
        while self._idle:
            self._idle.pop().socket.close()

    async def exchange(self, ask: Ask) -> Fields:
        """One request. Raises RpcError, TransportError, RemoteProtocolError."""
        self._number = number = self._number + 1 if self._number < LAST_ID else FIRST_ID
        before, behind = self._encode(ask)
        data = b"%b%d%b" % (before, number, behind)
        line = await self._send(data, idempotent=ask.call.method in m.IDEMPOTENT)
        parser = line.parser
        try:
            while not parser.complete:
                await self._receive(line)
        except BaseException:
            line.socket.close()
            raise
        if parser.keep_alive:
            self._idle.append(line)
        else:
            line.socket.close()
        return self._read(parser, number)

    def _encode(self, ask: Ask) -> tuple[bytes, bytes]:
        """A request before and behind its id."""
        key = (ask.call.method, ask.subject) if ask.subject is not None else None
        found = self._encoded.get(key) if key is not None else None
        if found is not None:
            return found
        call = ask.call
        if self._client_info is not None:
            call = call.with_meta(modern_meta(call, self._client_info))
        body = encode_request(FIRST_ID, call.method, with_meta(call.params, call.meta) or None)
        target, headers = self._channel.head_of(call)
        own = (("Host", self._origin.authority), ("Accept-Encoding", "identity"))
        head = encode_request_head("POST", target, (*own, *headers))
        place = body.index(b'"id":%d' % FIRST_ID) + len(b'"id":')
        digits = len(str(FIRST_ID))
        head = b"%bContent-Length: %d\r\n\r\n" % (head, len(body))
        pieces = (head + body[:place], body[place + digits :])
        if key is not None and len(self._encoded) < REMEMBERED:
            self._encoded[key] = pieces
        return pieces

    async def _send(self, data: bytes, *, idempotent: bool) -> _Socket:
        """The connection on which a request was sent and the answer has begun."""
        while self._idle:
            line = self._idle.pop()
            try:
                await self._begin(line, data)
                return line
            except TransportClosed:  # it was closed while it was idle
                if line.parser.wire_bytes or not idempotent:
                    raise
        line = await self._open()
        await self._begin(line, data)
        return line

    async def _open(self) -> _Socket:
        try:
            stream = await trio.open_tcp_stream(self._origin.host, self._origin.port)
        except OSError as error:
            raise ConnectFailed(f"cannot connect to {self._origin.authority}: {error}") from None
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain = socket.socket(fileno=stream.socket.detach())
        plain.setblocking(False)
        return _Socket(plain, self._limits.max_head_bytes)

    async def _begin(self, line: _Socket, data: bytes) -> None:
        line.parser.begin()
        try:
            while data:
                try:
                    data = data[line.socket.send(data) :]
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(line.socket)
            await self._receive(line)
        except OSError as error:
            line.socket.close()
            raise TransportClosed(f"the connection broke: {error.strerror}") from None
        except BaseException:
            line.socket.close()
            raise

    async def _receive(self, line: _Socket) -> None:
        await trio.lowlevel.wait_readable(line.socket)
        try:
            data = line.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise TransportClosed(f"the connection broke: {error.strerror}") from None
        if data:
            line.parser.feed(data)
            if line.parser.wire_bytes > self._limits.max_message_bytes + self._limits.max_head_bytes:
                raise MessageTooLarge(f"its answer is larger than {self._limits.max_message_bytes} bytes")
        else:
            line.parser.feed_eof()

    def _read(self, parser: ResponseParser, number: int) -> Fields:
        body = parser.take_body()
        kind = parser.headers.get("content-type", "")
        if parser.status == NO_SESSION and self._client_info is None:
            raise SessionExpired("the server has forgotten the session")
        answer = self._find(body, number) if kind.startswith(EVENT_STREAM) else _answer_in(body)
        if answer is None or answer.id not in (number, None):
            if parser.status != 200:
                raise HttpStatusError(parser.status, body)
            raise RemoteProtocolError("its answer is no JSON-RPC response to the request")
        if isinstance(answer.error, _Error):
            raise RpcError(answer.error.code, answer.error.message)
        if not isinstance(answer.result, Raw):
            raise RemoteProtocolError("its answer has neither a result nor an error")
        try:
            return decode_fields(answer.result)
        except ValueError:
            raise RemoteProtocolError("its result is no object") from None

    def _find(self, body: bytes, number: int) -> _Answer | None:
        for event in SseDecoder(self._limits.max_message_bytes).feed(body):
            answer = _answer_in(event.data) if event.data else None
            if answer is not None and answer.id == number:
                return answer
        return None


def _answer_in(body: bytes) -> _Answer | None:
    try:
        return _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def open_lane(upstream: Upstream, connection: Connection) -> HttpLane | None:
    """A lane beside an open connection, where that is plain HTTP with nothing in between; else None."""
    target, channel = upstream.target, connection.channel
    if not isinstance(target, Http) or not isinstance(channel, HttpChannel):
        return None
    origin = HttpOrigin.from_url(target.url)
    if origin.secure or choose_proxy(origin, target.proxy) is not None:
        return None
    client_info = CLIENT_INFO if is_modern(connection.facts.revision) else None
    return HttpLane(target.url, channel, client_info)
