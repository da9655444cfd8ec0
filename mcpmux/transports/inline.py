"""Run coroutines without tasks, until they need one.

    NEW ------ start ---------------> RUNNING
    RUNNING -- await woken(source) -> ASLEEP     `source.wake` runs it on, wherever that is called
    RUNNING -- await in_task() -----> WAITING    for a task that awaits it
    ASLEEP, WAITING -- awaited -----> ATTENDED   from now on the awaiting task runs it as if it had called it
    RUNNING, ATTENDED -- it ends ---> OVER

An exchange is an ordinary coroutine: the code that has something for it runs it, and it gets a task as soon
as it waits for anything else than the answer of a server.

Rule: a coroutine that may run inline awaits `in_task()` before anything of trio that waits or opens a cancel
scope. In a task, `in_task` does nothing, and `woken` sleeps until it is woken.

Cancelling is left to tasks: awaited in a cancelled scope, the coroutine ends like any task.

An exchange with several servers runs its parts `together`, in the same way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextvars import Context, copy_context
from typing import Any, Final, Protocol

import trio
from trio.lowlevel import Abort, current_task, reschedule, wait_task_rescheduled

from mcpmux.errors import LocalProtocolError

Wake = Callable[[], None]
Work = Coroutine[Any, Any, None]


class WakeSource(Protocol):
    """An object on which a coroutine sleeps. It has one sleeper at most, and `wake` is called once."""

    wake: Wake | None


class _Pause:
    """A value that a coroutine yields to its runner, once."""

    # By an iterator: a generator would cost more.
    def __await__(self) -> Any:
        return iter((self,))


class _AtOnce:
    """An awaitable that is done at once."""

    def __await__(self) -> Any:
        return iter(())


class _Abandoned(BaseException):
    """Raised inside a coroutine that is given up."""


class _Over:
    """The value after the last pause of a coroutine."""


_OVER: Final = _Over()
_IN_TASK: Final = _Pause()
_ASLEEP: Final = _Pause()
AT_ONCE: Final = _AtOnce()
"""The awaitable of work that is done already. It need not be awaited."""

_running: Inline | None = None  # the coroutine that runs now, if that is not in a task


def in_task() -> Awaitable[None]:
    """Wait until a task runs this coroutine, if none does. After it, all of trio may be awaited."""
    return AT_ONCE if _running is None else _IN_TASK


def woken(source: WakeSource) -> Awaitable[None]:
    """Sleep until `source.wake` is called. Check before whether there is anything to wait for.

    The result must be awaited at once.
    """
    running = _running
    if running is None:
        return _sleep(source)
    running._source = source
    source.wake = running._wake
    return _ASLEEP


async def _sleep(source: WakeSource) -> None:
    task = current_task()

    def wake() -> None:
        source.wake = None
        reschedule(task)

    def abort(_raise_cancel: object) -> Abort:
        source.wake = None
        return Abort.SUCCEEDED

    source.wake = wake
    await wait_task_rescheduled(abort)


# Most exchanges wait for one thing only, the answer of a server, and everything before and after it can be
# done where bytes are read. A task for each would cost more than the work.
class Inline:
    """A coroutine without a task. `start` it, and await this whenever it is neither asleep nor over.

    `on_change` is called when the coroutine was woken, and then needs a task or is over. `context`: its
    context variables; no other code may run in that context meanwhile. `error`: the exception that it has
    raised, once it `is_over`.
    """

    __slots__ = ("_context", "_on_change", "_pauses", "_source", "error", "is_over")

    def __init__(self, work: Awaitable[None], context: Context, on_change: Callable[[], None]) -> None:
        # Kept as an iterator: `next` with a default ends without an exception, which would cost more.
        self._pauses: Generator[Any, Any, None] | None = work.__await__()
        self._context = context
        self._on_change: Callable[[], None] | None = on_change
        self._source: WakeSource | None = None
        self.is_over = False
        self.error: BaseException | None = None

    def __repr__(self) -> str:
        state = "over" if self.is_over else "waiting for a task" if self._source is None else "asleep"
        return f"<Inline {state}>"

    @property
    def is_asleep(self) -> bool:
        """Whether it waits for its source to wake it."""
        return self._source is not None

    def start(self) -> bool:
        """Run until it sleeps, needs a task or is over; return whether it sleeps."""
        global _running
        pauses = self._pauses
        assert pauses is not None
        # Runs nest: a coroutine that runs inline may wake or start another.
        outer, _running = _running, self
        try:
            pause: object = self._context.run(next, pauses, _OVER)
            # Anything else was yielded to trio, which does not run this: raise it where the mistake is.
            while pause is not _ASLEEP and pause is not _IN_TASK and pause is not _OVER:
                mistake = LocalProtocolError("this waits for trio without a task: await in_task() before")
                pause = self._context.run(pauses.throw, mistake)
        except StopIteration:
            pause = _OVER
        except BaseException as error:
            self._end(error)
            return False
        finally:
            _running = outer
        if pause is _OVER:  # the lines of `_end`, without a call
            self.is_over = True
            self._pauses = self._on_change = None
        return pause is _ASLEEP

    def _wake(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            source.wake = None
        on_change = self._on_change
        if not self.start() and on_change is not None:
            on_change()

    def close(self) -> None:
        """Give the coroutine up where no task can run it any more: an exception is raised in it.

        Raises RuntimeError if it waits for something even then.
        """
        pauses, source, self._source = self._pauses, self._source, None
        if source is not None:
            source.wake = None
        self._end(None)
        if pauses is not None:
            try:  # not `pauses.close()`, which does not end a coroutine that mypyc has compiled
                self._context.run(pauses.throw, _Abandoned())
            except (_Abandoned, StopIteration):
                return
            raise RuntimeError(f"{pauses!r} goes on after it was given up")

    def _end(self, error: BaseException | None) -> None:
        if error is not None and error.__traceback__ is not None:
            error.__traceback__ = error.__traceback__.tb_next  # without `start`, whose frame holds `self`
        self.is_over = True
        self.error = error
        self._pauses = self._on_change = None  # reference cycles would wait for the garbage collector

    def __await__(self) -> Generator[Any, Any, None]:
        """Run the coroutine on in this task until it is over. Raises the coroutine's exception.

        Cancelling the task cancels the coroutine at its next wait.
        """
        pauses, context = self._pauses, self._context
        if pauses is None:
            # Raised once: an error that is kept holds the frames of its traceback.
            if self.error is not None:
                try:
                    raise self.error
                finally:
                    self.error = None
            return
        source, self._source = self._source, None
        value: Any = None
        thrown: BaseException | None = None
        try:
            if source is not None:
                # From now on the source wakes this task, and no longer `_wake`.
                try:
                    yield from _sleep(source).__await__()
                except trio.Cancelled as cancelled:
                    thrown = cancelled  # which the coroutine raises on
            self._on_change = None
            while True:
                try:
                    if thrown is None:
                        trap = context.run(pauses.send, value)
                    else:
                        trap = context.run(pauses.throw, thrown)
                except StopIteration:
                    return
                thrown = value = None
                # The traps of the coroutine go to trio, and their outcomes back to the coroutine.
                try:
                    value = yield trap
                except BaseException as error:
                    thrown = error
        finally:
            # An exception that leaves has this frame in its traceback: a reference cycle would keep both.
            thrown = value = None
            self._end(None)


BUNCH: Final = 32  # coroutines that are started before other tasks get their turn
TURN_SECONDS: Final = 0.005  # of long work without waiting, until other tasks get theirs


async def next_turn() -> float:
    """Let other tasks have their turn. Return trio's time at which they should have the next one."""
    await in_task()
    await trio.lowlevel.checkpoint()
    return trio.current_time() + TURN_SECONDS


class _Group:
    """Coroutines that run side by side, and the source on which their waiter sleeps."""

    def __init__(self) -> None:
        self.members: list[Inline] = []
        self.wake: Wake | None = None

    def is_asleep(self) -> bool:
        """Return whether some members sleep, and none has failed or needs a task."""
        asleep = False
        for member in self.members:
            if not member.is_over:
                if member._source is None:
                    return False
                asleep = True
            elif member.error is not None:
                return False
        return asleep

    def changed(self) -> None:
        """Wake the waiter, now that a member is over or needs a task, unless the others still sleep."""
        if self.wake is not None and not self.is_asleep():
            self.wake()


async def _attend(member: Inline) -> None:
    await member


async def together(works: Sequence[Work]) -> None:
    """Run coroutines side by side until all are over, in tasks only once one of them needs a task.

    The first error, and cancelling, give up the others. The error is raised here, in an exception group if
    there were tasks.
    """
    group = _Group()
    members = group.members
    try:
        for work in works:
            if members and len(members) % BUNCH == 0:
                await in_task()
                await trio.lowlevel.checkpoint()
            member = Inline(work, copy_context(), group.changed)
            members.append(member)
            member.start()
        if group.is_asleep():
            await woken(group)
        over = True
        for member in members:
            if member.error is not None:
                await member  # raises its error
            over = over and member.is_over
        if over:
            return
        await in_task()
        async with trio.open_nursery() as nursery:
            for member in members:
                nursery.start_soon(_attend, member)
    finally:
        for member in members:
            if not member.is_over:
                member.close()
        # Close the coroutines that were not started, or Python would warn that they were never awaited.
        for work in works[len(members) :]:
            work.close()
