"""Notice that a connected server lists again what clients had to do without.

A combined list leaves out a server that is late, or that answers with an error, and many clients list only
once. So the server is asked for such a list again, at growing intervals, and clients are notified when it has
answered in time. Until then, combined lists wait for it only OWED_PART of its time: a server that never lists
would hold up each client, and make all servers here late for another mcpmux in front of this one. Lists that
were left out because there was no connection, or because the breaker blocked calls, are reported by
`supervision` and `health`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from typing import Final

import trio

from mcpmux.errors import RpcError
from mcpmux.protocol.envelope import EMPTY_OBJECT, Notification
from mcpmux.protocol.method import LIST_CHANGES, LISTS

FIRST_PAUSE_SECONDS: Final = 1.0
LAST_PAUSE_SECONDS: Final = 60.0
GROWTH: Final = 2.0
OWED_PART: Final = 0.2  # of the time for a list, while the server owes it
TRIES: Final = 12  # in a row, within some eight minutes: a server may never be able to list something

AskList = Callable[[str], Awaitable[object]]
"""Ask the server for the first page of a list, by its method. Raises RpcError."""


class Relisting:
    """The lists of one server that clients have missed: `owed`, by method. A task asks for them."""

    def __init__(self, ask: AskList, take: Callable[[Notification], None]) -> None:
        """`take` takes a notification of the server."""
        self._ask, self._take = ask, take
        self.owed: dict[str, None] = {}  # a set in order
        self._nursery: trio.Nursery | None = None
        self._context = Context()
        self._asking = False
        self._pause = FIRST_PAUSE_SECONDS

    def begin(self, nursery: trio.Nursery) -> None:
        """Ask in tasks of `nursery`, that of a new connection, until it is left."""
        # In its context, not in that of the call that has missed something.
        self._nursery, self._context = nursery, copy_context()
        self.forget()
        # Only here does it start afresh: a server may answer this and still refuse its clients.
        self._pause = FIRST_PAUSE_SECONDS

    def forget(self) -> None:
        """Forget what was missed, as clients are notified of all lists."""
        self.owed.clear()

    def end(self) -> None:
        """Stop asking, as the connection has ended."""
        self._nursery = None

    def missed(self, method: str) -> None:
        """Note that a client has got a list without this server."""
        if method not in LISTS or self._nursery is None:
            return
        self.owed[method] = None
        if not self._asking:
            self._asking = True
            self._context.run(self._nursery.start_soon, self._relist)

    async def _relist(self) -> None:
        """Ask for the missed lists, and report those that come."""
        try:
            for _ in range(TRIES):
                await trio.sleep(self._pause)
                self._pause = min(self._pause * GROWTH, LAST_PAUSE_SECONDS)
                for method in list(self.owed):
                    if await self._lists(method):
                        self.owed.pop(method, None)
                        self._take(Notification(LIST_CHANGES[LISTS[method].capability], EMPTY_OBJECT))
                if not self.owed:
                    return
        finally:
            self._asking = False

    async def _lists(self, method: str) -> bool:
        try:
            await self._ask(method)
        except RpcError:
            return False
        return True
