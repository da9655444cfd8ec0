"""Legacy sessions in the store: what they agreed, for a replica that goes on with them.

A session is its replica's until that has gone. Then the first replica that gets a request in it claims it;
only one can, and its former replica cannot write there any more.

All processes count the sessions of a principal together. Without the store no session begins.
"""

from __future__ import annotations

import math
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final

import msgspec
import structlog
import trio

from mcpmux.clients.legacy_session import LegacySession, Session
from mcpmux.clients.service import MuxService
from mcpmux.clients.session_records import MovedElsewhere, Recovered, StreamEvent
from mcpmux.cluster.membership import Membership
from mcpmux.cluster.store import ForeignSeal, Place, Seal, Store, StoreAway, StoredSession
from mcpmux.config import Limits
from mcpmux.errors import RpcError
from mcpmux.mux.replay import ReplayBounds
from mcpmux.protocol.codes import Busy
from mcpmux.protocol.principal import Principal
from mcpmux.runtime.sessions import SessionCounter, SessionFacts
from mcpmux.transports.inline import in_task

log = structlog.get_logger()

SESSION, EVENT = "session", "event"  # kinds of what is sealed
GROUP, COUNTED = "sessions of a principal", "counted session"  # kinds of names
KEPT_LONGER: Final = 2.0  # times `session_idle`, in which what is kept is renewed twice
CLAIMS_AT_ONCE = 64
EPOCHS_SKIPPED = 4096  # at most, by one who takes a session over
WAITING_BYTES = 16 * 2**20  # of events that are not in the store yet
EVENT_BYTES = 100  # that an event takes besides its data, about
BATCH = 256  # events that are written together
PAUSE_SECONDS = 0.5  # until the store is tried again


Act = Callable[[], Awaitable[None]]
"""Changes something in the store. Raises StoreAway; it is called again then."""


class Upkeep:
    """Keeps the records of one kind in the store, and removes those that have ended. `run` must run.

    `keep` is awaited twice in `seconds`, which is `session_idle`, and `remove` soon after `remove_soon`. They
    never run at the same time, so `keep` cannot bring back a record that `remove` deletes.
    """

    def __init__(self, members: Membership, seconds: float, keep: Act, remove: Act) -> None:
        self._members, self._seconds = members, seconds
        self._keep, self._remove = keep, remove
        self._end = trio.Event()

    def remove_soon(self) -> None:
        """Have `remove` called soon, as something has ended. Never waits."""
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
                # Renewing the lease asks the same store, so its next attempt is the time to try again.
                await self._members.changed(math.inf)
                self._end.set()


class StoredPlaces(SessionCounter):
    """The places of the sessions of this process among all others. `run` has to run."""

    def __init__(self, store: Store, seal: Seal, members: Membership, limits: Limits) -> None:
        super().__init__(limits.max_sessions_per_principal)
        self._store, self._seal, self._members = store, seal, members
        seconds = limits.session_idle
        self._seconds = seconds * KEPT_LONGER
        self._here: dict[str, Place] = {}
        self._left: set[Place] = set()  # to be reported to the store; bounded by the sessions there were
        self._upkeep = Upkeep(members, seconds, self._keep, self._leave)
        self.run = self._upkeep.run

    def __len__(self) -> int:
        return len(self._here)

    def _place_of(self, session_id: str, principal: str, *, lasting: bool) -> Place:
        # A session that other replicas may go on with keeps its place for as long as its record is kept, at
        # any replica; any other one, such as on a WebSocket, while the lease of its process holds.
        owner = "" if lasting else self._members.replica
        return Place(self._seal.name(GROUP, principal), self._seal.name(COUNTED, session_id), owner)

    def _owned(self, place: Place) -> Place:
        """Return the place under the id that is in force now, if it depends on an id."""
        return place._replace(owner=self._members.replica) if place.owner else place

    async def take(self, session_id: str, principal: str, most: int, *, lasting: bool) -> bool:
        """See SessionCounter."""
        await in_task()
        members = self._members
        # Before the question: without a lease a place of this process would be free for others at once.
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

    def keep(self, session_id: str, principal: str) -> None:
        """See SessionCounter."""
        self._here[session_id] = self._place_of(session_id, principal, lasting=True)

    def end(self, session_id: str) -> None:
        """See SessionCounter."""
        if (place := self._here.pop(session_id, None)) is not None:
            self._free(self._owned(place))

    def _free(self, place: Place) -> None:
        self._left.add(place)
        self._upkeep.remove_soon()

    def lose(self, session_id: str) -> None:
        """See SessionCounter."""
        self._here.pop(session_id, None)

    async def regain(self) -> None:
        """Have the places of sessions that are here under the id that is in force now. Raises StoreAway."""
        # Those without an owner depend on no id: they are in the store still, and `_keep` renews them.
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
            # Only now: when the store is away they are reported later.
            self._left.difference_update(left)


class EventWriter:
    """Writes the events of all sessions of a listener to the store. `run` has to run.

    They serve the replica that goes on with a session; while its own lives, clients get them from its memory.
    When the store is away they wait, within bounds; beyond them the oldest are left out.
    """

    def __init__(self, store: Store, seconds: float) -> None:
        """`seconds` for which they are kept."""
        self._store, self._seconds = store, seconds
        self._waiting: deque[tuple[str, bytes, int]] = deque()
        self._bytes = 0
        self._put = self._written = 0  # how many so far; what is left out counts as written
        self._is_away = self._leaves_out = False
        self._arrival = trio.Event()
        self._progress = trio.lowlevel.ParkingLot()

    @property
    def waiting(self) -> int:
        """Events that are not in the store yet."""
        return len(self._waiting)

    def put(self, name: str, sealed: bytes, most: int) -> None:
        """Keep an event of the session of that name, of which the newest `most` are kept. Never waits."""
        self._waiting.append((name, sealed, most))
        self._bytes += len(sealed) + EVENT_BYTES
        self._put += 1
        while self._bytes > WAITING_BYTES:
            self._take()
            if not self._leaves_out:
                self._leaves_out = True
                log.warning("events of streams are left out, too many wait for the store")
        self._arrival.set()

    def _take(self) -> None:
        _, sealed, _ = self._waiting.popleft()
        self._bytes -= len(sealed) + EVENT_BYTES
        self._written += 1

    async def written(self) -> bool:
        """Wait until all of before are in the store; False when it is away."""
        # A call waits here only before it promises its client that the answer can be fetched later.
        until = self._put
        while self._written < until and not self._is_away:
            await self._progress.park()
        return not self._is_away

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._arrival.wait()
            self._arrival = trio.Event()
            while self._waiting:
                await self._write_some()

    async def _write_some(self) -> None:
        # By session: one command adds all events of a session, which keeps them in their order.
        batch: dict[str, list[bytes]] = {}
        bounds: dict[str, int] = {}
        for name, sealed, most in islice(self._waiting, BATCH):
            batch.setdefault(name, []).append(sealed)
            bounds[name] = most
        until = self._written + sum(map(len, batch.values()))
        failures: list[StoreAway] = []
        async with trio.open_nursery() as nursery:
            for name, events in batch.items():
                nursery.start_soon(self._append, name, events, bounds[name], failures)
        if failures and not self._is_away:
            log.warning("events of streams wait for the store", reason=str(failures[0]))
        self._is_away = bool(failures)
        # The whole batch is written again, and some of it twice: readers pass over numbers that they have.
        if failures:
            self._progress.unpark_all()
            await trio.sleep(PAUSE_SECONDS)
        else:
            self._leaves_out = False
            while self._waiting and self._written < until:  # some may have been left out meanwhile
                self._take()
            self._progress.unpark_all()

    async def _append(self, name: str, events: list[bytes], most: int, failures: list[StoreAway]) -> None:
        try:
            await self._store.append(name, events, most, self._seconds)
        except StoreAway as away:
            failures.append(away)


class StoredEvents:
    """The events of one session. Implements EventKeeper. As many are kept as a replica keeps itself."""

    def __init__(
        self, name: str, principal: str, seal: Seal, writer: EventWriter, before: Sequence[bytes] = ()
    ) -> None:
        """`name`: of the session in the store. `principal`: its key. `before`: events that are there."""
        self._name, self._principal = name, principal
        self._seal, self._writer = seal, writer
        self._bounds = ReplayBounds()
        self._sizes = deque(map(len, before))
        self._bytes = sum(self._sizes)

    def keep(self, event: StreamEvent) -> None:
        """See EventKeeper."""
        # Sealed for the session's principal: a session that another one names opens with no event.
        data = self._seal.seal(EVENT, self._name, msgspec.msgpack.encode(event), self._principal)
        self._sizes.append(len(data))
        self._bytes += len(data)
        while len(self._sizes) > 1 and (
            self._bytes > self._bounds.bytes or len(self._sizes) > self._bounds.events
        ):
            self._bytes -= self._sizes.popleft()
        self._writer.put(self._name, data, len(self._sizes))

    async def kept(self) -> bool:
        """See EventKeeper."""
        return await self._writer.written()


class StoredSessions:
    """The sessions of one listener. Implements SessionRecords; `run` has to run.

    `on_loss` is called with the id of a session that is another replica's now.
    """

    def __init__(
        self,
        listener: int,
        store: Store,
        seal: Seal,
        members: Membership,
        service: MuxService,
        seconds: float,
    ) -> None:
        """Take the number of a `listener`, and `seconds`, after which an unused session ends."""
        self._listener = listener
        self._store, self._seal, self._members, self._service = store, seal, members, service
        self._seconds = seconds
        self._here: dict[str, Session] = {}
        self._keepers: dict[str, StoredEvents] = {}
        self.taken_over = 0  # of replicas that had gone, so far
        self.events = EventWriter(store, seconds * KEPT_LONGER)
        self._ended: set[str] = set()  # names that are still in the store; bounded by the sessions there were
        self._upkeep = Upkeep(members, seconds, self._keep, self._remove_ended)
        self.on_loss: Callable[[str], None] = lambda _session_id: None

    def __len__(self) -> int:
        return len(self._here)

    def name_of(self, session_id: str) -> str:
        """Return the name of the session in the store."""
        return self._seal.name(SESSION, f"{self._listener} {session_id}")

    async def begin(self, session_id: str, session: Session) -> None:
        """See SessionRecords."""
        await self._save(session_id, session)
        self._have(session_id, session)

    def _have(self, session_id: str, session: Session, events: Sequence[bytes] = ()) -> None:
        self._here[session_id] = session
        name, principal = self.name_of(session_id), session.principal.key
        # With the events of before: the bounds of one session hold over all its replicas.
        self._keepers[session_id] = StoredEvents(name, principal, self._seal, self.events, events)
        if isinstance(session, LegacySession):
            session.on_agreed = partial(self._save, session_id, session)

    async def _save(self, session_id: str, session: Session) -> None:
        await in_task()
        assert isinstance(session, LegacySession)
        if not await self._is_saved(self.name_of(session_id), session.facts(), session.principal):
            if not self._members.is_left:  # else what is in hand can still be finished
                self._lose(session_id)
            raise Busy("the session goes on at another replica", "cluster.url")

    async def _is_saved(self, name: str, facts: SessionFacts, principal: Principal) -> bool:
        """Save what is known of a session. Return False when it is another replica's. Raises Busy."""
        sealed = self._seal.seal(SESSION, name, msgspec.msgpack.encode(facts), principal.key)
        members = self._members
        # A replica that has left finishes what it has in hand: the next owner of the session finds this, too.
        if not await members.inside() and not members.is_left:
            raise StoreAway(members.trouble).refusal()
        try:
            kept = StoredSession(members.replica, sealed)
            return await self._store.save(name, kept, self._seconds * KEPT_LONGER)
        except StoreAway as away:
            raise away.refusal() from None

    async def recover(self, session_id: str, principal: Principal) -> Recovered | None:
        """See SessionRecords."""
        await self.require_lease()
        try:
            return await self._recover(session_id, principal)
        except StoreAway as away:
            raise away.refusal() from None

    async def require_lease(self) -> None:
        """Wait until the sessions here are certainly ours. Raises Busy, MovedElsewhere."""
        if self._members.is_left:
            raise MovedElsewhere("this replica is about to end")
        if not await self._members.inside():
            raise StoreAway(self._members.trouble).refusal()

    async def _recover(self, session_id: str, principal: Principal) -> Recovered | None:
        name = self.name_of(session_id)
        kept = await self._store.find(name)
        if kept is None:
            return None
        # One of another principal is no session for this client, just as one that has ended.
        try:
            data = self._seal.open(SESSION, name, kept.facts, principal.key)
            facts = msgspec.msgpack.decode(data, type=SessionFacts)
        except (ForeignSeal, msgspec.DecodeError):
            return None
        members = self._members
        if kept.owner != members.replica and not await members.is_gone(kept.owner):
            raise MovedElsewhere("another replica has it")
        if not await self._store.claim(name, members.replica, kept.owner):
            raise MovedElsewhere("another replica was quicker")
        self.taken_over += kept.owner not in members.marks.own
        # At random: a store that has lost the last takeover must not have its numbers be used again.
        epoch = facts.epoch + 1 + secrets.randbelow(EPOCHS_SKIPPED)
        facts = msgspec.structs.replace(facts, epoch=epoch)
        # After the claim: from then on the former replica cannot add any.
        sealed = await self._store.events(name)
        if not await self._is_saved(name, facts, principal):
            raise MovedElsewhere("another replica was quicker")
        session = self._service.resume(facts, principal)
        self._have(session_id, session, sealed)
        events = []
        for event in sealed:
            with suppress(ForeignSeal, msgspec.DecodeError):  # others may write to the store, too
                data = self._seal.open(EVENT, name, event, principal.key)
                events.append(msgspec.msgpack.decode(data, type=StreamEvent))
        return Recovered(session, session.epoch, events)

    def keeper_of(self, session_id: str) -> StoredEvents:
        """See SessionRecords."""
        return self._keepers[session_id]

    def forget(self, session_id: str) -> None:
        """See SessionRecords."""
        if self._leave_out(session_id):
            self._ended.add(self.name_of(session_id))
            self._upkeep.remove_soon()

    def _leave_out(self, session_id: str) -> bool:
        self._keepers.pop(session_id, None)
        return self._here.pop(session_id, None) is not None

    def _lose(self, session_id: str) -> None:
        if self._leave_out(session_id):
            log.info("session of another replica now", sessions=len(self._here))
            self.on_loss(session_id)

    async def run(self) -> None:
        """Keep the sessions of this replica in the store, and remove those that have ended."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.events.run, name="events to the store")
            nursery.start_soon(self._upkeep.run, name="sessions in the store")

    async def _remove_ended(self) -> None:
        while self._ended:
            name = next(iter(self._ended))
            await self._store.end(name, self._members.replica)
            self._ended.discard(name)

    async def _keep(self) -> None:
        names = {self.name_of(session_id): session_id for session_id in self._here}
        if not names:
            return
        kept = await self._store.keep(list(names), self._members.replica, self._seconds * KEPT_LONGER)
        # A store that has lost its data gets them again, unless another replica has them there.
        for name in names.keys() - set(kept):
            if (session := self._here.get(names[name])) is not None:
                with suppress(RpcError):  # it is another replica's, or the store is away
                    await self._save(names[name], session)

    async def regain(self, before: Collection[str]) -> None:
        """Have the sessions that are here under the id that is in force now; close those that others have.

        `before`: the ids of before. Raises StoreAway: some may not be ours then.
        """
        # Another replica may have taken a session in the meantime: only a claim shows that.
        limit, failures = trio.CapacityLimiter(CLAIMS_AT_ONCE), list[StoreAway]()
        async with trio.open_nursery() as nursery:
            for session_id in list(self._here):
                nursery.start_soon(self._regain, session_id, before, limit, failures)
        if failures:
            raise failures[0]

    async def _regain(
        self,
        session_id: str,
        before: Collection[str],
        limit: trio.CapacityLimiter,
        failures: list[StoreAway],
    ) -> None:
        name, own = self.name_of(session_id), self._members.replica
        async with limit:
            try:
                kept = await self._store.find(name) if not failures else None
                is_ours = kept is not None and kept.owner == own
                if kept is not None and kept.owner in before:
                    is_ours = await self._store.claim(name, own, kept.owner)
            except StoreAway as away:
                failures.append(away)
            if not failures and not is_ours:
                self._lose(session_id)
