"""Accepting streams until told to stop.

Promises: bounded connections; an error in one of them touches no other and is logged once; each stream is
closed when its handler is done. Refuses to know what is said: a handler is told that there are too many.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Awaitable, Callable, Sequence

import structlog
import trio
from trio.abc import Listener, Stream

from mcpmux.errors import TransportError
from mcpmux.transports.tls.context import CurrentContext
from mcpmux.transports.wire import reason_of

log = structlog.get_logger()

REFUSED_CONNECTIONS = 64  # connections above the limit that are told so; more are just closed

_HINTS = {
    errno.EADDRINUSE: "; stop what listens there, or choose another port (with 0 the system does)",
    errno.EADDRNOTAVAIL: "; choose an address of this machine",
    errno.EACCES: "; choose a port from 1024, which needs no privileges",
}

Handle = Callable[[Stream, bool], Awaitable[None]]
"""Serves one stream; True says that there are too many already, which the peer should hear."""


async def open_tcp_listeners(host: str, port: int) -> tuple[int, list[trio.SocketListener]]:
    """The port, and what listens on it. Raises TransportError."""
    try:
        listeners = await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        raise cannot_listen(host, port, error) from None
    for listener in listeners:  # what it accepts inherits it: a peer that lost its network is noticed one day
        listener.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    found: int = listeners[0].socket.getsockname()[1]
    return found, listeners


def cannot_listen(host: str, port: int, error: OSError) -> TransportError:
    """Why an address is not listened on, and what to do about it."""
    hint = _HINTS.get(error.errno or 0, "")
    return TransportError(f"cannot listen on {host}:{port}: {reason_of(error)}{hint}")


def in_tls(
    listeners: Sequence[Listener[trio.SocketStream]], context: CurrentContext | None
) -> list[Listener[Stream]]:
    """Their connections inside TLS, when a context is given."""
    if context is None:
        return list(listeners)
    return [_TlsListener(plain, context) for plain in listeners]


class _TlsListener(Listener[Stream]):
    """As trio's, but with whatever context is the current one."""

    def __init__(self, plain: Listener[trio.SocketStream], context: CurrentContext) -> None:
        self._plain = plain
        self._context = context

    async def accept(self) -> Stream:
        """The next connection, before its handshake."""
        stream = await self._plain.accept()
        return trio.SSLStream(stream, self._context(), server_side=True, https_compatible=True)

    async def aclose(self) -> None:
        """Accept nothing any more."""
        await self._plain.aclose()


async def serve_streams(
    listeners: Sequence[Listener[Stream]],
    handle: Handle,
    stopping: trio.Event,
    limit: int,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stopping` is set, then wait for those who are being served. Closes the listeners.

    At most `limit` streams are served at a time. Cancelling is the hard stop.
    """
    served = 0

    async def serve_one(stream: Stream) -> None:
        nonlocal served
        if served >= limit + REFUSED_CONNECTIONS:
            await trio.aclose_forcefully(stream)
            return
        served += 1
        try:
            await handle(stream, served > limit)
        except* Exception as crash:  # the wall around one client
            log.error("client failed", errors=[repr(error) for error in crash.exceptions])
            log.debug("client failed here", exc_info=crash)
        finally:
            served -= 1
            await trio.aclose_forcefully(stream)

    async with trio.open_nursery() as connections, trio.open_nursery() as accepting:

        async def accept(task_status: trio.TaskStatus[object] = trio.TASK_STATUS_IGNORED) -> None:
            await trio.serve_listeners(
                serve_one, list(listeners), handler_nursery=connections, task_status=task_status
            )

        await accepting.start(accept, name="stream listeners")
        task_status.started()
        await stopping.wait()
        accepting.cancel_scope.cancel()
