"""Chunk extensions are refused, wherever they are and however the bytes come in; nothing else is."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.config import Limits
from mcpmux.transports.http.request_parser import RequestParser

LIMITS = Limits(max_message_bytes=60)
POST = b"POST /mcp HTTP/1.1\r\nHost: here\r\n"
UPGRADE = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
EXTENSIONS = [b";", b";x", b";x=y", b';x="a\r\n0"', b" ;x", b"\t", b" ", b";\r", b";" + b"x" * 40]

bodies = st.one_of(
    st.binary(max_size=30),
    st.lists(st.sampled_from([b"\r\n", b"\r\n\r\n", b"1;x\r\n", b"0\r\n\r\n", b"POST "]), max_size=3).map(
        b"".join
    ),
)


@st.composite
def chunked(draw: st.DrawFn, *, extended: bool = False) -> bytes:
    parts = draw(st.lists(bodies.filter(bool), max_size=2))
    where = draw(st.integers(0, len(parts))) if extended else -1
    stream = b""
    for number, part in enumerate([*parts, b""]):
        size = draw(st.sampled_from([b"%x", b"%X", b"%04x"])) % len(part)
        stream += size + (draw(st.sampled_from(EXTENSIONS)) if number == where else b"") + b"\r\n"
        stream += part + b"\r\n" if part else b""
    trailer = draw(st.sampled_from([b"", b"X-A: b\r\n", b"X-A: 1;2\r\nX-Long: " + b"x" * 50 + b"\r\n"]))
    return POST + draw(st.sampled_from([b"", UPGRADE])) + CHUNKED + stream + trailer + b"\r\n"


def framed(body: bytes) -> bytes:
    return POST + b"Content-Length: %d\r\n\r\n" % len(body) + body


plain = st.one_of(
    bodies.map(framed),
    st.just(b"GET /mcp HTTP/1.1\r\nHost: here\r\n\r\n"),
    st.just(b"\r\nDELETE /mcp HTTP/1.1\r\nHost: here\r\n" + UPGRADE + b"\r\n"),
    chunked(),
)


def parse(*pieces: bytes) -> tuple[list[bytes], int | None]:
    """Return the bodies, and the status of the refusal."""
    parser = RequestParser(LIMITS, "peer")
    for piece in pieces:
        if parser.refusal is None:
            parser.feed(piece)
    return [request.body for request in parser.requests], parser.refusal and parser.refusal.status


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    return [
        stream[a:b] for a, b in pairwise([0, *sorted(place % len(stream) for place in places), len(stream)])
    ]


cuts = st.lists(st.integers(0, 10_000), max_size=6)


@given(st.lists(plain, min_size=1, max_size=4), cuts)
def test_requests_without_extensions_come_through_however_they_are_cut(requests, places):
    stream = b"".join(requests)
    bodies, status = parse(stream)
    assert (len(bodies), status) == (len(requests), None)
    assert parse(*cut(stream, places)) == (bodies, None)
    assert parse(*(bytes([byte]) for byte in stream)) == (bodies, None)


@given(st.lists(plain, max_size=2), chunked(extended=True), st.lists(plain, max_size=2), cuts)
def test_an_extension_ends_the_connection_with_what_came_before_it(before, bad, after, places):
    stream = b"".join([*before, bad, *after])
    bodies, status = parse(stream)
    assert (len(bodies), status) == (len(before), 400)
    assert parse(*cut(stream, places)) == (bodies, 400)
    assert parse(*(bytes([byte]) for byte in stream)) == (bodies, 400)


@given(st.binary(max_size=60), cuts)
def test_any_body_is_judged_alike_however_it_is_cut(junk, places):
    stream = POST + CHUNKED + junk + b"\r\n0\r\n\r\n"
    outcome = parse(stream)
    assert parse(*cut(stream, places)) == outcome
    assert parse(*(bytes([byte]) for byte in stream)) == outcome


@pytest.mark.parametrize(
    "size", [b"", b"0" * 40 + b"1", b"1" * 17, b"0x1", b"+1", b"1_0", "１".encode(), b"-0"]
)
def test_what_is_no_size_is_found_too(size):
    assert parse(POST + CHUNKED + size + b"\r\na\r\n0\r\n\r\n") == ([], 400)


def test_a_body_that_is_too_long_is_left_to_the_parser():
    assert parse(POST + CHUNKED + b"3d\r\n" + b"x" * 61 + b"\r\n1;x\r\n") == ([], 413)


@pytest.mark.parametrize("begun", [b"5;", b"5 ", b"5x", b"5\rx", b"0" * 17])
def test_a_line_that_cannot_be_a_size_is_refused_before_it_ends(begun: bytes):
    assert parse(POST + CHUNKED, begun) == ([], 400)
    assert parse(POST + CHUNKED, b"5", begun[1:]) == ([], 400)
