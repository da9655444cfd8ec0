"""This replica among the others: its lease, and who else has one.

Its states are those of MemberState, and change as the table TRANSITIONS says.

A member is inside while its lease holds, and may then do what only one replica may do at a time. Its own
clock shows whether the lease holds.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from enum import Enum, auto
from typing import Final

import msgspec
import structlog
import trio

from mcpmux.cluster.letter import Card, Neighbour
from mcpmux.cluster.store import ForeignSeal, Member, Seal, Store, StoreAway
from mcpmux.lru import Lru
from mcpmux.mux.rewrite import Marks
from mcpmux.transports.waiting import clock

log = structlog.get_logger()

ID_BYTES: Final = 5  # of randomness
GONE_KEPT: Final = 1000  # ids that are not in force any more
GONE_BYTES: Final = 2**20  # of them; ours are short, but what the store names is anything
LEASE_SECONDS: Final = 3.0
RENEWALS: Final = 3  # in the time of one lease
TRACES: Final = 32  # replicas that are remembered after they have gone
TRACE_SECONDS = 300.0  # for so long: a person may look for what was there
NOT_ASKED: Final = "it has not been asked yet"


class MemberState(Enum):
    """The stages of a replica on its way into the cluster."""

    JOINING = auto()  # the store does not know the id in force yet
    RETURNING = auto()  # it has, but what is here may lie there under an id of before
    MEMBER = auto()  # it is inside while its lease holds
    LEFT = auto()  # it has ended its lease itself, and stays outside


class MemberStep(Enum):
    """The events that move a replica from one state to another."""

    GRANTED = auto()  # the store has given a lease to the id in force
    REFUSED = auto()  # for the store that id has ended: the replica joins again under another one
    REGAINED = auto()  # what is here lies in the store under the id in force
    LEAVING = auto()


TRANSITIONS: Final[Mapping[tuple[MemberState, MemberStep], MemberState]] = {
    (MemberState.JOINING, MemberStep.GRANTED): MemberState.RETURNING,
    (MemberState.RETURNING, MemberStep.REGAINED): MemberState.MEMBER,
    (MemberState.RETURNING, MemberStep.REFUSED): MemberState.JOINING,
    (MemberState.MEMBER, MemberStep.REFUSED): MemberState.JOINING,
    **{(state, MemberStep.LEAVING): MemberState.LEFT for state in MemberState},
}
"""All other steps change nothing: what the store answers after a replica has left does not bring it back."""


class Standing:
    """The state of a replica, and when that ends. Pure: times are of the replica's own clock, in seconds."""

    def __init__(self) -> None:
        self.state = MemberState.JOINING
        self._ends = self._known_at = -math.inf

    def __repr__(self) -> str:
        return f"<Standing {self.state.name} until {self._ends:g}>"

    def take(self, step: MemberStep, ends: float = -math.inf) -> None:
        """Go on to the next state. `ends`: when the lease ends that the store has granted."""
        self.state = TRANSITIONS.get((self.state, step), self.state)
        # A replica that is RETURNING has a lease, but may not act on it: another one may have its sessions.
        self._ends = ends if self.state is MemberState.MEMBER else -math.inf
        if step is MemberStep.REGAINED:
            # By then each of the others has asked the store, and so heard of this id, or has no lease itself.
            self._known_at = ends

    def seconds_left(self, now: float) -> float:
        """Return for how long the lease holds, 0 if it does not."""
        return max(0.0, self._ends - now)

    def is_inside(self, now: float) -> bool:
        return now < self._ends

    def is_told_of_changes(self, now: float) -> bool:
        """Return whether all others that are inside know of this replica, so that it misses no change."""
        return self._known_at <= now < self._ends


class Peers:
    """The other replicas, as the store told of them last. Pure: `now` is of this replica's clock, in seconds.

    `neighbours`: by each id that they have or had. `living`: the ids in force of all members, this one among
    them, and those whose cards cannot be read.
    """

    def __init__(self) -> None:
        self.neighbours: dict[str, Neighbour] = {}
        self.living: Collection[str] = ()
        self.gone: Lru[str, None] = Lru(GONE_KEPT, GONE_BYTES)  # ids that were in force, of late
        self._strangers: frozenset[str] = frozenset()  # ids whose cards could not be read the last time
        self._traces = deque[tuple[Neighbour, float]](maxlen=TRACES)

    def __repr__(self) -> str:
        return f"<Peers {len(self.all)} of {len(self.living)} members>"

    @property
    def all(self) -> list[Neighbour]:
        """All other replicas, once each."""
        return [neighbour for replica, neighbour in self.neighbours.items() if replica == neighbour.replica]

    def meet(
        self, members: Collection[Member], seal: Seal, own: Collection[str], now: float
    ) -> tuple[list[Neighbour], Collection[str]]:
        """Take who is there now. Return those that have gone since, and new ids whose cards cannot be read.

        `own`: all ids of this replica.
        """
        neighbours: dict[str, Neighbour] = {}
        strangers = set[str]()
        for replica, sealed in members:
            if replica in own:  # a store that failed over may still have one that this replica had before
                continue
            try:
                card = Card.open(seal, replica, sealed)
            except (ForeignSeal, msgspec.DecodeError):
                strangers.add(replica)
                continue
            # Sessions, states and tasks that clients name may have one of its former ids in front.
            neighbours.update(dict.fromkeys((replica, *card.ids), Neighbour(replica, card)))
        lost = [neighbour for neighbour in self.all if neighbour.replica not in neighbours]
        self.living, self.neighbours = {member.replica for member in members}, neighbours
        for neighbour in lost:
            self.gone[neighbour.replica] = None
            self._traces.append((neighbour, now))
        former, self._strangers = self._strangers, frozenset(strangers)
        return lost, strangers - former

    def traces(self, now: float) -> list[tuple[Neighbour, float]]:
        """Return the replicas that have gone within TRACE_SECONDS, and how many seconds ago."""
        return [
            (neighbour, now - at)
            for neighbour, at in self._traces
            if now - at < TRACE_SECONDS and neighbour.replica not in self.neighbours
        ]


async def _nothing(_ids: Collection[str]) -> None:
    """Do nothing."""


class Membership:
    """Asks the store, and waits for what it answers. `run` has to run.

    `on_return` is awaited with the ids of before when the replica is known under another one, before it is
    inside. `on_members` is called with the number of members, this one among them, when it is another than
    before. `on_gone` is called when another replica has gone, with the seconds since when it may have, and
    `on_loss` whenever this replica may have missed a change: then, and when it was outside.
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
        self._store, self._seal = store, seal
        self.card = Card(name, url, lease=lease)  # what the others read, but for ids and the time
        self.lease = lease
        self._ids, self._is_told_of = ids, is_told_of
        self.marks = Marks(self._new_id())
        self._standing, self._peers = Standing(), Peers()
        self.trouble: str | None = NOT_ASKED
        self._asked_at = -math.inf  # when the store was last asked with success
        # It goes on while the process is stopped, so a lease is over here no later than for the store.
        self._clock = clock()
        self._turn = trio.Lock()
        self._change = trio.lowlevel.ParkingLot()
        self._hurry = trio.Event()
        self.on_return: Callable[[Collection[str]], Awaitable[None]] = _nothing
        self.on_loss: Callable[[], None] = lambda: None
        self.on_members: Callable[[int], None] = lambda _number: None
        self.on_gone: Callable[[float], None] = lambda _seconds: None

    def __repr__(self) -> str:
        return f"<Membership of {self.replica} {self._standing!r} {self._peers!r}>"

    def _new_id(self) -> str:
        return self._ids + secrets.token_hex(ID_BYTES)

    def _tell(self, event: str, **facts: object) -> None:
        if self._is_told_of:
            log.info(event, replica=self.card.name, **facts)

    @property
    def replica(self) -> str:
        """The id that is in force, or will be."""
        return self.marks.current[:-1]

    @property
    def is_inside(self) -> bool:
        return self._standing.is_inside(self._clock())

    @property
    def seconds_left(self) -> float:
        """The seconds left of the lease."""
        return self._standing.seconds_left(self._clock())

    @property
    def is_left(self) -> bool:
        return self._standing.state is MemberState.LEFT

    @property
    def neighbours(self) -> Mapping[str, Neighbour]:
        """The other replicas, by each id that they have or had."""
        return self._peers.neighbours

    @property
    def others(self) -> list[Neighbour]:
        """All other replicas, once each."""
        return self._peers.all

    def traces(self) -> list[tuple[Neighbour, float]]:
        """See Peers."""
        return self._peers.traces(trio.current_time())

    def check_clock(self) -> None:
        """Forget what is remembered if the others may not know of this replica any more."""
        if not self._standing.is_told_of_changes(self._clock()):
            self.on_loss()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Renew the lease until cancelled. Started when the store was asked once, also without an answer."""
        await self.renew()
        task_status.started()
        while not self.is_left:
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
            if self.is_left or self._asked_at >= began:  # another task has asked meanwhile
                return
            try:
                await self._renew()
            except StoreAway as away:
                if self.trouble in (None, NOT_ASKED):  # else the log has it, and each renewal would repeat it
                    log.error("the store of the cluster is away", reason=str(away))
                self.trouble = str(away)
            else:
                if self.trouble is not None:
                    self._tell("member of the cluster", others=len(self.others))
                self.trouble = None
            self.check_clock()
        self._change.unpark_all()

    async def _renew(self) -> None:
        """Have the store renew the lease; under another id if it refuses this one. Raises StoreAway."""
        standing = self._standing
        # Twice, as an id that the store refuses has ended for ever: then the lease is for another id.
        for _ in range(2):
            asked_at, former_ids = trio.current_time(), self.marks.own.keys() - {self.replica}
            # The time is that of all machines: `mcpmux check` finds out by it whether their clocks agree. The
            # former ids lead the others to what clients name with them.
            card = msgspec.structs.replace(self.card, ids=tuple(former_ids), at=time.time())
            sealed = card.seal(self._seal, self.replica)
            joining = standing.state is MemberState.JOINING
            members = await self._store.renew(self.replica, sealed, self.lease, joining=joining)
            if members is None:
                if self.is_left:  # while the store was asked, so that the id has ended
                    return
                log.warning("the lease of this replica has ended", replica=self.card.name)
                self._peers.gone[self.replica] = None
                standing.take(MemberStep.REFUSED)
                self.check_clock()
                self.marks.become(self._new_id())
                continue
            self._meet(members)
            # From when it was asked, not answered: so it ends here no later than for the store.
            self._asked_at, ends = asked_at, asked_at + self.lease
            standing.take(MemberStep.GRANTED, ends)
            if standing.state is MemberState.RETURNING:
                # Until its sessions are claimed anew, another replica may have taken them over.
                await self.on_return(former_ids)
                standing.take(MemberStep.REGAINED, ends)
            return

    def _meet(self, members: Collection[Member]) -> None:
        now, number = trio.current_time(), len(self._peers.living)
        lost, strangers = self._peers.meet(members, self._seal, self.marks.own, now)
        if len(self._peers.living) != number:
            self.on_members(len(self._peers.living))
        for _ in strangers:
            log.error("another replica has another `cursor_key`, or is not of this version")
        for neighbour in lost:
            self._tell("a replica has gone", gone=neighbour.card.name)
        if lost:
            # One that was killed in the middle of a client's act has sent no letter about it.
            self.on_loss()
            # When the store was last asked its lease still held, perhaps for no longer.
            self.on_gone(now - self._asked_at + self.lease)

    async def find(self, replica: str) -> Neighbour | None:
        """Return the other replica that has or had an id, None when it has gone. Raises StoreAway."""
        if replica not in self.neighbours:
            await self.is_gone(replica)  # or it has just come
        return self.neighbours.get(replica)

    async def is_gone(self, replica: str) -> bool:
        """Return whether an id is not in force any more, and never will be. Raises StoreAway.

        It has to be one that owns something already: one that is about to join is not known to the store.
        """
        if replica == self.replica:
            return False
        # An id that has ended never comes back, so this answer needs no question to the store.
        if replica in self.marks.own or replica in self._peers.gone:
            return True
        await self.renew()
        if self.trouble is not None:
            raise StoreAway(self.trouble)
        if replica in self._peers.living:
            return False
        self._peers.gone[replica] = None
        return True

    async def changed(self, seconds: float) -> None:
        """Wait until the store was asked again, for so long at most."""
        with trio.move_on_after(seconds):
            await self._change.park()

    async def inside(self) -> bool:
        """Wait to be inside until the store was asked once more. Returns whether it is."""
        with trio.move_on_after(self.lease / RENEWALS):
            while not self.is_inside and not self.is_left:
                await self._change.park()
        return self.is_inside

    async def leave(self) -> None:
        """End the lease, so that others take over at once. Without the store the lease runs out."""
        if self.is_left:
            return
        is_known = self._standing.state is not MemberState.JOINING
        # Before the store is asked: the answer to a renewal under way must not bring this replica back.
        self._standing.take(MemberStep.LEAVING)
        if is_known:
            try:
                await self._store.leave(self.replica)
            except StoreAway as away:
                log.warning("the cluster does not know yet that this replica has gone", reason=str(away))
