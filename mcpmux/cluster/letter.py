"""The messages of replicas to each other, as values."""

# Apart from the modules that write and read them, as mypyc compiles those, and cannot compile classes that
# msgspec decodes.

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from mcpmux import __version__
from mcpmux.cluster.store import Seal
from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import decode_fields, encode
from mcpmux.protocol.principal import Principal
from mcpmux.transports.http.message import HttpRequest

INSIDE: Final = "inside"  # its lease holds
OUTSIDE: Final = "outside"  # it has none: requests that need the store are refused
LEFT: Final = "left"  # it stops; others go on with its sessions
SILENT: Final = "silent"  # it has a lease, and does not answer the replica that asked it
GONE: Final = "gone"  # its lease has ended of late


INSPECTOR: Final = -1  # instead of a listener: the request is of the inspector, which sends another one


# `array_like`: without the names of the fields, which both sides know.
class Card(msgspec.Struct, array_like=True, frozen=True):
    """A replica's description of itself. `url`: of its port; `ids`: its former ones, whose leases have ended.

    `at`: its own clock when it asked for its lease, in seconds since 1970; `lease`: for so many seconds.
    """

    name: str
    url: str
    version: str = __version__
    ids: tuple[str, ...] = ()
    at: float = 0.0
    lease: float = 0.0

    def seal(self, seal: Seal, replica: str) -> bytes:
        """Return it encrypted, as the store keeps it for the id `replica`."""
        # With the id in the seal: a writer to the store cannot give the card of one replica to another.
        return seal.seal("replica", replica, msgspec.msgpack.encode(self))

    @classmethod
    def open(cls, seal: Seal, replica: str, sealed: bytes) -> Card:
        """Return the sealed value. Raises ForeignSeal, msgspec.DecodeError."""
        return msgspec.msgpack.decode(seal.open("replica", replica, sealed), type=cls)


class Neighbour(msgspec.Struct, frozen=True):
    """Another replica, under the id that is in force."""

    replica: str
    card: Card


class ReplicaState(msgspec.Struct, frozen=True, kw_only=True):
    """A replica. `id`: the one in force; `state`: one of those above; `trouble`: if it has any.

    `since`: when it was started, in seconds since 1970. `store_away`: it got no answer when it asked last.
    `owned`: upstreams at which it subscribes for all. `sessions`: legacy sessions that are there now;
    `taken_over`: those that came from replicas that had gone. `handed_over` and `handed_in`: requests that
    others have answered for it, and it for others. `commands`: to the store. `lag_ms`: how long the store
    took for its last answer. `events_waiting`: of streams, for the store. `lease_seconds`: that its lease
    still holds. `others`: replicas that it knows to be there. All counts are since the start.

    Of one that is silent or gone only `name`, `id`, `url` and `version` are known, and the numbers have no
    meaning.
    """

    name: str
    id: str
    url: str
    version: str
    state: str
    trouble: str | None = None
    since: float | None = None
    store_away: bool = False
    others: int = 0
    owned: int = 0
    sessions: int = 0
    taken_over: int = 0
    handed_over: int = 0
    handed_in: int = 0
    commands: int = 0
    lag_ms: float | None = None
    events_waiting: int = 0
    lease_seconds: float = 0.0


class HandedRequest(msgspec.Struct, array_like=True, tag="request", frozen=True):
    """A client's request. `listener`: the number of that where it came in; the rest as in HttpRequest."""

    listener: int
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    peer: str
    holder: str

    @classmethod
    def of(cls, listener: int, request: HttpRequest) -> HandedRequest:
        target = request.method, request.path, request.query
        return cls(listener, *target, request.headers, request.body, request.peer, request.holder)

    def request(self) -> HttpRequest:
        target = self.method, self.path, self.query
        # As from the client's own address: limits of one client hold at all replicas.
        return HttpRequest(*target, self.headers, self.body, self.peer, False, True, self.holder)


class HandedCall(msgspec.Struct, array_like=True, tag="call", frozen=True):
    """A modern client's call, as in Call: `params` and `meta` as JSON. `principal`: who the client is."""

    method: str
    params: bytes
    meta: bytes
    principal: Principal

    @classmethod
    def of(cls, call: Call) -> HandedCall:
        return cls(call.method, encode(call.params), encode(call.meta), call.principal)

    def call(self) -> Call:
        return Call(
            self.method, decode_fields(self.params), decode_fields(self.meta), principal=self.principal
        )


class News(msgspec.Struct, array_like=True, tag="news", frozen=True):
    """Changes. `slots`: of generations (`mux/cache`); `lists`: pairs (upstream, notification)."""

    slots: list[int]
    lists: list[tuple[str, str]]


class StateWanted(msgspec.Struct, array_like=True, tag="state", frozen=True):
    """A question for the ReplicaState of the reader."""


class ListenWanted(msgspec.Struct, array_like=True, tag="listen", frozen=True):
    """Tell me of changes of an upstream's `uris`, as the upstream has them.

    `stream`: what this listen is called; `replaces`: another one, which is to end when this is acknowledged.
    """

    upstream: str
    uris: list[str]
    stream: str
    replaces: str = ""


Content: TypeAlias = HandedRequest | HandedCall | News | StateWanted | ListenWanted


class Letter(msgspec.Struct, array_like=True, frozen=True):
    """`to`: the id of a replica; `at`: seconds since 1970; `nonce`: used once."""

    to: str
    at: float
    nonce: str
    content: Content
