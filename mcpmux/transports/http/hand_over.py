"""One HTTP connection goes to another process, with the request that nobody here answers in front.

Promises: the other process receives exactly the bytes that a client would have sent for what is not answered
yet. A plain connection goes there itself. For TLS, and for what is too long for a note, it gets one end of a
socket pair, and we carry bytes between the other end and the client until either is at its end.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from contextlib import suppress

import trio

from mcpmux.errors import TransportClosed
from mcpmux.transports.byte_stream import PlainStream
from mcpmux.transports.handing import NOTE_BYTES, Handing
from mcpmux.transports.http.message import HttpRequest
from mcpmux.transports.tls import ByteStream

_REMADE = frozenset({"content-length", "transfer-encoding", "expect"})


def encode_requests(requests: Iterable[HttpRequest]) -> bytes:
    """Complete requests as they can be sent again: framed by their length, repeated fields joined."""
    return b"".join(_encode(request) for request in requests)


def _encode(request: HttpRequest) -> bytes:
    target = f"{request.path}?{request.query}" if request.query else request.path
    lines = [f"{request.method} {target} HTTP/{'1.0' if request.http_1_0 else '1.1'}"]
    lines += [f"{name}: {value}" for name, value in request.headers.items() if name not in _REMADE]
    if request.body or not _REMADE.isdisjoint(request.headers):
        lines.append(f"content-length: {len(request.body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + request.body


async def hand_over(
    handing: Handing, worker: int, byte_stream: ByteStream, data: bytes, peer: str, holder: str
) -> None:
    """Have `worker` go on with a connection. Raises TransportClosed; the stream stays the caller's."""
    if isinstance(byte_stream, PlainStream) and len(data) <= NOTE_BYTES:
        await handing.pass_on(worker, byte_stream.socket, data, peer, holder)
        return
    ours, theirs = socket.socketpair()
    with theirs:
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        try:
            await handing.pass_on(worker, theirs, b"", peer, holder)
        except BaseException:
            stream.socket.close()
            raise
    await _carry(byte_stream, PlainStream(stream), data)


async def give_back(handing: Handing | None, byte_stream: ByteStream, peer: str, holder: str) -> None:
    """We stop while others go on: a client that is about to ask something shall not notice."""
    if handing is not None and isinstance(byte_stream, PlainStream):
        with suppress(TransportClosed):
            await handing.pass_on(0, byte_stream.socket, b"", peer, holder)


async def _carry(client: ByteStream, other: PlainStream, data: bytes) -> None:
    """Bytes both ways, `data` first, until the other process or the client has closed."""
    try:
        async with trio.open_nursery() as nursery:

            async def to_other() -> None:
                part = data
                try:
                    while part:
                        await other.send(part)
                        part = await client.receive()
                    other.send_eof()
                except TransportClosed:
                    nursery.cancel_scope.cancel(reason="one side is closed")

            nursery.start_soon(to_other)
            try:
                while part := await other.receive():
                    await client.send(part)
            except TransportClosed:
                pass
            nursery.cancel_scope.cancel(reason="the other process has closed")
    finally:
        other.close()
