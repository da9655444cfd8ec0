"""Who keeps legacy sessions beyond the life of the process that serves them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from mcpmux.clients.legacy_session import LegacySession, Session
from mcpmux.errors import McpmuxError
from mcpmux.protocol.principal import Principal
from mcpmux.protocol.raw_json import Id


class MovedElsewhere(McpmuxError):
    """Another process has just gone on with the session."""


class StreamEvent(msgspec.Struct, array_like=True, frozen=True):
    """An event of a session's stream. The first one of a call is number 0, with the `request_id`.

    `data`: as it was sent, without its id. `is_last`: it has the answer.
    """

    stream: int
    number: int
    data: bytes = b""
    is_last: bool = False
    request_id: Id | None = None


class EventKeeper(Protocol):
    """Keeps the events of one session's streams."""

    def keep(self, event: StreamEvent) -> None:
        """Keep an event soon. Never waits."""

    async def kept(self) -> bool:
        """Wait until all events of before are kept; False when they cannot be now."""


class Recovered(NamedTuple):
    """A session of another process. `epoch`: more than any before; `events`: of the processes before."""

    session: LegacySession
    epoch: int
    events: Sequence[StreamEvent]


class SessionRecords(Protocol):
    """Keeps what sessions agreed where other processes find it. Raises Busy when that cannot be done now."""

    async def begin(self, session_id: str, session: Session) -> None:
        """Keep what a session of this process has agreed, and what it agrees from now on."""

    async def recover(self, session_id: str, principal: Principal) -> Recovered | None:
        """Go on with a session that no process has (any more); None when there is none of `principal`.

        Raises MovedElsewhere when another one was quicker.
        """

    def keeper_of(self, session_id: str) -> EventKeeper:
        """What keeps the events of a session of this process."""

    def forget(self, session_id: str) -> None:
        """A session of this process has ended. Never waits."""
