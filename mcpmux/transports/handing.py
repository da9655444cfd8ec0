"""Pass open connections from one process to another, through a Unix socket between the two.

Promises: a connection arrives with the bytes that were received from it already, or is closed; only a
reference of the kernel is in both processes at a time, and closing one's descriptor does not end the
connection. Refuses to know which process gets which connection, and why.

Each connection is one datagram (SOCK_SEQPACKET): a `Note` with one file descriptor attached. Linux only; see
`can_hand`.
"""

from __future__ import annotations

import array
import socket
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec
import structlog
import trio

from mcpmux.errors import TransportClosed
from mcpmux.transports.byte_stream import PlainStream, reason_of
from mcpmux.transports.tls import ByteStream

NOTE_BYTES = 64 * 1024  # of a connection's data that may go with it; longer data is carried, see `pass_on`
_DATAGRAM_BYTES = NOTE_BYTES + 4096
_FD_BYTES = array.array("i").itemsize

log = structlog.get_logger()


class Note(msgspec.Struct, array_like=True, frozen=True):
    """The facts about a connection that travel with its socket.

    `listener`: the number of the listener that accepted it. `worker`: the receiver, 0 for any. `data`: the
    bytes received from the client and not answered. `peer`: the client's address, "" if the socket gives it.
    `holder`: of the client's certificate. `open`: the connection was served already; if it had TLS, the
    sender goes on decrypting it.
    """

    listener: int
    worker: int = 0
    data: bytes = b""
    peer: str = ""
    holder: str = ""
    open: bool = False


Handed = tuple[Note, socket.socket]


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

    def send_nowait(self, note: Note, fd: int) -> bool:
        """Hand over a connection; return False if the other side takes none now. Raises TransportClosed."""
        attached = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))
        try:
            self._end.sendmsg([msgspec.msgpack.encode(note)], [attached])
        except BlockingIOError:
            return False
        except OSError as error:
            raise TransportClosed(reason_of(error)) from error
        return True

    async def send(self, note: Note, fd: int) -> None:
        """Hand over a connection. The caller keeps its descriptor, and closes it. Raises TransportClosed."""
        async with self._sending:
            while not self.send_nowait(note, fd):
                try:
                    await trio.lowlevel.wait_writable(self._end)
                except trio.ClosedResourceError:
                    raise TransportClosed("closed") from None

    async def receive(self) -> Handed:
        """Return the next connection, which the caller owns. Raises TransportClosed."""
        await trio.lowlevel.checkpoint()
        while (handed := self.receive_nowait()) is None:
            try:
                await trio.lowlevel.wait_readable(self._end)
            except trio.ClosedResourceError:
                raise TransportClosed("closed") from None
        return handed

    def receive_nowait(self) -> Handed | None:
        """Return a connection that has arrived, None if there is none. Raises TransportClosed."""
        size = (_DATAGRAM_BYTES, socket.CMSG_SPACE(_FD_BYTES), getattr(socket, "MSG_CMSG_CLOEXEC", 0))
        while True:
            try:
                data, attached, _, _ = self._end.recvmsg(*size)
            except BlockingIOError:
                return None
            except OSError as error:
                raise TransportClosed(reason_of(error)) from error
            if not data:
                raise TransportClosed("the other process has gone")
            if attached:
                fds = array.array("i", attached[0][2][:_FD_BYTES])
                return msgspec.msgpack.decode(data, type=Note), socket.socket(fileno=fds[0])
            # The kernel drops a descriptor that this process has no room for, and delivers the note alone.
            log.warning("a connection is lost: too many files are open in this process")

    def close(self) -> None:
        """Close this end; the other side gets TransportClosed. May be called again."""
        if self._end.fileno() != -1:
            # Wakes the tasks that wait for the socket; trio would not notice that it was closed.
            trio.lowlevel.notify_closing(self._end)
            self._end.close()


class HandedListener(trio.abc.Listener[trio.SocketStream]):
    """A listener for connections that another process has accepted, and that `put` brings here.

    It queues none: a connection that is not taken stays with the caller of `put`.
    """

    def __init__(self) -> None:
        self._in, self._out = trio.open_memory_channel[trio.SocketStream](0)

    async def put(self, stream: trio.SocketStream) -> bool:
        """Wait until a connection is accepted; return False, leaving it to the caller, once none is."""
        try:
            await self._in.send(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        return True

    async def accept(self) -> trio.SocketStream:
        return await self._out.receive()

    async def aclose(self) -> None:
        self._out.close()
        await trio.lowlevel.checkpoint()


class Handing(NamedTuple):
    """The means of one HTTP server to pass its connections on, and to get those of others.

    `listener`: its number. `arrivals`: connections that other processes have served so far. `send`: hands
    one over, given its note and descriptor.
    """

    listener: int
    arrivals: trio.MemoryReceiveChannel[tuple[trio.SocketStream, Note]]
    send: Callable[[Note, int], Awaitable[None]]

    async def pass_on(
        self, worker: int, byte_stream: ByteStream, data: bytes, peer: str, holder: str
    ) -> None:
        """Pass a connection on to `worker`, 0 for any other process. Raises TransportClosed.

        A plain connection is handed over, and the caller still closes its own stream. For TLS, and for `data`
        over NOTE_BYTES, the worker gets one end of a socket pair, and this carries bytes between the other
        end and the client until either side ends.
        """
        if isinstance(byte_stream, PlainStream) and len(data) <= NOTE_BYTES:
            note = Note(self.listener, worker, data, peer, holder, open=True)
            await self.send(note, byte_stream.descriptor)
            return
        # The keys of TLS cannot be handed over, so this process goes on decrypting.
        ours, theirs = socket.socketpair()
        with theirs:  # the note carries a reference of the kernel; this one would keep the pair open
            stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
            try:
                await self.send(Note(self.listener, worker, b"", peer, holder, open=True), theirs.fileno())
            except BaseException:
                stream.socket.close()
                raise
        carrying = _carry(byte_stream, PlainStream(stream), data)
        del data  # it may be large, and the client may stay for long
        await carrying


async def _carry(client: ByteStream, other: PlainStream, data: bytes) -> None:
    """Carry bytes both ways, `data` first, until the other process or the client has closed."""
    try:
        async with trio.open_nursery() as nursery:

            async def to_other() -> None:
                nonlocal data
                part, data = data, b""
                try:
                    while part:
                        await other.send(part)
                        part = await client.receive()
                    other.send_eof()  # passes the client's end on; the other process decides what it means
                except TransportClosed:
                    nursery.cancel_scope.cancel(reason="one side is closed")

            nursery.start_soon(to_other)
            try:
                while part := await other.receive():
                    await client.send(part)
            except TransportClosed:
                pass
            nursery.cancel_scope.cancel(reason="the other process has closed")
    finally:
        other.close()
