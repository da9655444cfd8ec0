"""A request that is called off ends its handler, and not its connection."""

from __future__ import annotations

import pytest
import trio

from tests.transports.test_http_server import GET, TEXT, receive_all, receive_until, serving

pytestmark = pytest.mark.usefixtures("received")

NEXT = b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = 8 * 2**20  # more than two sockets hold


class Steps:
    """A handler whose requests to `/a` do `work`, and can be called off."""

    def __init__(self, work):
        self.work = work
        self.replies = []
        self.begun = trio.Event()
        self.ended = trio.Event()

    async def handle(self, request, reply):
        if request.path != "/a":
            await reply.send(200, TEXT, request.path.encode())
            return
        self.replies.append(reply)
        self.begun.set()
        try:
            await self.work(reply)
        finally:
            self.ended.set()

    async def call_off(self):
        await self.begun.wait()
        self.replies[0].call_off("taken back")
        await self.ended.wait()


async def wait(_reply):
    await trio.sleep_forever()


async def test_half_an_answer_is_sent_whole_though_the_server_stops():
    async def answer(reply):
        await reply.open(200, TEXT, bytes(LARGE))
        await trio.sleep_forever()

    steps = Steps(answer)
    async with serving(steps.handle) as server, await server.connect() as stream:
        await stream.send_all(GET)
        await steps.call_off()
        async with await server.connect() as idle:
            server.stopping.set()
            assert await receive_all(idle) == b""  # connections are looked after now
        assert (await receive_until(stream, b"0\r\n\r\n")).count(b"\0") == LARGE


async def test_half_an_answer_in_parts_ends_the_connection():
    steps = Steps(lambda reply: reply.send(200, TEXT, bytes(LARGE)))
    async with serving(steps.handle) as server, await server.connect() as stream:
        await stream.send_all(GET + NEXT)
        await steps.call_off()
        data = await receive_all(stream)
        assert data.count(b"\0") < LARGE
        assert b"/next" not in data


async def test_the_last_request_of_a_connection():
    steps = Steps(wait)
    async with serving(steps.handle) as server, await server.connect() as stream:
        await stream.send_all(GET[:-2] + b"Connection: close\r\n\r\n")
        await steps.call_off()
        assert (await receive_all(stream)).startswith(b"HTTP/1.1 202 Accepted\r\nConnection: close\r\n")
