"""When a process tells the store that what it has there is still here, or is not any more."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
import trio

from mcpmux.cluster.membership import Membership
from mcpmux.cluster.store import StoreAway

log = structlog.get_logger()

KEPT_LONGER: Final = 2.0  # times `session_idle`, in which what is kept is renewed twice

Act = Callable[[], Awaitable[None]]
"""Tells the store something. Raises StoreAway; it is tried again then."""


class Upkeep:
    """Of one kind of things. `run` has to run.

    `keep` is awaited twice in `seconds`, which is `session_idle`, and `remove` soon after `remove_soon`. They
    never run at the same time, so nothing is kept that is being removed.
    """

    def __init__(self, members: Membership, seconds: float, keep: Act, remove: Act) -> None:
        self._members, self._seconds = members, seconds
        self._keep, self._remove = keep, remove
        self._end = trio.Event()

    def remove_soon(self) -> None:
        """Something has ended. Never waits."""
        self._end.set()

    async def run(self) -> None:
        """Keep and remove until cancelled."""
        keep_at = trio.current_time() + self._seconds / 2
        while True:
            with trio.move_on_at(keep_at):
                await self._end.wait()
            self._end = trio.Event()
            try:
                await self._remove()
                if trio.current_time() >= keep_at:
                    await self._keep()
                    keep_at = trio.current_time() + self._seconds / 2
            except StoreAway as away:
                log.debug("what the store keeps is not renewed now", reason=str(away))
                await self._members.changed(math.inf)
                self._end.set()
