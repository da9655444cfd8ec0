"""The agreements of legacy sessions, from which another process can continue them, and the count of sessions.

`limits.max_sessions_per_principal` refuses too many. All clients without a name are one principal. The client
on standard input and output is not counted: it takes no place of another client.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

import msgspec

from mcpmux.protocol.codes import Busy
from mcpmux.protocol.principal import Principal


class Interest(NamedTuple):
    """A subscription. `key`: of the session with the upstream. `uri`: the upstream's own.

    `said_raw`: the client used the upstream's own URI, without a prefix.
    """

    key: str
    uri: str
    said_raw: bool


class MadeTask(NamedTuple):
    """A task of the client. `key`: of the session with the upstream. `task_id`: the upstream's own.

    `tool`: the upstream's own name of the tool that made it, None when that is unknown.
    `token`: the progress token of the call that made it, as JSON.
    """

    key: str
    task_id: str
    tool: str | None
    token: bytes | None


class SessionFacts(msgspec.Struct, array_like=True, frozen=True):
    """The agreements of a session. `info`, `capabilities`: the client's, as JSON.

    `epoch`: rises with each process that takes the session over.
    """

    revision: str
    info: bytes
    capabilities: bytes
    log_level: str | None = None
    interests: tuple[Interest, ...] = ()
    epoch: int = 0
    tasks: tuple[MadeTask, ...] = ()


SETTING: Final = "limits.max_sessions_per_principal"


class SessionCounter:
    """Counts the sessions of this process if `most` limits those of a principal.

    A session keeps its id in every process.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._principals: dict[str, str] = {}  # of sessions, by their ids
        self._counts = Counter[str]()

    async def begin(self, session_id: str, principal: Principal, *, lasting: bool = False) -> None:
        """Count a session that begins, once. `end` must follow, even if it fails.

        `lasting`: other processes may take it over. Raises Busy for too many, or when the count is
        unavailable.
        """
        most = self._most
        if most is not None and not await self.take(session_id, principal.name, most, lasting=lasting):
            sentence = f"this principal has {most} sessions, which is all that it may have; end one"
            raise Busy(sentence, SETTING, own=True)

    def go_on(self, session_id: str, principal: Principal) -> None:
        """Take over a session that another process has counted."""
        if self._most is not None:
            self.keep(session_id, principal.name)

    # Replaced where several processes count together

    async def take(self, session_id: str, principal: str, most: int, *, lasting: bool) -> bool:
        """Count a session. Return False, without counting it, when the principal has `most` others."""
        if session_id not in self._principals:
            if self._counts[principal] >= most:
                return False
            self.keep(session_id, principal)
        return True

    def keep(self, session_id: str, principal: str) -> None:
        """Count a session of this process that may be counted already. Never waits."""
        self._principals[session_id] = principal
        self._counts[principal] += 1

    def end(self, session_id: str) -> None:
        """Uncount a session that has ended, if it was counted. Never waits."""
        if (principal := self._principals.pop(session_id, None)) is not None:
            self._counts[principal] -= 1
            if not self._counts[principal]:
                del self._counts[principal]

    def lose(self, session_id: str) -> None:
        """Forget a session that another process has taken over. Never waits."""
        self.end(session_id)
