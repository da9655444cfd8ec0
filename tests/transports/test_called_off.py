"""A request that is called off ends its handler, and not its connection."""

from __future__ import annotations

import pytest
import trio

from tests.transports.test_http_server import GET, TEXT, receive_all, receive_until, serving, without_date

pytestmark = pytest.mark.usefixtures("received")

NEXT = b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n"
NOTHING = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
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


@pytest.mark.parametrize("pipelined", [False, True])
async def test_the_client_hears_nothing_and_its_next_request_is_answered(pipelined):
    steps = Steps(wait)
    async with serving(steps.handle) as server, await server.connect() as stream:
        await stream.send_all(GET + NEXT if pipelined else GET)
        await steps.call_off()
        if not pipelined:
            assert without_date(await receive_until(stream, b"\r\n\r\n")) == NOTHING
            await stream.send_all(NEXT)
        data = await receive_until(stream, b"\r\n\r\n/next")
        assert data.count(b"HTTP/1.1 202 ") == pipelined


async def test_a_stream_that_has_begun_comes_to_its_end():
    async def begin(reply):
        await reply.open(200, TEXT, b"one")
        await trio.sleep_forever()

    steps = Steps(begin)
    async with serving(steps.handle) as server, await server.connect() as stream:
        await stream.send_all(GET)
        await steps.call_off()
        data = await receive_until(stream, b"\r\n\r\n3\r\none\r\n0\r\n\r\n")
        assert b" 202 " not in data
        await stream.send_all(NEXT)
        await receive_until(stream, b"\r\n\r\n/next")


async def test_called_off_too_late_it_is_answered():
    async def answer(reply):
        await reply.send(200, TEXT, b"done")
        reply.call_off("taken back")  # and no checkpoint comes before the handler is over

    steps = Steps(answer)
    async with serving(steps.handle) as server, await server.connect() as stream:
        for _ in range(2):
            await stream.send_all(GET)
            await receive_until(stream, b"\r\n\r\ndone")


SLOW = b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"


class Late(Steps):
    """`/a` is called off when its handler is about to go on, and does go on. `/slow` takes a checkpoint."""

    def __init__(self):
        super().__init__(self._answer)
        self._go = trio.Event()

    async def _answer(self, reply):
        await self._go.wait()
        await reply.send(200, TEXT, b"done")

    async def handle(self, request, reply):
        if request.path == "/slow":
            await trio.lowlevel.checkpoint()
        await super().handle(request, reply)

    async def call_off(self):
        await self.begun.wait()
        self._go.set()
        self.replies[0].call_off("taken back")
        await self.ended.wait()


async def test_what_is_called_off_too_late_hurts_no_request_behind_it():
    steps = Late()
    async with serving(steps.handle) as server, await server.connect() as stream:
        await stream.send_all(GET + SLOW)
        await steps.call_off()
        data = await receive_until(stream, b"\r\n\r\n/slow")
        assert b" 202 " not in data


async def test_a_connection_due_to_end_ends_after_a_late_cancellation():
    steps = Late()
    async with serving(steps.handle) as server, await server.connect() as stream:
        await stream.send_all(GET[:-2] + b"Connection: close\r\n\r\n")
        await steps.call_off()
        with trio.fail_after(60):  # less than an idle connection may last
            assert (await receive_all(stream)).endswith(b"\r\n\r\ndone")


async def test_half_an_answer_is_sent_whole():
    async def answer(reply):
        await reply.open(200, TEXT, bytes(LARGE))
        await trio.sleep_forever()

    steps = Steps(answer)
    async with serving(steps.handle) as server, await server.connect() as stream:
        await stream.send_all(GET)
        await steps.call_off()
        data = await receive_until(stream, b"0\r\n\r\n")
        assert data.count(b"\0") == LARGE


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


async def test_a_client_that_leaves_meanwhile_is_no_trouble():
    steps = Steps(wait)
    async with serving(steps.handle) as server:
        async with await server.connect() as stream:
            await stream.send_all(GET)
            await steps.begun.wait()
        await steps.call_off()
        async with await server.connect() as stream:
            await stream.send_all(NEXT)
            await receive_until(stream, b"\r\n\r\n/next")
