"""Run mcpmux in a program on asyncio: the same calls as in `mcpmux.library`, awaited in asyncio's tasks.

    async with open_mux("mcpmux.toml") as mux, mux.client() as client:
        result = await client.request("tools/call", {"name": "clock__now", "arguments": {}})

mcpmux runs on trio, as a guest of the program's event loop: in the same thread, so that no locks are needed.
There may be one such guest at a time.

Promises: cancelling an asyncio task cancels its request, and waits for the end of that. An exception of one
side leaves unchanged on the other. Leaving the context ends everything. If mcpmux ends before, by an
error, that error leaves the context, and requests raise LocalProtocolError until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context, copy_context
from functools import partial
from typing import Any, TypeVar

import trio

from mcpmux import library
from mcpmux.errors import LocalProtocolError
from mcpmux.library.client import Json, Notification, OnNotification
from mcpmux.library.exchanges import FinishedExchange
from mcpmux.library.mux import MOST_EXCHANGES, Source
from mcpmux.upstreams.upstream import OpenChannel

T = TypeVar("T")

ENDED = "mcpmux has ended"


class LocalMux:
    """A running mcpmux. See `open_mux`."""

    def __init__(self, guest: Guest, mux: library.LocalMux) -> None:
        self._guest = guest
        self._mux = mux

    def __repr__(self) -> str:
        return repr(self._mux)

    def absent(self) -> dict[str, str]:
        """Return the upstreams that cannot be used, see `mcpmux.library.LocalMux`."""
        return self._mux.absent()

    @asynccontextmanager
    async def client(
        self,
        principal: str = "",
        *,
        scopes: Collection[str] = (),
        view: str = "",
        capabilities: Mapping[str, Any] | None = None,
        name: str = "mcpmux",
    ) -> AsyncIterator[Client]:
        """Open a client in memory, see `mcpmux.library.LocalMux`."""
        context = self._mux.client(principal, scopes=scopes, view=view, capabilities=capabilities, name=name)
        async with self._guest.enter(context) as client:
            yield Client(self._guest, client)

    @asynccontextmanager
    async def observe(self, most: int = MOST_EXCHANGES) -> AsyncIterator[Exchanges]:
        """Observe exchanges, see `mcpmux.library.LocalMux`."""
        async with self._guest.enter(self._mux.observe(most)) as exchanges:
            yield Exchanges(self._guest, exchanges)


class Client:
    """One client. Any number of tasks may use it at the same time."""

    def __init__(self, guest: Guest, client: library.Client) -> None:
        self._guest = guest
        self._client = client

    def __repr__(self) -> str:
        return repr(self._client)

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        on_notification: OnNotification | None = None,
        log_level: str | None = None,
    ) -> Json:
        """Send a request, see `mcpmux.library.Client`. `on_notification` runs on asyncio."""
        # Of the calling task, so that its context variables hold in the callback.
        context = copy_context()

        async def notify(notification: Notification) -> None:
            assert on_notification is not None
            await self._guest.call_back(partial(on_notification, notification), context)

        hear = None if on_notification is None else notify
        return await self._guest.run(partial(self._client.request, method, params, hear, log_level))

    async def list_all(self, method: str) -> list[Json]:
        """Return every item of a list, see `mcpmux.library.Client`."""
        return await self._guest.run(partial(self._client.list_all, method))

    @asynccontextmanager
    async def listen(
        self, uris: Collection[str] = (), lists: Collection[str] = ()
    ) -> AsyncIterator[Notifications]:
        """Listen to changes, see `mcpmux.library.Client`."""
        async with self._guest.enter(self._client.listen(uris, lists)) as notifications:
            yield Notifications(self._guest, notifications)


class Exchanges:
    """See `mcpmux.library.Exchanges`."""

    def __init__(self, guest: Guest, exchanges: library.Exchanges) -> None:
        self._guest = guest
        self._exchanges = exchanges

    def __repr__(self) -> str:
        return repr(self._exchanges)

    @property
    def dropped(self) -> int:
        """The number of exchanges that found no room."""
        return self._exchanges.dropped

    def __aiter__(self) -> Exchanges:
        return self

    async def __anext__(self) -> FinishedExchange:
        return await self._guest.run(self._exchanges.__anext__)


class Notifications:
    """See `mcpmux.library.Notifications`."""

    def __init__(self, guest: Guest, notifications: library.Notifications) -> None:
        self._guest = guest
        self._notifications = notifications
        self.honoured = notifications.honoured

    def __repr__(self) -> str:
        return repr(self._notifications)

    def __aiter__(self) -> Notifications:
        return self

    async def __anext__(self) -> Notification:
        return await self._guest.run(self._notifications.__anext__)


@asynccontextmanager
async def open_mux(source: Source, *, open_channel: OpenChannel | None = None) -> AsyncIterator[LocalMux]:
    """See `mcpmux.library.open_mux`. Raises LocalProtocolError when trio runs in this thread already."""
    async with open_guest(library.open_mux(source, open_channel=open_channel)) as (guest, mux):
        yield LocalMux(guest, mux)


# trio as a guest of asyncio. Both run in turns in one thread: sync functions may be called from either.


class Guest:
    """A trio run within the running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._nursery: trio.Nursery | None = None  # for the work that asyncio's tasks wait for
        self.scope = trio.CancelScope()  # around the whole run

    def __repr__(self) -> str:
        state = "ended" if self._nursery is None else f"{len(self._nursery.child_tasks)} tasks"
        return f"<Guest {state}>"

    async def serve(
        self, context: AbstractAsyncContextManager[T], entered: asyncio.Future[T], leaving: trio.Event
    ) -> None:
        """Run on trio until `leaving` is set. Raises what the context raises."""
        with self.scope:
            async with context as value, trio.open_nursery() as nursery:
                self._nursery = nursery
                entered.set_result(value)
                try:
                    await leaving.wait()
                finally:
                    self._nursery = None
                nursery.cancel_scope.cancel(reason="the context was left")

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do some work on trio for a task of asyncio. Returns and raises what the work does."""
        if self._nursery is None:
            raise LocalProtocolError(ENDED)
        done: asyncio.Future[T] = self._loop.create_future()
        scope = trio.CancelScope()
        self._nursery.start_soon(_settle, work, done, scope)
        try:
            # Shielded, for the work has to end on trio before its task may go on.
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            scope.cancel(reason="the task of asyncio was cancelled")
            await ended(done)
            raise

    async def call_back(self, function: Callable[[], Awaitable[None]], context: Context) -> None:
        """Call an asynchronous function on asyncio, from trio. Raises what it raises."""

        async def call() -> None:
            await function()

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
        """Enter a context of trio on asyncio. One trio task enters and leaves it."""
        entered: asyncio.Future[T] = self._loop.create_future()
        leaving = trio.Event()

        async def stay() -> None:
            async with context as value:
                entered.set_result(value)
                await leaving.wait()

        staying = asyncio.create_task(self.run(stay))
        async with inside(entered, staying, leaving.set, staying.cancel) as value:
            yield value


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
async def open_guest(context: AbstractAsyncContextManager[T]) -> AsyncIterator[tuple[Guest, T]]:
    """Run trio as long as the context lasts, with another context entered there."""
    if trio.lowlevel.in_trio_run():
        raise LocalProtocolError("trio runs in this thread already: open one mux, and share it")
    loop = asyncio.get_running_loop()
    guest, leaving = Guest(), trio.Event()
    entered: asyncio.Future[T] = loop.create_future()
    over: asyncio.Future[None] = loop.create_future()

    def finish(outcome: Any) -> None:
        try:
            over.set_result(outcome.unwrap())
        except BaseException as error:
            over.set_exception(error)

    trio.lowlevel.start_guest_run(
        guest.serve,
        context,
        entered,
        leaving,
        run_sync_soon_threadsafe=loop.call_soon_threadsafe,
        run_sync_soon_not_threadsafe=loop.call_soon,
        done_callback=finish,
        restrict_keyboard_interrupt_to_checkpoints=True,
        host_uses_signal_set_wakeup_fd=True,
    )
    async with inside(entered, over, leaving.set, guest.scope.cancel) as value:
        yield guest, value


@asynccontextmanager
async def inside(
    entered: asyncio.Future[T],
    over: asyncio.Future[None],
    leave: Callable[[], object],
    give_up: Callable[[], object],
) -> AsyncIterator[T]:
    """Hold a context of trio on the asyncio side. Raises what the context raises.

    `entered`: its value. `over`: done when it was left, or could not be entered. `leave` starts leaving it,
    `give_up` stops entering it.
    """
    try:
        await asyncio.wait((entered, over), return_when=asyncio.FIRST_COMPLETED)
        if not entered.done():
            over.result()
            raise LocalProtocolError(ENDED)
        yield entered.result()
    finally:
        (leave if entered.done() else give_up)()
        await ended(over)
        over.result()


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
