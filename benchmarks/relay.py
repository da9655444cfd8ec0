"""`python -m benchmarks.relay URL`: passes bytes between clients and a server as they come, nothing else.

What it adds to a latency is the floor: two more sockets, and waking another core twice. Prints its own URL.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from contextlib import suppress
from urllib.parse import urlsplit

CHUNK = 65536
CLIENTS = 64

Ends = dict[int, tuple[socket.socket, socket.socket]]
"""By file descriptor of the first: two sockets that are passed on to each other."""


def relay(listener: socket.socket, server: tuple[str, int]) -> None:
    """Serve clients until the process is ended."""
    poller = select.epoll()
    poller.register(listener, select.EPOLLIN)
    ends: Ends = {}
    while True:
        for fd, _ in poller.poll():
            if fd == listener.fileno():
                client, upstream = listener.accept()[0], socket.create_connection(server)
                for near, far in ((client, upstream), (upstream, client)):
                    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    poller.register(near, select.EPOLLIN)
                    ends[near.fileno()] = near, far
            elif fd in ends and not _pass_on(*ends[fd]):
                for end in ends[fd]:
                    del ends[end.fileno()]
                    end.close()


def _pass_on(source: socket.socket, target: socket.socket) -> bool:
    """Pass on a piece of bytes. Return False at the end of the stream."""
    with suppress(ConnectionError):
        data = source.recv(CHUNK)
        target.sendall(data)
        return bool(data)
    return False


def main() -> None:
    """Relay to the server of the URL that is the only argument."""
    server = urlsplit(sys.argv[1])
    assert server.hostname is not None
    assert server.port is not None
    with socket.create_server(("127.0.0.1", 0), backlog=CLIENTS) as listener:
        own = server._replace(netloc=f"127.0.0.1:{listener.getsockname()[1]}")
        os.write(1, f"{own.geturl()}\n".encode())
        relay(listener, (server.hostname, server.port))


if __name__ == "__main__":
    main()
