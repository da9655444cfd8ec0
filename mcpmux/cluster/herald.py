"""Reports changes to the other replicas, before any client of this one learns of them.

Each replica caches answers of upstreams. A call of a client that may change something clears what all
replicas cache of that upstream before the client gets its answer. A change that an upstream announces clears
it before the announcement is passed on.

Source: the counters of `mux/cache`, which workers of one machine share in memory.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

import structlog
import trio

from mcpmux.cluster.letter import Neighbour, News
from mcpmux.cluster.membership import Membership
from mcpmux.cluster.port import ReplicaClient
from mcpmux.errors import RemoteProtocolError, TransportError
from mcpmux.mux.cache import SLOTS, Generations
from mcpmux.transports.inline import AT_ONCE, in_task

log = structlog.get_logger()

AGAIN_SECONDS: Final = 0.2  # at most, until the next try to reach a replica
LISTS_LIMIT: Final = 1000  # changes that wait to be sent; upstreams and kinds of lists are few


class Herald:
    """`run` has to run. `generations`: the counters of this replica, and of all others together."""

    def __init__(self, members: Membership, client: ReplicaClient, generations: Generations) -> None:
        self.generations = generations
        self._members, self._client = members, client
        self._told = 0
        self._row = self.generations.snapshot()
        self._lists: dict[tuple[str, str], None] = {}
        self._wish = trio.Event()
        self._done = trio.lowlevel.ParkingLot()

    def hear(self, news: News) -> None:
        """Take in a change that another replica reports."""
        self.generations.count_elsewhere([slot for slot in news.slots if 0 <= slot < SLOTS])

    def list_changed(self, upstream: str, method: str) -> None:
        """Report a changed list to clients of all replicas: a server may announce it to one session only."""
        if len(self._lists) < LISTS_LIMIT:
            self._lists[upstream, method] = None
            self._wish.set()

    def settle(self) -> Awaitable[None]:
        """Wait until no replica uses what it has remembered before something changed here."""
        # Without a task or a wait where there is no change to report: each call that may change asks here.
        counted = self.generations.counted()
        if self._told == counted:
            return AT_ONCE
        if not self._members.others:
            self._told = counted
            return AT_ONCE
        return self._settle(counted)

    async def _settle(self, counted: int) -> None:
        await in_task()
        while self._told < counted:
            self._wish.set()
            await self._done.park()

    async def run(self) -> None:
        """Tell what changes until cancelled."""
        while True:
            await self._wish.wait()
            self._wish = trio.Event()
            # Before the letters: a change meanwhile is in neither, and goes out in the next round.
            counted, row = self.generations.counted(), self.generations.snapshot()
            slots = [slot for slot in range(SLOTS) if row[slot] != self._row[slot]]
            lists, self._lists = list(self._lists), {}
            # One letter for all changes that came while the last ones were under way, however many.
            async with trio.open_nursery() as nursery:
                for other in self._members.others:
                    nursery.start_soon(self._tell, other, News(slots, lists))
            self._told, self._row = counted, row
            self._done.unpark_all()

    async def _tell(self, neighbour: Neighbour, news: News) -> None:
        # A replica that cannot be reached for the time of a lease has lost its own, and caches no answers.
        with trio.move_on_after(self._members.lease):
            while neighbour.replica in self._members.neighbours:
                try:
                    await self._client.tell(neighbour, news)
                except (TransportError, RemoteProtocolError) as error:
                    log.debug("replica not told of a change", replica=neighbour.card.name, reason=str(error))
                else:
                    return
                await self._members.changed(AGAIN_SECONDS)
        log.warning("replica not told of a change", replica=neighbour.card.name)
