"""The load generator's own HTTP connections for single requests, so that it is not what is measured.

Promises: what is sent is what the session's channel would send, on keep-alive connections of the pool; a
request is encoded once for each subject and sent again with another id. Refuses to follow redirects, to
resume broken event streams and to tell a legacy server of requests that were cut off (their connection
closes).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import msgspec
from attrs import define, field

from mcpmux import __version__
from mcpmux.bench.answer import Chain, size_of
from mcpmux.bench.http_connection import Connector, HttpConnection
from mcpmux.bench.operation import Ask
from mcpmux.config import Http, Limits, Upstream
from mcpmux.errors import RemoteProtocolError, TransportClosed
from mcpmux.protocol import method as m
from mcpmux.protocol.call import modern_meta, with_meta
from mcpmux.protocol.envelope import UNREADABLE, ErrorReply, Reply, decode_fields, encode_request, raw
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.runtime.upstreams.http_channel import HttpChannel
from mcpmux.runtime.upstreams.http_peer import HttpStatusError, SessionExpired, message_in
from mcpmux.transports.http.client import EVENT_STREAM
from mcpmux.transports.http.message import ResponseParser, encode_request_head
from mcpmux.transports.http.route import HttpOrigin, choose_proxy
from mcpmux.transports.polling import open_readiness_poller
from mcpmux.transports.sse import SseDecoder
from mcpmux.transports.waiting import available

FIRST_ID = 1_000_000  # ids of one width keep the Content-Length; those of the channel are far below
LAST_ID = 9_999_999
REMEMBERED = 10_000  # encoded requests; more subjects are encoded anew
NO_SESSION = 404
DEFAULTS = Limits()
CLIENT_INFO = raw({"name": "mcpmux-bench", "version": __version__})


class _Good(msgspec.Struct, gc=False):
    id: int
    result: Fields


_decode_good = msgspec.json.Decoder(_Good).decode


_Encoded = tuple[bytes, bytes, int]
"""A request before and behind its id, and the bytes of its `params`."""


@define(eq=False, repr=False)
class HttpPool:
    """The connections of one session. `close` it. `client_info`: of a modern client, None if it is legacy."""

    _connector: Connector
    _channel: HttpChannel
    _client_info: Raw | None
    _idle: list[HttpConnection] = field(factory=list)
    _number: int = FIRST_ID
    _encoded: dict[tuple[str, str], _Encoded] = field(factory=dict)

    def __repr__(self) -> str:
        return f"<HttpPool {self._connector.origin.authority} {len(self._idle)} idle>"

    def close(self) -> None:
        """Close idle connections; the others close as their requests end."""
        while self._idle:
            self._idle.pop().close()

    async def prepare(self) -> None:
        """Open the first connection. Raises ConnectFailed."""
        self._idle.append(await self._connector.open())

    async def exchange(self, chain: Chain) -> Fields:
        """One request, or several of a chain: the answer to its last ask, unless another is pending.

        Raises RpcError, TransportError, RemoteProtocolError.
        """
        request = self._encode_next(chain)
        follow = partial(self._follow, chain)
        while True:
            connection = self._take_idle() or await self._connector.open()
            try:
                body = await connection.exchange(request, follow)
                break
            except TransportClosed:  # it was closed while it was idle
                idempotent = chain.ask.call.method in m.IDEMPOTENT
                if connection.begun or not connection.used or not idempotent:
                    raise
                request = self._encode_next(chain)
        if not connection.closed:
            self._idle.append(connection)
        if body is None:
            return self._read(connection.parser, chain.number)
        good = _good_in(body, chain.number)
        if good is not None or chain.pending:
            return good.result if good is not None else {}
        return _result_in(_answer_in(body, chain.number))

    def _follow(self, chain: Chain, body: bytes) -> bytes | None:
        """The request to be sent at once after this response; None when the response goes to who waits."""
        good = _good_in(body, chain.number)
        if good is None or chain.advance(good.result, chain.sent_bytes) is None:
            return None
        return self._encode_next(chain)

    def _encode_next(self, chain: Chain) -> bytes:
        """The request for what the chain asks now."""
        before, behind, chain.sent_bytes = self._encode(chain.ask)
        self._number = chain.number = number = self._number + 1 if self._number < LAST_ID else FIRST_ID
        return b"%b%d%b" % (before, number, behind)

    def _encode(self, ask: Ask) -> _Encoded:
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
        own = (("Host", self._connector.origin.authority), ("Accept-Encoding", "identity"))
        head = encode_request_head("POST", target, (*own, *headers))
        place = body.index(b'"id":%d' % FIRST_ID) + len(b'"id":')
        digits = len(str(FIRST_ID))
        head = b"%bContent-Length: %d\r\n\r\n" % (head, len(body))
        pieces = (head + body[:place], body[place + digits :], size_of(ask.call.params))
        if key is not None and len(self._encoded) < REMEMBERED:
            self._encoded[key] = pieces
        return pieces

    def _take_idle(self) -> HttpConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                return connection
        return None

    def _read(self, parser: ResponseParser, number: int) -> Fields:
        body = parser.take_body()
        if parser.status == NO_SESSION and self._client_info is None:
            raise SessionExpired("the server has forgotten the session")
        messages = [body]
        if parser.headers.get("content-type", "").startswith(EVENT_STREAM):
            decoder = SseDecoder(self._connector.limits.max_message_bytes)
            messages = [event.data for event in decoder.feed(body)]
        answers = (_answer_in(message, number) for message in messages)
        answer = next((each for each in answers if each is not None), None)
        if answer is None and parser.status != 200:
            raise HttpStatusError(parser.status, body)
        return _result_in(answer)


def _good_in(body: bytes, number: int) -> _Good | None:
    """The answer to a request, where it is a result with an object in it."""
    try:
        good = _decode_good(body)
    except UNREADABLE:
        return None
    return good if good.id == number else None


def _answer_in(body: bytes, number: int) -> Reply | ErrorReply | None:
    """The answer to a request, or to what the server could not read."""
    message = message_in(body)
    return message if isinstance(message, Reply | ErrorReply) and message.id in (number, None) else None


def _result_in(answer: Reply | ErrorReply | None) -> Fields:
    """Raises RpcError for an error, RemoteProtocolError for what is no answer to the request."""
    if answer is None:
        raise RemoteProtocolError("its answer is no JSON-RPC response to the request")
    if isinstance(answer, ErrorReply):
        raise answer.as_error()
    try:
        return decode_fields(answer.result) if answer.members is None else answer.members
    except ValueError:
        raise RemoteProtocolError("its result is no object") from None


@asynccontextmanager
async def open_connector(upstream: Upstream, at_once: int) -> AsyncIterator[Connector | None]:
    """Opens connections for the pools of all sessions; None where that is not plain HTTP without a proxy.

    `at_once`: how many connections may be opening.
    """
    target = upstream.target
    if isinstance(target, Http) and available:
        origin = HttpOrigin.from_url(target.url)
        if not origin.secure and choose_proxy(origin, target.proxy) is None:
            async with open_readiness_poller() as poller:
                yield Connector(origin, poller, DEFAULTS, at_once)
            return
    yield None
