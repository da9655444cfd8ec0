from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.errors import RemoteProtocolError, TransportClosed
from mcpmux.transports.http.message import ResponseParser

HEAD_LIMIT, FIELDS = 500, 20
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


def parse(stream):
    parser = ResponseParser(HEAD_LIMIT, FIELDS)
    if stream:
        parser.feed(stream)
    return parser


def parse_bytewise(stream):
    parser = ResponseParser(HEAD_LIMIT, FIELDS)
    for byte in stream:
        parser.feed(bytes([byte]))
    return parser


both = pytest.mark.parametrize("parse", [parse, parse_bytewise], ids=["whole", "bytewise"])


@both
@pytest.mark.parametrize(
    ("stream", "status", "body", "keep_alive"),
    [
        (OK + b"Content-Length: 2\r\n\r\nab", 200, b"ab", True),
        (OK + b"Content-Length: 0\r\n\r\n", 200, b"", True),
        (OK + b"Content-Length: 2\r\nConnection: close\r\n\r\nab", 200, b"ab", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nab", 200, b"ab", False),
        (CHUNKED + b"2;x\r\nab\r\n1\r\nc\r\n0\r\nStatus: 500\r\n\r\n", 200, b"abc", True),
        (b"HTTP/1.1 204 \r\n\r\n", 204, b"", True),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", 304, b"", True),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 2\r\n\r\nab", 200, b"ab", True),
        (
            b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 404 \r\nContent-Length: 0\r\n\r\n",
            404,
            b"",
            True,
        ),
        (
            b"HTTP/1.1 426 \r\nConnection: Upgrade\r\nUpgrade: h2\r\nContent-Length: 1\r\n\r\na",
            426,
            b"a",
            True,
        ),
    ],
)
def test_response_is_complete(parse, stream, status, body, keep_alive):
    parser = parse(stream)
    assert parser.complete
    assert (parser.status, parser.take_body(), parser.keep_alive) == (status, body, keep_alive)
    assert "link" not in parser.headers
    assert "status" not in parser.headers


@both
def test_headers_have_lower_case_names_and_are_joined(parse):
    parser = parse(OK + b"X-A: 1 \r\nx-a: 2\r\nContent-Length: 0\r\n\r\n")
    assert parser.headers == {"x-a": "1, 2", "content-length": "0"}


@both
def test_body_without_framing_ends_with_the_stream(parse):
    parser = parse(OK + b"\r\nabc")
    assert (parser.status, parser.complete, parser.take_body()) == (200, False, b"abc")
    parser.feed_eof()
    assert parser.complete
    assert not parser.keep_alive


@both
@pytest.mark.parametrize(
    "stream", [b"", b"HTTP/1.1 2", OK, OK + b"Content-Length: 2\r\n\r\na", CHUNKED + b"1\r\na\r\n0\r\n"]
)
def test_stream_that_ends_too_early_is_an_error(parse, stream):
    parser = parse(stream)
    with pytest.raises(TransportClosed):
        parser.feed_eof()


MALFORMED = {
    "nonsense": b"nonsense\r\n\r\n",
    "no status": b"HTTP/1.1 OK\r\n\r\n",
    "two lengths": OK + b"Content-Length: 0\r\nContent-Length: 2\r\n\r\nab",
    "the same length twice": OK + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nab",
    "length as a list": OK + b"Content-Length: 2, 2\r\n\r\nab",
    "length with plus": OK + b"Content-Length: +2\r\n\r\nab",
    "length negative": OK + b"Content-Length: -2\r\n\r\nab",
    "length in hex": OK + b"Content-Length: 0x2\r\n\r\nab",
    "length overflowing": OK + b"Content-Length: 99999999999999999999\r\n\r\nab",
    "length next to chunked": OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked next to length": OK + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n",
    "coding not chunked": OK + b"Transfer-Encoding: gzip\r\n\r\n",
    "coding identity": OK + b"Transfer-Encoding: identity\r\n\r\n",
    "coding xchunked": OK + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "coding chunked, identity": OK + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "coding chunked twice": OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding empty": OK + b"Transfer-Encoding:\r\n\r\n",
    "chunk size negative": CHUNKED + b"-1\r\na\r\n0\r\n\r\n",
    "chunk size with plus": CHUNKED + b"+1\r\na\r\n0\r\n\r\n",
    "chunk size with 0x": CHUNKED + b"0x1\r\na\r\n0\r\n\r\n",
    "chunk size overflowing": CHUNKED + b"fffffffffffffffff\r\na",
    "chunk size ended by line feed": CHUNKED + b"1\na\r\n0\r\n\r\n",
    "chunk longer than its size": CHUNKED + b"1\r\nab\r\n0\r\n\r\n",
    "bare line feeds": (OK + b"Content-Length: 0\r\n\r\n").replace(b"\r\n", b"\n"),
    "bare line feed in the head": OK + b"X: y\nContent-Length: 0\r\n\r\n",
    "bare carriage return in the head": OK + b"X: y\rContent-Length: 0\r\n\r\n",
    "folded line": OK + b"X: y\r\n z\r\nContent-Length: 0\r\n\r\n",
    "blank before a colon": OK + b"Content-Length : 0\r\n\r\n",
    "NUL in a value": OK + b"X: \0\r\nContent-Length: 0\r\n\r\n",
    "NUL in a name": OK + b"X\0: y\r\nContent-Length: 0\r\n\r\n",
    "HTTP/0.9": b"<html>hello</html>",
    "HTTP/2": b"HTTP/2 200\r\n\r\n",
    "HTTP/2 frame": b"\x00\x00\x12\x04\x00\x00\x00\x00\x00",
    "status of two digits": b"HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n",
    "protocol switched": b"HTTP/1.1 101 \r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    "chunk size of letters": CHUNKED + b"zz\r\n",
    "extension without end": CHUNKED + b"1;" + b"a" * 3 * HEAD_LIMIT,
    "trailers without end": CHUNKED + b"0\r\nA: " + b"a" * 3 * HEAD_LIMIT,
    "interim answers without end": b"HTTP/1.1 100 Continue\r\n\r\n" * HEAD_LIMIT,
    "head without end": OK + b"A: " + b"a" * HEAD_LIMIT,
    "too many fields": OK + b"".join(b"X%d:\r\n" % n for n in range(2 * FIELDS)) + b"\r\n",
    "too many fields, all the same": OK + b"X:\r\n" * 2 * FIELDS + b"\r\n",
}
"""Responses that two readers could take for different ones, or that never end."""


@both
@pytest.mark.parametrize("stream", MALFORMED.values(), ids=MALFORMED)
def test_malformed_response_is_an_error(parse, stream):
    with pytest.raises(RemoteProtocolError):
        parse(stream)


def test_the_reason_is_the_parsers_own_whatever_else_is_being_handled():
    with pytest.raises(RemoteProtocolError) as caught:
        try:
            raise ValueError("something else")
        except ValueError:
            parse(b"nonsense\r\n\r\n")
    assert str(caught.value) == "malformed HTTP response: Expected HTTP/, RTSP/ or ICE/"


@both
@pytest.mark.parametrize("surplus", [b"x", OK, OK + b"Content-Length: 1\r\n\r\nb"])
def test_bytes_behind_the_response_end_its_connection(parse, surplus):
    parser = parse(OK + b"Content-Length: 1\r\n\r\na" + surplus)
    assert (parser.status, parser.take_body(), parser.complete) == (200, b"a", True)
    assert not parser.keep_alive


def test_responses_follow_each_other_on_one_connection():
    parser = ResponseParser(HEAD_LIMIT, FIELDS)
    for body in (b"1", b"2"):
        parser.begin()
        assert not parser.complete
        parser.feed(OK + b"Content-Length: 1\r\n\r\n" + body)
        assert (parser.complete, parser.take_body(), parser.take_body()) == (True, body, b"")


@given(stream=st.binary(min_size=1) | st.binary().map(OK.__add__) | st.binary().map(CHUNKED.__add__))
def test_no_bytes_raise_anything_else(stream):
    parser = ResponseParser(HEAD_LIMIT, FIELDS)
    try:
        parser.feed(stream)
    except RemoteProtocolError:
        return
