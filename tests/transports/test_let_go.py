"""Received and queued bytes of a connection go when they are not needed, not when the collector comes."""

from __future__ import annotations

import gc
import socket
import struct
import sys
import weakref
from collections.abc import Iterator

import pytest
import trio

from mcpmux.transports.http.request_parser import RequestParser
from tests.transports.test_http_server import GET, TEXT, receive_until, serving

pytestmark = pytest.mark.usefixtures("received")

SIZE = 8 * 2**20  # more than the kernel takes
RESET = struct.pack("ii", 1, 0)
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


class Body(bytearray):
    """Can be referred to weakly."""


@pytest.fixture(autouse=True)
def _without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def until(true) -> None:
    with trio.fail_after(30):
        while not true():  # noqa: ASYNC110  # there is no event for free memory
            await trio.sleep(0.02)


def parsers() -> int:
    return sum(isinstance(candidate, RequestParser) for candidate in gc.get_objects())


@pytest.mark.parametrize("how", ["it stalls", "it resets"])
async def test_an_answer_that_is_cut_off_goes_with_its_connection(how: str):
    sent: list[weakref.ref[Body]] = []

    async def answer(_request, reply) -> None:
        body = Body(SIZE)
        sent.append(weakref.ref(body))
        await reply.send_parts(200, TEXT, [memoryview(body)])

    async with serving(answer, client_stall=0.2) as server:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", server.port))
            client.sendall(GET)
            await until(lambda: sent)
            if how == "it resets":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                client.close()
            await until(lambda: sent[0]() is None)


async def test_a_request_is_not_kept_while_its_connection_waits_for_the_next():
    bodies: list[bytes] = []

    async def answer(request, reply) -> None:
        bodies.append(request.body)
        await reply.send(200, TEXT, b"done")

    async with serving(answer) as server, await server.connect() as client:
        await client.send_all(POST % SIZE + bytes(SIZE))
        await receive_until(client, b"done")
        await until(lambda: sys.getrefcount(bodies[0]) == 2)  # that list, and the question itself


async def test_the_pieces_of_a_body_are_not_kept_beside_it():
    sizes: list[int] = []

    def held() -> int:
        lists = [candidate for candidate in gc.get_objects() if type(candidate) is list]
        return sum(len(part) for items in lists for part in items if type(part) in (bytes, bytearray))

    async def answer(_request, reply) -> None:
        sizes.append(held())
        await reply.send(200, TEXT, b"done")

    async with serving(answer) as server, await server.connect() as client:
        earlier = held()
        await client.send_all(POST % SIZE + bytes(SIZE))
        await receive_until(client, b"done")
    assert sizes[0] - earlier < SIZE / 2


async def test_half_a_request_goes_with_its_connection():
    async def answer(_request, reply) -> None:
        await reply.send(200, TEXT, b"done")

    async with serving(answer) as server:
        count = parsers()
        async with await server.connect() as client:
            await client.send_all(POST % SIZE + bytes(SIZE // 2))
            await until(lambda: parsers() > count)
        await until(lambda: parsers() == count)
