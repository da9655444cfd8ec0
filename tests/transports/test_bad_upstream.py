"""Responses that two readers could take for different ones, or that never end, sent over real sockets.

Each is an error of the request it answers, and no byte behind it is ever taken for the next answer.
"""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio

from mcpmux.errors import MessageTooLarge, RemoteProtocolError, TransportClosed
from tests.http_request import requested
from tests.transports.test_http_client import scripted

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
NEXT = OK + b"Content-Length: 7\r\n\r\nplanted"
LIMITS = {"head_bytes": 2000, "body_bytes": 1000, "head_fields": 50}

BAD = {
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
    "extension without end": CHUNKED + b"1;" + b"x" * 9000,
    "trailers without end": CHUNKED + b"0\r\n" + b"X: y\r\n" * 1500,
    "bare line feeds": NEXT.replace(b"\r\n", b"\n"),
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
    "interim answers without end": b"HTTP/1.1 102 \r\n\r\n" * 50_000,
    "too many fields": OK + b"".join(b"X%d: y\r\n" % n for n in range(100)) + b"\r\n",
    "too many fields, all the same": OK + b"X:\r\n" * 100 + b"\r\n",
    "head without end": OK + b"X: " + b"y" * 9000,
    "body over the limit": OK + b"Content-Length: 1001\r\n\r\n" + b"a" * 1001,
    "body over the limit, chunked": CHUNKED + b"1f4\r\n" + b"a" * 500 + b"\r\n1f5\r\n" + b"a" * 501,
    "body without length over the limit": OK + b"\r\n" + b"a" * 5000,
}


def says(response: bytes, *, then_closes: bool):
    async def script(connection):
        assert await connection.receive_request()
        with suppress(trio.BrokenResourceError):  # the client may have had enough
            await connection.send(response)
        if not then_closes:
            with suppress(trio.BrokenResourceError):
                await connection.at_end()

    return script


async def read(pool) -> bytes:
    async with requested(pool, "GET", "/", (), b"", idempotent=False) as response:
        return await response.read()


@pytest.mark.parametrize("response", BAD.values(), ids=BAD)
async def test_bad_response_is_an_error_and_its_connection_is_not_used_again(response: bytes):
    good = says(OK + b"Content-Length: 4\r\n\r\ngood", then_closes=False)
    async with scripted(says(response + NEXT, then_closes=False), good, **LIMITS) as pool:
        with pytest.raises((RemoteProtocolError, MessageTooLarge)):
            await read(pool)
        assert await read(pool) == b"good"


@pytest.mark.parametrize(
    "response",
    [OK + b"Content-Length: 9\r\n\r\nab", CHUNKED + b"9\r\nab", CHUNKED + b"2\r\nab\r\n", OK + b"X: y"],
)
async def test_response_that_promises_more_than_it_has_is_an_error(response: bytes):
    async with scripted(says(response, then_closes=True), **LIMITS) as pool:
        with pytest.raises(TransportClosed):
            await read(pool)


async def test_planted_response_is_not_taken_for_the_next_answer():
    first = says(OK + b"Content-Length: 2\r\n\r\nab" + NEXT, then_closes=False)
    good = says(OK + b"Content-Length: 4\r\n\r\ngood", then_closes=False)
    async with scripted(first, good, **LIMITS) as pool:
        assert await read(pool) == b"ab"
        assert await read(pool) == b"good"
