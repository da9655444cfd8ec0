"""One byte stream to one peer: what every kind of it can do, and plain TCP.

`PlainStream` works on the operating system's socket itself: a send that the kernel takes at once costs
one system call and no turn of the scheduler, which is what makes a proxy fast. Hence the one rule it
bends: `send` is a checkpoint only when it has to wait. `receive` always is one. Knows nothing of HTTP.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

import trio
from trio.lowlevel import wait_readable, wait_writable

from mcpmux.errors import ConnectFailed, TransportClosed
from mcpmux.protocol.envelope import Part

RECEIVE_BYTES: Final = 64 * 1024  # one receive holds any usual message whole
# Of what is of use only as a whole: each piece costs a turn of the scheduler.
LARGE_RECEIVE_BYTES: Final = 512 * 1024

# A server that vanished without a word (power, network, a firewall that forgot) is found out in a minute.
_KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}
"""The last in milliseconds: for what was sent and is not acknowledged. Systems lack some of them."""

KEEP_ALIVE: Final = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)] + [
    (socket.IPPROTO_TCP, getattr(socket, name), value)
    for name, value in _KEEP_ALIVE.items()
    if hasattr(socket, name)
]
"""What `setsockopt` takes."""

LARGE_SEND_BYTES: Final = 2 * 2**20  # that may wait in the kernel to be sent, for who has large messages
PARTS_AT_ONCE: Final = 64  # what every system takes in one call; the rest comes after

T = TypeVar("T")


class PlainStream:
    """A connected, non-blocking TCP socket that this object owns. One task sends, one task receives.

    `descriptor`: the socket's. `early`: what is to be received, and the socket does not know of.
    """

    __slots__ = ("_widened", "descriptor", "early", "socket")

    def __init__(self, stream: trio.SocketStream, early: bytes = b"") -> None:
        """Take the socket out of `stream`. `early`: what another process has received of it already."""
        taken = stream.socket
        self.socket = socket.socket(taken.family, taken.type, taken.proto, fileno=taken.detach())
        self.socket.setblocking(False)
        self.descriptor = self.socket.fileno()
        self._widened = False
        self.early = early

    async def receive(self, most: int = RECEIVE_BYTES) -> bytes:
        """Bytes as they come, or b"" at the end. Raises TransportClosed when it broke."""
        if self.early:
            await trio.lowlevel.checkpoint()
            early, self.early = self.early, b""
            return early
        return await self._received(partial(self.socket.recv, most))

    async def receive_into(self, room: memoryview) -> int:
        """Fill `room`, or the beginning of it; how many bytes that was, 0 at the end. Raises as `receive`.

        It is of use only when full, so whoever waits may be left asleep until there is much.
        """
        self._wake_at(min(len(room), LARGE_RECEIVE_BYTES))
        try:
            return await self._received(partial(self.socket.recv_into, room))
        finally:  # or nobody would notice the few bytes of something else
            self._wake_at(1)

    async def _received(self, receive: Callable[[], T]) -> T:
        while True:
            try:
                await wait_readable(self.descriptor)
                return receive()
            except BlockingIOError:
                continue
            except OSError as error:
                raise TransportClosed(reason_of(error)) from error

    def _wake_at(self, size: int) -> None:
        """Have whoever waits to receive sleep until so many bytes are there, or it is full, or the end."""
        if sys.platform == "linux":
            with suppress(OSError):  # it is broken or closed, which whoever receives is told
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)

    def receive_nowait(self) -> bytes | None:
        """What has come, b"" at the end, None for nothing yet. Raises as `receive` does."""
        try:
            return self.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            raise TransportClosed(reason_of(error)) from error

    def send_nowait(self, data: bytes | memoryview) -> int:
        """Send what goes without waiting, 0 included; say how many bytes that was.

        Whoever goes on sends what is left, and nothing else. Raises as `send` does.
        """
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise TransportClosed(reason_of(error)) from error

    def send_parts_nowait(self, parts: Sequence[Part]) -> int:
        """As `send_nowait`, of all `parts` one after the other."""
        if not self._widened:
            self._widen()
        try:
            if sys.platform == "win32":
                return self.socket.send(next(filter(len, parts), b""))
            else:
                return self.socket.sendmsg(parts[:PARTS_AT_ONCE])
        except BlockingIOError:
            return 0
        except OSError as error:
            raise TransportClosed(reason_of(error)) from error

    def _widen(self) -> None:
        """Have the kernel take a large message at once: as trio sets it, it takes a few packets at a time."""
        self._widened = True
        with suppress(OSError, AttributeError):  # not every system has it, nor needs it then
            option = trio.socket.TCP_NOTSENT_LOWAT
            self.socket.setsockopt(socket.IPPROTO_TCP, option, LARGE_SEND_BYTES)

    async def send(self, data: bytes) -> None:
        """Hand all of `data` to the kernel. Raises TransportClosed when the peer is gone."""
        rest = memoryview(data)
        while (sent := self.send_nowait(rest)) < len(rest):
            rest = rest[sent:]
            await self.wait_sendable()

    async def wait_sendable(self) -> None:
        """Wait until sending may get further."""
        await wait_writable(self.descriptor)

    def send_eof(self) -> None:
        """Tell the peer that nothing more comes; receiving goes on. Raises as `send` does."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise TransportClosed(reason_of(error)) from error

    def is_finished(self) -> bool:
        """True when the peer closed or reset and no byte of it is left to receive."""
        try:
            return not self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def is_readable(self) -> bool:
        """True when bytes, the end of the stream or an error wait to be received."""
        if self.early:
            return True
        if sys.platform == "win32":
            return bool(select.select([self.descriptor], [], [], 0)[0])
        else:
            poller = select.poll()
            poller.register(self.descriptor, select.POLLIN)
            return bool(poller.poll(0))

    def close(self) -> None:
        """Give the socket back, now and without ceremony. May be called again."""
        self.socket.close()


async def connect(host: str, port: int) -> PlainStream:
    """Open a TCP stream to host:port. Raises as `open_socket`."""
    return PlainStream(await open_socket(host, port))


async def open_socket(host: str, port: int) -> trio.SocketStream:
    """The same as trio has it; the kernel finds out when the peer of a quiet one is not there any more.

    Raises ConnectFailed, which names address and reason. Cancelling it leaves no socket behind.
    """
    try:
        stream = await trio.open_tcp_stream(host, port)
        for level, option, value in KEEP_ALIVE:
            stream.socket.setsockopt(level, option, value)
    except OSError as error:
        raise ConnectFailed(f"cannot connect to {host}:{port}: {reason_of(error)}") from error
    return stream


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


def address_of(stream: trio.SocketStream) -> str:
    """The peer's address and port, as they are written."""
    try:
        host, port, *_ = stream.socket.getpeername()
    except (OSError, ValueError):
        return "unknown"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
