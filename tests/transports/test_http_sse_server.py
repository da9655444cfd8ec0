"""The pipe to a client over HTTP+SSE: what it writes, when it waits, and how POSTs are answered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from mcpmux.errors import TransportClosed
from mcpmux.transports.http.message import HttpRequest
from mcpmux.transports.http.reply import HttpReply
from mcpmux.transports.http.sse_streams import SseServerStream, open_sse_server_stream
from mcpmux.transports.send_queue import FLUSH_SECONDS, QUEUE_BYTES
from mcpmux.transports.sse import SseDecoder, SseEvent
from tests import bare_reply

pytestmark = pytest.mark.interpreted  # over a connection made by the test


class ByteStream:
    """Keeps the bytes that the client has received; while `stuck` it does not read."""

    def __init__(self) -> None:
        self.received = b""
        self.flowing = trio.Event()
        self.flowing.set()

    async def send(self, data: bytes) -> None:
        await self.flowing.wait()
        self.received += data

    def stick(self) -> None:
        self.flowing = trio.Event()

    @property
    def body(self) -> bytes:
        """Without the head; the reply is to a client of HTTP/1.0, so there are no chunks in it."""
        return self.received.partition(b"\r\n\r\n")[2]

    @property
    def events(self) -> list[SseEvent]:
        return SseDecoder(1 << 20).feed(self.body)


def reply_on(byte_stream: ByteStream) -> HttpReply:
    request = HttpRequest("GET", "/sse", "", {}, b"", "", http_1_0=True, keep_alive=False)
    return bare_reply.reply_on(byte_stream, request)


@asynccontextmanager
async def open_pipe(byte_stream: ByteStream) -> AsyncIterator[SseServerStream]:
    async with open_sse_server_stream(reply_on(byte_stream), "/sse?s=1") as pipe:
        yield pipe


async def test_the_address_comes_first_and_every_message_is_an_event(autojump_clock):
    byte_stream = ByteStream()
    async with open_pipe(byte_stream) as pipe:
        assert byte_stream.events == [SseEvent("endpoint", b"/sse?s=1", None)]
        assert b"content-type: text/event-stream" in byte_stream.received.lower()
        for number in range(100):
            await pipe.send(b"%d" % number)
        await trio.testing.wait_all_tasks_blocked()
        assert byte_stream.events[1:] == [SseEvent("message", b"%d" % number, None) for number in range(100)]


async def test_a_slow_reader_makes_send_wait_in_bounded_memory(autojump_clock):
    byte_stream = ByteStream()
    async with open_pipe(byte_stream) as pipe, trio.open_nursery() as nursery:
        byte_stream.stick()
        sent = 0

        async def send_all() -> None:
            nonlocal sent
            for _ in range(100):
                await pipe.send(b"x" * 10_000)
                sent += 1

        nursery.start_soon(send_all)
        await trio.testing.wait_all_tasks_blocked()
        assert sent <= 2 * QUEUE_BYTES // 10_000 + 2  # one queue being written, one waiting
        byte_stream.flowing.set()
        await trio.testing.wait_all_tasks_blocked()
        assert sent == 100
        assert len(byte_stream.events) == 101


async def test_a_cancelled_send_that_waited_has_sent_nothing(autojump_clock):
    byte_stream = ByteStream()
    async with open_pipe(byte_stream) as pipe:
        byte_stream.stick()
        await pipe.send(b"x" * QUEUE_BYTES)
        await trio.testing.wait_all_tasks_blocked()
        await pipe.send(b"y" * QUEUE_BYTES)
        with trio.move_on_after(1) as scope:
            await pipe.send(b"z")
        assert scope.cancelled_caught
        byte_stream.flowing.set()
    assert [event.data[:1] for event in byte_stream.events[1:]] == [b"x", b"y"]


async def test_closing_writes_what_is_queued(autojump_clock):
    byte_stream = ByteStream()
    async with open_pipe(byte_stream) as pipe:
        await pipe.send(b"last")
    assert byte_stream.events[-1].data == b"last"
    with pytest.raises(TransportClosed):
        await pipe.send(b"later")
    await pipe.aclose()


async def test_closing_does_not_wait_for_a_client_that_reads_nothing(autojump_clock):
    byte_stream = ByteStream()
    began = trio.current_time()
    async with open_pipe(byte_stream) as pipe:
        byte_stream.stick()
        await pipe.send(b"last")
        await trio.testing.wait_all_tasks_blocked()
    assert trio.current_time() - began == pytest.approx(FLUSH_SECONDS)


async def test_a_post_waits_until_its_message_is_received(autojump_clock):
    async with open_pipe(ByteStream()) as pipe, trio.open_nursery() as nursery:
        taken = trio.Event()

        async def post() -> None:
            await pipe.take(b"1")
            taken.set()

        nursery.start_soon(post)
        await trio.testing.wait_all_tasks_blocked()
        assert not taken.is_set()
        assert await pipe.receive() == b"1"
        await taken.wait()


async def test_when_the_stream_ends_posts_and_the_reader_hear_it(autojump_clock):
    ends = []

    async def end(operation):
        with pytest.raises(TransportClosed, match="stream has ended"):
            await operation
        ends.append(1)

    async with trio.open_nursery() as nursery, open_pipe(ByteStream()) as pipe:
        nursery.start_soon(end, pipe.take(b"1"))
        await trio.testing.wait_all_tasks_blocked()
    assert len(ends) == 1
    await end(pipe.take(b"2"))
    await end(pipe.receive())
