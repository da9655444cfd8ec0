"""Open connections that go from one process to another; here both are one."""

from __future__ import annotations

import os
import socket
from contextlib import AsyncExitStack
from functools import partial

import pytest
import trio
import trio.testing

from mcpmux.config import Limits
from mcpmux.errors import TransportClosed
from mcpmux.mux.share import origin_of
from mcpmux.transports.body_budget import BodyBudget
from mcpmux.transports.byte_stream import PlainStream
from mcpmux.transports.handing import (
    NOTE_BYTES,
    ConnectionChannel,
    HandedListener,
    Handing,
    Note,
    connection_channel_pair,
)
from mcpmux.transports.http.message import HttpRequest, RequestParser, encode_requests
from mcpmux.transports.http.server import serve_http
from mcpmux.transports.http.server_connection import HttpReply

NOTE = Note(3, 2, b"GET / HTTP/1.1\r\n", "127.0.0.1:1", "cn:x", open=True)


def connection_channels() -> tuple[ConnectionChannel, ConnectionChannel]:
    left, right = connection_channel_pair()
    return ConnectionChannel(left), ConnectionChannel(right)


def stream_of(sock: socket.socket) -> trio.SocketStream:
    sock.setblocking(False)
    return trio.SocketStream(trio.socket.from_stdlib_socket(sock))


async def test_a_connection_arrives_with_its_note_and_lives_on():
    here, there = connection_channels()
    client, server = socket.socketpair()
    with client:
        with server:
            await here.send(NOTE, server.fileno())
        note, arrived = await there.receive()
        assert note == NOTE
        with arrived:
            assert not os.get_inheritable(arrived.fileno())
            arrived.sendall(b"hello")
            assert client.recv(10) == b"hello"
        assert client.recv(10) == b""
    here.close()
    with pytest.raises(TransportClosed):
        await there.receive()
    with pytest.raises(TransportClosed):
        await there.send(NOTE, 0)
    there.close()


async def test_whoever_takes_nothing_lets_the_sender_wait():
    here, there = connection_channels()
    client, server = socket.socketpair()
    sent = 0
    with client, server:
        while here.send_nowait(Note(sent), server.fileno()):
            sent += 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(here.send, Note(sent), server.fileno())
            for number in range(sent + 1):
                note, arrived = await there.receive()
                arrived.close()
                assert note.listener == number
    here.close()
    there.close()


async def test_a_listener_gives_what_was_put_and_leaves_the_rest_to_whoever_put_it():
    listener = HandedListener()
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


async def test_what_waits_in_a_hatch_can_be_had_without_waiting():
    here, there = connection_channels()
    assert there.receive_nowait() is None
    client, server = socket.socketpair()
    with client, server:
        assert here.send_nowait(NOTE, server.fileno())
        handed = there.receive_nowait()
        assert handed is not None
        assert handed[0] == NOTE
        handed[1].close()
        assert there.receive_nowait() is None
        here.send_nowait(NOTE, server.fileno())
        here.close()
        last = there.receive_nowait()
        assert last is not None
        last[1].close()
    with pytest.raises(TransportClosed):
        there.receive_nowait()
    there.close()


async def test_a_resumed_wire_begins_with_what_came_before():
    client, server = socket.socketpair()
    with client:
        byte_stream = PlainStream(stream_of(server), b"early")
        assert byte_stream.is_readable()
        assert await byte_stream.receive() == b"early"
        assert not byte_stream.is_readable()
        client.sendall(b"late")
        assert await byte_stream.receive() == b"late"
        byte_stream.close()


REQUESTS = [
    HttpRequest("GET", "/mcp", "", {"host": "a"}, b"", "p", http_1_0=False, keep_alive=True),
    HttpRequest("GET", "/mcp", "a=%20b", {"host": "a", "accept": "b, c"}, b"", "p", False, True),
    HttpRequest("POST", "/mcp", "", {"host": "a", "content-length": "3"}, b"abc", "p", False, True),
    HttpRequest("POST", "/mcp", "", {"host": "a", "transfer-encoding": "chunked"}, b"abc", "p", False, True),
    HttpRequest("POST", "/mcp", "", {"host": "a", "content-length": "0"}, b"", "p", False, True),
    HttpRequest(
        "DELETE", "/mcp", "", {"host": "a", "x": "caf\xe9", "connection": "close"}, b"", "p", False, False
    ),
    HttpRequest(
        "POST",
        "/",
        "",
        {"expect": "100-continue", "content-length": "1", "host": "a"},
        b"x",
        "p",
        False,
        True,
    ),
    HttpRequest("GET", "/", "", {"connection": "keep-alive"}, b"", "p", http_1_0=True, keep_alive=True),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda each: f"{each.method} {each.path}")
def test_a_request_that_is_sent_again_is_the_same(request_: HttpRequest):
    parser = RequestParser(Limits(), "p")
    times = 2 if request_.keep_alive else 1
    parser.feed(encode_requests([request_] * times))
    assert parser.refusal is None
    framing = {"content-length", "transfer-encoding", "expect"}
    assert len(parser.requests) == times
    for parsed in parser.requests:
        kept = {name: text for name, text in request_.headers.items() if name not in framing}
        assert {name: text for name, text in parsed.headers.items() if name not in framing} == kept
        assert not parser.wants_continue
        for name in ("method", "path", "query", "body", "http_1_0", "keep_alive"):
            assert getattr(parsed, name) == getattr(request_, name)


@pytest.mark.parametrize("size", [10, NOTE_BYTES, NOTE_BYTES + 1, 10 * NOTE_BYTES])
async def test_everything_that_came_and_comes_reaches_the_other_side(size: int):
    here, there = connection_channels()
    client, server = socket.socketpair()
    data = os.urandom(size)
    _, arrivals = trio.open_memory_channel[tuple[trio.SocketStream, Note]](0)
    handing = Handing(7, arrivals, here.send)
    byte_stream = PlainStream(stream_of(server))
    talking = stream_of(client)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:

            async def give() -> None:
                await handing.pass_on(2, byte_stream, data, "peer", "holder")
                byte_stream.close()

            nursery.start_soon(give)
            note, arrived = await there.receive()
            assert (note.listener, note.worker, note.peer, note.holder, note.open) == (
                7,
                2,
                "peer",
                "holder",
                True,
            )
            resumed = PlainStream(stream_of(arrived), note.data)
            received = b""
            while len(received) < size:
                received += await resumed.receive()
            assert received == data
            await talking.send_all(b"more")
            assert await resumed.receive() == b"more"
            await resumed.send(b"answer")
            assert await talking.receive_some(10) == b"answer"
            resumed.close()
            assert await talking.receive_some(10) == b""
    await talking.aclose()
    here.close()
    there.close()


async def test_a_large_request_that_is_passed_on_counts_no_longer():
    here, there = connection_channels()
    _, arrivals = trio.open_memory_channel[tuple[trio.SocketStream, Note]](0)
    bodies, body = BodyBudget(1), bytes(2 * NOTE_BYTES)
    held: list[int] = []

    async def pass_on(_request: HttpRequest, reply: HttpReply) -> None:
        held.append(bodies.taken)
        reply.pass_on(2)

    serve = partial(serve_http, refuse=lambda *_: ((), b""), stopping=trio.Event(), bodies=bodies)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            handing = Handing(0, arrivals, here.send)
            await nursery.start(partial(serve, handing=handing), listeners, pass_on)
            async with await trio.testing.open_stream_to_socket_listener(listeners[0]) as stream:
                head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
                await stream.send_all(head % len(body) + body)
                _, arrived = await there.receive()
                assert (held, bodies.taken) == ([len(body)], 0)
                arrived.close()
            nursery.cancel_scope.cancel()
    here.close()
    there.close()


async def test_one_address_leaves_an_eighth_of_the_connections_to_others():
    here, there = connection_channels()
    sender, arrivals = trio.open_memory_channel[tuple[trio.SocketStream, Note]](0)

    async def serve_forever(_request: HttpRequest, _reply: HttpReply) -> None:
        await trio.sleep_forever()

    async def arrive(peer: str) -> trio.SocketStream:
        ours, theirs = socket.socketpair()
        await sender.send((stream_of(theirs), Note(0, peer=peer, open=True)))
        client = stream_of(ours)
        await client.send_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        return client

    serve = partial(serve_http, refuse=lambda *told: ((), told[2].encode()), stopping=trio.Event())
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery, AsyncExitStack() as clients:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            handing = Handing(0, arrivals, here.send)
            limits = Limits(max_connections=16)
            await nursery.start(partial(serve, handing=handing, limits=limits), listeners, serve_forever)
            for port in range(14):
                await clients.enter_async_context(await arrive(f"[2001:db8::{port}]:{port}"))
            for port in range(20):
                async with await arrive(f"[2001:db8::{port}]:1{port}") as client:
                    answer = bytes(await client.receive_some())
                    assert answer.startswith(b"HTTP/1.1 429 ")
                    assert answer.endswith(b"limits.max_connections_per_address")
            for peer in ("[2001:db8:0:1::1]:1", "198.51.100.7:1"):
                await clients.enter_async_context(await arrive(peer))
            async with await arrive(
                "198.51.100.8:1"
            ) as client:  # now all have their request, and none is left
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
