"""Take over the sessions of processes that have gone, each once, however many requests wait for it."""

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
