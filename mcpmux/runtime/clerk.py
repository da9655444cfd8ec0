"""Tasks that do one piece of work after the other: a request needs no task and no cancel scope of its own.

Promises: work that is given begins as soon as it would in a task of its own, however long other work takes;
cancelling it touches no other work. Refuses to know what the work is. A context variable that work sets is
still set in the work that comes next, so work has to set those that it reads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import partial

import trio

FREE_LIMIT = 64  # clerks of one peer that wait for work; more come and go with it

Work = Callable[[], Awaitable[None]]


class Job:
    """A piece of work that was given."""

    __slots__ = ("_cancelled", "_scope", "work")

    def __init__(self, work: Work) -> None:
        self.work = work
        self._scope: trio.CancelScope | None = None  # while it is worked on
        self._cancelled: str | None = None

    def __repr__(self) -> str:
        return f"<Job {self.work!r}{'' if self._scope is None else ' worked on'}>"

    def cancel(self, reason: str) -> None:
        """Cancel the work at its next checkpoint, begun or not; what is done already stays so."""
        self._cancelled = reason
        if self._scope is not None:
            self._scope.cancel(reason=reason)

    async def run(self, scope: trio.CancelScope) -> None:
        """Do the work inside `scope`, which may be cancelled for it."""
        self._scope = scope
        if self._cancelled is not None:
            scope.cancel(reason=self._cancelled)
        try:
            await self.work()
        finally:
            self._scope = None


class Clerks:
    """The clerks of one peer. They live in the nursery that work is given with."""

    def __init__(self) -> None:
        self._free: dict[trio.lowlevel.Task, None] = {}  # only who sleeps: what is given to it is done
        self._given: dict[trio.lowlevel.Task, Job] = {}  # to clerks that are about to wake
        self._dismissed = False
        self._context = copy_context()  # work may be given by tasks of others

    def __repr__(self) -> str:
        return f"<Clerks {len(self._free)} free, {len(self._given)} jobs>"

    def give(self, nursery: trio.Nursery, work: Work) -> Job:
        """Have `work` done by a free clerk, or by a new one."""
        job = Job(work)
        if self._free:
            clerk, _ = self._free.popitem()
            self._given[clerk] = job
            trio.lowlevel.reschedule(clerk)
        else:
            self._context.run(partial(nursery.start_soon, self._serve, job, name="clerk"))
        return job

    def dismiss(self) -> None:
        """No more work comes: clerks go when what was given is done."""
        self._dismissed = True
        while self._free:
            trio.lowlevel.reschedule(self._free.popitem()[0])

    async def _serve(self, job: Job | None) -> None:
        while True:
            with trio.CancelScope() as scope:
                while not scope.cancel_called:
                    if job is None and (job := await self._next()) is None:
                        return
                    try:
                        await job.run(scope)
                    finally:
                        job = None  # nothing of it is kept while the next is waited for

    async def _next(self) -> Job | None:
        """The next job; None when enough others wait for one, or none will come."""
        if self._dismissed or len(self._free) >= FREE_LIMIT:
            return None
        clerk = trio.lowlevel.current_task()
        self._free[clerk] = None

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            del self._free[clerk]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        return self._given.pop(clerk, None)
