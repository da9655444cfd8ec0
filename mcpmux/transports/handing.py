"""Pass open connections from one process to another, through a Unix socket between the two.

Promises: only a reference of the kernel is in both processes at a time, and closing one's descriptor does not
end the connection. Refuses to know which process gets which connection, and why.

Each connection is one datagram (SOCK_SEQPACKET): the number of the listener that accepted it, with one file
descriptor attached. Linux only; see `can_hand`.
"""

from __future__ import annotations

import array
import socket
from contextlib import suppress

import structlog
import trio

from mcpmux.errors import TransportClosed
from mcpmux.transports.byte_stream import reason_of

_NUMBER_BYTES = 2
_FD_BYTES = array.array("i").itemsize

log = structlog.get_logger()


def can_hand() -> bool:
    """Return whether connections can be passed on here: Linux can, macOS and Windows have no such sockets."""
    return hasattr(socket, "SOCK_SEQPACKET") and hasattr(socket, "MSG_CMSG_CLOEXEC")


def connection_channel_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected ends, one for each `ConnectionChannel`. No child process inherits them."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class ConnectionChannel:
    """One end of a socket pair, which sends and receives connections."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._sending = trio.Lock()

    def send_nowait(self, listener: int, fd: int) -> bool:
        """Hand over a connection; return False if the other side takes none now. Raises TransportClosed."""
        attached = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))
        try:
            self._end.sendmsg([listener.to_bytes(_NUMBER_BYTES)], [attached])
        except BlockingIOError:
            return False
        except OSError as error:
            raise TransportClosed(reason_of(error)) from error
        return True

    async def send(self, listener: int, fd: int) -> None:
        """Hand over a connection. The caller keeps its descriptor, and closes it. Raises TransportClosed."""
        async with self._sending:
            while not self.send_nowait(listener, fd):
                try:
                    await trio.lowlevel.wait_writable(self._end)
                except trio.ClosedResourceError:
                    raise TransportClosed("closed") from None

    async def receive(self) -> tuple[int, socket.socket]:
        """Return the next connection, which the caller owns, and its listener. Raises TransportClosed."""
        size = (_NUMBER_BYTES, socket.CMSG_SPACE(_FD_BYTES), getattr(socket, "MSG_CMSG_CLOEXEC", 0))
        await trio.lowlevel.checkpoint()
        while True:
            try:
                data, attached, _, _ = self._end.recvmsg(*size)
            except BlockingIOError:
                try:
                    await trio.lowlevel.wait_readable(self._end)
                except trio.ClosedResourceError:
                    raise TransportClosed("closed") from None
                continue
            except OSError as error:
                raise TransportClosed(reason_of(error)) from error
            if not data:
                raise TransportClosed("the other process has gone")
            if attached:
                fds = array.array("i", attached[0][2][:_FD_BYTES])
                return int.from_bytes(data), socket.socket(fileno=fds[0])
            # The kernel drops a descriptor that this process has no room for, and delivers the number alone.
            log.warning("a connection is lost: too many files are open in this process")

    def end(self) -> None:
        """Send no more: the other side gets TransportClosed after the last one. May be called again."""
        with suppress(OSError):  # the other side has gone
            self._end.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close this end; the other side gets TransportClosed. May be called again."""
        if self._end.fileno() != -1:
            # Wakes the tasks that wait for the socket; trio would not notice that it was closed.
            trio.lowlevel.notify_closing(self._end)
            self._end.close()


class HandedListener(trio.abc.Listener[trio.SocketStream]):
    """A listener for connections that another process has accepted, and that `put` brings here."""

    def __init__(self, number: int, channel: ConnectionChannel) -> None:
        """`number`: the listener's. `channel`: to the process that accepts connections."""
        self._number, self._channel = number, channel
        # None is queued here: a connection that is not taken stays with the caller of `put`.
        self._in, self._out = trio.open_memory_channel[trio.SocketStream](0)

    async def put(self, stream: trio.SocketStream) -> bool:
        """Wait until a connection is accepted; return False, leaving it to the caller, once none is."""
        try:
            await self._in.send(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        return True

    async def give_back(self, fd: int) -> None:
        """Hand an idle connection to the other process, as a new one. Raises TransportClosed."""
        await self._channel.send(self._number, fd)

    async def accept(self) -> trio.SocketStream:
        return await self._out.receive()

    async def aclose(self) -> None:
        self._out.close()
        await trio.lowlevel.checkpoint()
