"""This replica among the others: its lease, and who else has one.

    outside --the store has heard of its id--> regaining --its sessions are its own again--> inside
    inside --the lease was not renewed in time--> outside, under another id
    inside --leave--> left

Inside, the replica may do what nobody else may do at the same time. Whether it is inside is a matter of its
own clock, which goes on while the process is stopped: its lease is over for it no later than for the store.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec
import structlog
import trio

from mcpmux.cluster.letter import Card, Neighbour
from mcpmux.cluster.store import ForeignSeal, Member, Seal, Store, StoreAway
from mcpmux.errors import TransportClosed
from mcpmux.mux.rewrite import Marks
from mcpmux.transports.waiting import clock

log = structlog.get_logger()

ID_BYTES: Final = 5  # of randomness
GONE_KEPT: Final = 1000
LEASE_SECONDS: Final = 3.0
RENEWALS: Final = 3  # in the time of one lease
NOT_ASKED: Final = "it has not been asked yet"


async def _nothing(_ids: Collection[str]) -> None:
    """Nothing is to be done."""


class Membership:
    """`run` has to run. `neighbours`: the others, by each id that they have or had.

    `on_return` is awaited with the ids of before when the replica is known under another one, before it is
    inside. `on_members` is called with the number of members, this one among them, when it is another than
    before. `on_gone` is called when another replica has gone, with the seconds since when it may have, and
    `on_loss` whenever something may have happened of which it did not hear: then, and when it was outside.
    """

    def __init__(
        self,
        store: Store,
        seal: Seal,
        name: str,
        url: str,
        lease: float = LEASE_SECONDS,
        *,
        ids: str = "",
        is_told_of: bool = True,
    ) -> None:
        """`url`: where the others reach this one. `lease`: seconds.

        `ids`: what they begin with. `is_told_of`: in the log.
        """
        self._ids = ids
        self._is_told_of = is_told_of
        self._store = store
        self._seal = seal
        self._name, self._url = name, url
        self.lease = lease
        self.marks = Marks(self._new_id())
        self._is_known = False  # the store has heard of this id
        self._has_returned = False  # and its sessions are its own again
        self._until = self._young_until = -math.inf
        self._is_left = False
        self._gone: dict[str, None] = {}  # ids that are not in force any more; of late
        self._asked_at = -math.inf  # when the store was last asked with success
        self.neighbours: dict[str, Neighbour] = {}
        self._relying: dict[str, tuple[Neighbour, set[trio.CancelScope]]] = {}  # by the ids of replicas
        self._living: set[str] = set()  # all ids in force, also of those that we do not understand
        self.trouble: str | None = NOT_ASKED
        self._strangers: frozenset[str] = frozenset()  # ids of members that we have told of in the log
        self._clock = clock()
        self._turn = trio.Lock()
        self._change = trio.lowlevel.ParkingLot()
        self._hurry = trio.Event()
        self.on_return: Callable[[Collection[str]], Awaitable[None]] = _nothing
        self.on_loss: Callable[[], None] = lambda: None
        self.on_members: Callable[[int], None] = lambda _number: None
        self.on_gone: Callable[[float], None] = lambda _seconds: None

    def _new_id(self) -> str:
        return self._ids + secrets.token_hex(ID_BYTES)

    def _tell(self, event: str, **facts: object) -> None:
        if self._is_told_of:
            log.info(event, replica=self._name, **facts)

    @property
    def replica(self) -> str:
        """The id that is in force, or will be."""
        return self.marks.current[:-1]

    @property
    def is_inside(self) -> bool:
        return self._clock() < self._until

    @property
    def seconds_left(self) -> float:
        """Of the lease."""
        return max(0.0, self._until - trio.current_time())

    @property
    def is_left(self) -> bool:
        return self._is_left

    @property
    def others(self) -> list[Neighbour]:
        """All other replicas, once each."""
        return [each for replica, each in self.neighbours.items() if replica == each.replica]

    @contextmanager
    def relying_on(self, neighbour: Neighbour) -> Iterator[None]:
        """Let `give_up` end what is done inside: a process that hangs closes no connection.

        Raises TransportClosed then.
        """
        with trio.CancelScope() as scope:
            entry = self._relying.setdefault(neighbour.replica, (neighbour, set()))
            scopes = entry[1]
            scopes.add(scope)
            try:
                yield
            finally:
                scopes.discard(scope)
                if not scopes and self._relying.get(neighbour.replica) is entry:
                    del self._relying[neighbour.replica]
        if scope.cancelled_caught:
            raise TransportClosed("that replica has gone")

    def relied_on_and_gone(self) -> list[Neighbour]:
        """Return the replicas that are no members any more while something here waits for them."""
        return [each for replica, (each, _) in self._relying.items() if replica not in self.neighbours]

    def give_up(self, neighbour: Neighbour) -> None:
        """End what waits for a replica."""
        _, scopes = self._relying.get(neighbour.replica, (neighbour, ()))
        for scope in scopes:
            scope.cancel(reason="that replica has gone")

    def heed(self) -> None:
        """Look at the clock: what is remembered may be wrong while the others do not all know of us."""
        if not self._young_until <= self._clock() < self._until:
            self.on_loss()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Renew the lease until cancelled. Started when the store was asked once, whatever it said."""
        await self.renew()
        task_status.started()
        while not self._is_left:
            with trio.move_on_after(self.lease / RENEWALS):
                await self._hurry.wait()
            self._hurry = trio.Event()
            await self.renew()

    def renew_soon(self) -> None:
        """Have `run` renew the lease at once: there are other members now."""
        self._hurry.set()

    async def renew(self) -> None:
        """Ask for a lease now. Afterwards `neighbours` are those of now, if the store answers."""
        began = trio.current_time()
        async with self._turn:
            if self._is_left or self._asked_at >= began:  # somebody else has asked meanwhile
                return
            try:
                await self._renew()
            except StoreAway as away:
                if self.trouble in (None, NOT_ASKED):
                    log.error("the store of the cluster is away", reason=str(away))
                self.trouble = str(away)
            else:
                if self.trouble is not None:
                    self._tell("member of the cluster", others=len(self.others))
                self.trouble = None
            self.heed()
        self._change.unpark_all()

    async def _renew(self) -> None:
        """Raises StoreAway."""
        for _ in range(2):
            began = trio.current_time()
            before = tuple(self._ids_before())
            card = Card(self._name, self._url, ids=before, at=time.time(), lease=self.lease)
            sealed = card.seal(self._seal, self.replica)
            joining = not self._is_known
            members = await self._store.renew(self.replica, sealed, self.lease, joining=joining)
            if members is None:
                self._lapse()
                continue
            self._meet(members)
            self._asked_at, self._is_known = began, True
            if not self._has_returned:
                await self.on_return(self._ids_before())
                # By then the others have heard of this id, or have no lease themselves.
                self._has_returned, self._young_until = True, began + self.lease
            self._until = began + self.lease
            return

    def _ids_before(self) -> set[str]:
        return self.marks.own.keys() - {self.replica}

    def _lapse(self) -> None:
        log.warning("the lease of this replica has ended", replica=self._name)
        self._note_gone(self.replica)
        self._until, self._is_known, self._has_returned = -math.inf, False, False
        self.heed()
        self.marks.become(self._new_id())

    def _meet(self, members: Collection[Member]) -> None:
        before, self._living = len(self._living), {member.replica for member in members}
        if len(self._living) != before:
            self.on_members(len(self._living))
        found: dict[str, Neighbour] = {}
        strangers = set[str]()
        for member in members:
            # A store that failed over may still have an id which this replica had before.
            if member.replica == self.replica or member.replica in self.marks.own:
                continue
            try:
                card = Card.open(self._seal, member.replica, member.card)
            except (ForeignSeal, msgspec.DecodeError):
                if member.replica not in self._strangers:
                    log.error("another replica has another `cursor_key`, or is not of this version")
                strangers.add(member.replica)
                continue
            for each in (member.replica, *card.ids):
                found[each] = Neighbour(member.replica, card)
        self._strangers = frozenset(strangers)
        lost = {each.replica for each in self.others} - found.keys()
        for replica in lost:
            self._tell("a replica has gone", gone=self.neighbours[replica].card.name)
            self._note_gone(replica)
        self.neighbours = found
        if lost:
            self.on_loss()
            # When the store was last asked its lease still held, perhaps for no longer.
            self.on_gone(trio.current_time() - self._asked_at + self.lease)

    async def is_gone(self, replica: str) -> bool:
        """Whether an id is not in force any more, and never will be. Raises StoreAway.

        It has to be one that owns something already: one that is about to join is not known to the store.
        """
        if replica in self._gone or (replica in self.marks.own and replica != self.replica):
            return True
        if replica == self.replica:
            return False
        await self.renew()
        if self.trouble is not None:
            raise StoreAway(self.trouble)
        if replica not in self._living:
            self._note_gone(replica)
        return replica in self._gone

    def _note_gone(self, replica: str) -> None:
        if len(self._gone) >= GONE_KEPT:
            del self._gone[next(iter(self._gone))]
        self._gone[replica] = None

    async def changed(self, seconds: float) -> None:
        """Wait until the store was asked again, for so long at most."""
        with trio.move_on_after(seconds):
            await self._change.park()

    async def inside(self) -> bool:
        """Wait to be inside until the store was asked once more; whether it is."""
        with trio.move_on_after(self.lease / RENEWALS):
            while not self.is_inside and not self._is_left:
                await self._change.park()
        return self.is_inside

    async def leave(self) -> None:
        """End the lease: others take over at once. Nothing happens when the store is away."""
        if self._is_left:
            return
        self._is_left, self._until = True, -math.inf
        if self._is_known:
            try:
                await self._store.leave(self.replica)
            except StoreAway as away:
                log.warning("the cluster does not know yet that this replica has gone", reason=str(away))
