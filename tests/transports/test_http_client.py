from __future__ import annotations

import ssl
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
import trio
import trio.testing

from mcpmux.errors import (
    ConnectFailed,
    LocalProtocolError,
    MessageTooLarge,
    RemoteProtocolError,
    TransportClosed,
    TransportError,
)
from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.http.route import HttpOrigin, PoolLimits, Route
from tests.http_request import requested

OK = b"HTTP/1.1 200 OK\r\n"
SHORT = OK + b"Content-Length: 2\r\n\r\nok"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


class Connection:
    """The server's end of one connection, driven by a script."""

    def __init__(self, stream):
        self.stream = stream

    async def receive_request(self):
        data = b""
        while b"\r\n\r\n" not in data:
            part = await self.stream.receive_some()
            if not part:
                return None
            data += part
        return data

    async def send(self, data):
        await self.stream.send_all(data)

    async def at_end(self):
        return not await self.stream.receive_some()


@asynccontextmanager
async def scripted(*scripts, poller=None, **limits):
    """Open a pool whose n-th connection is served by the n-th script, a function of Connection."""
    remaining = list(scripts)

    async def serve(stream):
        async with stream:
            await remaining.pop(0)(Connection(stream))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            listener, *_ = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
            origin = HttpOrigin(False, "127.0.0.1", listener.socket.getsockname()[1])
            with HttpPool(origin, limits=PoolLimits(**limits), poller=poller) as pool:
                yield pool
            nursery.cancel_scope.cancel()
    assert not remaining


def answers(*responses):
    """Return a script: read one request, send one of these responses, wait for the client to close."""

    async def script(connection):
        for response in responses:
            assert await connection.receive_request()
            await connection.send(response)
        assert await connection.at_end()

    return script


def answers_and_closes(*responses):
    async def script(connection):
        for response in responses:
            assert await connection.receive_request()
            await connection.send(response)

    return script


async def closes_at_once(connection):
    await connection.receive_request()


def get(pool, *, idempotent=True):
    return requested(pool, "GET", "/", (), b"", idempotent=idempotent)


async def read(pool, *, idempotent=True):
    async with get(pool, idempotent=idempotent) as response:
        return await response.read()


@pytest.mark.parametrize(
    ("method", "body", "rest"),
    [
        ("GET", b"", b"\r\n"),
        ("POST", b"", b"Content-Length: 0\r\n\r\n"),
        ("POST", b"{}", b"Content-Length: 2\r\n\r\n{}"),
    ],
)
async def test_request_on_the_wire(method, body, rest):
    received = []

    async def script(connection):
        received.append(await connection.receive_request())
        await connection.send(SHORT)

    async with scripted(script) as pool:
        async with requested(pool, method, "/a?b", [("A", "b")], body, idempotent=False) as response:
            assert (response.status, await response.read()) == (200, b"ok")
        host = pool.origin.authority
        head = f"{method} /a?b HTTP/1.1\r\nHost: {host}\r\nAccept-Encoding: identity\r\nA: b\r\n"
        assert received == [head.encode() + rest]


@pytest.mark.parametrize(
    ("method", "target", "fields"),
    [
        ("GET", "/a b", ()),
        ("GET", "/\r\n", ()),
        ("GE T", "/", ()),
        ("HEAD", "/", ()),
        ("GET", "/", [("A", "b\r\nC: d")]),
        ("GET", "/", [("Transfer-Encoding", "chunked")]),
    ],
)
async def test_request_that_cannot_be_sent_is_our_mistake(method, target, fields):
    async with scripted() as pool:
        with pytest.raises(LocalProtocolError):
            await pool.send(method, target, tuple(fields), b"", idempotent=True)


@pytest.mark.parametrize(
    ("response", "body"),
    [
        (SHORT, b"ok"),
        (CHUNKED + b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", b"abc"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + SHORT, b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 302 Found\r\nLocation: /b\r\nContent-Length: 0\r\n\r\n", b""),
    ],
)
async def test_connection_is_reused_after_a_complete_response(response, body):
    async with scripted(answers(response, response, SHORT)) as pool:
        assert await read(pool) == body
        assert await read(pool, idempotent=False) == body
        assert await read(pool) == b"ok"


async def test_chunks_are_given_as_they_come():
    go_on = trio.Event()

    async def script(connection):
        await connection.receive_request()
        await connection.send(CHUNKED + b"3\r\none\r\n")
        await go_on.wait()
        await connection.send(b"3\r\ntwo\r\n0\r\n\r\n")

    async with scripted(script) as pool, get(pool) as response:
        assert await response.receive_some() == b"one"
        go_on.set()
        assert await response.receive_some() == b"two"
        assert await response.receive_some() == b""


@pytest.mark.parametrize("framing", [b"Connection: close\r\nContent-Length: 2\r\n\r\n", b"\r\n"])
async def test_connection_that_the_server_ends_is_not_reused(framing):
    async with scripted(answers_and_closes(OK + framing + b"ok"), answers(SHORT)) as pool:
        assert await read(pool, idempotent=False) == b"ok"
        assert await read(pool, idempotent=False) == b"ok"


async def test_connection_with_unasked_bytes_is_not_reused():
    planted = OK + b"Content-Length: 7\r\n\r\nplanted"
    async with scripted(answers(SHORT + planted), answers(SHORT)) as pool:
        assert await read(pool) == b"ok"
        assert await read(pool) == b"ok"


BAD = {
    "two lengths": OK + b"Content-Length: 0\r\nContent-Length: 2\r\n\r\nab",
    "too many fields": OK + b"X:\r\n" * 100 + b"\r\n",
    "head without end": OK + b"X: " + b"y" * 9000,
    "body over the limit": OK + b"Content-Length: 1001\r\n\r\n" + b"a" * 1001,
    "body over the limit, chunked": CHUNKED + b"1f4\r\n" + b"a" * 500 + b"\r\n1f5\r\n" + b"a" * 501,
    "body without length over the limit": OK + b"\r\n" + b"a" * 5000,
}
"""More of what is malformed is in `test_http_response`."""


@pytest.mark.parametrize("response", BAD.values(), ids=BAD)
async def test_bad_response_is_an_error_and_its_connection_is_not_used_again(response):
    async def script(connection):
        assert await connection.receive_request()
        with suppress(trio.BrokenResourceError):  # the client may have had enough
            await connection.send(response + SHORT)
            await connection.at_end()

    async with scripted(script, answers(SHORT), head_bytes=2000, body_bytes=1000, head_fields=50) as pool:
        with pytest.raises((RemoteProtocolError, MessageTooLarge)):
            await read(pool, idempotent=False)
        assert await read(pool) == b"ok"


@pytest.mark.parametrize("last_words", [b"", b"HTTP/1.1 408 Request Timeout\r\n\r\n"])
async def test_connection_that_ended_while_idle_is_discarded_before_reuse(last_words):
    leave = trio.Event()

    async def script(connection):
        await connection.receive_request()
        await connection.send(SHORT)
        await leave.wait()
        await connection.send(last_words)

    async with scripted(script, answers(SHORT)) as pool:
        assert await read(pool) == b"ok"
        leave.set()
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert await read(pool, idempotent=False) == b"ok"


async def test_connection_that_was_idle_too_long_is_not_reused():
    async with scripted(answers(SHORT), answers(SHORT), idle_seconds=-1) as pool:
        assert await read(pool) == b"ok"
        assert await read(pool) == b"ok"


async def dies_on_the_second_request(connection):
    await connection.receive_request()
    await connection.send(SHORT)
    await connection.receive_request()


async def test_idempotent_request_that_met_a_dying_connection_is_repeated_once():
    async with scripted(dies_on_the_second_request, answers(SHORT)) as pool:
        assert await read(pool) == b"ok"
        assert await read(pool) == b"ok"

    async with scripted(dies_on_the_second_request, closes_at_once) as pool:
        assert await read(pool) == b"ok"
        with pytest.raises(TransportClosed, match="without an answer"):
            await read(pool)


async def test_other_request_that_met_a_dying_connection_fails():
    async with scripted(dies_on_the_second_request) as pool:
        assert await read(pool) == b"ok"
        with pytest.raises(TransportClosed, match="without an answer"):
            await read(pool, idempotent=False)


async def test_request_is_not_repeated_once_an_answer_has_begun():
    async with scripted(answers_and_closes(SHORT, b"HTTP/1.1 2")) as pool:
        assert await read(pool) == b"ok"
        with pytest.raises(TransportClosed, match="in the middle"):
            await read(pool)


async def test_an_early_answer_is_read_despite_an_unread_request():
    async def script(connection):
        await connection.stream.receive_some(1)
        await connection.send(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno")

    async with scripted(script) as pool:
        request = requested(pool, "POST", "/", (), b"a" * 8_000_000, idempotent=False)
        async with request as response:
            assert (response.status, await response.read()) == (413, b"no")


@pytest.mark.parametrize("cancelled", [False, True])
async def test_leaving_in_the_middle_of_a_response_closes_its_connection(cancelled):
    closed = trio.Event()

    async def script(connection):
        await connection.receive_request()
        await connection.send(CHUNKED + b"3\r\none\r\n")
        assert await connection.at_end()
        closed.set()

    async with scripted(script, answers(SHORT), connections=1) as pool:
        with trio.CancelScope() as scope:
            async with get(pool) as response:
                assert await response.receive_some() == b"one"
                if cancelled:
                    scope.cancel()
                    await response.receive_some()
        await closed.wait()
        assert await read(pool) == b"ok"


async def test_cancelling_before_the_head_closes_the_connection():
    async def script(connection):
        await connection.receive_request()
        scope.cancel()
        assert await connection.at_end()

    async with scripted(script, answers(SHORT), connections=1) as pool:
        with trio.CancelScope() as scope:
            await read(pool)
        assert scope.cancelled_caught
        assert await read(pool) == b"ok"


async def test_response_is_not_readable_after_its_context():
    async with scripted(answers(SHORT)) as pool:
        async with get(pool) as response:
            pass
        with pytest.raises(LocalProtocolError):
            await response.read()


async def test_requests_above_the_bound_wait_in_order_and_then_are_rejected():
    async with scripted(answers(SHORT, SHORT, SHORT), connections=1, waiting=2) as pool:
        order = []

        async def request(name):
            await read(pool)
            order.append(name)

        async with trio.open_nursery() as nursery, get(pool) as response:
            for name in ("first", "second"):
                nursery.start_soon(request, name)
                await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(TransportError, match="too many requests wait"):
                await read(pool)
            await response.read()
        assert order == ["first", "second"]


async def test_request_that_stopped_waiting_leaves_no_trace():
    async with scripted(answers(SHORT, SHORT), connections=1, waiting=1) as pool:
        async with get(pool) as response:
            for _ in range(3):
                with trio.move_on_after(0.01) as scope:
                    await read(pool)
                assert scope.cancelled_caught
            await response.read()
        assert await read(pool) == b"ok"


@pytest.mark.parametrize("bound", [1, 2])
async def test_connection_used_last_goes_first_and_the_others_are_bounded(bound):
    async with scripted(answers(SHORT, SHORT), answers(SHORT), idle=bound) as pool:
        async with get(pool) as first, get(pool) as second:
            await first.read()
            await second.read()
        assert f"idle={bound}" in repr(pool)
        assert await read(pool) == b"ok"


async def test_closed_pool_accepts_nothing_and_keeps_nothing():
    async with scripted(answers(SHORT)) as pool:
        async with get(pool) as response:
            pool.close()
            assert await response.read() == b"ok"
        assert "idle=0" in repr(pool)
        with pytest.raises(TransportClosed):
            await read(pool)


async def test_refused_connection_is_told_in_a_sentence():
    async with scripted() as pool:
        port = pool.origin.port
    with HttpPool(HttpOrigin(False, "127.0.0.1", port), limits=PoolLimits(connections=1)) as pool:
        for _ in range(2):
            with pytest.raises(
                ConnectFailed, match=rf"^cannot connect to 127.0.0.1:{port}: connection refused$"
            ):
                await read(pool)


async def test_unknown_host_is_told_in_a_sentence():
    pool = HttpPool(HttpOrigin(False, "host.invalid", 80))
    with trio.fail_after(60), pytest.raises(ConnectFailed, match=r"^cannot connect to host\.invalid:80: \w+"):
        await read(pool)


def unauthenticated(purpose):
    """Return a TLS context that needs no certificate, which only a test wants."""
    context = ssl.SSLContext(purpose)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("aNULL:@SECLEVEL=0")
    return context


def over_tls(origin):
    context = unauthenticated(ssl.PROTOCOL_TLS_CLIENT)
    return Route(origin, lambda: context)


async def test_cancelling_the_tls_handshake_closes_the_connection():
    closed = trio.Event()

    async def script(connection):
        assert await connection.stream.receive_some()
        scope.cancel()
        assert await connection.at_end()
        closed.set()

    async with scripted(script) as plain:
        origin = HttpOrigin(True, "127.0.0.1", plain.origin.port)
        pool = HttpPool(origin, route=over_tls(origin))
        with trio.CancelScope() as scope:
            await read(pool)
        await closed.wait()


@pytest.mark.parametrize(
    ("url", "origin", "authority"),
    [
        ("http://localhost/mcp", HttpOrigin(False, "localhost", 80), "localhost"),
        ("HTTPS://Example.com:8443", HttpOrigin(True, "example.com", 8443), "example.com:8443"),
        ("https://[::1]/", HttpOrigin(True, "::1", 443), "[::1]"),
        (
            "http://bücher.example:80/",
            HttpOrigin(False, "xn--bcher-kva.example", 80),
            "xn--bcher-kva.example",
        ),
    ],
)
def test_origin_of_a_url(url, origin, authority):
    assert HttpOrigin.from_url(url) == origin
    assert origin.authority == authority


@pytest.mark.parametrize("url", ["localhost:80", "ftp://x/", "http://", "http://x:port/", "http://a..b/"])
def test_what_is_no_url_has_no_origin(url):
    with pytest.raises(ValueError):
        HttpOrigin.from_url(url)
