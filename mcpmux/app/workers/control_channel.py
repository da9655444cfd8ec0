"""Messages between the supervisor and one worker, over a pair of sockets that only these two have.

Each message is a pickle with its length in front: both are the same program, and nobody else can write there.
Messages arrive whole, in order, or not at all.

What a worker remembers of an upstream is out of date as soon as any worker counts a change in shared memory
(see `mux/cache`); nobody waits for that. The clients of other workers are told of a changed list too,
as the server may have told one session alone:

    worker --`ListsChanged`--> supervisor --`ListsChanged`--> each other worker, which tells its clients
"""

from __future__ import annotations

import copyreg
import mmap
import os
import pickle
import socket
import struct
from collections.abc import Iterable
from types import MappingProxyType
from typing import Any, Literal

import msgspec
import structlog
import trio

from mcpmux.app.workers.traffic_forwarder import TrafficBatch
from mcpmux.config import Config
from mcpmux.config.scalars import read_only
from mcpmux.errors import TransportClosed
from mcpmux.mux.cache import ROW_BYTES, Generations

log = structlog.get_logger()

_LENGTH = struct.Struct("!Q")
RECEIVE_BYTES = 64 * 1024
SEND_SECONDS = 10.0  # for the other side to take a message; one that does not read for so long hangs

ChangedList = tuple[str, str]
"""An upstream's name, and the method of the notification."""


class Start(msgspec.Struct, frozen=True):
    """The supervisor's first message: what the worker serves.

    `folder` has the sockets of shared upstreams. `drained`: upstreams that get no exchange.
    """

    config: Config
    folder: str
    drained: tuple[str, ...] = ()


class Configure(msgspec.Struct, frozen=True):
    """The configuration has changed."""

    config: Config


class Act(msgspec.Struct, frozen=True):
    """Do something to one upstream. `reconnect`: it can be connected now, whatever failed before."""

    action: Literal["drain", "release", "restart", "reconnect"]
    upstream: str


class ListsChanged(msgspec.Struct, frozen=True):
    """A worker has heard that these have changed; the supervisor tells the others, who tell their clients."""

    lists: tuple[ChangedList, ...]


class RenewCertificates(msgspec.Struct, frozen=True):
    """The files of certificates are to be read again."""


class Stop(msgspec.Struct, frozen=True):
    """Finish what runs, accept nothing new, end."""


class Ask(msgspec.Struct, frozen=True):
    """A question of an administrator; see `worker.answers_of`."""

    number: int
    about: str


class Ready(msgspec.Struct, frozen=True):
    """The worker's first message: it can be given connections."""


class Leaving(msgspec.Struct, frozen=True):
    """The worker has been asked to end and waits for `Stop`: it gets no connection after that."""


class Failed(msgspec.Struct, frozen=True):
    """The worker cannot start. `mistakes`: those in the configuration, if they are the reason."""

    reason: str
    mistakes: tuple[str, ...] = ()


class Answer(msgspec.Struct, frozen=True):
    """To the question with that number."""

    number: int
    value: Any


class Traffic(msgspec.Struct, frozen=True):
    """Messages that the worker has seen."""

    batch: TrafficBatch


ToWorker = Start | Configure | Act | ListsChanged | RenewCertificates | Stop | Ask
ToSupervisor = Ready | Leaving | Failed | Answer | Traffic | ListsChanged
Message = ToWorker | ToSupervisor


copyreg.pickle(MappingProxyType, lambda mapping: (read_only, (dict(mapping),)))


def encode_message(message: Message) -> bytes:
    """The pickle of a message with its length in front."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


class ControlChannel:
    """One end. `sock` belongs to it."""

    def __init__(self, sock: socket.socket) -> None:
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        self._sending = trio.Lock()
        self._received = bytearray()

    def __repr__(self) -> str:
        return f"<ControlChannel {self._stream!r}>"

    async def send(self, message: Message) -> None:
        """Raises TransportClosed when the other side has gone or does not read.

        A message that has begun is sent to its end: half a message would break the channel.
        """
        data = encode_message(message)
        async with self._sending:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + SEND_SECONDS) as scope:
                try:
                    await self._stream.send_all(data)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    raise TransportClosed("the other process has gone") from None
            if scope.cancelled_caught:
                self.close()
                raise TransportClosed("the other process does not read")

    async def tell(self, message: Message) -> None:
        """Send a message. That the other side has gone is noticed elsewhere."""
        try:
            await self.send(message)
        except TransportClosed as error:
            log.debug("message to another process lost", reason=str(error))

    async def receive(self) -> Message:
        """The next message of the other side. Raises TransportClosed when it has gone."""
        await self._fill(_LENGTH.size)
        (length,) = _LENGTH.unpack_from(self._received)
        await self._fill(_LENGTH.size + length)
        data = bytes(self._received[_LENGTH.size : _LENGTH.size + length])
        del self._received[: _LENGTH.size + length]
        message: Message = pickle.loads(data)  # of our own other process, see above
        return message

    async def _fill(self, size: int) -> None:
        while len(self._received) < size:
            try:
                data = await self._stream.receive_some(RECEIVE_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                data = b""
            if not data:
                raise TransportClosed("the other process has gone")
            self._received += data

    def close(self) -> None:
        """Close this end. May be called again."""
        self._stream.socket.close()


class PendingChanges:
    """Lists that have changed, of which one process is still to be told. Bounded by the lists there are."""

    def __init__(self) -> None:
        self._waiting: dict[ChangedList, None] = {}
        self._arrival = trio.Event()

    def __repr__(self) -> str:
        return f"<PendingChanges {len(self._waiting)}>"

    def add(self, lists: Iterable[ChangedList]) -> None:
        """These have changed. Never waits."""
        self._waiting.update(dict.fromkeys(lists))
        self._arrival.set()

    async def take(self) -> tuple[ChangedList, ...]:
        """All that waits, once there is anything."""
        await self._arrival.wait()
        taken, self._waiting, self._arrival = tuple(self._waiting), {}, trio.Event()
        return taken

    async def forward(self, channel: ControlChannel) -> None:
        """Tell the process at the other end of all changes, until cancelled."""
        while True:
            await channel.tell(ListsChanged(await self.take()))


def open_counters(workers: int) -> int:
    """The file descriptor of the counters of all workers, which are in memory only. Raises OSError."""
    descriptor = os.memfd_create("mcpmux-generations")
    os.ftruncate(descriptor, workers * ROW_BYTES)
    return descriptor


def map_counters(descriptor: int, number: int, workers: int) -> Generations:
    """The generations of the worker with that number, from 1. The descriptor is closed."""
    counters = mmap.mmap(descriptor, workers * ROW_BYTES)
    os.close(descriptor)
    return Generations(memoryview(counters), number - 1, workers)
