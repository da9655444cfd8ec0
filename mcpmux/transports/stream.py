"""Byte streams that carry messages for a long time: TCP, inside TLS or not, and Unix sockets.

Promises: whoever opens a stream hears in a sentence why it could not be opened; a peer that reads nothing
for too long counts as gone. Refuses to know what is carried: lines and WebSocket messages look alike here.
"""

from __future__ import annotations

import math
import ssl
from functools import partial

import trio
from trio.abc import HalfCloseableStream, Stream

from mcpmux.config import ClientTls
from mcpmux.errors import ConnectFailed
from mcpmux.transports.tls.context import client_context, explain_server
from mcpmux.transports.wire import keep_alive, reason_of

SEND_BYTES = 16 * 1024  # handed over at a time: a peer that takes so much in time does read


class PatientStream(HalfCloseableStream):
    """`stream`, which it owns; a peer that reads nothing of what is sent in `stall` seconds is gone."""

    def __init__(self, stream: Stream, stall: float = math.inf) -> None:
        self._stream = stream
        self._stall = stall

    def __repr__(self) -> str:
        return f"<PatientStream {self._stream!r}, stall={self._stall:g}>"

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            with trio.move_on_after(self._stall) as scope:
                await self._stream.send_all(rest[:SEND_BYTES])
            if scope.cancelled_caught:
                raise trio.BrokenResourceError(f"the peer read nothing for {self._stall:g} s")
            rest = rest[SEND_BYTES:]

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def send_eof(self) -> None:
        """Tell the peer that nothing more comes, where the stream can say so."""
        if isinstance(self._stream, HalfCloseableStream):
            await self._stream.send_eof()
        else:
            await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await self._stream.aclose()


async def open_tcp(host: str, port: int, tls: ClientTls | None) -> Stream:
    """A stream to host:port, inside TLS when its settings are given.

    Raises ConnectFailed, and ConfigError for a file of the TLS settings. Cancelling leaves no socket behind.
    """
    context = None
    if tls is not None:
        context = await trio.to_thread.run_sync(partial(client_context, tls, ()))
    try:
        stream = await trio.open_tcp_stream(host, port)
        keep_alive(stream.socket)
    except OSError as error:
        raise ConnectFailed(f"cannot connect to {host}:{port}: {reason_of(error)}") from error
    if context is None or tls is None:
        return stream
    return await _wrap(stream, context, tls.server_name or host, f"{host}:{port}")


async def _wrap(stream: Stream, context: ssl.SSLContext, server_name: str, peer: str) -> Stream:
    wrapped = trio.SSLStream(stream, context, server_hostname=server_name, https_compatible=True)
    try:
        await wrapped.do_handshake()
    except (trio.BrokenResourceError, ssl.SSLError) as error:
        await trio.aclose_forcefully(stream)
        cause = error if isinstance(error, ssl.SSLError) else error.__cause__
        reason = explain_server(cause) if isinstance(cause, ssl.SSLError) else reason_of(error)
        raise ConnectFailed(f"cannot connect to {peer}: TLS: {reason}") from error
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return wrapped


async def open_unix(path: str) -> Stream:
    """A stream to the Unix socket at `path`. Raises ConnectFailed."""
    try:
        return await trio.open_unix_socket(path)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise ConnectFailed(f"cannot connect to unix:{path}: {reason_of(error)}") from error
