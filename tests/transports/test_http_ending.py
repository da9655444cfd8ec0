"""Streams whose reader has all, and only misses their end: their connections are used again."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
import trio
import trio.testing

from mcpmux.transports.http.client import ENDING_SECONDS
from mcpmux.transports.polling import open_readiness_poller
from tests.transports.test_http_client import CHUNKED, OK, SHORT, answers, get, read, scripted

PART = b"3\r\nabc\r\n"
END = b"0\r\n\r\n"


async def read_all_but_the_end(pool):
    response = await pool.send("GET", "/", (), b"", idempotent=True)
    assert await response.receive_some() == b"abc"
    response.release(ends=True)


@pytest.fixture(params=[False, True], ids=["looked for", "received for"])
def watched(request):
    """Serve as `scripted`, perhaps with a reception; only the test ends slow exchanges."""

    @asynccontextmanager
    async def open_pool(*scripts, **limits):
        async with AsyncExitStack() as stack:
            poller = await stack.enter_async_context(open_readiness_poller()) if request.param else None
            pool = await stack.enter_async_context(scripted(*scripts, poller=poller, **limits))
            yield pool

    return open_pool


class Stream:
    """Says everything but the end when asked, and goes on with `rest` when it is `let`."""

    def __init__(self, rest, then=()):
        self.let, self.said, self.closed = trio.Event(), trio.Event(), trio.Event()
        self._rest, self._then = rest, then

    async def __call__(self, connection):
        await connection.receive_request()
        await connection.send(CHUNKED + PART)
        await self.let.wait()
        await connection.send(self._rest)
        self.said.set()
        for response in self._then:
            assert await connection.receive_request()
            await connection.send(response)
        with suppress(trio.BrokenResourceError):  # it has not read all that we said
            assert await connection.at_end()
        self.closed.set()

    async def end(self):
        self.let.set()
        await self.said.wait()
        await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize("rest", [END, b"2\r\nde\r\n" + END])
async def test_connection_whose_stream_has_ended_meanwhile_is_used_again(watched, rest):
    stream = Stream(rest, [SHORT, SHORT])
    async with watched(stream) as pool:
        await read_all_but_the_end(pool)
        await stream.end()
        assert await read(pool) == b"ok"
        assert await read(pool, idempotent=False) == b"ok"


async def test_stream_that_is_over_is_finished_as_it_is_released(watched):
    async def script(connection):
        await connection.receive_request()
        await connection.send(CHUNKED + PART + END)
        await answers(SHORT)(connection)

    async with watched(script) as pool:
        await read_all_but_the_end(pool)
        assert await read(pool) == b"ok"


async def test_nobody_waits_for_the_end_of_another_stream(watched):
    stream = Stream(END, [SHORT])
    async with watched(stream, answers(SHORT)) as pool:
        await read_all_but_the_end(pool)
        async with get(pool) as second:
            assert second.status == 200
            assert await second.read() == b"ok"
            await stream.end()
            assert await read(pool) == b"ok"  # where the stream was: the other one is taken


async def test_connection_whose_stream_breaks_off_is_not_used_again(watched):
    async def script(connection):
        await connection.receive_request()
        await connection.send(CHUNKED + PART)

    async with watched(script, answers(SHORT)) as pool:
        await read_all_but_the_end(pool)
        await trio.testing.wait_all_tasks_blocked()
        assert await read(pool) == b"ok"


async def test_connection_whose_stream_makes_no_sense_is_not_used_again(watched):
    stream = Stream(b"what?\r\n")
    async with watched(stream, answers(SHORT)) as pool:
        await read_all_but_the_end(pool)
        await stream.end()
        assert await read(pool) == b"ok"


@pytest.mark.parametrize(
    "begun",
    [CHUNKED[:-2] + b"Connection: close\r\n\r\n" + PART, OK + b"\r\nabc"],
    ids=["closes", "no length"],
)
async def test_nobody_waits_where_no_other_response_can_follow(watched, begun):
    async def script(connection):
        await connection.receive_request()
        await connection.send(begun)
        assert await connection.at_end()

    async with watched(script, answers(SHORT)) as pool:
        await read_all_but_the_end(pool)
        assert pool._idle == []
        assert await read(pool) == b"ok"


async def test_stream_that_does_not_end_in_time_is_closed(watched):
    stream = Stream(PART)
    async with watched(stream, answers(SHORT)) as pool:
        await read_all_but_the_end(pool)
        pool._idle[0].idle_since -= 2 * ENDING_SECONDS
        assert await read(pool) == b"ok"
        stream.let.set()
        await stream.closed.wait()


async def test_streams_that_end_count_as_connections(watched):
    first = Stream(PART)
    async with watched(first, answers(SHORT), connections=1) as pool:
        await read_all_but_the_end(pool)
        assert await read(pool) == b"ok"
        first.let.set()
        await first.closed.wait()


async def test_streams_that_end_are_as_few_as_idle_connections(watched):
    first, second = Stream(PART), Stream(END, [SHORT])
    async with watched(first, second, idle=1) as pool:
        await read_all_but_the_end(pool)
        await read_all_but_the_end(pool)
        await first.end()
        await first.closed.wait()
        await second.end()
        assert await read(pool) == b"ok"


async def test_closed_pool_keeps_no_stream(watched):
    stream, late = Stream(PART), Stream(PART)
    async with watched(stream, late) as pool:
        await read_all_but_the_end(pool)
        response = await pool.send("GET", "/", (), b"", idempotent=True)
        assert await response.receive_some() == b"abc"
        pool.close()
        response.release(ends=True)
        for part in (stream, late):
            await part.end()
            await part.closed.wait()
