"""Run mcpmux in a program on asyncio: the same calls as in `mcpmux.library`, awaited in asyncio's tasks.

    async with open_mux("mcpmux.toml") as mux, mux.client() as client:
        result = await client.request("tools/call", {"name": "clock__now", "arguments": {}})

mcpmux runs on trio, as a guest of the program's event loop: in the same thread, so that no locks are needed.
All muxes of a loop share one guest run, which lasts from the first to the last of them.

Promises: cancelling an asyncio task cancels its request, and waits for the end of that. An exception of one
side leaves unchanged on the other. Leaving the context ends everything. If mcpmux ends before, by an
error, that error leaves the context, and requests raise LocalProtocolError until then.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import Context, copy_context
from functools import partial, wraps
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, cast

import trio

from mcpmux import library
from mcpmux.app.interceptors import NO_FUNCTIONS, Functions
from mcpmux.errors import LocalProtocolError
from mcpmux.library.client import as_raised
from mcpmux.library.mux import ENDED, Source
from mcpmux.upstreams.supervision import OpenChannel

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
V = TypeVar("V")

ELSEWHERE: Final = "mcpmux was opened in another event loop: use it there"
OCCUPIED: Final = (
    "trio runs in this thread already: in a program on trio use `mcpmux.library`, with several event loops "
    "open mcpmux in one of them"
)


class Forwarder(Generic[S]):
    """An object on trio, whose calls are forwarded from asyncio."""

    def __init__(self, guest: Guest, target: S) -> None:
        self._guest = guest
        self._target = target

    def __repr__(self) -> str:
        return repr(self._target)


def awaited(
    method: Callable[Concatenate[S, P], Awaitable[T]],
) -> Callable[Concatenate[Forwarder[S], P], Coroutine[Any, Any, T]]:
    """Return a method that awaits `method` on trio. Functions among its arguments are called on asyncio."""

    @wraps(method)
    async def forward(self: Forwarder[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        guest = self._guest
        values = (guest.wrapped(value) for value in args)
        named = {name: guest.wrapped(value) for name, value in kwargs.items()}
        return await guest.run(partial(method, self._target, *values, **named))

    return forward


def entered(
    method: Callable[Concatenate[S, P], AbstractAsyncContextManager[V]], forwarder: Callable[[Guest, V], T]
) -> Callable[Concatenate[Forwarder[S], P], AbstractAsyncContextManager[T]]:
    """Return a method that enters the context of `method` on trio, and yields its value in a `forwarder`."""

    @wraps(method)
    @asynccontextmanager
    async def forward(self: Forwarder[S], /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        async with self._guest.enter(method(self._target, *args, **kwargs)) as value:
            yield forwarder(self._guest, value)

    return forward


class Iterator(Forwarder[S], Generic[S, T]):
    """An asynchronous iterator on trio. An item that came while a task was cancelled is the next one's."""

    def __init__(self, guest: Guest, target: S) -> None:
        super().__init__(guest, target)
        self._taken: deque[T] = deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """Return the next item."""
        # Trio may have taken the item by the time at which asyncio cancels the wait for it.
        while not self._taken:
            await self._guest.run(self._take)
        return self._taken.popleft()

    async def _take(self) -> None:
        self._taken.append(await anext(cast("AsyncIterator[T]", self._target)))


class Exchanges(Iterator[library.Exchanges, library.FinishedExchange]):
    """See `mcpmux.library.Exchanges`."""

    @property
    def dropped(self) -> int:
        """The number of exchanges that found no room."""
        return self._target.dropped


class Notifications(Iterator[library.Notifications, library.Notification]):
    """See `mcpmux.library.Notifications`."""

    @property
    def honoured(self) -> library.Json:
        """The granted part of what was asked for."""
        return self._target.honoured


class Client(Forwarder[library.Client]):
    """One client. Any number of tasks may use it at the same time."""

    request = awaited(library.Client.request)
    list_all = awaited(library.Client.list_all)
    listen = entered(library.Client.listen, Notifications)


class LocalMux(Forwarder[library.LocalMux]):
    """A running mcpmux. See `open_mux`."""

    client = entered(library.LocalMux.client, Client)
    observe = entered(library.LocalMux.observe, Exchanges)

    def absent(self) -> dict[str, str]:
        """Return the upstreams that cannot be used, see `mcpmux.library.LocalMux`."""
        return self._target.absent()


@asynccontextmanager
async def open_mux(
    source: Source, *, open_channel: OpenChannel | None = None, functions: Functions = NO_FUNCTIONS
) -> AsyncIterator[LocalMux]:
    """Run mcpmux, see `mcpmux.library.open_mux`. Raises LocalProtocolError inside of a program on trio."""
    running = library.open_mux(source, open_channel=open_channel, functions=functions)
    async with open_guest(running) as (guest, mux):
        yield LocalMux(guest, mux)


# trio as a guest of asyncio. Both run in turns in one thread: sync functions may be called from either.


class Guest:
    """Does work on trio for tasks of asyncio, in one nursery."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._loop = asyncio.get_running_loop()
        self.nursery: trio.Nursery | None = nursery  # None once it has ended

    def __repr__(self) -> str:
        return f"<Guest {'ended' if self.nursery is None else f'{len(self.nursery.child_tasks)} tasks'}>"

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do some work on trio for a task of asyncio. Returns and raises what the work does."""
        if self.nursery is None:
            raise LocalProtocolError(ENDED)
        if asyncio.get_running_loop() is not self._loop:
            raise LocalProtocolError(ELSEWHERE)
        done: asyncio.Future[T] = self._loop.create_future()
        scope = trio.CancelScope()
        self.nursery.start_soon(_settle, work, done, scope)
        try:
            # Shielded, for the work has to end on trio before its task may go on.
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            scope.cancel(reason="the task of asyncio was cancelled")
            await ended(done)
            raise

    def wrapped(self, value: Any) -> Any:
        """Return a value for trio: for a function one that calls it on asyncio, with the context of now."""
        return partial(self.call_back, value, copy_context()) if callable(value) else value

    async def call_back(
        self, function: Callable[P, Awaitable[None]], context: Context, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Call an asynchronous function on asyncio, from trio. Raises what it raises."""

        async def call() -> None:
            await function(*args, **kwargs)

        # Without the loop's task factory, which may start eagerly: asyncio code would run as a trio task.
        task = asyncio.Task(call(), loop=self._loop, context=context)
        over = trio.Event()
        task.add_done_callback(lambda _task: over.set())
        try:
            await over.wait()
        except trio.Cancelled:
            task.cancel()
            with trio.CancelScope(shield=True):  # the program's code, which ends when the program lets it
                await over.wait()
            raise
        if not task.cancelled():
            task.result()

    @asynccontextmanager
    async def enter(self, context: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
        """Enter a context of trio on asyncio. One trio task enters and leaves it. Raises what it raises."""
        entered: asyncio.Future[T] = self._loop.create_future()
        leaving = trio.Event()

        async def stay() -> None:
            async with context as value:
                entered.set_result(value)
                await leaving.wait()

        staying = asyncio.create_task(self.run(stay))
        try:
            await asyncio.wait((entered, staying), return_when=asyncio.FIRST_COMPLETED)
            if not entered.done():
                staying.result()
                raise LocalProtocolError(ENDED)
            yield entered.result()
        finally:
            if entered.done():
                leaving.set()
            else:
                staying.cancel()
            await ended(staying)
            staying.result()


async def _settle(work: Callable[[], Awaitable[T]], done: asyncio.Future[T], scope: trio.CancelScope) -> None:
    try:
        with scope:
            try:
                done.set_result(await work())
            except Exception as error:
                done.set_exception(error)
    finally:
        if not done.done():
            done.set_exception(LocalProtocolError(ENDED))


@asynccontextmanager
async def working(context: AbstractAsyncContextManager[T]) -> AsyncIterator[tuple[Guest, T]]:
    """Enter `context` on trio, with a guest that works inside of it."""
    async with context as value, trio.open_nursery() as nursery:
        guest = Guest(nursery)
        try:
            yield guest, value
        finally:
            guest.nursery = None
        nursery.cancel_scope.cancel(reason="the context was left")


class SharedRun:
    """The one run of trio in an event loop. `users`: the number of contexts that need it; it ends without."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.users = 0
        self._loop = loop
        self.guest: asyncio.Future[Guest] = loop.create_future()
        self.over: asyncio.Future[None] = loop.create_future()
        self.leaving = trio.Event()

    def __repr__(self) -> str:
        return f"<SharedRun of {self.users} contexts>"

    async def serve(self) -> None:
        """Run on trio until `leaving` is set."""
        # trio raises KeyboardInterrupt here, unless asyncio handles the signal.
        async with as_raised(working(nullcontext())) as (guest, _):
            self.guest.set_result(guest)
            await self.leaving.wait()

    def finish(self, outcome: Any) -> None:
        """Note the end of the run. Raises KeyboardInterrupt, which leaves the event loop."""
        try:
            self.over.set_result(outcome.unwrap())
        except KeyboardInterrupt:  # the program's tasks may wait for something else than mcpmux
            self.over.set_result(None)
            raise
        except BaseException as error:
            self.over.set_exception(error)

    def forget(self) -> None:
        """Make room for another run, unless another task has started one already."""
        if _runs.get(self._loop) is self:
            del _runs[self._loop]


_runs: dict[asyncio.AbstractEventLoop, SharedRun] = {}


@asynccontextmanager
async def open_guest(context: AbstractAsyncContextManager[T]) -> AsyncIterator[tuple[Guest, T]]:
    """Enter `context` on trio, in the run that all guests of this loop share."""
    loop = asyncio.get_running_loop()
    while (run := _runs.get(loop)) is not None and not run.users:
        await asyncio.wait((run.over,))  # it is ending: a thread has one run at a time
        run.forget()
    if run is None:
        if trio.lowlevel.in_trio_run():
            raise LocalProtocolError(OCCUPIED)
        run = _runs[loop] = SharedRun(loop)
        trio.lowlevel.start_guest_run(
            run.serve,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            run_sync_soon_not_threadsafe=loop.call_soon,
            done_callback=run.finish,
            restrict_keyboard_interrupt_to_checkpoints=True,
            host_uses_signal_set_wakeup_fd=True,
        )
    run.users += 1
    try:
        root = await asyncio.shield(run.guest)
        async with root.enter(working(context)) as entered:
            yield entered
    finally:
        run.users -= 1
        if not run.users:
            run.leaving.set()
            try:
                await ended(run.over)
            finally:  # also when it was cancelled meanwhile
                run.forget()
            run.over.result()


async def ended(future: asyncio.Future[Any]) -> None:
    """Wait until a future is done. A cancellation of the waiting task is raised only then."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError as error:
            cancelled = error
    if not future.cancelled():
        future.exception()  # marks it as retrieved, or asyncio logs a complaint
    if cancelled is not None:
        raise cancelled
