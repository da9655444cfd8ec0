"""The pipe to a server over HTTP+SSE, in front of a scripted web server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from mcpmux.errors import MessageTooLarge, RemoteProtocolError, TransportClosed, TransportError
from mcpmux.transports.http import sse_streams
from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.http.route import HttpOrigin
from mcpmux.transports.http.sse_streams import NoEventStream, SseClientStream, open_sse_client_stream
from tests.peers.http_server import open_http

STREAM = (("Content-Type", "text/event-stream"),)
ENDPOINT = b"event: endpoint\ndata: /in?s=1\n\n"
LIMIT = 1000
SECRET = ("Authorization", "Bearer secret")

Script = Callable[[Any, Any], Awaitable[None]]


class Server:
    """Opens a stream with `stream` in it, and answers POSTs with `status`; `posts` are (target, body)."""

    def __init__(self, stream: bytes = ENDPOINT, status: int = 202) -> None:
        self.stream = stream
        self.status = status
        self.posts: list[tuple[str, bytes]] = []
        self.headers: list[dict[str, str]] = []
        self.say, self._said = trio.open_memory_channel[bytes](10)
        self.answers = trio.Event()
        self.answers.set()
        self.left = trio.Event()

    async def handle(self, request: Any, reply: Any) -> None:
        self.headers.append(request.headers)
        if request.method == "POST":
            self.posts.append((f"{request.path}?{request.query}", request.body))
            await self.answers.wait()
            await reply.send(self.status, (), b"" if self.status < 300 else b"<p>no\n such thing</p>")
            return
        await reply.open(200, STREAM, self.stream)
        try:
            async for data in self._said:
                await reply.write(data)
        finally:
            self.left.set()


@asynccontextmanager
async def open_url(handle: Script) -> AsyncIterator[str]:
    async with open_http(handle) as port:
        with trio.fail_after(60):
            yield f"http://127.0.0.1:{port}/base/sse"


@asynccontextmanager
async def open_pipe(handle: Script, patience: float = 5) -> AsyncIterator[SseClientStream]:
    async with open_url(handle) as url:
        with HttpPool(HttpOrigin.from_url(url)) as pool:
            async with open_sse_client_stream(pool, url, (SECRET,), LIMIT, patience) as pipe:
                yield pipe


async def posted(server: Server, number: int) -> None:
    """Wait for that many messages; the last may be on its way on a busy machine."""
    with trio.fail_after(60):
        while len(server.posts) < number:  # noqa: ASYNC110 - there is no event for it
            await trio.sleep(0.01)


async def test_messages_go_out_in_order_to_the_address_that_was_named():
    server = Server()
    async with open_pipe(server.handle) as pipe:
        for number in range(20):
            await pipe.send(b"%d" % number)
        assert server.posts == [("/in?s=1", b"%d" % number) for number in range(20)]
        assert all(headers["authorization"] == "Bearer secret" for headers in server.headers)
        assert {headers.get("content-type") for headers in server.headers[1:]} == {"application/json"}
        assert server.headers[0]["accept"] == "text/event-stream"


async def test_messages_come_in_however_the_stream_is_cut():
    server = Server()
    async with open_pipe(server.handle) as pipe:
        for part in (
            b"event: mes",
            b'sage\ndata: {"a"',
            b":1}\n\ndata: 2\n",
            b"\n: comment\n\nevent: ping\n",
        ):
            await server.say.send(part)
        await server.say.send(b"data: 3\n\ndata:\n\ndata: 4\n\n")
        assert [await pipe.receive() for _ in range(3)] == [b'{"a":1}', b"2", b"4"]


async def test_an_oversized_event_costs_only_itself():
    server = Server(ENDPOINT + b"data: " + b"x" * (LIMIT + 1) + b"\n\ndata: 1\n\n")
    async with open_pipe(server.handle) as pipe:
        with pytest.raises(MessageTooLarge):
            await pipe.receive()
        assert await pipe.receive() == b"1"


async def test_a_stream_that_ends_within_an_event_has_no_half_message():
    server = Server(ENDPOINT + b'data: 1\n\ndata: {"half":')
    async with open_pipe(server.handle) as pipe:
        server.say.close()
        assert await pipe.receive() == b"1"
        for _ in range(2):
            with pytest.raises(TransportClosed, match="stream has ended"):
                await pipe.receive()
        with pytest.raises(TransportClosed, match="stream has ended"):
            await pipe.send(b"2")
    assert server.posts == []


async def test_leaving_closes_the_stream():
    server = Server()
    async with open_url(server.handle) as url:
        with HttpPool(HttpOrigin.from_url(url)) as pool:
            async with open_sse_client_stream(pool, url, (), LIMIT, 5):
                assert not server.left.is_set()
            await server.left.wait()


@pytest.mark.parametrize("status", [400, 401, 413, 500, 503, 302])
async def test_a_refused_message_is_told_to_its_sender_alone(status, monkeypatch):
    monkeypatch.setattr(sse_streams, "ACCEPT_SECONDS", 30.0)  # the machine may be busy
    server = Server(status=status)
    async with open_pipe(server.handle) as pipe:
        with pytest.raises(TransportError, match=f"HTTP status {status}$") as caught:
            await pipe.send(b"1")
        assert caught.value.in_full.startswith(f"{caught.value}: <p>no such thing")
        assert not isinstance(caught.value, TransportClosed)
        server.status = 200
        await pipe.send(b"2")
        await server.say.send(b"data: 3\n\n")
        assert await pipe.receive() == b"3"


@pytest.mark.parametrize("status", [404, 410])
async def test_a_forgotten_session_ends_the_pipe(status, monkeypatch):
    monkeypatch.setattr(sse_streams, "ACCEPT_SECONDS", 30.0)  # the machine may be busy
    server = Server(status=status)
    async with open_pipe(server.handle) as pipe, trio.open_nursery() as nursery:

        async def receive() -> None:
            with pytest.raises(TransportClosed, match="forgotten the session"):
                await pipe.receive()

        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(TransportClosed, match="forgotten the session"):
            await pipe.send(b"1")


async def test_a_server_that_answers_late_does_not_hold_up_the_sender(monkeypatch):
    monkeypatch.setattr(sse_streams, "ACCEPT_SECONDS", 0.05)
    server = Server()
    server.answers = trio.Event()
    async with open_pipe(server.handle) as pipe:
        await pipe.send(b"1")
        await pipe.send(b"2")
        await posted(server, 2)
        assert [body for _, body in server.posts] == [b"1", b"2"]
        server.answers.set()


async def test_senders_wait_when_too_many_posts_are_unanswered(monkeypatch):
    monkeypatch.setattr(sse_streams, "ACCEPT_SECONDS", 0.01)
    monkeypatch.setattr(sse_streams, "POSTS_AT_ONCE", 3)
    server = Server()
    server.answers = trio.Event()
    async with open_pipe(server.handle) as pipe:
        for _ in range(3):
            await pipe.send(b"x")
        with trio.move_on_after(0.2) as scope:
            await pipe.send(b"y")
        assert scope.cancelled_caught
        server.answers.set()
        await pipe.send(b"z")
        await posted(server, 4)
        assert [body for _, body in server.posts] == [b"x", b"x", b"x", b"z"]


async def test_a_cancelled_send_has_sent_the_whole_message():
    server = Server()
    server.answers = trio.Event()
    async with open_pipe(server.handle) as pipe:
        with trio.CancelScope() as scope:
            scope.cancel()
            await pipe.send(b"never started")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pipe.send, b"x" * 100_000)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        server.answers.set()
        await pipe.send(b"after")
        assert sorted(len(body) for _, body in server.posts) == [5, 100_000]


async def test_leaving_does_not_wait_for_a_server_that_never_answers(monkeypatch):
    monkeypatch.setattr(sse_streams, "ACCEPT_SECONDS", 0.01)
    monkeypatch.setattr(sse_streams, "FLUSH_SECONDS", 0.1)
    server = Server()
    server.answers = trio.Event()
    async with open_pipe(server.handle) as pipe:
        await pipe.send(b"1")


async def answer(status: int, kind: str, body: bytes, _request: Any, reply: Any) -> None:
    await reply.send(status, (("Content-Type", kind),), body)


@pytest.mark.parametrize(
    ("status", "kind", "body", "words"),
    [
        (404, "text/html", b"", "HTTP status 404"),
        (500, "text/event-stream", ENDPOINT, "HTTP status 500"),
        (200, "text/html", ENDPOINT, "another Content-Type"),
        (200, "text/event-stream", b"", "stream has ended"),
        (200, "text/event-stream", b"event: endpoint\ndata: /in", "stream has ended"),
        (200, "text/event-stream", b"data: {}\n\n", "no `endpoint` event came"),
        (
            200,
            "text/event-stream",
            b"event: endpoint\ndata: /" + b"x" * LIMIT + b"\n\n",
            "no `endpoint` event",
        ),
    ],
)
async def test_what_is_no_such_server_is_told_from_it(status, kind, body, words):
    with pytest.RaisesGroup(pytest.RaisesExc(NoEventStream, match=words)):
        async with open_pipe(partial(answer, status, kind, body)):
            raise AssertionError


@pytest.mark.parametrize(
    ("address", "words"), [(b"http://127.0.0.1:1/in", "another origin"), (b"no address", "no usable URI")]
)
async def test_an_address_that_is_not_to_be_used_is_not_used(address, words):
    server = Server(b"event: endpoint\ndata: " + address + b"\n\n")
    with pytest.RaisesGroup(pytest.RaisesExc(RemoteProtocolError, match=words)):
        async with open_pipe(server.handle):
            raise AssertionError
    assert server.posts == []


@pytest.mark.parametrize("before", [b"event: ping\ndata: 1\n\n", b'data: {"jsonrpc":"2.0","method":"a"}\n\n'])
async def test_events_before_the_address_are_skipped(before):
    server = Server(before * 3 + ENDPOINT)
    async with open_pipe(server.handle) as pipe:
        await pipe.send(b"{}")
    assert [body for _, body in server.posts] == [b"{}"]


async def test_a_stream_that_stays_silent_is_given_up():
    with pytest.RaisesGroup(pytest.RaisesExc(NoEventStream, match="within 0.1 s")):
        async with open_pipe(Server(b": hello\n\n").handle, 0.1):
            raise AssertionError
