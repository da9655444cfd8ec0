"""Open connections that go from one process to another; here both are one."""

from __future__ import annotations

import os
import socket
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, cast

import pytest
import trio
import trio.testing

from mcpmux.config import Limits
from mcpmux.errors import TransportClosed
from mcpmux.mux.share import origin_of
from mcpmux.transports.handing import ConnectionChannel, HandedListener, connection_channel_pair
from mcpmux.transports.http.message import HttpRequest
from mcpmux.transports.http.reply import HttpReply
from mcpmux.transports.http.server import serve_http

NUMBER = 300
"""Of a listener."""


def connection_channels() -> tuple[ConnectionChannel, ConnectionChannel]:
    left, right = connection_channel_pair()
    return ConnectionChannel(left), ConnectionChannel(right)


def stream_of(sock: socket.socket) -> trio.SocketStream:
    sock.setblocking(False)
    return trio.SocketStream(trio.socket.from_stdlib_socket(sock))


async def test_a_connection_arrives_with_the_number_of_its_listener_and_lives_on():
    here, there = connection_channels()
    client, server = socket.socketpair()
    with client:
        with server:
            await here.send(NUMBER, server.fileno())
        number, arrived = await there.receive()
        assert number == NUMBER
        with arrived:
            assert not os.get_inheritable(arrived.fileno())
            arrived.sendall(b"hello")
            assert client.recv(10) == b"hello"
        assert client.recv(10) == b""
    here.close()
    with pytest.raises(TransportClosed):
        await there.receive()
    with pytest.raises(TransportClosed):
        await there.send(NUMBER, 0)
    there.close()


async def test_whoever_takes_nothing_lets_the_sender_wait():
    here, there = connection_channels()
    client, server = socket.socketpair()
    sent = 0
    with client, server:
        while here.send_nowait(sent, server.fileno()):
            sent += 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(here.send, sent, server.fileno())
            for number in range(sent + 1):
                listener, arrived = await there.receive()
                arrived.close()
                assert listener == number
    here.close()
    there.close()


async def test_a_listener_gives_its_sockets_and_leaves_the_rest():
    here, there = connection_channels()
    listener = HandedListener(NUMBER, there)
    pairs = [socket.socketpair() for _ in range(3)]
    streams = [stream_of(server) for _, server in pairs]
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            taken: list[bool] = []

            async def put(stream: trio.SocketStream) -> None:
                taken.append(await listener.put(stream))

            nursery.start_soon(put, streams[0])
            assert await listener.accept() is streams[0]
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(put, streams[1])
            await trio.testing.wait_all_tasks_blocked()
            await listener.aclose()
        assert not await listener.put(streams[2])
        assert taken == [True, False]
        with pytest.raises(trio.ClosedResourceError):
            await listener.accept()
        for (client, _), stream in zip(pairs, streams, strict=True):
            with client:
                client.sendall(b"alive")
                assert await stream.receive_some(10) == b"alive"
                await stream.aclose()
    here.close()
    there.close()


async def test_a_side_that_sends_no_more_receives_and_loses_nothing():
    here, there = connection_channels()
    client, server = socket.socketpair()
    with client, server:
        await here.send(NUMBER, server.fileno())
        for _ in range(2):
            here.end()
        _, arrived = await there.receive()
        with arrived:
            await there.send(NUMBER, arrived.fileno())
        with pytest.raises(TransportClosed):
            await there.receive()
        with pytest.raises(TransportClosed):
            here.send_nowait(NUMBER, server.fileno())
        _, returned = await here.receive()
        returned.close()
    for end in (here, there):
        end.close()


async def test_idle_connections_are_given_back_as_new_ones_when_a_server_stops():
    here, there = connection_channels()
    handed, stopping = HandedListener(NUMBER, there), trio.Event()

    async def answer(_request: HttpRequest, reply: HttpReply) -> None:
        await reply.send(204, ())

    serve = partial(serve_http, refuse=lambda *_: ((), b""), stopping=stopping, give_back=handed.give_back)
    request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, [handed], answer)
            clients = []
            for sent in (request, b"", request[:9]):
                ours, theirs = socket.socketpair()
                client = stream_of(ours)
                clients.append(client)
                assert await handed.put(stream_of(theirs))
                await client.send_all(sent)
            assert (await clients[0].receive_some()).startswith(b"HTTP/1.1 204 ")
            await trio.testing.wait_all_tasks_blocked()
            stopping.set()
            await trio.testing.wait_all_tasks_blocked()
            await clients[2].send_all(request[9:])  # it has begun, and is answered here
            assert b"Connection: close" in await clients[2].receive_some()
            for _ in range(2):
                number, arrived = await here.receive()
                assert number == NUMBER
                async with stream_of(arrived) as stream:
                    await stream.send_all(b"still there")
            assert [await client.receive_some() for client in clients[:2]] == [b"still there"] * 2
    for client in clients:
        await client.aclose()
    here.close()
    there.close()


class SocketFrom:
    """A socket whose other end is elsewhere."""

    def __init__(self, sock: trio.socket.SocketType, peer: tuple[str, int]) -> None:
        self._sock, self._peer = sock, peer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def getpeername(self) -> tuple[str, int]:
        return self._peer


async def test_one_address_leaves_an_eighth_of_the_connections_to_others():
    here, there = connection_channels()
    handed = HandedListener(NUMBER, there)

    async def serve_forever(_request: HttpRequest, _reply: HttpReply) -> None:
        await trio.sleep_forever()

    async def arrive(*peer: Any) -> trio.SocketStream:
        ours, theirs = socket.socketpair()
        stream = stream_of(theirs)
        stream.socket = cast("trio.socket.SocketType", SocketFrom(stream.socket, peer))
        assert await handed.put(stream)
        client = stream_of(ours)
        await client.send_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        return client

    serve = partial(serve_http, refuse=lambda *told: ((), told[2].encode()), stopping=trio.Event())
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery, AsyncExitStack() as clients:
            limits = Limits(max_connections=16)
            await nursery.start(partial(serve, limits=limits), [handed], serve_forever)
            for port in range(14):
                await clients.enter_async_context(await arrive(f"2001:db8::{port}", port))
            for port in range(20):
                async with await arrive(f"2001:db8::{port}", port) as client:
                    answer = bytes(await client.receive_some())
                    assert answer.startswith(b"HTTP/1.1 429 ")
                    assert answer.endswith(b"limits.max_connections_per_address")
            for peer in ("2001:db8:0:1::1", "198.51.100.7"):
                await clients.enter_async_context(await arrive(peer, 1))
            async with await arrive("198.51.100.8", 1) as client:  # all have their request, and none is left
                assert bytes(await client.receive_some()).startswith(b"HTTP/1.1 503 ")
            nursery.cancel_scope.cancel()
    here.close()
    there.close()


@pytest.mark.parametrize(
    ("peer", "origin"),
    [
        ("198.51.100.7:1", "198.51.100.7"),
        ("[::ffff:198.51.100.7]:1", "198.51.100.7"),
        ("[2001:db8::1]:1", "2001:db8::/64"),
        ("[fe80::1%eth0]:1", "fe80::/64"),
        ("127.0.0.1:1", ""),
        ("[::1]:1", ""),
        ("[::ffff:127.0.0.1]:1", ""),
        ("unknown", ""),
    ],
)
def test_an_address_is_what_one_client_cannot_change(peer: str, origin: str):
    assert origin_of(peer) == origin
