"""The interface of a store that keeps legacy sessions beyond the life of the process that serves them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from mcpmux.clients.legacy_session import LegacySession, Session
from mcpmux.errors import McpmuxError
from mcpmux.protocol.principal import Principal
from mcpmux.protocol.raw_json import Id


class MovedElsewhere(McpmuxError):
    """Another process has just taken the session over."""


class StreamEvent(msgspec.Struct, array_like=True, frozen=True):
    """An event of a session's stream. The first one of a call has number 0 and the `request_id`.

    `data`: as it was sent, without the event id. `is_last`: it contains the answer.
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
