"""What the keeper and one worker say to each other, over a pair of sockets that only these two have.

Each saying is a pickle with its length in front: the two are one program, started by one another, and nobody
else can write there. Promises: sayings arrive whole, in order, or not at all.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import trio

from mcpmux.app.workers.changes import ChangedList
from mcpmux.app.workers.traffic_forwarder import Parcel
from mcpmux.config import Config
from mcpmux.errors import TransportClosed

_LENGTH = struct.Struct("!Q")
RECEIVE_BYTES = 64 * 1024
SAY_SECONDS = 10.0  # for the other side to take a saying; one that does not listen for so long hangs


@dataclass(frozen=True, slots=True)
class Begin:
    """The keeper's first: what the worker is after.

    `folder` has the homes' sockets; it is the keeper's. `drained`: upstreams that are given nothing to do.
    """

    config: Config
    folder: str
    drained: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Adopt:
    """The configuration has changed."""

    config: Config


@dataclass(frozen=True, slots=True)
class Act:
    """Something is to be done to one upstream: `drain`, `release`, `restart` or `renew`.

    `renew`: it can be connected now, whatever an attempt has said before.
    """

    action: str
    upstream: str


@dataclass(frozen=True, slots=True)
class Changed:
    """A worker has heard that these have changed; the keeper tells the others, who tell their clients."""

    lists: tuple[ChangedList, ...]


@dataclass(frozen=True, slots=True)
class Renew:
    """The files of certificates are to be read again."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Finish what runs, take nothing new, end."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A question of an administrator; see `worker`."""

    number: int
    about: str


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker's first: it can be given connections."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """The worker has been asked to end, and wishes to be told to `Stop`: it gets no connection after that."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The worker cannot begin. `mistakes`: those in the configuration, if that is why."""

    reason: str
    mistakes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """To the question with that number."""

    number: int
    value: Any


@dataclass(frozen=True, slots=True)
class Passed:
    """What has passed at the worker."""

    parcel: Parcel


Saying = Begin | Adopt | Act | Changed | Renew | Stop | Ask | Ready | Leaving | Failed | Answer | Passed


def read_only(mapping: dict[Any, Any]) -> Mapping[Any, Any]:
    """How a read-only mapping is made again; pickle knows none."""
    return MappingProxyType(mapping)


class _Pickler(pickle.Pickler):
    dispatch_table = {  # noqa: RUF012  # the class attribute that pickle looks at
        **copyreg.dispatch_table,
        MappingProxyType: lambda mapping: (read_only, (dict(mapping),)),
    }


def encode_saying(saying: Saying) -> bytes:
    """As it travels, its length in front."""
    file = io.BytesIO()
    file.write(bytes(_LENGTH.size))
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(saying)
    data = file.getbuffer()
    _LENGTH.pack_into(data, 0, len(data) - _LENGTH.size)
    return bytes(data)


class Desk:
    """One end."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._sending = trio.Lock()
        self._received = bytearray()

    def __repr__(self) -> str:
        return f"<Desk {self._stream!r}>"

    async def say(self, saying: Saying) -> None:
        """Raises TransportClosed when the other side has gone, or takes nothing any more.

        What has begun is said to its end, as half of it would be worse than nothing.
        """
        data = encode_saying(saying)
        async with self._sending:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + SAY_SECONDS) as scope:
                try:
                    await self._stream.send_all(data)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    raise TransportClosed("the other process has gone") from None
            if scope.cancelled_caught:
                self.close()
                raise TransportClosed("the other process does not listen")

    async def hear(self) -> Saying:
        """The next saying of the other side. Raises TransportClosed when it has gone."""
        await self._fill(_LENGTH.size)
        (length,) = _LENGTH.unpack_from(self._received)
        await self._fill(_LENGTH.size + length)
        data = bytes(self._received[_LENGTH.size : _LENGTH.size + length])
        del self._received[: _LENGTH.size + length]
        saying: Saying = pickle.loads(data)  # of our own other process, see above
        return saying

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
