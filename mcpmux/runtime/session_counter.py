"""Count the sessions of each principal, and refuse too many, by `limits.max_sessions_per_principal`.

All clients without a name are one principal. The client on standard input and output is not counted: it takes
no place of another client.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Protocol

from mcpmux.protocol.codes import Busy
from mcpmux.protocol.principal import Principal

SETTING: Final = "limits.max_sessions_per_principal"


class SessionCount(Protocol):
    """The interface that counts sessions. A session keeps its id in every process. `principal`: a name."""

    async def begin(self, session_id: str, principal: str, most: int, *, lasting: bool) -> bool:
        """Count a session, once. Return False, without counting it, when the principal has `most` others.

        `lasting`: other processes may take it over. Raises Busy when the count is unavailable.
        """

    def go_on(self, session_id: str, principal: str) -> None:
        """Take over a session that another process has counted. Never waits."""

    def end(self, session_id: str) -> None:
        """Uncount a session that has ended, if it was counted. Never waits."""

    def lose(self, session_id: str) -> None:
        """Forget a session that another process has taken over. Never waits."""


class OwnCount:
    """Counts the sessions of this process only."""

    def __init__(self) -> None:
        self._principals: dict[str, str] = {}  # of sessions, by their ids
        self._counts = Counter[str]()

    async def begin(self, session_id: str, principal: str, most: int, *, lasting: bool) -> bool:
        """See SessionCount."""
        if session_id not in self._principals:
            if self._counts[principal] >= most:
                return False
            self.go_on(session_id, principal)
        return True

    def go_on(self, session_id: str, principal: str) -> None:
        """See SessionCount."""
        self._principals[session_id] = principal
        self._counts[principal] += 1

    def end(self, session_id: str) -> None:
        """See SessionCount."""
        if (principal := self._principals.pop(session_id, None)) is not None:
            self._counts[principal] -= 1
            if not self._counts[principal]:
                del self._counts[principal]

    def lose(self, session_id: str) -> None:
        """See SessionCount."""
        self.end(session_id)


class SessionCounter:
    """Counts sessions if there is a limit. `count` may be replaced before the first session begins."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self.count: SessionCount = OwnCount()

    async def begin(self, session_id: str, principal: Principal, *, lasting: bool = False) -> None:
        """Count a session that begins. `end` must follow, even if it fails. Raises Busy for too many."""
        most = self._most
        if most is not None and not await self.count.begin(session_id, principal.name, most, lasting=lasting):
            sentence = f"this principal has {most} sessions, which is all that it may have; end one"
            raise Busy(sentence, SETTING, own=True)

    def go_on(self, session_id: str, principal: Principal) -> None:
        """See SessionCount."""
        if self._most is not None:
            self.count.go_on(session_id, principal.name)

    def end(self, session_id: str) -> None:
        """See SessionCount."""
        self.count.end(session_id)

    def lose(self, session_id: str) -> None:
        """See SessionCount."""
        self.count.lose(session_id)
