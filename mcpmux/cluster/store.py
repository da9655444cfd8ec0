"""The store that the replicas of a cluster share: its contract, and one in memory.

A replica has an id, which is in force for as long as its lease is renewed. An id whose lease has ended is
never in force again: the replica goes on under another one. So the id of an owner is a fencing token.

A session is kept under a name, with the id that owns it and what is known of it. Only its owner writes there.
`claim` gives it to another owner, if it is still that of before. A session without an owner ends after its
time.

The caller seals all values; a store knows names, ids and times only. Times are in seconds,
and those of one store: no clocks of replicas are compared.

Here are the contracts of stores and seals, and both for what stays in the memory of mcpmux itself. Others are
in `redis_store` and `seal`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from mcpmux.errors import McpmuxError
from mcpmux.protocol.codes import Busy

V = TypeVar("V")

ENDED_KEPT: Final = 86_400.0  # seconds; a store remembers for a day that an id has ended, and refuses it
SWEEP_FROM: Final = 64  # entries of a store in memory; fewer are not worth a look


class StoreAway(McpmuxError):
    """The store did not answer in time, or refused. The command may have been carried out."""

    def refusal(self) -> Busy:
        """Return the refusal of a request that needs the store."""
        return Busy(f"the store of the cluster is away ({self})", "cluster.url")


class Member(NamedTuple):
    """A replica whose lease holds. `card`: what it says of itself, sealed."""

    replica: str
    card: bytes


class Lease(NamedTuple):
    """A replica's lease, as seen from outside. `card` as in Member; `seconds`: until it ends."""

    replica: str
    card: bytes
    seconds: float


class Roll(NamedTuple):
    """All leases at one time. `at`: the clock of the store, seconds since 1970."""

    at: float
    leases: Sequence[Lease]


class StoredSession(NamedTuple):
    """A session. `owner`: the id of its replica; `facts`: what is known of it, sealed."""

    owner: str
    facts: bytes


class Bucket(NamedTuple):
    """Of a rate limit; seconds as in `mux.rate.Counted`."""

    name: str
    interval: float
    room: float


class Place(NamedTuple):
    """One of a group, of which only so many are taken at a time. `name`: its own in the group.

    `owner`: an id; when that is not in force any more, the place is free. "": it does not depend on one.
    """

    group: str
    name: str
    owner: str = ""


class Store(Protocol):
    """One engine. Every method raises StoreAway, and waits for no longer than the store's timeout.

    `commands`: how many were sent; `lag`: seconds that the last answer took, None before the first.
    """

    commands: int
    lag: float | None

    async def renew(
        self, replica: str, card: bytes, seconds: float, *, joining: bool
    ) -> Sequence[Member] | None:
        """Have a lease of so many seconds from now on. Returns all members, the replica itself among them.

        `joining`: the id is new. None: the lease that it had has ended, or was lost, and stays ended.
        """

    async def members(self) -> Roll:
        """Return the members, for a caller that is none, without any change."""

    async def leave(self, replica: str) -> None:
        """End a lease."""

    async def save(self, name: str, session: StoredSession, seconds: float) -> bool:
        """Keep a session for `seconds`. Return False, without any change, when another replica owns it."""

    async def find(self, name: str) -> StoredSession | None:
        """Return a session, None when there is none."""

    async def claim(self, name: str, owner: str, before: str) -> bool:
        """Give a session of `before` to `owner`. Return False when `before` does not own it (any more)."""

    async def keep(self, names: Sequence[str], owner: str, seconds: float) -> Collection[str]:
        """Keep these sessions for so long from now on. Returns those which are kept and are the owner's."""

    async def end(self, name: str, owner: str) -> None:
        """Forget a session and its events, if it is the owner's."""

    async def append(self, name: str, events: Sequence[bytes], most: int, seconds: float) -> None:
        """Add to the events of a session, of which the newest `most` are kept, for so long."""

    async def events(self, name: str) -> Sequence[bytes]:
        """Return the events of a session that are kept, the oldest first."""

    async def take(self, buckets: Sequence[Bucket]) -> tuple[int, float] | None:
        """Take a token out of each bucket, or out of none.

        Returns None when they were taken, else the number of the bucket that has none for longest, from 0,
        and the seconds until it has one.
        """

    async def take_place(self, place: Place, most: int, seconds: float) -> bool:
        """Have a place, or go on having it, for so long. False when `most` others of its group are."""

    async def keep_places(self, places: Sequence[Place], seconds: float) -> None:
        """Have these places for so long from now on, however many are taken."""

    async def leave_places(self, places: Sequence[Place]) -> None:
        """Make these places free again."""

    async def version(self) -> str:
        """Return the store's name and version for people, such as "redis 7.0.15"."""


class ForeignSeal(McpmuxError):
    """It was sealed for somebody else, with another key, or as something else."""


class Seal(Protocol):
    """The encryption of values, each bound to its kind, its name and its principal."""

    def name(self, kind: str, text: str) -> str:
        """Return what something is called in the store."""

    def seal(self, kind: str, name: str, data: bytes, principal: str = "") -> bytes:
        """Return what is to lie in the store under a name. `principal`: the key of the one it is for."""

    def open(self, kind: str, name: str, sealed: bytes, principal: str = "") -> bytes:
        """Return what was sealed as that kind, under that name, for that principal. Raises ForeignSeal."""

    def sign(self, data: bytes) -> str:
        """Return the signature of what one replica says to another."""

    def is_signed(self, data: bytes, signature: str) -> bool:
        """Return whether that is the signature of `data`."""


# In the memory of this process


class OpenSeal:
    """For workers, whose store and sockets no one else reaches: it neither encrypts nor signs."""

    def name(self, kind: str, text: str) -> str:
        return f"{kind} {text}"

    def seal(self, kind: str, name: str, data: bytes, principal: str = "") -> bytes:
        return msgspec.msgpack.encode((kind, name, principal, data))

    def open(self, kind: str, name: str, sealed: bytes, principal: str = "") -> bytes:
        *bound, data = msgspec.msgpack.decode(sealed, type=tuple[str, str, str, bytes])
        if bound != [kind, name, principal]:
            raise ForeignSeal(f"this {kind} was sealed for somebody else")
        return data

    def sign(self, data: bytes) -> str:
        return ""

    def is_signed(self, data: bytes, signature: str) -> bool:
        return True


class _Expiring(Generic[V]):
    """Values by name, each until its time. When there are twice as many, those that ended are dropped."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[V, float]] = {}
        self._sweep_at = SWEEP_FROM

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, name: str, now: float) -> V | None:
        value, ends = self._entries.get(name, (None, now))
        return value if ends > now else None

    def put(self, name: str, value: V, ends: float, now: float) -> None:
        self._entries[name] = value, ends
        # Seldom enough that each value is looked at twice in its life, on average.
        if len(self._entries) >= self._sweep_at:
            self.sweep(now)
            self._sweep_at = max(SWEEP_FROM, 2 * len(self._entries))

    def put_longer(self, name: str, value: V, ends: float, now: float) -> None:
        """Put a value as `put` does, but keep it at least as long as the former value."""
        _, former = self._entries.get(name, (None, ends))
        self.put(name, value, max(ends, former), now)

    def replace(self, name: str, value: V) -> None:
        """Replace a value, until the same time."""
        self._entries[name] = value, self._entries[name][1]

    def discard(self, name: str) -> None:
        self._entries.pop(name, None)

    def sweep(self, now: float) -> list[str]:
        """Drop what has ended. Returns the names."""
        gone = [name for name, (_, ends) in self._entries.items() if ends <= now]
        for name in gone:
            del self._entries[name]
        return gone

    def sorted(self) -> list[tuple[str, V]]:
        """Return all that was not dropped, by name."""
        return [(name, value) for name, (value, _) in sorted(self._entries.items())]

    def left(self, now: float) -> list[tuple[str, V, float]]:
        """Return all that is in force, by name, with the time that is left."""
        entries = sorted(self._entries.items())
        return [(name, value, ends - now) for name, (value, ends) in entries if ends > now]


class MemoryStore:
    """A `Store` in the memory of this process. `clock`: seconds of any clock that never goes back.

    It is never away, and never waits: its methods are async only by name. Values that are not renewed are
    forgotten after their time, so memory is bounded by what is in force.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.commands = 0  # always: no command is sent
        self.lag: float | None = 0.0
        self._clock = clock
        self._members: _Expiring[bytes] = _Expiring()
        self._ended: _Expiring[bool] = _Expiring()
        self._sessions: _Expiring[StoredSession] = _Expiring()
        self._events: _Expiring[deque[bytes]] = _Expiring()
        self._full_at: _Expiring[float] = _Expiring()
        self._places: _Expiring[dict[Place, float]] = _Expiring()  # and when each ends, by their group

    def __repr__(self) -> str:
        return f"MemoryStore({len(self._members)} members, {len(self._sessions)} sessions)"

    async def renew(
        self, replica: str, card: bytes, seconds: float, *, joining: bool
    ) -> Sequence[Member] | None:
        now = self._clock()
        # First: a lease that has ended stays ended, though no other replica has noticed it.
        for gone in self._members.sweep(now):
            self._ended.put(gone, True, now + ENDED_KEPT, now)
        if self._members.get(replica, now) is None and (not joining or self._ended.get(replica, now)):
            self._ended.put(replica, True, now + ENDED_KEPT, now)
            return None
        self._members.put(replica, card, now + seconds, now)
        return [Member(*entry) for entry in self._members.sorted()]

    async def members(self) -> Roll:
        now = self._clock()
        return Roll(now, [Lease(*entry) for entry in self._members.left(now)])

    async def leave(self, replica: str) -> None:
        now = self._clock()
        self._members.discard(replica)
        # Also of one that never joined: its first renewal may be under way, and comes later.
        self._ended.put(replica, True, now + ENDED_KEPT, now)

    async def save(self, name: str, session: StoredSession, seconds: float) -> bool:
        now = self._clock()
        former = self._sessions.get(name, now)
        if former is not None and former.owner != session.owner:
            return False
        self._sessions.put(name, session, now + seconds, now)
        return True

    async def find(self, name: str) -> StoredSession | None:
        return self._sessions.get(name, self._clock())

    async def claim(self, name: str, owner: str, before: str) -> bool:
        session = self._owned(name, before, self._clock())
        if session is None:
            return False
        # Until the same time: a session that only moves between replicas must end as well.
        self._sessions.replace(name, session._replace(owner=owner))
        return True

    async def keep(self, names: Sequence[str], owner: str, seconds: float) -> Collection[str]:
        now, kept = self._clock(), set[str]()
        for name in names:
            session, events = self._owned(name, owner, now), self._events.get(name, now)
            if session is not None:
                kept.add(name)
                self._sessions.put(name, session, now + seconds, now)
                if events is not None:
                    self._events.put(name, events, now + seconds, now)
        return kept

    async def end(self, name: str, owner: str) -> None:
        if self._owned(name, owner, self._clock()) is not None:
            self._sessions.discard(name)
            self._events.discard(name)

    async def append(self, name: str, events: Sequence[bytes], most: int, seconds: float) -> None:
        now = self._clock()
        kept = deque(self._events.get(name, now) or (), maxlen=most)
        kept.extend(events)
        self._events.put(name, kept, now + seconds, now)

    async def events(self, name: str) -> Sequence[bytes]:
        return tuple(self._events.get(name, self._clock()) or ())

    async def take(self, buckets: Sequence[Bucket]) -> tuple[int, float] | None:
        now = self._clock()
        full_at = [self._full_at.get(bucket.name, now) or now for bucket in buckets]
        waits = [full - now - bucket.room for full, bucket in zip(full_at, buckets, strict=True)]
        # The longest wait decides for all: a client that waits that long finds a token in each bucket.
        number = max(range(len(waits)), key=waits.__getitem__, default=None)
        if number is not None and waits[number] > 0:
            return number, waits[number]
        for full, bucket in zip(full_at, buckets, strict=True):
            self._full_at.put(bucket.name, full + bucket.interval, full + bucket.interval, now)
        return None

    async def take_place(self, place: Place, most: int, seconds: float) -> bool:
        now = self._clock()
        taken = self._places.get(place.group, now) or {}
        if place not in taken and len(taken) >= most:
            # Only when there is no room: a look at all places of a group takes long.
            for other, ends in list(taken.items()):
                has_gone = other.owner != "" and self._members.get(other.owner, now) is None
                if ends <= now or has_gone:
                    del taken[other]
            if len(taken) >= most:
                return False
        self._take(place, now + seconds, now)
        return True

    async def keep_places(self, places: Sequence[Place], seconds: float) -> None:
        now = self._clock()
        for place in places:
            self._take(place, now + seconds, now)

    async def leave_places(self, places: Sequence[Place]) -> None:
        now = self._clock()
        for place in places:
            taken = self._places.get(place.group, now) or {}
            taken.pop(place, None)
            if not taken:
                self._places.discard(place.group)

    def _take(self, place: Place, ends: float, now: float) -> None:
        taken = self._places.get(place.group, now) or {}
        taken[place] = ends
        # One place that ends early must not take the others of its group with it.
        self._places.put_longer(place.group, taken, ends, now)

    async def version(self) -> str:
        return "memory of this process"

    def _owned(self, name: str, owner: str, now: float) -> StoredSession | None:
        session = self._sessions.get(name, now)
        return session if session is not None and session.owner == owner else None
