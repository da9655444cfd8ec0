"""Messages between the supervisor and one worker, over a pair of sockets that only these two have.

Each message is a pickle with its length in front: both are the same program, and nobody else can write there.

What a worker remembers of an upstream is out of date as soon as any worker counts a change in shared memory
(see `mux/cache`). The clients of other workers are told of a changed list too, as the server may have told
one session alone: a worker sends `ListsChanged` to the supervisor, which sends it to all others.
"""

from __future__ import annotations

import copyreg
import mmap
import os
import pickle
import socket
import struct
from enum import Enum
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


class Word(Enum):
    """A message that has nothing in it."""

    RENEW_CERTIFICATES = "the files of certificates are to be read again"
    STOP = "finish what runs, accept nothing new, end"
    READY = "the worker can be given connections"
    LEAVING = "the worker was asked to end and waits for STOP: it gets no connection after that"


class Start(msgspec.Struct, frozen=True):
    """The supervisor's first message: what the worker serves.

    `folder` has the sockets of shared upstreams. `drained`: upstreams that get no exchange.
    """

    config: Config
    folder: str
    drained: tuple[str, ...] = ()


class Act(msgspec.Struct, frozen=True):
    """Do something to one upstream. `reconnect`: it can be connected now, whatever failed before."""

    action: Literal["drain", "release", "restart", "reconnect"]
    upstream: str


class ListsChanged(msgspec.Struct, frozen=True):
    """A worker has heard that these have changed; the supervisor tells the others, who tell their clients."""

    lists: tuple[ChangedList, ...]


class Ask(msgspec.Struct, frozen=True):
    """A question of an administrator; see `worker.Answers`."""

    number: int
    about: str


class Failed(msgspec.Struct, frozen=True):
    """The worker cannot start. `mistakes`: those in the configuration, if they are the reason."""

    reason: str
    mistakes: tuple[str, ...] = ()


class Answer(msgspec.Struct, frozen=True):
    """To the question with that number."""

    number: int
    value: Any


Message = Word | Start | Config | Act | ListsChanged | Ask | Failed | Answer | TrafficBatch
"""A configuration is what the worker has to follow now; a batch is what it has seen."""


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
        self._posted: list[Message] = []
        self._changed_lists: dict[ChangedList, None] = {}
        self._arrival = trio.Event()

    def __repr__(self) -> str:
        return f"<ControlChannel {self._stream!r}>"

    async def send(self, message: Message) -> None:
        """Send a message. That the other side has gone, or does not read, is noticed where it is heard from.

        A message that has begun is sent to its end: half a message would break the channel.
        """
        data = encode_message(message)
        async with self._sending:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + SEND_SECONDS) as scope:
                try:
                    await self._stream.send_all(data)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    log.debug("message to another process lost", reason="the other process has gone")
            if scope.cancelled_caught:
                log.debug("message to another process lost", reason="the other process does not read")
                self.close()

    def post(self, message: Message) -> None:
        """Have `send_posted` send a message after those before it. Never waits.

        A list that changes several times meanwhile is told of once, so what waits of these is bounded.
        """
        if isinstance(message, ListsChanged):
            self._changed_lists |= dict.fromkeys(message.lists)
        else:
            self._posted.append(message)
        self._arrival.set()

    async def send_posted(self) -> None:
        """Send what is posted, until cancelled."""
        while True:
            await self._arrival.wait()
            posted, lists = self._posted, tuple(self._changed_lists)
            self._posted, self._changed_lists, self._arrival = [], {}, trio.Event()
            for message in [*posted, ListsChanged(lists)] if lists else posted:
                await self.send(message)

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
