"""One byte stream to one peer: TCP, plain or inside TLS.

`PlainWire` works on the operating system's socket itself: a send that the kernel takes at once costs
one system call and no turn of the scheduler, which is what makes a proxy fast. Hence the one rule it
bends: `send` is a checkpoint only when it has to wait. `receive` always is one. Knows nothing of HTTP.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
from typing import Protocol

import trio
from trio.lowlevel import wait_readable, wait_writable

from mcpmux.errors import ConnectFailed, TransportClosed

RECEIVE_BYTES = 64 * 1024  # one receive holds any usual message whole; larger ones gain little


class Wire(Protocol):
    """What a client needs of a connected stream. One task sends, one task receives."""

    async def send(self, data: bytes) -> None:
        """Hand all of `data` to the kernel. Raises TransportClosed when the peer is gone."""

    async def receive(self) -> bytes:
        """1 to RECEIVE_BYTES bytes, or b"" at the end. Raises TransportClosed when it broke."""

    def is_readable(self) -> bool:
        """True when bytes, the end of the stream or an error wait to be received."""

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
            await wait_readable(self._fd)
            try:
                return self._socket.recv(RECEIVE_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                raise TransportClosed(_reason(error)) from error

    def send_nowait(self, data: bytes | memoryview) -> int:
        """Send what the kernel takes without waiting, 0 included; say how many bytes that was."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise TransportClosed(_reason(error)) from error

    async def send(self, data: bytes) -> None:
        sent = self.send_nowait(data)
        if sent < len(data):
            rest = memoryview(data)[sent:]
            while rest:
                rest = await self.send_some(rest)

    async def send_some(self, rest: memoryview) -> memoryview:
        """Wait until the kernel takes more; return what it has not taken yet."""
        await wait_writable(self._fd)
        return rest[self.send_nowait(rest) :]

    def send_eof(self) -> None:
        """Tell the peer that nothing more comes; receiving goes on."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise TransportClosed(_reason(error)) from error

    def is_finished(self) -> bool:
        """True when the peer closed or reset and no byte of it is left to receive."""
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def is_readable(self) -> bool:
        return _is_readable(self._fd)

    def close(self) -> None:
        self._socket.close()


class TlsWire:
    """A TLS stream after its handshake."""

    __slots__ = ("_socket", "_stream")

    def __init__(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        self._stream = stream
        self._socket = stream.transport_stream.socket

    def __repr__(self) -> str:
        return f"TlsWire(fd={self._socket.fileno()})"

    async def receive(self) -> bytes:
        try:
            return bytes(await self._stream.receive_some(RECEIVE_BYTES))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise TransportClosed(_reason(error)) from error

    async def send(self, data: bytes) -> None:
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise TransportClosed(_reason(error)) from error

    def is_readable(self) -> bool:
        return _is_readable(self._socket.fileno())

    def close(self) -> None:
        self._socket.close()


async def connect(host: str, port: int, ssl_context: ssl.SSLContext | None) -> Wire:
    """Open a stream to host:port, inside TLS when a context is given.

    Raises ConnectFailed with a sentence that names the address and the reason. Cancelling it leaves
    no socket behind.
    """
    try:
        stream = await trio.open_tcp_stream(host, port)
    except OSError as error:
        raise ConnectFailed(f"cannot connect to {host}:{port}: {_reason(error)}") from error
    if ssl_context is None:
        return PlainWire(stream)
    tls = trio.SSLStream(stream, ssl_context, server_hostname=host, https_compatible=True)
    try:
        await tls.do_handshake()
    except (trio.BrokenResourceError, ssl.CertificateError) as error:
        stream.socket.close()
        raise ConnectFailed(f"cannot connect to {host}:{port}: TLS: {_reason(error)}") from error
    except BaseException:
        stream.socket.close()
        raise
    return TlsWire(tls)


def _is_readable(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))


def _reason(error: BaseException) -> str:
    """The few words at the root of a nested error, such as "connection refused"."""
    cause: BaseException | None = error
    while cause is not None:
        error = cause
        cause = error.exceptions[-1] if isinstance(error, BaseExceptionGroup) else error.__cause__
    words: str | None
    if isinstance(error, ssl.SSLCertVerificationError):
        words = error.verify_message
    elif isinstance(error, ssl.SSLError):
        words = error.reason
    elif isinstance(error, OSError) and not isinstance(error, socket.gaierror) and error.errno:
        words = os.strerror(error.errno)
    else:
        words = error.strerror if isinstance(error, OSError) else str(error)
    return (words or type(error).__name__).lower().replace("_", " ")
