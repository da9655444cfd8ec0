"""A legacy client's tool call, which outlives its connection.

    started --its answer comes soon and alone-----> over, without a stream
            --an event comes, or some time passes-> it has a stream, which can be resumed
    with a stream --its answer comes--------------> over

Promises: it runs inline like any exchange, and in a task of its own once it needs one. Refuses to know what
is kept of its stream, and who follows that.
"""

from __future__ import annotations

import trio

from mcpmux.protocol.envelope import Request
from mcpmux.runtime.incoming import InlineExchange
from mcpmux.transports.inline import Wake


class ResumableCall(InlineExchange):
    """One call. `number`: of its stream, None while it has none.

    `wake`: of whoever waits for the first thing that happens: an event, its end, or `until`, in trio's time.
    """

    def __init__(self, request: Request, nursery: trio.Nursery, until: float) -> None:
        super().__init__(nursery)
        self.request = request
        self.until = until
        self.number: int | None = None
        self.over = False
        self.only_answer: bytes | None = None  # when it never had a stream; None: it was cancelled
        self._arrival: trio.lowlevel.ParkingLot | None = None
        self.wake: Wake | None = None

    def __repr__(self) -> str:
        return f"<ResumableCall {self.request.method} {self.request.id!r}>"

    async def wait(self) -> None:
        """Until there is more in its stream, or it is over."""
        if self._arrival is None:
            self._arrival = trio.lowlevel.ParkingLot()
        await self._arrival.park()

    def tell(self) -> None:
        """There is something in its stream, or it is time for one."""
        if self._arrival is not None:
            self._arrival.unpark_all()
        if self.wake is not None:
            self.wake()

    def end(self) -> None:
        """It is answered, or cancelled."""
        self.over = True
        self._running = None
        self.tell()

    def cut_off(self) -> None:
        """Nobody waits any longer for an answer that comes alone."""
        self.tell()
