"""Clients that send a byte now and then to hold their connections: they lose them, others notice no delay."""

from __future__ import annotations

import pytest
import trio

from tests.transports.test_http_server import GET, echo, receive_all, receive_until, serving

pytestmark = pytest.mark.usefixtures("received")

SLOW_CLIENTS = 30
PAUSE = 0.05  # seconds between two bytes of a slow client
ASKED = 50  # requests of the other client meanwhile
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\n"

SLOW = {
    "head": (b"", HEAD + b"X: " + b"y" * 1000),
    "fields": (HEAD, b"X: y\r\n" * 1000),
    "empty lines": (b"", b"\r\n" * 1000),
    "body": (HEAD + b"Content-Length: 5000\r\n\r\n", b"a" * 5000),
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n" * 1000),
    "nothing": (b"", b""),
}


async def trickle(stream, data):
    """Send byte by byte, until the server has had enough."""
    try:
        for byte in data:
            await stream.send_all(bytes([byte]))
            await trio.sleep(PAUSE)
    except trio.BrokenResourceError:
        return


async def hold(server, first, rest, ended):
    async with await server.connect() as stream, trio.open_nursery() as nursery:
        if first:
            await stream.send_all(first)
        nursery.start_soon(trickle, stream, rest)
        try:
            answer = await receive_all(stream)
        except trio.BrokenResourceError:
            answer = b""
        ended.append(answer[:12])
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("first", "rest"), SLOW.values(), ids=SLOW)
async def test_slow_clients_are_ended_and_others_are_served(first: bytes, rest: bytes):
    ended: list[bytes] = []
    limits = {
        "head_timeout": 0.4,
        "body_timeout": 0.4,
        "connection_idle": 60,
        "max_connections": SLOW_CLIENTS + 1,
    }
    async with serving(echo, **limits) as server, trio.open_nursery() as nursery:
        for _ in range(SLOW_CLIENTS):
            nursery.start_soon(hold, server, first, rest, ended)
        async with await server.connect() as other:
            for _ in range(ASKED):
                await other.send_all(GET)
                await receive_until(other, b"GET /a b ")
    assert len(ended) == SLOW_CLIENTS  # or the five seconds of `serving` are over
    if first or rest.startswith(HEAD):
        assert set(ended) <= {b"HTTP/1.1 408", b""}
        assert b"HTTP/1.1 408" in ended
    else:
        assert set(ended) == {b""}


async def test_slow_but_steady_body_is_waited_for():
    """More than the rate that is asked for, over a longer time than one pause may take."""
    async with serving(echo, body_timeout=0.6) as server, await server.connect() as stream:
        await stream.send_all(HEAD + b"Content-Length: 8000\r\n\r\n")
        for _ in range(8):
            await trio.sleep(2 * PAUSE)
            await stream.send_all(b"a" * 1000)
        assert (await receive_until(stream, b"a" * 8000)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("sent", [HEAD, HEAD + b"Content-Length: 4\r\n\r\n"], ids=["head", "body"])
async def test_time_in_which_the_server_did_not_run_is_not_counted(sent: bytes, mock_clock):
    """Read late, as after SIGSTOP: deadlines are checked before the bytes that came meanwhile."""
    mock_clock.rate = 1
    limits = dict.fromkeys(("head_timeout", "body_timeout", "connection_idle"), 10)
    async with serving(echo, **limits) as server, await server.connect() as stream:
        await stream.send_all(sent)
        await trio.testing.wait_all_tasks_blocked(0.01)
        mock_clock.jump(30)
        await trio.sleep(0.2)  # a sweep
        await stream.send_all(b"a" * 4 if sent != HEAD else b"Content-Length: 4\r\n\r\naaaa")
        assert (await receive_until(stream, b"aaaa")).startswith(b"HTTP/1.1 200")
