"""Byte streams to one peer: the methods that all kinds of them have, and plain TCP. HTTP is unknown here."""

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

from mcpmux.config.listener import join_address
from mcpmux.errors import ConnectFailed, TransportClosed
from mcpmux.protocol.envelope import Part
from mcpmux.transports.thread import starting_thread

RECEIVE_BYTES: Final = 64 * 1024  # one receive holds any usual message whole
# Of a body that is of use only as a whole: each piece costs a turn of the scheduler.
LARGE_RECEIVE_BYTES: Final = 512 * 1024

# With these, a server that vanished silently (power, network, a firewall that forgot) is noticed in a minute.
_KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}
"""The last in milliseconds: for data that was sent and is not acknowledged. Systems lack some of them."""

KEEP_ALIVE: Final = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)] + [
    (socket.IPPROTO_TCP, getattr(socket, name), value)
    for name, value in _KEEP_ALIVE.items()
    if hasattr(socket, name)
]
"""Arguments of `setsockopt`."""

LARGE_SEND_BYTES: Final = 2 * 2**20  # that may wait in the kernel to be sent: a large message at once
PARTS_AT_ONCE: Final = 64  # that every system takes in one call; the rest follows

T = TypeVar("T")


class PlainStream:
    """A connected, non-blocking TCP socket that this object owns. One task sends, one task receives.

    `descriptor`: the socket's. `send` is a checkpoint only when it has to wait, `receive` always is one.
    """

    __slots__ = ("_widened", "descriptor", "socket")

    early = False  # in a TlsStream bytes may wait though the socket is silent

    def __init__(self, stream: trio.SocketStream) -> None:
        """Take the socket out of `stream`."""
        # The system's own: a send that the kernel takes at once costs one system call and no turn of the
        # scheduler, which is what makes a proxy fast.
        taken = stream.socket
        self.socket = socket.socket(taken.family, taken.type, taken.proto, fileno=taken.detach())
        self.socket.setblocking(False)
        self.descriptor = self.socket.fileno()
        self._widened = False

    async def receive(self, most: int = RECEIVE_BYTES) -> bytes:
        """Return at most `most` bytes as they come, b"" at the end. Raises TransportClosed when it broke."""
        return await self._received(partial(self.socket.recv, most))

    async def receive_into(self, room: memoryview) -> int:
        """Fill `room`, or its beginning; return the number of bytes, 0 at the end. Raises as `receive`."""
        # A body is of use only as a whole, and each wait costs a turn of the scheduler.
        self._wake_at(min(len(room), LARGE_RECEIVE_BYTES))
        try:
            return await self._received(partial(self.socket.recv_into, room))
        finally:  # the next message may be shorter, and must wake its reader too
            self._wake_at(1)

    async def _received(self, receive: Callable[[], T]) -> T:
        while True:
            try:
                await wait_readable(self.descriptor)
                return receive()
            except BlockingIOError:  # the socket was readable for another reason, or not any more
                continue
            except OSError as error:
                raise TransportClosed(reason_of(error)) from error

    def _wake_at(self, size: int) -> None:
        """Let the waiting task sleep until `size` bytes are there, the buffer is full, or the stream ends."""
        if sys.platform == "linux":
            with suppress(OSError):  # it is broken or closed, which the next receive reports
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)

    def receive_nowait(self) -> bytes | None:
        """Return the bytes that have arrived, b"" at the end, None for none yet. Raises as `receive` does."""
        try:
            return self.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            raise TransportClosed(reason_of(error)) from error

    def send_nowait(self, data: bytes | memoryview) -> int:
        """Send the part of `data` that the kernel takes at once; return its length, which may be 0.

        The caller must send the rest, unchanged, before anything else. Raises as `send` does.
        """
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise TransportClosed(reason_of(error)) from error

    def send_parts_nowait(self, parts: Sequence[Part]) -> int:
        """Send `parts`, one after the other, as `send_nowait` does."""
        if not self._widened:
            self._widened = True
            # With trio's setting the kernel takes only a few packets of a large message at a time.
            with suppress(OSError, AttributeError):  # not every system has it, nor needs it then
                option = trio.socket.TCP_NOTSENT_LOWAT
                self.socket.setsockopt(socket.IPPROTO_TCP, option, LARGE_SEND_BYTES)
        try:
            if sys.platform == "win32":
                return self.socket.send(next(filter(len, parts), b""))
            else:
                return self.socket.sendmsg(parts[:PARTS_AT_ONCE])
        except BlockingIOError:
            return 0
        except OSError as error:
            raise TransportClosed(reason_of(error)) from error

    async def send(self, data: bytes) -> None:
        """Hand all of `data` to the kernel. Raises TransportClosed when the peer is gone."""
        rest = memoryview(data)
        while (sent := self.send_nowait(rest)) < len(rest):
            rest = rest[sent:]
            await self.wait_sendable()

    async def wait_sendable(self) -> None:
        """Wait until more may be sent."""
        await wait_writable(self.descriptor)

    def send_eof(self) -> None:
        """Close the sending direction; receiving goes on. Raises as `send` does."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise TransportClosed(reason_of(error)) from error

    def is_finished(self) -> bool:
        """Return whether the peer has closed or reset the connection and all its bytes were received."""
        try:
            return not self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def is_readable(self) -> bool:
        """Return whether bytes, the end of the stream or an error can be received now."""
        if sys.platform == "win32":
            return bool(select.select([self.descriptor], [], [], 0)[0])
        else:  # not `select`, which takes no descriptor of 1024 or more
            poller = select.poll()
            poller.register(self.descriptor, select.POLLIN)
            return bool(poller.poll(0))

    def close(self) -> None:
        """Close the socket at once, without waiting for the peer. May be called again."""
        self.socket.close()


async def open_socket(host: str, port: int) -> trio.SocketStream:
    """Open a TCP stream to host:port, on which the kernel notices that a quiet peer has vanished.

    Raises ConnectFailed, which names address and reason. Cancelling it leaves no socket behind.
    """
    try:
        with starting_thread():  # of a name its address is looked up in one
            stream = await trio.open_tcp_stream(host, port)
        for level, option, value in KEEP_ALIVE:
            stream.socket.setsockopt(level, option, value)
    except OSError as error:
        raise ConnectFailed(f"cannot connect to {host}:{port}: {reason_of(error)}") from error
    return stream


def reason_of(error: BaseException) -> str:
    """Return the few words at the root of a nested error, such as "connection refused"."""
    cause: BaseException | None = error
    while cause is not None:
        error = cause
        cause = error.exceptions[-1] if isinstance(error, BaseExceptionGroup) else error.__cause__
    words: str | None
    # The text of an OSError has a number in it; that of a gaierror is not one of the system's.
    if isinstance(error, OSError) and not isinstance(error, socket.gaierror) and error.errno:
        words = os.strerror(error.errno)
    else:
        words = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return (words or type(error).__name__).lower().replace("_", " ")


def address_of(stream: trio.SocketStream) -> str:
    """Return the peer's address and port as "host:port", "unknown" if the socket gives none."""
    try:
        host, port, *_ = stream.socket.getpeername()
    except (OSError, ValueError):
        return "unknown"
    return join_address(host, port)
