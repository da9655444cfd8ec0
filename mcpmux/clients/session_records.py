"""The interface of a store that keeps legacy sessions beyond the life of the process that serves them.

Sessions of processes that have gone are taken over, each once, however many requests wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec
import structlog
import trio

from mcpmux.clients.legacy_session import LegacySession, Session
from mcpmux.errors import McpmuxError, RpcError
from mcpmux.protocol.principal import Principal
from mcpmux.protocol.raw_json import Id


class MovedElsewhere(McpmuxError):
    """Another process has just taken the session over."""


class StreamEvent(msgspec.Struct, array_like=True, frozen=True):
    """An event of a session's stream. The first one of a call has number 0 and no `data`.

    `data`: as it was sent, without the event id. `is_last`: it contains the answer of the call `request_id`.
    """

    stream: int
    number: int
    data: bytes = b""
    is_last: bool = False
    request_id: Id | None = None


class EventKeeper(Protocol):
    """The interface that keeps the events of one session's streams."""

    def keep(self, event: StreamEvent) -> None:
        """Queue an event to be kept. Never waits."""

    async def kept(self) -> bool:
        """Wait until all events given so far are kept. Return False when that fails for now."""


class Recovered(NamedTuple):
    """A session taken over. `epoch`: higher than any before. `events`: kept by the processes before."""

    session: LegacySession
    epoch: int
    events: Sequence[StreamEvent]


class SessionRecords(Protocol):
    """The interface that keeps sessions for other processes. Raises Busy when the store is unavailable."""

    async def begin(self, session_id: str, session: Session) -> None:
        """Keep the agreements of a session of this process, present and future ones."""

    async def recover(self, session_id: str, principal: Principal) -> Recovered | None:
        """Take over a session that no process has (any more); None when `principal` has no such session.

        Raises MovedElsewhere when another process was quicker.
        """

    def keeper_of(self, session_id: str) -> EventKeeper:
        """Return the keeper of the events of a session of this process."""

    def forget(self, session_id: str) -> None:
        """Forget a session of this process that has ended. Never waits."""


log = structlog.get_logger()

Trouble = RpcError | MovedElsewhere


class Recovery:
    """The recovery of one session, shared by all requests of one principal in it.

    `trouble`: why the requests cannot be answered here, None if they can. It is MovedElsewhere at first, and
    remains so if the request that began the recovery is cancelled.
    """

    def __init__(self) -> None:
        self.over = trio.Event()
        self.trouble: Trouble | None = MovedElsewhere("nobody has gone on with it yet")


class Recoveries:
    """The recoveries of one endpoint. `have` gives a recovered session to the endpoint."""

    def __init__(self, records: SessionRecords, have: Callable[[str, Principal, Recovered], None]) -> None:
        self._records, self._have = records, have
        self._under_way: dict[tuple[str, str], Recovery] = {}  # by id and principal

    async def recover(self, session_id: str, principal: Principal) -> Trouble | None:
        """Take over a session if it exists. Return why requests in it cannot be answered here, or None."""
        # By principal as well: a session is taken over for its own principal only.
        key = session_id, principal.key
        recovery = self._under_way.get(key)
        if recovery is not None:
            await recovery.over.wait()
            return recovery.trouble
        recovery = self._under_way[key] = Recovery()
        try:
            recovered = await self._records.recover(session_id, principal)
            recovery.trouble = None
            if recovered is not None:
                self._have(session_id, principal, recovered)
        except (RpcError, MovedElsewhere) as error:
            recovery.trouble = error
        finally:  # when cancelled too: the others would wait for ever
            del self._under_way[key]
            recovery.over.set()
        return recovery.trouble
