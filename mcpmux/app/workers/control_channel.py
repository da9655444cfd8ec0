"""What the supervisor and one worker tell each other, over a pair of sockets that only these two have.

Each message is a pickle with its length in front: the two are one program, started by one another, and nobody
else can write there. Promises: messages arrive whole, in order, or not at all.

What a worker remembers of an upstream is out of date as soon as any worker counts a change in the memory that
all of them share, see `mux/cache`: nobody waits for that. Clients of the other workers are told of a
changed list, too, though the server may have told one session alone:

    worker --`ListsChanged`--> supervisor --`ListsChanged`--> each other worker, which tells its clients
"""

from __future__ import annotations

import copyreg
import io
import mmap
import os
import pickle
import socket
import struct
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec
import trio

from mcpmux.app.workers.traffic_forwarder import TrafficBatch
from mcpmux.config import Config
from mcpmux.errors import TransportClosed
from mcpmux.mux.cache import ROW_BYTES, Generations

_LENGTH = struct.Struct("!Q")
RECEIVE_BYTES = 64 * 1024
SEND_SECONDS = 10.0  # for the other side to take a message; one that does not read for so long hangs

ChangedList = tuple[str, str]
"""An upstream's name, and the method of the notification."""


class Start(msgspec.Struct, frozen=True):
    """The supervisor's first message: what the worker serves.

    `folder` has the sockets of shared upstreams; it is the supervisor's. `drained`: upstreams that get no
    exchange.
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


def read_only(mapping: dict[Any, Any]) -> Mapping[Any, Any]:
    """How a read-only mapping is made again; pickle knows none."""
    return MappingProxyType(mapping)


class _Pickler(pickle.Pickler):
    dispatch_table = {  # noqa: RUF012  # the class attribute that pickle looks at
        **copyreg.dispatch_table,
        MappingProxyType: lambda mapping: (read_only, (dict(mapping),)),
    }


def encode_message(message: Message) -> bytes:
    """As it travels, its length in front."""
    file = io.BytesIO()
    file.write(bytes(_LENGTH.size))
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(message)
    data = file.getbuffer()
    _LENGTH.pack_into(data, 0, len(data) - _LENGTH.size)
    return bytes(data)


class ControlChannel:
    """One end. `sock` belongs to it."""

    def __init__(self, sock: socket.socket) -> None:
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        self._sending = trio.Lock()
        self._received = bytearray()

    def __repr__(self) -> str:
        return f"<ControlChannel {self._stream!r}>"

    async def send(self, message: Message) -> None:
        """Raises TransportClosed when the other side has gone, or reads no more.

        A message that has begun is sent to its end, as half of it would be worse than nothing.
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
        """The other side hears that we have gone. May be called again."""
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
