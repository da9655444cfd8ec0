"""Whether the server of a replay can be reached at all.

When the first session that is tried comes to nothing for want of a connection, those that are due later are
not waited for. A server that has answered once is reachable: who loses it afterwards loses one session.
"""

from __future__ import annotations

import trio


class Reach:
    """What the sessions of a replay have learnt together."""

    def __init__(self) -> None:
        self.trouble: str | None = None
        self._reached = False
        self._failed = trio.Event()

    def __repr__(self) -> str:
        return f"<Reach reached={self._reached} trouble={self.trouble!r}>"

    def succeeded(self) -> None:
        """The server has answered something."""
        self._reached = True

    def failed(self, trouble: str) -> None:
        """A session could not be had, or was lost, for want of a connection."""
        if not self._reached and self.trouble is None:
            self.trouble = trouble
            self._failed.set()

    async def wait_until(self, due: float) -> None:
        """Until that time of the event loop, or until it is in vain."""
        with trio.move_on_at(due):
            await self._failed.wait()
