"""The sessions of each principal, counted in the store for all processes together.

A session that others may go on with has its place for as long as its record is kept, whoever has it then. Any
other session has its place while the lease of its process holds. Without the store no session begins.
"""

from __future__ import annotations

from mcpmux.cluster.membership import Membership
from mcpmux.cluster.sessions import store_away
from mcpmux.cluster.store import Place, Seal, Store, StoreAway
from mcpmux.cluster.upkeep import KEPT_LONGER, Upkeep
from mcpmux.transports.inline import in_task

GROUP, SESSION = "sessions of a principal", "counted session"  # kinds of names


class StoredPlaces:
    """The places of the sessions of this process. Implements SessionCount; `run` has to run."""

    def __init__(self, store: Store, seal: Seal, members: Membership, seconds: float) -> None:
        """`seconds` after which a session ends that nobody uses."""
        self._store, self._seal, self._members = store, seal, members
        self._seconds = seconds * KEPT_LONGER
        self._here: dict[str, Place] = {}
        self._left: set[Place] = set()  # that the store has to hear of; bounded by the sessions there were
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
            raise store_away(members.trouble)
        place = self._place_of(session_id, principal, lasting=lasting)
        try:
            is_taken = await self._store.take_place(place, most, self._seconds)
        except BaseException as error:
            self._free(place)  # it may have been taken
            if isinstance(error, StoreAway):
                raise store_away(error) from None
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
