"""The load generator's own HTTP connections for single requests, so that it is not what is measured.

Promises: what is sent is what the session's channel would send, on keep-alive connections of the pool; a
request is encoded once for each subject and sent again with another id; a good answer that has a follower is
counted, and the follower sent, where it was received. Refuses to follow redirects, to resume broken event
streams and to tell a legacy server of requests that were cut off (their connection closes).

    idle -- a request is POSTed --> busy -- a good answer, and another request follows it --> busy
                                         -- any other response, with keep-alive           --> idle
                                         -- anything else                                 --> closed
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import msgspec
import trio
from attrs import define, field

from mcpmux import __version__
from mcpmux.bench.answer import Chain, size_of
from mcpmux.bench.operation import Ask
from mcpmux.channels.http_channel import HttpChannel
from mcpmux.channels.http_peer import HttpStatusError, SessionExpired, message_in
from mcpmux.config import Http, Limits, Upstream
from mcpmux.errors import MessageTooLarge, RemoteProtocolError, TransportClosed
from mcpmux.protocol import method as m
from mcpmux.protocol.call import modern_meta, with_meta
from mcpmux.protocol.envelope import UNREADABLE, ErrorReply, Reply, decode_fields, encode_request, raw
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.transports.byte_stream import PlainStream, open_socket
from mcpmux.transports.http.client import EVENT_STREAM, JSON_TYPE
from mcpmux.transports.http.message import ResponseParser, encode_request_head
from mcpmux.transports.http.route import HttpOrigin, choose_proxy
from mcpmux.transports.polling import open_readiness_poller
from mcpmux.transports.sse import SseDecoder
from mcpmux.transports.waiting import ReadinessPoller

FIRST_ID = 1_000_000  # ids of one width keep the Content-Length; those of the channel are far below
LAST_ID = 9_999_999
REMEMBERED = 10_000  # encoded requests; more subjects are encoded anew
MOST_HEADS = 64  # of responses that are known; a Date makes a new one each second
HEAD_END = b"\r\n\r\n"
NO_SESSION = 404
CLIENT_INFO = raw({"name": "mcpmux-bench", "version": __version__})


class _Good(msgspec.Struct, gc=False):
    id: int
    result: Fields


_decode_good = msgspec.json.Decoder(_Good).decode


_Encoded = tuple[bytes, bytes, int]
"""A request before and behind its id, and the bytes of its `params`."""


@define(eq=False, repr=False)
class Connector:
    """Opens connections to one origin, of which a run may have many: its name is looked up once.

    `at_once`: how many may be opening; a server's queue for new connections is short. `heads`: those of
    responses that were parsed before (200, JSON, keep-alive), and the lengths of their bodies.
    """

    origin: HttpOrigin
    poller: ReadinessPoller
    limits: Limits
    _opening: trio.CapacityLimiter = field(converter=trio.CapacityLimiter, alias="at_once")
    heads: dict[bytes, int] = field(factory=dict)
    _address: str | None = None

    async def open(self) -> LoadConnection:
        """Open one more. Raises ConnectFailed."""
        async with self._opening:
            byte_stream = PlainStream(await open_socket(self._address or self.origin.host, self.origin.port))
        with suppress(OSError):  # the server may have closed it by now
            self._address = byte_stream.socket.getpeername()[0]
        return LoadConnection(self, byte_stream)


@define(eq=False, repr=False)
class LoadConnection:
    """One keep-alive connection. An exchange that fits into them takes one send, one receive and one wake-up.

    `begun`: the last response has begun to arrive. `used`: one has come before. `result`: of the last one if
    it is good. If not, `body` has it, and `parser` its head, unless that is `known` to be good.
    """

    _connector: Connector
    _byte_stream: PlainStream
    parser: ResponseParser = field(init=False)
    begun: bool = False
    used: bool = False
    closed: bool = False
    known: bool = False
    body: bytes = b""
    result: Fields | None = None
    _chain: Chain = field(init=False)
    _encode: Callable[[Chain], bytes] = field(init=False)
    _over: bool = True
    _unsent: bytes = b""
    _failure: Exception | None = None
    _task: trio.lowlevel.Task | None = None

    def __attrs_post_init__(self) -> None:
        self.parser = ResponseParser(self._connector.limits.max_head_bytes)
        self._connector.poller.watch(self._byte_stream.descriptor, self._receive)

    def close(self) -> None:
        """Give the socket back."""
        if not self.closed:
            self.closed = True
            self._connector.poller.forget(self._byte_stream.descriptor)
            self._byte_stream.close()

    async def exchange(self, chain: Chain, encode: Callable[[Chain], bytes]) -> None:
        """Send what a chain asks and what follows; wait for the last answer. Any error closes the connection.

        Raises TransportError, RemoteProtocolError.
        """
        self._chain, self._encode = chain, encode
        self.begun = self._over = False
        try:
            await self._byte_stream.send(encode(chain))
            while not self._over:
                self._task = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._leave)
                if self._unsent:
                    unsent, self._unsent = self._unsent, b""
                    await self._byte_stream.send(unsent)
            if self._failure is not None:
                raise self._failure
        except BaseException:
            self.close()
            raise
        self.used = True

    def _leave(self, _raise: object) -> trio.lowlevel.Abort:
        self._task, self._over = None, True  # no request may follow
        return trio.lowlevel.Abort.SUCCEEDED

    def _wake(self) -> None:
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    def _receive(self) -> None:
        """Receive once. The poller calls this, so an error goes to the waiting task."""
        if self._over:
            self.close()  # not asked for: the end, or bytes without meaning
            return
        try:
            data = self._byte_stream.receive_nowait()
            body = None if data is None else self._take(data)
            if body is None or self._goes_on(body):
                return
        except Exception as error:
            self._failure = error
        self._over = True
        self._wake()

    def _take(self, data: bytes) -> bytes | None:
        """Take what was received, b"" at the end of the stream: the body, once the response is whole."""
        heads, end = self._connector.heads, data.find(HEAD_END) + len(HEAD_END)
        if not self.begun:
            self.known = heads.get(data[:end]) == len(data) - end
            if self.known:
                return data[end:]
            self.parser.begin()
            self.begun = bool(data)
        parser, limits = self.parser, self._connector.limits
        if data:
            parser.feed(data)
        else:
            parser.feed_eof()
        if parser.received_bytes > limits.max_message_bytes + limits.max_head_bytes:
            raise MessageTooLarge(f"its answer is larger than {limits.max_message_bytes} bytes")
        if not parser.complete:
            return None
        whole = parser.received_bytes == len(data) and data.startswith(b"HTTP/1.1 200 ")  # not an interim one
        sized = parser.headers.get("content-length") == str(len(data) - end) and parser.keep_alive
        if whole and sized and parser.headers.get("content-type", "").startswith(JSON_TYPE):
            if len(heads) >= MOST_HEADS:
                heads.clear()
            heads[data[:end]] = len(data) - end
        return parser.take_body()

    def _goes_on(self, body: bytes) -> bool:
        """Send what follows a good answer. False when the answer goes to the task."""
        chain = self._chain
        self.body, self.result = body, None
        try:
            good = _decode_good(body)
        except UNREADABLE:
            return False
        if good.id != chain.number:
            return False
        keep_alive = self.known or self.parser.keep_alive
        if not keep_alive or chain.advance(good.result, chain.sent_bytes) is None:
            self.result = good.result
            return False
        request = self._encode(chain)
        self.begun, self.used = False, True
        sent = self._byte_stream.send_nowait(request)
        if sent < len(request):
            self._unsent = request[sent:]
            self._wake()
        return True


@define(eq=False, repr=False)
class LoadPool:
    """The connections of one session. `close` it. `client_info`: of a modern client, None if it is legacy."""

    connector: Connector
    _channel: HttpChannel
    _client_info: Raw | None
    _idle: list[LoadConnection] = field(factory=list)
    _number: int = FIRST_ID
    _encoded: dict[tuple[str, str | None], _Encoded] = field(factory=dict)

    def close(self) -> None:
        """Close idle connections; the others close as their requests end."""
        while self._idle:
            self._idle.pop().close()

    async def prepare(self) -> None:
        """Open the first connection. Raises ConnectFailed."""
        self._idle.append(await self.connector.open())

    async def exchange(self, chain: Chain) -> Fields:
        """Return the answer to the last ask of a chain, unless another is pending. Raises McpmuxError."""
        while True:
            connection = self._take_idle() or await self.connector.open()
            try:
                await connection.exchange(chain, self._encode_next)
                break
            except TransportClosed:  # it was closed while it was idle
                idempotent = chain.ask.call.method in m.IDEMPOTENT
                if connection.begun or not connection.used or not idempotent:
                    raise
        if connection.known or connection.parser.keep_alive:
            self._idle.append(connection)
        else:
            connection.close()
        if chain.pending:
            return {}
        return connection.result if connection.result is not None else self._read(connection, chain.number)

    def _encode_next(self, chain: Chain) -> bytes:
        head, tail, chain.sent_bytes = self._encode(chain.ask)
        self._number = chain.number = number = self._number + 1 if self._number < LAST_ID else FIRST_ID
        return b"%b%d%b" % (head, number, tail)

    def _encode(self, ask: Ask) -> _Encoded:
        call, key = ask.call, (ask.call.method, ask.subject)
        encoded = self._encoded.get(key)
        if encoded is not None:
            return encoded
        if self._client_info is not None:
            call = call.with_meta(modern_meta(call, self._client_info))
        body = encode_request(FIRST_ID, call.method, with_meta(call.params, call.meta) or None)
        target, headers = self._channel.peer.head_of(call)
        own = (("Host", self.connector.origin.authority), ("Accept-Encoding", "identity"))
        head = encode_request_head("POST", target, (*own, *headers))
        left, _, right = body.partition(b'"id":%d' % FIRST_ID)
        head = b"%bContent-Length: %d\r\n\r\n" % (head, len(body))
        pieces = (head + left + b'"id":', right, size_of(ask.call.params))
        if ask.subject is not None and len(self._encoded) < REMEMBERED:
            self._encoded[key] = pieces
        return pieces

    def _take_idle(self) -> LoadConnection | None:
        while self._idle and self._idle[-1].closed:
            self._idle.pop()
        return self._idle.pop() if self._idle else None

    def _read(self, connection: LoadConnection, number: int) -> Fields:
        parser, messages = connection.parser, [connection.body]
        status, kind = parser.status, parser.headers.get("content-type", "")
        if connection.known:
            status, kind = 200, JSON_TYPE
        if status == NO_SESSION and self._client_info is None:
            raise SessionExpired("the server has forgotten the session")
        if kind.startswith(EVENT_STREAM):
            decoder = SseDecoder(self.connector.limits.max_message_bytes)
            messages = [event.data for event in decoder.feed(connection.body)]
        for answer in map(message_in, messages):
            if isinstance(answer, Reply | ErrorReply) and answer.id in (number, None):
                break
        else:
            if status != 200:
                raise HttpStatusError(status, connection.body)
            raise RemoteProtocolError("its answer is no JSON-RPC response to the request")
        if isinstance(answer, ErrorReply):
            raise answer.as_error()
        try:
            return decode_fields(answer.result) if answer.members is None else answer.members
        except ValueError:
            raise RemoteProtocolError("its result is no object") from None


@asynccontextmanager
async def open_connector(upstream: Upstream, at_once: int) -> AsyncIterator[Connector | None]:
    """Open a connector for all sessions; None unless the target is plain HTTP without a proxy."""
    target = upstream.target
    if isinstance(target, Http):
        origin = HttpOrigin.from_url(target.url)
        if not origin.secure and choose_proxy(origin, target.proxy) is None:
            async with open_readiness_poller() as poller:
                yield Connector(origin, poller, Limits(), at_once)
            return
    yield None
