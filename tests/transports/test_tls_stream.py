"""TLS over wires that take and give little at a time, in memory."""

from __future__ import annotations

import ssl

import pytest
import trio
import trio.testing

from mcpmux.config import ClientTls, ServerTls
from mcpmux.errors import TransportClosed
from mcpmux.transports.tls import TlsStream, client_context, server_context

TEXT = bytes(range(256)) * 400


class Way:
    """One direction of a wire: at most `room` bytes are under way, `step` are taken and given at once."""

    def __init__(self, room, step):
        self.data = b""
        self.room = room
        self.step = step
        self.ended = False
        self.news = trio.Event()

    def changed(self):
        self.news.set()
        self.news = trio.Event()


class MemoryWire:
    """A wire like a socket's, out of two ways."""

    def __init__(self, out, back):
        self.out, self.back = out, back
        self.closed = False

    def send_nowait(self, data):
        if self.closed or self.back.ended == "reset":
            raise TransportClosed("closed")
        count = min(len(data), self.out.step, self.out.room - len(self.out.data))
        self.out.data += bytes(data[:count])
        self.out.changed()
        return count

    async def wait_sendable(self):
        while len(self.out.data) >= self.out.room:
            await self.out.news.wait()
        await trio.lowlevel.checkpoint()

    def receive_nowait(self):
        if not self.back.data:
            return b"" if self.back.ended else None
        data, self.back.data = self.back.data[: self.back.step], self.back.data[self.back.step :]
        self.back.changed()
        return data

    async def receive(self):
        while (data := self.receive_nowait()) is None:
            await self.back.news.wait()
        await trio.lowlevel.checkpoint()
        return data

    def is_readable(self):
        return bool(self.back.data) or bool(self.back.ended)

    def is_finished(self):
        return not self.back.data and bool(self.back.ended)

    def send_eof(self):
        self.out.ended = True
        self.out.changed()

    def close(self):
        self.closed = True
        self.send_eof()


def wires(room, step):
    there, back = Way(room, step), Way(room, step)
    return MemoryWire(there, back), MemoryWire(back, there)


async def tls_over(certificates, below, version=ssl.TLSVersion.TLSv1_3):
    """Do the handshake, and return the client's end and the server's end."""
    serving = server_context(ServerTls(certificate=certificates.server_with_key))
    serving.maximum_version = version
    client = TlsStream(
        below[0], client_context(ClientTls(ca=certificates.ca)), "server", server_name="localhost"
    )
    server = TlsStream(below[1], serving, "client")
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.handshake)
            nursery.start_soon(server.handshake)
    return client, server


async def receive_exactly(byte_stream, count):
    data = b""
    while len(data) < count:
        part = await byte_stream.receive()
        assert part
        data += part
    return data


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(("room", "step"), [(10**9, 10**9), (5000, 777), (100_000, 20_000), (4000, 64)])
@pytest.mark.parametrize("layers", [1, 2])
async def test_every_byte_arrives_once_and_in_order_both_ways(
    certificates, autojump_clock, room, step, version, layers
):
    ends = wires(room, step)
    for _ in range(layers):
        ends = await tls_over(certificates, ends, version)
    client, server = ends

    async def check(sender, receiver):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sender.send, TEXT)
            assert await receive_exactly(receiver, len(TEXT)) == TEXT

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(check, client, server)
            nursery.start_soon(check, server, client)


async def test_what_is_not_taken_is_not_counted_as_sent(certificates, autojump_clock):
    client, server = await tls_over(certificates, wires(100_000, 100_000))
    rest = memoryview(TEXT)
    sent = client.send_nowait(rest)
    assert 0 < sent < len(TEXT)
    assert client.send_nowait(rest[sent:]) == 0, "nothing has been read in between"
    rest = rest[sent:]
    received = b""
    with trio.fail_after(60):
        while rest:
            while (part := server.receive_nowait()) is not None:
                received += part
            await client.wait_sendable()
            rest = rest[client.send_nowait(rest) :]
        received += await receive_exactly(server, len(TEXT) - len(received))
    assert received == TEXT


async def test_goodbye_ends_the_stream_at_once(certificates, autojump_clock):
    client, server = await tls_over(certificates, wires(10**9, 10**9))
    await client.send(b"last words")
    client.close()
    assert client._below.closed
    assert not server.is_finished(), "there is something to be read"
    assert await server.receive() == b"last words"
    assert server.is_finished()
    assert server.is_readable()
    assert server.receive_nowait() == b""
    assert await server.receive() == b""
    with pytest.raises(TransportClosed):
        client.send_nowait(b"more")
    client.close()


async def test_end_without_a_goodbye_is_an_end(certificates, autojump_clock):
    client, server = await tls_over(certificates, wires(10**9, 10**9))
    client._below.close()
    assert await server.receive() == b""


async def test_other_direction_goes_on_after_a_goodbye(certificates, autojump_clock):
    client, server = await tls_over(certificates, wires(10**9, 10**9))
    server.send_eof()
    assert await client.receive() == b""
    await client.send(b"still here")
    assert await server.receive() == b"still here"


async def test_forged_bytes_break_the_stream_and_are_told_to_the_sender(certificates, autojump_clock):
    client, server = await tls_over(certificates, wires(10**9, 10**9))
    await client.send(b"one")
    assert await server.receive() == b"one"
    client._below.send_nowait(memoryview(b"\x17\x03\x03\x00\x20" + bytes(32)))
    with pytest.raises(TransportClosed, match="TLS: "):
        await server.receive()
    with pytest.raises(TransportClosed, match="TLS: "):
        server.receive_nowait()
    assert server.is_finished()
    server._below.close()
    with pytest.raises((TransportClosed, Exception), match="bad record mac"):
        await client.receive()


async def test_looking_whether_the_peer_left_takes_nothing_from_who_receives(certificates, autojump_clock):
    client, server = await tls_over(certificates, wires(10**9, 10**9))
    received = []

    async def receive():
        received.append(await server.receive())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        client.send_nowait(b"for the receiver")
        assert not server.is_finished()
        with trio.fail_after(60):
            while not received:
                await trio.lowlevel.checkpoint()
    assert received == [b"for the receiver"]


async def test_looking_whether_the_peer_left_loses_nothing(certificates, autojump_clock):
    client, server = await tls_over(certificates, wires(10**9, 10**9))
    assert not server.is_readable()
    client.send_nowait(b"pipelined")
    assert server.is_readable()
    for _ in range(3):
        assert not server.is_finished()
    assert await server.receive() == b"pipelined"
