"""Any bytes into every parser that sees the network.

Laws: nothing but the declared errors leaves a parser; it keeps no more than its bounds; it does not matter
how the bytes are cut on their way. Inputs are good messages with damage, as plain noise gets nowhere.
"""

from __future__ import annotations

import contextlib
import itertools
import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpmux.config import Limits
from mcpmux.errors import MessageTooLarge, RemoteProtocolError, RpcError, TransportClosed
from mcpmux.mux.replay import Gone, ReplayBounds, ReplayBuffer
from mcpmux.mux.seal import CursorSeal, InvalidCursor, Position
from mcpmux.protocol.call import CLIENT_CAPABILITIES, VERSION, Call
from mcpmux.protocol.envelope import (
    BadMessage,
    ErrorReply,
    Notification,
    Reply,
    Request,
    decode_any,
    decode_fields,
    decode_message,
    encode_error,
    id_of,
    raw,
)
from mcpmux.protocol.framing import LineDecoder, Oversized, read_batch
from mcpmux.protocol.headers import HeaderMismatch, check_request, decode_value, encode_value
from mcpmux.protocol.raw_json import Raw
from mcpmux.protocol.revisions import NEWEST
from mcpmux.transports.http.message import ResponseParser
from mcpmux.transports.http.request_parser import RequestParser
from mcpmux.transports.sse import SseDecoder
from tests.examples import examples

LIMIT = 4096  # more than any input: which limit is met first may depend on how the bytes are cut
SMALL = 64
MANY = settings(max_examples=examples(100), deadline=None)

REQUESTS = [
    b"POST /mcp?a HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
    b"POST /mcp HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2;e=f\r\n{}\r\n0\r\nT: u\r\n\r\n",
    b"GET /sse HTTP/1.0\r\nConnection: keep-alive\r\nLast-Event-ID: 1-2\r\n\r\n",
    b"GET http://x/ HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    b"PUT / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\na",
]
RESPONSES = [
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.0 404 No\r\n\r\nbody",
    b"HTTP/1.1 204 None\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n\r\n",
]
EVENTS = [
    b"\xef\xbb\xbfevent: message\r\ndata: {}\r\nid: 7\r\nretry: 10\r\n\r\n",
    b": comment\n\ndata: a\ndata: b\ndata\n\n",
    b"id: \0\rdata: x\r\revent: endpoint\ndata:/m?s=1\n\n",
]
MESSAGES = [
    b'{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"a+b:c","_meta":{"k":[1.5e3]}}}',
    b'{"jsonrpc":"2.0","id":"x","result":{"contents":[{"text":"\\ud83d\\ude00"}]}}',
    b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"m","data":{}}}',
    b'[{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}]',
]
PIECES = [
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b":",
    b" ",
    b"\t",
    b";",
    b",",
    b"-1",
    b"+",
    b"0",
    b"ffffffffff",
    b"\xff",
    b"\r\n\r\n",
    b"Content-Length: 3\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Host: y\r\n",
    b"{",
    b"]",
    b'"',
    b"\\u0000",
    b"\xed\xa0\x80",
    b"1e999",
    b"[" * 50,
    b"data: ",
    b"id:",
    b"HTTP/1.1",
]


@st.composite
def damaged(draw: st.DrawFn, good: list[bytes]) -> bytes:
    """Draw good messages in a row, with cuts, repeats, foreign pieces and changed bytes in them."""
    data = bytearray(b"".join(draw(st.lists(st.sampled_from(good), min_size=1, max_size=3))))
    for _ in range(draw(st.integers(0, 5))):
        at = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 12))
        part = draw(st.sampled_from(PIECES) | st.binary(max_size=4) | st.just(bytes(data[at : at + length])))
        data[at : at + draw(st.sampled_from([0, 0, 1, length]))] = part
    return bytes(data)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


cuts = st.lists(st.integers(0, 10_000), max_size=8) | st.just(list(range(300)))


def requests_in(pieces: list[bytes], limits: Limits) -> object:
    parser = RequestParser(limits, "peer")
    for piece in pieces:
        if parser.refusal is None:
            parser.feed(piece)
    taken = [
        (request.method, request.path, request.query, request.headers, request.body, request.keep_alive)
        for request in parser.requests
    ]
    refused = None if parser.refusal is None else parser.refusal.status
    return taken, refused, None if refused else parser.phase


@MANY
@given(st.binary(max_size=200) | damaged(REQUESTS), cuts)
def test_http_requests(data: bytes, places: list[int]):
    limits = Limits(max_head_bytes=LIMIT, max_message_bytes=LIMIT, max_header_fields=LIMIT)
    assert requests_in(cut(data, places), limits) == requests_in([data], limits)


@MANY
@given(damaged(REQUESTS), cuts)
def test_http_requests_stay_within_small_limits(data: bytes, places: list[int]):
    parser = RequestParser(Limits(max_head_bytes=SMALL, max_message_bytes=2, max_header_fields=2), "peer")
    for piece in cut(data, places):
        if parser.refusal is None:
            parser.feed(piece)
    for request in parser.requests:
        size = sum(len(name) + len(value) for name, value in request.headers.items())
        assert len(request.path) + size <= SMALL + len("host")
        assert len(request.body) <= 2


def response_in(pieces: list[bytes]) -> object:
    parser = ResponseParser(LIMIT, LIMIT)
    body = b""
    try:
        for piece in [*filter(None, pieces), b""]:
            if parser.complete:
                break
            parser.feed(piece)
            body += parser.take_body()
    except (RemoteProtocolError, TransportClosed) as error:
        return type(error)
    return parser.status, parser.headers, body


@MANY
@given(st.binary(max_size=200) | damaged(RESPONSES), cuts)
def test_http_response(data: bytes, places: list[int]):
    whole, pieces = response_in([data]), response_in(cut(data, places))
    assert pieces == whole


def events_in(pieces: list[bytes], limit: int) -> object:
    decoder = SseDecoder(limit, skips=True)
    events = [event for piece in pieces for event in decoder.feed(piece)]
    assert decoder._data_bytes <= limit + 1
    return events, decoder.last_event_id, decoder.retry_milliseconds


@MANY
@given(st.binary(max_size=200) | damaged(EVENTS), cuts)
def test_event_stream(data: bytes, places: list[int]):
    assert events_in(cut(data, places), LIMIT) == events_in([data], LIMIT)
    events_in(cut(data, places), 3)
    with_end = SseDecoder(3)
    with contextlib.suppress(MessageTooLarge):
        with_end.feed(data)


def lines_in(pieces: list[bytes], limit: int) -> list[bytes | Oversized]:
    decoder = LineDecoder(limit)
    lines = []
    for piece in pieces:
        lines += decoder.feed(piece)
        assert len(decoder._kept) <= limit + 1
    return lines + decoder.close()


@MANY
@given(st.binary(max_size=200) | damaged(MESSAGES), cuts, st.sampled_from([1, 8, SMALL, LIMIT]))
def test_lines(data: bytes, places: list[int], limit: int):
    lines = lines_in(cut(data, places), limit)
    assert lines == lines_in([data], limit)
    assert all(isinstance(line, Oversized) or len(line) <= limit for line in lines)


@MANY
@given(st.binary(max_size=200) | damaged(MESSAGES))
def test_envelope(data: bytes):
    try:
        message = decode_message(data)
    except BadMessage as bad:
        json.loads(encode_error(bad.id, bad))
        message = None
    try:
        members = read_batch(data)
        assert all(
            isinstance(message, Request | Notification | Reply | ErrorReply | BadMessage)
            for message in members
        )
    except BadMessage:
        pass
    if isinstance(message, Request):
        assert isinstance(message.id, int | str)
        try:
            call = Call.of(message.method, message.params)
        except RpcError:
            return
        with contextlib.suppress(RpcError):
            whole = call.with_meta({VERSION: raw(NEWEST), CLIENT_CAPABILITIES: raw({})})
            check_request({"mcp-protocol-version": NEWEST, "mcp-method": message.method}, whole)


@MANY
@given(st.binary(max_size=100) | damaged(MESSAGES))
def test_raw_values(data: bytes):
    for decode in (decode_any, decode_fields):
        with contextlib.suppress(ValueError):
            decode(data)
    assert id_of(Raw(data)) is None or isinstance(id_of(Raw(data)), int | str)


@MANY
@given(st.data())
def test_cursor_is_the_sealed_one_or_refused(data: st.DataObject):
    seal = CursorSeal(b"0123456789abcdef")
    good = seal.seal("tools/list", [Position("docs", "next"), Position("web", None, items=3)])
    text = data.draw(st.text(max_size=40) | st.sampled_from([good, good + "=", good + "A", good[:-1], ""]))
    if text and data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(text) - 1))
        text = text[:at] + data.draw(st.text(max_size=2)) + text[at + 1 :]
    try:
        assert seal.open("tools/list", text)
        assert text == good
    except InvalidCursor:
        assert text != good


@MANY
@given(st.text(max_size=60) | st.from_regex(r"[0-9٣²]{0,30}-[0-9٣²]{0,30}", fullmatch=True))
def test_event_ids(event_id: str):
    buffer = ReplayBuffer(ReplayBounds())
    buffer.open(0)
    buffer.add(0, b"x", 0.0)
    try:
        stream, events = buffer.after(event_id, 0.0)
        assert stream == 0
        assert len(events) <= 1
    except Gone:
        pass


@MANY
@given(st.text(max_size=60) | st.text(max_size=20).map(lambda text: f"=?base64?{text}?="))
def test_header_values(value: str):
    try:
        decoded = decode_value(value)
    except HeaderMismatch:
        return
    assert decode_value(encode_value(decoded)) == decoded


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":'])
@pytest.mark.parametrize("depth", [500, 5_000, 500_000])
def test_deep_nesting_is_refused_or_left_raw(opening: bytes, depth: int):
    data = opening + b"[" * depth
    with pytest.raises(BadMessage):
        decode_message(data)
    with pytest.raises(ValueError, match=r".") as caught:
        decode_any(data)
    assert not isinstance(caught.value, msgspec.ValidationError)
