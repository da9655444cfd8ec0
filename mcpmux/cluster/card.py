"""What a replica says of itself to the others."""

from __future__ import annotations

import msgspec

from mcpmux import __version__
from mcpmux.cluster.store import Seal


class Card(msgspec.Struct, array_like=True, frozen=True):
    """What a replica says of itself. `url`: of its port; `ids`: those of before, whose leases have ended.

    `at`: its own clock when it asked for its lease, in seconds since 1970; `lease`: for so many seconds.
    """

    name: str
    url: str
    version: str = __version__
    ids: tuple[str, ...] = ()
    at: float = 0.0
    lease: float = 0.0

    def seal(self, seal: Seal, replica: str) -> bytes:
        """As it lies in the store, for the id `replica`."""
        return seal.seal("replica", replica, msgspec.msgpack.encode(self))

    @classmethod
    def open(cls, seal: Seal, replica: str, sealed: bytes) -> Card:
        """Raises ForeignSeal, msgspec.DecodeError."""
        return msgspec.msgpack.decode(seal.open("replica", replica, sealed), type=cls)


class Neighbour(msgspec.Struct, frozen=True):
    """Another replica, under the id that is in force."""

    replica: str
    card: Card
