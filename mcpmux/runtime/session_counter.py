"""Counts the sessions of each principal, and refuses too many, by `limits.max_sessions_per_principal`.

All clients that have no name are one principal. The client on standard input and output is not counted: it
takes nothing from anybody.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Protocol

from mcpmux.protocol.codes import Busy
from mcpmux.protocol.principal import Principal

SETTING: Final = "limits.max_sessions_per_principal"


class SessionCount(Protocol):
    """What counts. The id of a session is its only one, wherever it goes on; `principal`: a name."""

    async def begin(self, session_id: str, principal: str, most: int, *, lasting: bool) -> bool:
        """Count a session, once. False, and nothing is done, when the principal has `most` others.

        `lasting`: other processes may go on with it. Raises Busy when that cannot be told now.
        """

    def go_on(self, session_id: str, principal: str) -> None:
        """A session that another process has counted is this one's now. Never waits."""

    def end(self, session_id: str) -> None:
        """A session has ended, if it was counted. Never waits."""

    def lose(self, session_id: str) -> None:
        """A session is another process's now. Never waits."""


class OwnCount:
    """Of the sessions of this process alone."""

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
    """Counts if there is a limit. `count`: what does; it may be replaced before there are sessions."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self.count: SessionCount = OwnCount()

    async def begin(self, session_id: str, principal: Principal, *, lasting: bool = False) -> None:
        """A session begins, and must `end` even if nothing comes of it. Raises Busy when it may not."""
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
