"""A legacy client's tool call, which outlives its connection.

    started --its answer comes soon and alone-----> over, without a stream
            --an event comes, or some time passes-> it has a stream, which can be resumed
    with a stream --its answer comes--------------> over

Promises: it runs inline like any exchange, and in a task of its own once it needs one. Refuses to know what
is kept of its stream, and who follows that.
"""

from __future__ import annotations

from collections.abc import Coroutine
from contextvars import copy_context
from typing import Any

import trio

from mcpmux.protocol.envelope import Request
from mcpmux.transports.inline import Inline, Wake


class ResumableCall:
    """One call. `number`: of its stream, None while it has none.

    `wake`: of whoever waits for the first thing that happens: an event, its end, or `until`, in trio's time.
    """

    def __init__(self, request: Request, nursery: trio.Nursery, until: float) -> None:
        self.request = request
        self.until = until
        self.number: int | None = None
        self.over = False
        self.only_answer: bytes | None = None  # when it never had a stream; None: it was cancelled
        self._arrival: trio.lowlevel.ParkingLot | None = None
        self.wake: Wake | None = None
        self._nursery = nursery
        self._scope: trio.CancelScope | None = None
        self._running: Inline | None = None
        self._attended = False

    def __repr__(self) -> str:
        return f"<ResumableCall {self.request.method} {self.request.id!r}>"

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin."""
        self._running = inline = Inline(work, copy_context(), self._attend)
        if not inline.start() and not inline.is_over:
            self._attend()

    def _attend(self) -> None:
        if not self._attended and self._running is not None:
            self._attended = True
            scope = self._make_scope()
            try:
                self._nursery.start_soon(_go_on, self._running, scope, name=f"call {self.request.id}")
            except RuntimeError:  # the endpoint has ended before this connection: nothing goes on any more
                self._running.close()

    def _make_scope(self) -> trio.CancelScope:
        """Its scope; most calls are over before they need one."""
        if self._scope is None:
            self._scope = trio.CancelScope()
        return self._scope

    def cancel(self, reason: str) -> None:
        """Nobody wants its answer any more."""
        self._make_scope().cancel(reason=reason)
        self._attend()

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


async def _go_on(inline: Inline, scope: trio.CancelScope) -> None:
    with scope:
        await inline.attend()
