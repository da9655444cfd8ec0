"""Goes on with the sessions of processes that have gone, each once, however many requests ask for it."""

from __future__ import annotations

from collections.abc import Callable

import structlog
import trio

from mcpmux.clients.session_records import MovedElsewhere, Recovered, SessionRecords
from mcpmux.errors import RpcError
from mcpmux.protocol.principal import Principal

log = structlog.get_logger()

Trouble = RpcError | MovedElsewhere


class Recovery:
    """Of a session, for all requests in it of one principal. `trouble`: why they are not answered here.

    Until it is over that is that the request which began it was called off.
    """

    def __init__(self) -> None:
        self.over = trio.Event()
        self.trouble: Trouble | None = MovedElsewhere("nobody has gone on with it yet")


class Recoveries:
    """Those of one endpoint, which `have` gives the sessions to."""

    def __init__(self, records: SessionRecords, have: Callable[[str, Principal, Recovered], None]) -> None:
        self._records, self._have = records, have
        self._under_way: dict[tuple[str, str], Recovery] = {}  # by id and principal

    async def recover(self, session_id: str, principal: Principal) -> Trouble | None:
        """Go on with a session if there is one. Returns why a request in it cannot be answered here."""
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
        finally:
            del self._under_way[key]
            recovery.over.set()
        return recovery.trouble
