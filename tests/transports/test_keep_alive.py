from __future__ import annotations

import socket

import trio

from mcpmux.transports.byte_stream import KEEP_ALIVE, connect
from mcpmux.transports.stream import open_tcp


def options_of(sock: socket.socket) -> dict[str, int]:
    options = {name: sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in KEEP_ALIVE}
    return options | {"on": sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)}


async def test_the_kernel_watches_every_connection_to_a_server():
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    async with listeners[0]:
        byte_stream = await connect("127.0.0.1", port)
        stream = await open_tcp("127.0.0.1", port, None)
        async with stream:
            assert options_of(byte_stream._socket) == KEEP_ALIVE | {"on": 1}
            assert options_of(stream.socket) == KEEP_ALIVE | {"on": 1}
        byte_stream.close()
