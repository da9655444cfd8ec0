"""Bodies of known length that are larger than one receive: received where they stay, and sent at once."""

import resource
import ssl
from contextlib import suppress

import pytest
import trio

from mcpmux.errors import MessageTooLarge, TransportClosed
from mcpmux.transports.byte_stream import PlainStream
from mcpmux.transports.http.client import ROOM_BYTES, HttpPool
from mcpmux.transports.http.route import HttpOrigin
from tests.transports.test_http_client import (
    OK,
    SHORT,
    Connection,
    answers,
    over_tls,
    read,
    scripted,
    unauthenticated,
)

LARGE = bytes(range(256)) * 4096 * 5  # 5 MiB: more than is made room for at first


def answer(body, length=None):
    return OK + b"Content-Length: %d\r\n\r\n" % (len(body) if length is None else length) + body


@pytest.mark.parametrize("body", [LARGE[:65537], LARGE[: 2**20], LARGE[:ROOM_BYTES], LARGE])
@pytest.mark.parametrize("piece", [1000, 65536, 2**20])
async def test_a_large_body_is_whole_however_it_comes(body, piece):
    if len(body) // piece > 1200:
        body = body[: 1200 * piece]

    async def script(connection):
        for _ in range(2):
            await connection.receive_request()
            data = answer(body)
            for start in range(0, len(data), piece):
                await connection.send(data[start : start + piece])
        await connection.receive_request()
        await connection.send(SHORT)

    async with scripted(script) as pool:
        for expected in (body, body, b"ok"):  # over one connection: the second script would be missing
            assert await read(pool) == expected


@pytest.mark.parametrize("missing", [1, 70_000, len(LARGE) - 1])
async def test_a_large_body_that_is_cut_short_is_an_error(missing):
    async def script(connection):
        await connection.receive_request()
        await connection.send(answer(LARGE[:-missing], len(LARGE)))

    async with scripted(script) as pool:
        with pytest.raises(TransportClosed, match="in the middle"):
            await read(pool)


async def test_a_body_that_says_to_be_too_large_is_not_waited_for():
    async def script(connection):
        await connection.receive_request()
        await connection.send(answer(b"x", 2**40))
        await connection.at_end()

    async with scripted(script) as pool:
        with pytest.raises(MessageTooLarge):
            await read(pool)


async def test_a_promise_costs_little_memory():
    """A length is only said; what has come is what memory is given for."""

    async def script(connection):
        await connection.receive_request()
        await connection.send(answer(b"x" * 100_000, 2**30))
        await connection.stream.send_eof()
        await connection.at_end()

    async with scripted(script, body_bytes=2**31) as pool:
        earlier = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(TransportClosed):
            await read(pool)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - earlier < 64 * 1024  # KiB


async def test_the_few_bytes_behind_a_large_body_are_noticed():
    """Restore the kernel's settings after the body."""

    async def script(connection):
        await connection.receive_request()
        await connection.send(answer(LARGE))
        await connection.send(b"x")  # an unrequested answer: the connection is of no use
        with suppress(trio.BrokenResourceError):
            await connection.at_end()

    async def second(connection):
        await connection.receive_request()
        await connection.send(SHORT)

    async with scripted(script, second) as pool:
        assert await read(pool) == LARGE
        await trio.sleep(0.05)
        assert await read(pool, idempotent=False) == b"ok"


async def test_a_large_body_is_whole_inside_tls():
    async def script(connection):
        stream = trio.SSLStream(connection.stream, unauthenticated(ssl.PROTOCOL_TLS_SERVER), server_side=True)
        await answers(answer(LARGE), SHORT)(Connection(stream))

    async with scripted(script) as plain:
        origin = HttpOrigin(True, "127.0.0.1", plain.origin.port)
        with HttpPool(origin, route=over_tls(origin)) as pool:
            assert await read(pool) == LARGE
            assert await read(pool) == b"ok"


async def test_parts_are_sent_in_order_and_all_of_them():
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    parts: list[bytes | memoryview] = [
        b"head",
        memoryview(LARGE),
        b"",
        *[b"%d," % number for number in range(200)],
    ]
    async with listeners[0]:
        client = PlainStream(await trio.open_tcp_stream("127.0.0.1", port))
        server = await listeners[0].accept()
        received = bytearray()
        async with server, trio.open_nursery() as nursery:

            async def receive():
                async for data in server:
                    received.extend(data)

            nursery.start_soon(receive)
            rest = list(parts)
            while rest:
                sent = client.send_parts_nowait(rest)
                while rest and sent >= len(rest[0]):
                    sent -= len(rest.pop(0))
                if rest:
                    rest[0] = memoryview(rest[0])[sent:]
                    await client.wait_sendable()
            client.close()
    assert received == b"".join(parts)
