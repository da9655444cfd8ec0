"""The store of the workers, in the supervisor's memory: their leases, sessions, streams and rate limits.

The lease of a worker ends when its process does, or when it hangs.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import trio

from mcpmux.app.workers.channel import ControlChannel
from mcpmux.cluster.letter import Card, Neighbour
from mcpmux.cluster.store import MemoryStore, OpenSeal, Store, StoreAway
from mcpmux.errors import TransportClosed

STORE = "store"  # the name of the call to the supervisor
METHODS = frozenset(name for name in vars(Store) if not name.startswith("_"))
STORE_SECONDS = 1.0


class SupervisorStore:
    """The supervisor's store, as a worker uses it: every method of `Store` is a call to the supervisor."""

    def __init__(self, control: ControlChannel) -> None:
        self._control = control
        self.commands = 0
        self.lag: float | None = None

    def __getattr__(self, method: str) -> Any:
        if method not in METHODS:
            raise AttributeError(method)
        return partial(self._ask, method)

    async def _ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        self.commands += 1
        began = trio.current_time()
        try:
            answer = await self._control.ask(STORE, method, arguments, named, seconds=STORE_SECONDS)
        except TransportClosed as error:
            raise StoreAway(f"the supervisor: {error}") from None
        self.lag = trio.current_time() - began
        return answer


class MemberStore:
    """The store for the calls of one worker, in the supervisor."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._lease: tuple[str, bytes] | None = None

    async def answer(self, method: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the store's answer to a worker's call, None for an unknown method."""
        if method not in METHODS:
            return None
        if method == "renew":  # so that `end` knows the lease of a worker that was killed
            self._lease = arguments[0], arguments[1]
        return await getattr(self._store, method)(*arguments, **named)

    async def end(self) -> None:
        """End the lease of a worker that has ended, so that the others may take its sessions over."""
        if self._lease is not None:
            await self._store.leave(self._lease[0])

    @property
    def member(self) -> Neighbour | None:
        """The worker as the others know it, None until it has a lease."""
        return self._lease and Neighbour(self._lease[0], Card.open(OpenSeal(), *self._lease))
