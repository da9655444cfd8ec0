"""Counts that all processes share through the store: sessions of each principal, and tokens of rate limits.

A session that other replicas may go on with keeps its place for as long as its record is kept, at any
replica. Any other session keeps its place while the lease of its process holds. Without the store no session
begins.

When the store is away each replica counts tokens alone: limits hold less exactly then, and no client is
refused for that.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog
import trio

from mcpmux.cluster.membership import Membership
from mcpmux.cluster.store import Bucket, Place, Seal, Store, StoreAway
from mcpmux.mux.rate import Counted, Exceeded
from mcpmux.transports.inline import in_task
from mcpmux.upstreams.rate_counter import RateCounter

log = structlog.get_logger()

KEPT_LONGER: Final = 2.0  # times `session_idle`, in which what is kept is renewed twice

GROUP, SESSION = "sessions of a principal", "counted session"  # kinds of names

Act = Callable[[], Awaitable[None]]
"""Tells the store something. Raises StoreAway; it is tried again then."""


class Upkeep:
    """Of one kind of things. `run` has to run.

    `keep` is awaited twice in `seconds`, which is `session_idle`, and `remove` soon after `remove_soon`. They
    never run at the same time, so `keep` cannot bring back a record that `remove` deletes.
    """

    def __init__(self, members: Membership, seconds: float, keep: Act, remove: Act) -> None:
        self._members, self._seconds = members, seconds
        self._keep, self._remove = keep, remove
        self._end = trio.Event()

    def remove_soon(self) -> None:
        """Something has ended. Never waits."""
        self._end.set()

    async def run(self) -> None:
        """Keep and remove until cancelled."""
        keep_at = trio.current_time() + self._seconds / 2
        while True:
            with trio.move_on_at(keep_at):
                await self._end.wait()
            self._end = trio.Event()
            try:
                await self._remove()
                if trio.current_time() >= keep_at:
                    await self._keep()
                    keep_at = trio.current_time() + self._seconds / 2
            except StoreAway as away:
                log.debug("what the store keeps is not renewed now", reason=str(away))
                await self._members.changed(math.inf)
                self._end.set()


class StoredPlaces:
    """The places of the sessions of this process. Implements SessionCount; `run` has to run."""

    def __init__(self, store: Store, seal: Seal, members: Membership, seconds: float) -> None:
        """Take `seconds`, after which an unused session ends."""
        self._store, self._seal, self._members = store, seal, members
        self._seconds = seconds * KEPT_LONGER
        self._here: dict[str, Place] = {}
        self._left: set[Place] = set()  # to be reported to the store; bounded by the sessions there were
        self._upkeep = Upkeep(members, seconds, self._keep, self._leave)
        self.run = self._upkeep.run

    def __len__(self) -> int:
        return len(self._here)

    def _place_of(self, session_id: str, principal: str, *, lasting: bool) -> Place:
        owner = "" if lasting else self._members.replica
        return Place(self._seal.name(GROUP, principal), self._seal.name(SESSION, session_id), owner)

    def _owned(self, place: Place) -> Place:
        """The place under the id that is in force now, if it depends on one."""
        return place._replace(owner=self._members.replica) if place.owner else place

    async def begin(self, session_id: str, principal: str, most: int, *, lasting: bool) -> bool:
        """See SessionCount."""
        await in_task()
        members = self._members
        if not await members.inside() and not members.is_left:
            raise StoreAway(members.trouble).refusal()
        place = self._place_of(session_id, principal, lasting=lasting)
        try:
            is_taken = await self._store.take_place(place, most, self._seconds)
        except BaseException as error:
            self._free(place)  # it may have been taken
            if isinstance(error, StoreAway):
                raise error.refusal() from None
            raise
        if is_taken:
            self._here[session_id] = place
        return is_taken

    def go_on(self, session_id: str, principal: str) -> None:
        """See SessionCount."""
        self._here[session_id] = self._place_of(session_id, principal, lasting=True)

    def end(self, session_id: str) -> None:
        """See SessionCount."""
        if (place := self._here.pop(session_id, None)) is not None:
            self._free(self._owned(place))

    def _free(self, place: Place) -> None:
        self._left.add(place)
        self._upkeep.remove_soon()

    def lose(self, session_id: str) -> None:
        """See SessionCount."""
        self._here.pop(session_id, None)

    async def regain(self) -> None:
        """Have the places of sessions that are here under the id that is in force now. Raises StoreAway."""
        own = [self._owned(place) for place in self._here.values() if place.owner]
        if own:
            await self._store.keep_places(own, self._seconds)

    async def _keep(self) -> None:
        members = self._members
        if not self._here or members.is_left:
            return
        if not members.is_inside:  # others may have taken sessions over and ended them
            raise StoreAway(members.trouble)
        await self._store.keep_places([self._owned(place) for place in self._here.values()], self._seconds)

    async def _leave(self) -> None:
        while self._left:
            left = list(self._left)
            await self._store.leave_places(left)
            self._left.difference_update(left)


class StoredTokens:
    """`take` is for `RateCounter.take_together`."""

    def __init__(self, store: Store, seal: Seal, rates: RateCounter) -> None:
        self._store, self._seal, self._rates = store, seal, rates

    async def take(self, counted: Sequence[Counted]) -> Exceeded | None:
        """Take a token out of each bucket, unless one has none."""
        await in_task()
        buckets = [Bucket(self._name_of(bucket), bucket.interval, bucket.room) for bucket in counted]
        try:
            refused = await self._store.take(buckets)
        except StoreAway:
            return self._rates.take_here(counted)
        if refused is None:
            return None
        number, seconds = refused
        return Exceeded(counted[number].setting, counted[number].limit, seconds)

    def _name_of(self, counted: Counted) -> str:
        # With its numbers: after a change of the limit there are other buckets.
        limit = counted.limit
        numbers = f"{limit.requests} {limit.per:g} {limit.burst}"
        return self._seal.name("bucket", "\0".join((counted.setting, numbers, *counted.key)))
