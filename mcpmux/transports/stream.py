"""Byte streams that carry messages for a long time: TCP, inside TLS or not, and Unix sockets.

Promises: an error says in a sentence why a stream could not be opened; a peer that does not read for too long
counts as gone. Refuses to know what is carried: lines and WebSocket messages look alike here.
"""

from __future__ import annotations

import errno
import math
import os
import socket
import ssl
import stat
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

import structlog
import trio
from trio.abc import HalfCloseableStream, Listener, Stream

from mcpmux.config import ClientTls
from mcpmux.errors import AddressInUse, ConnectFailed, TransportError
from mcpmux.mux.share import CONNECTIONS_SETTING, origin_of
from mcpmux.transports.byte_stream import address_of, open_socket, reason_of
from mcpmux.transports.tls import CurrentContext, client_context, explain_server

SEND_BYTES = 16 * 1024  # handed over at a time: a peer that takes so much in time does read


@dataclass(eq=False)
class PatientStream(HalfCloseableStream):
    """A stream that owns the one below. A peer that does not read for `stall` seconds of sending is gone."""

    _stream: Stream
    stall: float = math.inf

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            with trio.move_on_after(self.stall) as scope:
                await self._stream.send_all(rest[:SEND_BYTES])
            if scope.cancelled_caught:
                raise trio.BrokenResourceError(f"the peer read nothing for {self.stall:g} s")
            rest = rest[SEND_BYTES:]

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def send_eof(self) -> None:
        """Close the sending direction, if the stream can close it alone."""
        if isinstance(self._stream, HalfCloseableStream):
            await self._stream.send_eof()
        else:
            await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await self._stream.aclose()


async def open_tcp(host: str, port: int, tls: ClientTls | None) -> Stream:
    """Open a stream to host:port, inside TLS when its settings are given.

    Raises ConnectFailed, and ConfigError for a file of the TLS settings. Cancelling leaves no socket behind.
    """
    context = None
    if tls is not None:
        context = await trio.to_thread.run_sync(partial(client_context, tls, ()))
    stream = await open_socket(host, port)
    if context is None or tls is None:
        return stream
    name = tls.server_name or host
    # `https_compatible`: many peers end without TLS's closing alert; the messages inside show if one is cut.
    wrapped = trio.SSLStream(stream, context, server_hostname=name, https_compatible=True)
    try:
        await wrapped.do_handshake()
    except (trio.BrokenResourceError, ssl.SSLError) as error:
        await trio.aclose_forcefully(stream)
        cause = error if isinstance(error, ssl.SSLError) else error.__cause__
        reason = explain_server(cause) if isinstance(cause, ssl.SSLError) else reason_of(error)
        raise ConnectFailed(f"cannot connect to {host}:{port}: TLS: {reason}") from error
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return wrapped


async def open_unix(path: str) -> trio.SocketStream:
    """Open a stream to the Unix socket at `path`. Raises ConnectFailed."""
    try:
        return await trio.open_unix_socket(path)
    except (OSError, ValueError, RuntimeError) as error:  # a null byte in the path; a system without them
        raise ConnectFailed(f"cannot connect to unix:{path}: {reason_of(error)}") from error


# Accepting streams until told to stop.
#
# Promises: bounded connections; an error in one of them touches no other and is logged once; each stream is
# closed when its handler is done. Refuses to know what is sent: the handler refuses one that is too many.

log = structlog.get_logger()

REFUSED_CONNECTIONS = 64  # connections above the limit that get a refusal; more are just closed

_HINTS = {
    errno.EADDRINUSE: "; stop what listens there, or choose another port (with 0 the system does)",
    errno.EADDRNOTAVAIL: "; choose an address of this machine",
    errno.EACCES: "; choose a port from 1024, which needs no privileges",
}


async def open_tcp_listeners(host: str, port: int) -> tuple[int, list[trio.SocketListener]]:
    """Listen on host:port; return the port, which the system chooses for 0, and the listeners.

    Raises TransportError.
    """
    try:
        listeners = await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        raise cannot_listen(host, port, error) from None
    for listener in listeners:  # accepted sockets inherit it: a peer that lost its network is noticed one day
        listener.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    port_number: int = listeners[0].socket.getsockname()[1]
    return port_number, listeners


def cannot_listen(host: str, port: int, error: OSError) -> TransportError:
    """Return the error for an address that cannot be listened on, with a hint what to do about it."""
    hint = _HINTS.get(error.errno or 0, "")
    kind = AddressInUse if error.errno == errno.EADDRINUSE else TransportError
    return kind(f"cannot listen on {host}:{port}: {reason_of(error)}{hint}")


async def serve_streams(
    listeners: Sequence[Listener[trio.SocketStream]],
    handle: Callable[[Stream, str], Awaitable[None]],
    stopping: trio.Event,
    limit: int,
    share: int,
    tls: CurrentContext | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stopping` is set, then wait for the streams being served. Closes the listeners.

    At most `limit` streams are served at a time, and `share` from one address outside of this machine.
    `handle` gets a stream and "", or for one too many the setting that it exceeds, and should refuse it then.
    With `tls` it gets streams before their handshake. Cancelling is the hard stop.
    """
    served = refused = 0
    origins = Counter[str]()

    async def serve_one(plain: trio.SocketStream) -> None:
        nonlocal served, refused
        origin = origin_of(address_of(plain))
        reached = "limits.max_connections" if served >= limit else ""
        if origin and origins[origin] >= share:
            reached = CONNECTIONS_SETTING
        if reached and refused >= REFUSED_CONNECTIONS:
            await trio.aclose_forcefully(plain)
            return
        if reached:  # a client takes no place while it is being refused
            refused += 1
        else:
            served += 1
            origins[origin] += 1
        stream: Stream = plain
        if tls is not None:
            stream = trio.SSLStream(plain, tls(), server_side=True, https_compatible=True)
        try:
            await handle(stream, reached)
        except* Exception as crash:  # the wall around one client
            log.error("client failed", errors=[repr(error) for error in crash.exceptions])
            log.debug("client failed here", exc_info=crash)
        finally:
            if reached:
                refused -= 1
            else:
                served -= 1
                origins[origin] -= 1
                if not origins[origin]:
                    del origins[origin]
            await trio.aclose_forcefully(stream)

    # Two nurseries: accepting is cancelled when we stop, and the connections are waited for.
    async with trio.open_nursery() as connections, trio.open_nursery() as accepting:
        accept = partial(trio.serve_listeners, serve_one, list(listeners), handler_nursery=connections)
        await accepting.start(accept, name="stream listeners")
        task_status.started()
        await stopping.wait()
        accepting.cancel_scope.cancel()


# Listening on a Unix socket: its file comes and goes with the listener.

BACKLOG = 128  # connections that wait to be accepted
REMOVE_SECONDS = 2.0  # for removing the file at the end; a file system that hangs keeps it


@asynccontextmanager
async def open_unix_listener(path: str, mode: int) -> AsyncIterator[trio.SocketListener]:
    """Listen at `path` with the permissions `mode`; close and remove it on leaving. Raises TransportError.

    A socket file of a dead process is replaced, one that a process listens on, or any other file, never.
    """
    # All work on the file system runs in threads: it may hang.
    bound, identity = await trio.to_thread.run_sync(_bind, path, mode)
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(bound))
    try:
        yield listener
    finally:
        with trio.move_on_after(REMOVE_SECONDS, shield=True):
            await listener.aclose()
            await trio.to_thread.run_sync(_remove, path, identity, abandon_on_cancel=True)


def _bind(path: str, mode: int) -> tuple[socket.socket, os.stat_result]:
    bound = _unix_socket()
    try:
        _clear(path)
        bound.setblocking(False)
        bound.bind(path)
        # In force before the first client can connect, which is after `listen`.
        os.chmod(path, mode)  # noqa: PTH101
        identity = os.lstat(path)
        bound.listen(BACKLOG)
    except (OSError, ValueError) as error:
        bound.close()
        hint = "; make the folder first" if isinstance(error, FileNotFoundError) else ""
        raise TransportError(f"cannot listen on unix:{path}: {reason_of(error)}{hint}") from None
    except BaseException:
        bound.close()
        raise
    return bound, identity


def _unix_socket() -> socket.socket:
    if not hasattr(socket, "AF_UNIX"):
        raise TransportError("cannot listen on Unix sockets: this system has none; listen on TCP")
    return socket.socket(socket.AF_UNIX)


def _clear(path: str) -> None:
    """Remove a socket file on which no process listens. Raises TransportError for any other file."""
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(there.st_mode):
        raise TransportError(f"cannot listen on unix:{path}: a file that is no socket is there; remove it")
    # Only connecting shows whether a process listens: the file stays when its process dies.
    with _unix_socket() as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)  # noqa: PTH108
            return
        except BlockingIOError:  # it listens, its queue is full
            pass
    raise AddressInUse(f"cannot listen on unix:{path}: another process listens there already")


def _remove(path: str, identity: os.stat_result) -> None:
    with suppress(OSError):
        # Another process may have put its own file there meanwhile.
        if os.path.samestat(os.lstat(path), identity):
            os.unlink(path)  # noqa: PTH108
