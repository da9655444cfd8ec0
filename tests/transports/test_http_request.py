from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.config import Limits
from mcpmux.transports.http.request_parser import BODY, HEAD, IDLE, RequestParser

LIMITS = Limits(max_head_bytes=500, max_header_fields=20, max_message_bytes=40)
START = b"POST /mcp?a=1 HTTP/1.1\r\nHost: here\r\n"
CHUNKED = START + b"Transfer-Encoding: chunked\r\n\r\n"


def parse(stream, limits=LIMITS):
    parser = RequestParser(limits, "peer")
    parser.feed(stream)
    return parser


def parse_bytewise(stream, limits=LIMITS):
    parser = RequestParser(limits, "peer")
    for byte in stream:
        if parser.refusal is None:
            parser.feed(bytes([byte]))
    return parser


both = pytest.mark.parametrize("parse", [parse, parse_bytewise], ids=["whole", "bytewise"])


@both
def test_request_is_taken_apart(parse):
    parser = parse(START + b"X-A: \t 1 \t\r\nx-a: 2\r\nAccept:\r\nContent-Length: 4\r\n\r\nbody")
    request = parser.requests.pop(0)
    assert (request.method, request.path, request.query) == ("POST", "/mcp", "a=1")
    assert request.headers == {"host": "here", "x-a": "1, 2", "accept": "", "content-length": "4"}
    assert (request.body, request.peer) == (b"body", "peer")
    assert request.keep_alive
    assert not request.http_1_0
    assert parser.phase is IDLE


@both
@pytest.mark.parametrize(
    ("framed", "body"),
    [
        (START + b"\r\n", b""),
        (START + b"Content-Length: 0\r\n\r\n", b""),
        (START + b"Content-Length: 2 \r\n\r\nab", b"ab"),
        (CHUNKED + b"0\r\n\r\n", b""),
        (CHUNKED + b"2\r\nab\r\n0001\r\nc\r\n0\r\n\r\n", b"abc"),
        (START + b"Transfer-Encoding: \tChunked \r\n\r\n1\r\na\r\n0\r\n\r\n", b"a"),
        (CHUNKED + b"1\r\na\r\n0\r\nHost: elsewhere\r\nX-B: c\r\n\r\n", b"a"),
        (START + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", b""),
        (START + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nab", b"ab"),
        (
            START + b"Connection: Upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"2\r\nab\r\n0\r\n\r\n",
            b"ab",
        ),
    ],
)
def test_body_is_framed_and_the_next_request_follows(parse, framed, body):
    parser = parse(framed + b"\r\nDELETE /next HTTP/1.1\r\nHost: x\r\n\r\n" + framed)
    assert parser.refusal is None
    first, second, third = parser.requests
    assert (first.body, first.headers["host"]) == (body, "here")
    assert "x-b" not in first.headers
    assert (second.method, second.path, second.body) == ("DELETE", "/next", b"")
    assert (third.path, third.body) == ("/mcp", body)


@pytest.mark.parametrize(
    ("head", "old", "keep_alive"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", False, False),
        (b"GET / HTTP/1.0\r\n\r\n", True, False),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True, True),
    ],
)
def test_persistence_follows_version_and_connection(head, old, keep_alive):
    request = parse(head).requests.pop(0)
    assert (request.http_1_0, request.keep_alive) == (old, keep_alive)


@pytest.mark.parametrize(
    ("target", "path", "query", "host"),
    [
        (b"/", "/", "", "here"),
        (b"/a%20b?c=%41?d", "/a%20b", "c=%41?d", "here"),
        (b"//evil/x", "//evil/x", "", "here"),
        (b"*", "*", "", "here"),
        (b"http://here/p?q=1", "/p", "q=1", "here"),
        (b"HTTP://HERE", "/", "", "here"),
    ],
)
def test_target_is_split(target, path, query, host):
    request = parse(b"OPTIONS " + target + b" HTTP/1.1\r\nHost: here\r\n\r\n").requests.pop(0)
    assert (request.path, request.query, request.headers["host"]) == (path, query, host)


REFUSED = {
    "length next to chunked": (
        START + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "chunked next to length": (
        START + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n",
        400,
    ),
    "length twice": (START + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nab", 400),
    "length as a list": (START + b"Content-Length: 2, 2\r\n\r\nab", 400),
    "length with a sign": (START + b"Content-Length: +2\r\n\r\nab", 400),
    "length negative": (START + b"Content-Length: -2\r\n\r\nab", 400),
    "length empty": (START + b"Content-Length:\r\n\r\nab", 400),
    "length overflowing": (START + b"Content-Length: 99999999999999999999999\r\n\r\n", 400),
    "coding unknown": (START + b"Transfer-Encoding: gzip\r\n\r\n", 400),
    "coding before chunked": (START + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    "coding after chunked": (START + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", 400),
    "coding like chunked": (START + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
    "chunked behind a control": (START + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400),
    "chunked twice": (START + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    "chunked in HTTP/1.0": (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "bare line feeds": (b"GET / HTTP/1.1\nHost: x\n\n", 400),
    "bare line feed after a field": (b"GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n", 400),
    "bare carriage return": (b"GET / HTTP/1.1\r\nHost: x\rA: b\r\n\r\n", 400),
    "head ended by a bare line feed": (b"GET / HTTP/1.1\r\nHost: x\r\n\n", 400),
    "folded field": (b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", 400),
    "folded field with tab": (b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n\tc\r\n\r\n", 400),
    "blank before the first field": (b"GET / HTTP/1.1\r\n Host: x\r\n\r\n", 400),
    "blank before the colon": (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
    "field without colon": (b"GET / HTTP/1.1\r\nHost\r\n\r\n", 400),
    "field without name": (b"GET / HTTP/1.1\r\n: x\r\n\r\n", 400),
    "NUL in a value": (b"GET / HTTP/1.1\r\nHost: x\0y\r\n\r\n", 400),
    "host missing": (b"GET / HTTP/1.1\r\nA: b\r\n\r\n", 400),
    "host twice": (b"GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", 400),
    "authorization twice": (START + b"Authorization: a\r\nAuthorization: b\r\n\r\n", 400),
    "chunk size with 0x": (CHUNKED + b"0x1\r\na\r\n0\r\n\r\n", 400),
    "chunk size with blank": (CHUNKED + b"1 \r\na\r\n0\r\n\r\n", 400),
    "chunk size negative": (CHUNKED + b"-1\r\na\r\n0\r\n\r\n", 400),
    "chunk size overflowing": (CHUNKED + b"fffffffffffffffffff\r\na", 400),
    "chunk size ended by line feed": (CHUNKED + b"1\na\r\n0\r\n\r\n", 400),
    "chunk extension ended by line feed": (CHUNKED + b"1;x\na\r\n0\r\n\r\n", 400),
    "chunk longer than its size": (CHUNKED + b"1\r\nab\r\n0\r\n\r\n", 400),
    "chunk ended by line feed": (CHUNKED + b"1\r\na\n0\r\n\r\n", 400),
    "length in the trailers": (CHUNKED + b"0\r\nContent-Length: 5\r\n\r\n", 400),
    "method unknown": (b"FETCH / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00", 400),
    "tunnel": (b"CONNECT there:443 HTTP/1.1\r\nHost: there:443\r\n\r\n", 400),
    "target relative": (b"GET a HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "target of another host": (b"GET http://there/ HTTP/1.1\r\nHost: here\r\n\r\n", 400),
    "target of another port": (b"GET http://here:81/ HTTP/1.1\r\nHost: here\r\n\r\n", 400),
    "target with credentials": (b"GET http://me@x/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "target with other scheme": (b"GET ftp://x/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "target no URL": (b"GET http://[x/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "blank in the target": (b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "HTTP/0.9": (b"GET / HTTP/0.9\r\n\r\n", 505),
    "HTTP/2.0": (b"GET / HTTP/2.0\r\n\r\n", 505),
    "HTTP/3.0": (b"GET / HTTP/3.0\r\n\r\n", 505),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "fields too many": (
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(b"%d:\r\n" % n for n in range(30)) + b"\r\n",
        431,
    ),
    "fields too many, all the same": (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A:\r\n" * 30 + b"\r\n", 431),
    "fields too many, without end": (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A:\r\n" * 30, 431),
    "expectation unknown": (START + b"Expect: 200-ok\r\n\r\n", 417),
    "head too large": (START + b"A: " + b"a" * 480 + b"\r\n\r\n", 431),
    "head without end": (START + b"A: " + b"a" * 480, 431),
    "target too large": (b"GET /" + b"a" * 500 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
    "length above the limit": (START + b"Content-Length: 41\r\n\r\n", 413),
    "chunks above the limit": (CHUNKED + b"28\r\n" + b"a" * 40 + b"\r\n1\r\na\r\n", 413),
    "chunk extension without end": (CHUNKED + b"1;" + b"a" * 1000, 400),
    "trailers without end": (CHUNKED + b"0\r\nA: " + b"a" * 1000, 400),
}


@both
def test_requests_are_refused(parse, subtests):
    for name, (stream, status) in REFUSED.items():
        with subtests.test(name):
            parser = parse(stream)
            assert parser.refusal is not None
            assert parser.refusal.status == status
            assert not parser.requests


@both
def test_requests_before_a_refused_one_are_kept(parse):
    parser = parse(START + b"\r\n" + START + b"\r\n" + b"nonsense\r\n\r\n")
    assert [request.path for request in parser.requests] == ["/mcp", "/mcp"]
    assert parser.refusal.status == 400


@both
def test_head_and_body_of_exactly_the_limits_pass(parse):
    head = START + b"Content-Length: 40\r\nA: "
    padding = LIMITS.max_head_bytes - len(head) - 4
    parser = parse(head + b"a" * padding + b"\r\n\r\n" + b"b" * 40)
    assert parser.refusal is None
    assert parser.requests.pop(0).body == b"b" * 40


def test_pipelined_requests_are_measured_one_by_one():
    small = START + b"Content-Length: 30\r\n\r\n" + b"a" * 30
    parser = parse(small * 100)
    assert len(parser.requests) == 100
    parser.feed(small[:40])
    assert (parser.refusal, parser.phase) == (None, HEAD)


def test_phase_tells_what_is_awaited():
    parser = RequestParser(LIMITS, "peer")
    seen = []
    for part in (b"\r\n", b"P", b"OST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n", b"\r\n", b"a"):
        parser.feed(part)
        seen.append(parser.phase)
    assert seen == [IDLE, HEAD, HEAD, BODY, IDLE]


@pytest.mark.parametrize(
    ("stream", "wants"),
    [
        (START + b"Expect: 100-Continue\r\nContent-Length: 2\r\n\r\n", True),
        (START + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\na", False),
        (START + b"Content-Length: 2\r\n\r\n", False),
        (b"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n", False),
        (START + b"Expect: 100-continue\r\nContent-Length: 0\r\n\r\n", False),
        (START + b"Expect: 100-continue\r\nContent-Length: 0\r\n\r\n" + b"P", False),
        (START + b"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n", True),
        (START + b"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", False),
    ],
)
def test_go_ahead_is_wanted_only_while_the_body_is_held_back(stream, wants):
    assert parse(stream).wants_continue is wants


@given(stream=st.binary() | st.binary().map(START.__add__) | st.binary().map(CHUNKED.__add__))
def test_no_bytes_make_the_parser_raise(stream):
    parser = parse(stream)
    assert len(parser.requests) <= len(stream)
