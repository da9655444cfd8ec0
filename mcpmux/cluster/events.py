"""Events of legacy streams on their way to the store, behind the clients' own.

They are there for whoever goes on with a session; while its replica lives, clients are told from its memory.
So nobody waits for them but a call that is about to promise its client that it can be asked for later. When
the store is away they wait, within bounds; beyond them the oldest are left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

import msgspec
import structlog
import trio

from mcpmux.clients.session_records import StreamEvent
from mcpmux.cluster.store import Seal, Store, StoreAway
from mcpmux.mux.replay import ReplayBounds

log = structlog.get_logger()

KIND = "event"
WAITING_BYTES = 16 * 2**20
EVENT_BYTES = 100  # that an event takes besides its data, about
BATCH = 256  # events that are written together
PAUSE_SECONDS = 0.5  # until the store is tried again


class EventWriter:
    """Writes the events of all sessions of a listener. `run` has to run."""

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
        """An event of the session of that name, of which the newest `most` are kept. Never waits."""
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
        data = self._seal.seal(KIND, self._name, msgspec.msgpack.encode(event), self._principal)
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
