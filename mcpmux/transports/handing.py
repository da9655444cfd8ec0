"""Open connections on their way from one process to another, through a Unix socket between the two.

Promises: a connection arrives with what was received of it already, or is closed; nothing of it is in two
processes at a time but the kernel's own reference, and closing one's own end ends nothing. Refuses to know
who gets what, and why.

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

NOTE_BYTES = 64 * 1024  # what was received of a connection may be so long; see `serve_http`
_DATAGRAM_BYTES = NOTE_BYTES + 4096
_FD_BYTES = array.array("i").itemsize

log = structlog.get_logger()


class Note(msgspec.Struct, array_like=True, frozen=True):
    """What has to be known of a connection besides its socket.

    `listener`: the number of the one that it came in at. `worker`: whom it is for, 0 for anybody. `data`:
    what was received of it and not answered. `peer`: its address, "" when the socket tells. `holder`: of its
    certificate. `open`: it was served already, and TLS is off when there was any.
    """

    listener: int
    worker: int = 0
    data: bytes = b""
    peer: str = ""
    holder: str = ""
    open: bool = False


Handed = tuple[Note, socket.socket]


def can_hand() -> bool:
    """Whether this system can do it: Linux can, macOS and Windows have no such sockets."""
    return hasattr(socket, "SOCK_SEQPACKET") and hasattr(socket, "MSG_CMSG_CLOEXEC")


def connection_channel_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends for a `ConnectionChannel` each; neither is inherited by itself."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class ConnectionChannel:
    """One end: connections go out and come in."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._sending = trio.Lock()

    def send_nowait(self, note: Note, fd: int) -> bool:
        """False when the other side takes no more for now. Raises TransportClosed."""
        attached = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))
        try:
            self._end.sendmsg([msgspec.msgpack.encode(note)], [attached])
        except BlockingIOError:
            return False
        except OSError as error:
            raise TransportClosed(reason_of(error)) from error
        return True

    async def send(self, note: Note, fd: int) -> None:
        """Hand over a connection; the caller's own descriptor stays the caller's. Raises TransportClosed."""
        async with self._sending:
            while not self.send_nowait(note, fd):
                try:
                    await trio.lowlevel.wait_writable(self._end)
                except trio.ClosedResourceError:
                    raise TransportClosed("closed") from None

    async def receive(self) -> Handed:
        """The next connection, which is the caller's now. Raises TransportClosed."""
        await trio.lowlevel.checkpoint()
        while (handed := self.receive_nowait()) is None:
            try:
                await trio.lowlevel.wait_readable(self._end)
            except trio.ClosedResourceError:
                raise TransportClosed("closed") from None
        return handed

    def receive_nowait(self) -> Handed | None:
        """As `receive`; None when nothing is there. Raises TransportClosed."""
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
            log.warning("a connection is lost: too many files are open in this process")

    def close(self) -> None:
        """The other side gets TransportClosed. May be called again."""
        if self._end.fileno() != -1:
            trio.lowlevel.notify_closing(self._end)
            self._end.close()


class HandedListener(trio.abc.Listener[trio.SocketStream]):
    """A listener whose connections another process accepts: `put` by whoever receives there.

    Nothing waits in it: what nobody accepts stays with whoever has put it.
    """

    def __init__(self) -> None:
        self._in, self._out = trio.open_memory_channel[trio.SocketStream](0)

    async def put(self, stream: trio.SocketStream) -> bool:
        """Have it accepted. False when nobody accepts any more, and it is still the caller's."""
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
    """How one HTTP server hands its connections over, and gets those of others.

    `listener`: its number. `arrivals`: connections that others have served so far. `send` sends one.
    """

    listener: int
    arrivals: trio.MemoryReceiveChannel[tuple[trio.SocketStream, Note]]
    send: Callable[[Note, int], Awaitable[None]]

    async def pass_on(
        self, worker: int, byte_stream: ByteStream, data: bytes, peer: str, holder: str
    ) -> None:
        """Have `worker`, 0 for any other, go on with a connection. Raises TransportClosed.

        A plain connection goes there itself, and the stream stays the caller's. For TLS, and for `data` that
        is too long for a note, it gets one end of a socket pair, and this carries bytes between the other end
        and the client until either is at its end.
        """
        if isinstance(byte_stream, PlainStream) and len(data) <= NOTE_BYTES:
            note = Note(self.listener, worker, data, peer, holder, open=True)
            await self.send(note, byte_stream.descriptor)
            return
        ours, theirs = socket.socketpair()
        with theirs:
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
    """Bytes both ways, `data` first, until the other process or the client has closed."""
    try:
        async with trio.open_nursery() as nursery:

            async def to_other() -> None:
                nonlocal data
                part, data = data, b""
                try:
                    while part:
                        await other.send(part)
                        part = await client.receive()
                    other.send_eof()
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
