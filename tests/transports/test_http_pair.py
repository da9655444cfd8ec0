"""The client and the server against each other."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
import trio

from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.http.route import HttpOrigin
from mcpmux.transports.http.server import serve_http
from mcpmux.transports.sse import SseDecoder, encode_event
from tests.http_request import requested

LARGE = bytes(range(256)) * 8192  # 2 MiB


@asynccontextmanager
async def pair(handler):
    async def serve(task_status):
        await serve_http(
            listeners,
            handler,
            refuse=lambda *_: ((), b""),
            stopping=trio.Event(),
            task_status=task_status,
        )

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    origin = HttpOrigin(False, "127.0.0.1", listeners[0].socket.getsockname()[1])
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(serve)
            with HttpPool(origin) as pool:
                yield pool
            nursery.cancel_scope.cancel()


async def echo(request, reply):
    await reply.send(200, (("Content-Type", "text/plain"),), request.body)


async def echo_in_pieces(request, reply):
    await reply.open(200, ())
    for start in range(0, len(request.body), 100_000):
        await reply.write(request.body[start : start + 100_000])


@pytest.mark.parametrize("handler", [echo, echo_in_pieces])
async def test_large_bodies_travel_both_ways(handler):
    async with pair(handler) as pool:
        for _ in range(2):
            async with requested(pool, "POST", "/", (), LARGE, idempotent=False) as response:
                assert await response.read() == LARGE


async def test_many_requests_at_once_get_their_own_answers():
    async def ask(pool, number):
        for turn in range(5):
            body = f"{number} {turn}".encode()
            async with requested(pool, "POST", "/", (), body, idempotent=False) as response:
                assert await response.read() == body

    async with pair(echo) as pool, trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(ask, pool, number)


async def test_events_arrive_one_by_one():
    heard = trio.Event()

    async def tell(_request, reply):
        await reply.open(200, (("Content-Type", "text/event-stream"),), encode_event(b"1"))
        await heard.wait()
        await reply.finish(encode_event(b"2"))

    async with pair(tell) as pool, requested(pool, "GET", "/", (), b"", idempotent=True) as response:
        decoder = SseDecoder(1000)
        seen = []
        while chunk := await response.receive_some():
            seen += [event.data for event in decoder.feed(chunk)]
            heard.set()
        assert seen == [b"1", b"2"]


async def test_leaving_the_response_cancels_the_handler():
    cancelled = trio.Event()

    async def wait(_request, reply):
        await reply.open(200, (), b"begun")
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    async with pair(wait) as pool:
        async with requested(pool, "GET", "/", (), b"", idempotent=True) as response:
            assert await response.receive_some() == b"begun"
        await cancelled.wait()
