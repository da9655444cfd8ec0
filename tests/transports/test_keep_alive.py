from __future__ import annotations

import trio

from mcpmux.transports.byte_stream import KEEP_ALIVE, connect
from mcpmux.transports.stream import open_tcp


def options_of(sock):
    return [(level, option, sock.getsockopt(level, option)) for level, option, _ in KEEP_ALIVE]


async def test_the_kernel_watches_every_connection_to_a_server():
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    async with listeners[0]:
        byte_stream = await connect("127.0.0.1", port)
        stream = await open_tcp("127.0.0.1", port, None)
        assert isinstance(stream, trio.SocketStream)
        async with stream:
            assert options_of(byte_stream.socket) == KEEP_ALIVE
            assert options_of(stream.socket) == KEEP_ALIVE
        byte_stream.close()
