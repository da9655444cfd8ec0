"""One byte stream to one peer: what every kind of it can do, and plain TCP.

`PlainWire` works on the operating system's socket itself: a send that the kernel takes at once costs
one system call and no turn of the scheduler, which is what makes a proxy fast. Hence the one rule it
bends: `send` is a checkpoint only when it has to wait. `receive` always is one. Knows nothing of HTTP.
"""

from __future__ import annotations

import os
import select
import socket
from typing import Protocol

import trio
from trio.lowlevel import wait_readable, wait_writable

from mcpmux.errors import ConnectFailed, TransportClosed

RECEIVE_BYTES = 64 * 1024  # one receive holds any usual message whole; larger ones gain little

# A server that vanished without a word (power, network, a firewall that forgot) is found out in a minute.
KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}
"""The last in milliseconds: for what was sent and is not acknowledged. Systems lack some of them."""


class Wire(Protocol):
    """A connected stream. One task sends, one task receives."""

    async def send(self, data: bytes) -> None:
        """Hand all of `data` to the kernel. Raises TransportClosed when the peer is gone."""

    def send_nowait(self, data: bytes | memoryview) -> int:
        """Send what goes without waiting, 0 included; say how many bytes that was.

        Whoever goes on sends what is left, and nothing else. Raises as `send` does.
        """

    async def send_some(self, rest: memoryview) -> memoryview:
        """Wait until the kernel takes more; return what it has not taken yet. Raises as `send` does."""

    async def wait_sendable(self) -> None:
        """Wait until sending may get further."""

    def send_eof(self) -> None:
        """Tell the peer that nothing more comes; receiving goes on. Raises as `send` does."""

    async def receive(self) -> bytes:
        """Bytes as they come, or b"" at the end. Raises TransportClosed when it broke."""

    def receive_nowait(self) -> bytes | None:
        """What has come, b"" at the end, None for nothing yet. Raises as `receive` does."""

    def is_readable(self) -> bool:
        """True when bytes, the end of the stream or an error wait to be received."""

    def is_finished(self) -> bool:
        """True when the peer closed or reset and no byte of it is left to receive."""

    def interrupt(self) -> None:
        """Whoever waits to send or to receive gets TransportClosed. The wire is of no use then."""

    def close(self) -> None:
        """Give the socket back, now and without ceremony. May be called again."""


class PlainWire:
    """A connected, non-blocking TCP socket that this object owns."""

    __slots__ = ("_fd", "_socket")

    def __init__(self, stream: trio.SocketStream) -> None:
        """Take the socket out of `stream`, with the options trio set (TCP_NODELAY)."""
        taken = stream.socket
        self._socket = socket.socket(taken.family, taken.type, taken.proto, fileno=taken.detach())
        self._socket.setblocking(False)
        self._fd = self._socket.fileno()

    def __repr__(self) -> str:
        return f"PlainWire(fd={self._socket.fileno()})"

    async def receive(self) -> bytes:
        while True:
            try:
                await wait_readable(self._fd)
                return self._socket.recv(RECEIVE_BYTES)
            except BlockingIOError:
                continue
            except trio.ClosedResourceError:
                raise TransportClosed("interrupted") from None
            except OSError as error:
                raise TransportClosed(reason_of(error)) from error

    def receive_nowait(self) -> bytes | None:
        try:
            return self._socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            raise TransportClosed(reason_of(error)) from error

    def send_nowait(self, data: bytes | memoryview) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise TransportClosed(reason_of(error)) from error

    async def send(self, data: bytes) -> None:
        sent = self.send_nowait(data)
        if sent < len(data):
            rest = memoryview(data)[sent:]
            while rest:
                rest = await self.send_some(rest)

    async def send_some(self, rest: memoryview) -> memoryview:
        await self.wait_sendable()
        return rest[self.send_nowait(rest) :]

    async def wait_sendable(self) -> None:
        try:
            await wait_writable(self._fd)
        except trio.ClosedResourceError:
            raise TransportClosed("interrupted") from None

    def send_eof(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise TransportClosed(reason_of(error)) from error

    def is_finished(self) -> bool:
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def is_readable(self) -> bool:
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        return bool(poller.poll(0))

    def interrupt(self) -> None:
        trio.lowlevel.notify_closing(self._fd)

    def close(self) -> None:
        self._socket.close()


async def connect(host: str, port: int) -> PlainWire:
    """Open a TCP stream to host:port.

    Raises ConnectFailed with a sentence that names the address and the reason. Cancelling it leaves
    no socket behind.
    """
    try:
        stream = await trio.open_tcp_stream(host, port)
        keep_alive(stream.socket)
        return PlainWire(stream)
    except OSError as error:
        raise ConnectFailed(f"cannot connect to {host}:{port}: {reason_of(error)}") from error


def keep_alive(sock: trio.socket.SocketType) -> None:
    """Have the kernel find out when the peer of a quiet TCP connection is not there any more."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def reason_of(error: BaseException) -> str:
    """The few words at the root of a nested error, such as "connection refused"."""
    cause: BaseException | None = error
    while cause is not None:
        error = cause
        cause = error.exceptions[-1] if isinstance(error, BaseExceptionGroup) else error.__cause__
    words: str | None
    if isinstance(error, OSError) and not isinstance(error, socket.gaierror) and error.errno:
        words = os.strerror(error.errno)
    else:
        words = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return (words or type(error).__name__).lower().replace("_", " ")
