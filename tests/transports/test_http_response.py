from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.errors import RemoteProtocolError, TransportClosed
from mcpmux.transports.http.response_parser import ResponseParser

HEAD_LIMIT = 500
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


def parse(stream):
    parser = ResponseParser(HEAD_LIMIT)
    if stream:
        parser.feed(stream)
    return parser


def parse_bytewise(stream):
    parser = ResponseParser(HEAD_LIMIT)
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


@both
@pytest.mark.parametrize(
    "stream",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        OK + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        OK + b"Transfer-Encoding: gzip\r\n\r\n",
        OK + b"A: b\n\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        OK + b"A: " + b"a" * HEAD_LIMIT,
        b"HTTP/1.1 100 Continue\r\n\r\n" * HEAD_LIMIT,
        CHUNKED + b"zz\r\n",
        CHUNKED + b"1;" + b"a" * 3 * HEAD_LIMIT,
        CHUNKED + b"0\r\nA: " + b"a" * 3 * HEAD_LIMIT,
    ],
)
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
    parser = ResponseParser(HEAD_LIMIT)
    for body in (b"1", b"2"):
        parser.begin()
        assert not parser.complete
        parser.feed(OK + b"Content-Length: 1\r\n\r\n" + body)
        assert (parser.complete, parser.take_body(), parser.take_body()) == (True, body, b"")


@given(stream=st.binary(min_size=1) | st.binary().map(OK.__add__) | st.binary().map(CHUNKED.__add__))
def test_no_bytes_raise_anything_else(stream):
    parser = ResponseParser(HEAD_LIMIT)
    try:
        parser.feed(stream)
    except RemoteProtocolError:
        return
