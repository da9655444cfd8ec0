"""What the replicas of a cluster keep in common, and what a store has to do for that.

A replica has an id, which is in force for as long as its lease is renewed. An id whose lease has ended is
never in force again: the replica goes on under another one. So the id of an owner is a fencing token.

A session is kept under a name, with the id that owns it and what is known of it. Only its owner writes there.
`claim` gives it to another owner, if it is still that of before. What belongs to nobody any more ends by
itself, after its time.

All values are sealed by whoever has them kept; a store knows names, ids and times only. Times are in seconds,
and those of one store: no clocks of replicas are compared.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple, Protocol

from mcpmux.errors import McpmuxError

ENDED_KEPT: Final = 86_400.0  # seconds; a store remembers for a day that an id has ended, and refuses it


class StoreAway(McpmuxError):
    """The store did not answer in time, or could not do it. What was asked for may have been done."""


class Member(NamedTuple):
    """A replica whose lease holds. `card`: what it says of itself, sealed."""

    replica: str
    card: bytes


class Lease(NamedTuple):
    """What holds of a replica, as seen from outside. `card` as in Member; `seconds`: until it ends."""

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
        """Who is a member, for somebody who is none. Nothing is changed."""

    async def leave(self, replica: str) -> None:
        """End a lease."""

    async def save(self, name: str, session: StoredSession, seconds: float) -> bool:
        """Keep a session for so long. False, and nothing is done, when another replica owns it."""

    async def find(self, name: str) -> StoredSession | None:
        """A session, None when there is none."""

    async def claim(self, name: str, owner: str, before: str) -> bool:
        """Let `owner` have a session in place of `before`. False when that does not own it (any more)."""

    async def keep(self, names: Sequence[str], owner: str, seconds: float) -> Collection[str]:
        """Keep these sessions for so long from now on. Returns those which are kept and are the owner's."""

    async def end(self, name: str, owner: str) -> None:
        """Forget a session and its events, if it is the owner's."""

    async def append(self, name: str, events: Sequence[bytes], most: int, seconds: float) -> None:
        """Add to the events of a session, of which the newest `most` are kept, for so long."""

    async def events(self, name: str) -> Sequence[bytes]:
        """The events of a session that are kept, the oldest first."""

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
        """These places are free again."""

    async def version(self) -> str:
        """What the store is, for people, such as "redis 7.0.15"."""
