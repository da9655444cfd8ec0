"""One process among several that serve the same clients: its lease, and what it shares with the others."""

from __future__ import annotations

from collections.abc import Collection

import trio

from mcpmux.clients.http_endpoint import HttpEndpoint
from mcpmux.clients.service import MuxService
from mcpmux.cluster.door import Door, Passing
from mcpmux.cluster.membership import Membership
from mcpmux.cluster.places import StoredPlaces
from mcpmux.cluster.sessions import StoredSessions
from mcpmux.cluster.store import Seal, Store
from mcpmux.cluster.tokens import StoredTokens
from mcpmux.runtime.notification_hub import NotificationHub
from mcpmux.upstreams.rate_counter import RateCounter

LEAVE_SECONDS = 2.0  # to tell the store that we go


class Node:
    """What a process shares with the others. `attach` has to follow before anything is served."""

    def __init__(
        self, store: Store, seal: Seal, members: Membership, passing: Passing, session_idle: float
    ) -> None:
        """`passing` hands requests over. `session_idle`: seconds after which a session ends."""
        self.members = members
        self._store, self._seal, self._passing = store, seal, passing
        self._seconds = session_idle
        self._places = StoredPlaces(store, seal, members, session_idle)
        self._sessions: list[StoredSessions] = []
        self._doors: dict[int, Door] = {}
        self._service: MuxService
        self.members.on_return = self._regain

    def attach(self, service: MuxService, hub: NotificationHub, rates: RateCounter) -> None:
        """This is what the process serves."""
        self.members.on_gone = hub.others_lost
        hub.others_lost()  # one whose clients come here may have gone before
        self._service = service
        service.session_counter.count = self._places
        rates.take_together = StoredTokens(self._store, self._seal, rates).take

    def sessions_of(self, listener: int) -> StoredSessions:
        """The sessions of the listener with that number. `run` has to run."""
        sessions = StoredSessions(
            listener, self._store, self._seal, self.members, self._service, self._seconds
        )
        self._sessions.append(sessions)
        return sessions

    def door_of(self, listener: int, endpoint: HttpEndpoint, sessions: StoredSessions) -> Door:
        """What stands in front of the endpoint of that listener."""
        door = Door(listener, endpoint, sessions, self.members, self._store, self._passing)
        self._doors[listener] = door
        return door

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Be a member until cancelled. Started when the store was asked once."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._places.run, name="places in the store")
            await nursery.start(self.members.run, name="lease")
            task_status.started()

    async def leave(self) -> None:
        """We are stopping: others go on with the sessions."""
        if self.members.is_left:
            return
        with trio.CancelScope(shield=True, deadline=trio.current_time() + LEAVE_SECONDS):
            for sessions in self._sessions:
                await sessions.events.written()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + LEAVE_SECONDS):
            await self.members.leave()
        for door in self._doors.values():
            door.let_go()

    async def _regain(self, before: Collection[str]) -> None:
        for sessions in self._sessions:
            await sessions.regain(before)
        await self._places.regain()
