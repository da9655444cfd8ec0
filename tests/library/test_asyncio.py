"""The library on asyncio: one loop, two kinds of tasks."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

import pytest
import trio

from mcpmux.library import LocalProtocolError, Notification, RpcError
from mcpmux.library.asyncio import Client, LocalMux, _runs, open_guest, open_mux
from tests.library.servers import DONE, Worker, config_of
from tests.peers.revision import MODERN
from tests.peers.subscribable import Subscribable
from tests.runtime.world import World

SECONDS = 20.0  # for a whole test
WORD: ContextVar[str] = ContextVar("word")


def on_asyncio(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Run a test on asyncio, where an unobserved exception is an error."""

    @wraps(test)
    def run() -> None:
        complaints: list[Any] = []

        async def bounded() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _loop, complaint: complaints.append(complaint))
            async with asyncio.timeout(SECONDS):
                await test()
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert not trio.lowlevel.in_trio_run()

        asyncio.run(bounded(), debug=True)
        assert complaints == []

    del run.__wrapped__  # by which pytest-trio would take it for a trio test
    return run


@asynccontextmanager
async def open_local(servers: dict[str, Any]) -> AsyncIterator[tuple[LocalMux, Client]]:
    world = World(servers)
    async with (
        open_mux(config_of(servers), open_channel=world.open_channel) as mux,
        mux.client() as client,
    ):
        yield mux, client


async def call(client: Client, name: str, *more: Any) -> Any:
    return await client.request("tools/call", {"name": name, "arguments": {}}, *more)


async def visit() -> None:
    async with open_local({"x": Worker()}) as (_, client):
        await call(client, "x__work")


@on_asyncio
async def test_a_request_is_answered():
    async with open_local({"x": Worker(), "y": Worker()}) as (mux, client):
        assert (await call(client, "x__work"))["content"] == DONE["content"]
        assert len(await client.list_all("tools/list")) == 6
        assert mux.absent() == {}


@on_asyncio
async def test_an_error_is_raised_as_it_is():
    with pytest.raises(RpcError) as caught:
        async with open_local({"x": Worker(), "y": Worker()}) as (_, client):
            await call(client, "x__fail")
    assert (caught.value.code, caught.value.data) == (-32050, {"tray": 2})


@on_asyncio
async def test_requests_run_side_by_side():
    worker = Worker()
    async with open_local({"x": worker, "y": Worker()}) as (_, client), asyncio.TaskGroup() as tasks:
        hanging = tasks.create_task(call(client, "x__hang"))
        for _ in range(3):
            tasks.create_task(call(client, "y__work"))
        await call(client, "x__work")
        hanging.cancel()


@on_asyncio
async def test_cancelling_a_task_cancels_its_request_at_the_server():
    worker = Worker()
    async with open_local({"x": worker, "y": Worker()}) as (mux, client), mux.observe() as exchanges:
        task = asyncio.create_task(call(client, "x__hang"))
        await client._guest.run(worker.hangs.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await anext(exchanges)).outcome == "cancelled"
        await client._guest.run(worker.cancelled.wait)


@on_asyncio
async def test_notifications_are_told_on_asyncio_in_the_context_of_the_request():
    notes: list[tuple[str, str]] = []

    async def hear(notification: Notification) -> None:
        await asyncio.sleep(0)
        notes.append((notification.method, WORD.get()))

    async with open_local({"x": Worker(), "y": Worker()}) as (_, client):
        WORD.set("ours")
        await call(client, "x__work", hear, "info")
    assert notes == [("notifications/progress", "ours"), ("notifications/message", "ours")]


@on_asyncio
async def test_what_a_listener_of_notifications_raises_fails_its_request():
    async def hear(_notification: Notification) -> None:
        raise ZeroDivisionError

    async with open_local({"x": Worker(), "y": Worker()}) as (_, client):
        with pytest.raises(ZeroDivisionError):
            await call(client, "x__work", hear)
        await call(client, "x__work")


@on_asyncio
async def test_a_listener_of_notifications_is_cancelled_with_its_request():
    hears, ended = asyncio.Event(), asyncio.Event()

    async def hear(_notification: Notification) -> None:
        try:
            hears.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with open_local({"x": Worker(), "y": Worker()}) as (_, client):
        task = asyncio.create_task(call(client, "x__work", hear))
        await hears.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()


@on_asyncio
async def test_changes_and_exchanges_are_iterated_over():
    server = Subscribable(MODERN)
    async with open_local({"x": server, "y": Worker()}) as (mux, client), mux.observe(most=1) as exchanges:
        async with client.listen(uris=["x+memo:1"]) as notifications:
            assert notifications.honoured == {"resourceSubscriptions": ["x+memo:1"]}
            await client._guest.run(lambda: server.update("memo:1"))
            assert (await anext(notifications)).params["uri"] == "x+memo:1"
        await client.request("tools/list")
        assert [(await anext(exchanges)).method, exchanges.dropped] == ["subscriptions/listen", 1]


@on_asyncio
async def test_no_item_is_lost_by_a_wait_that_is_cancelled():
    async with open_local({"x": Worker(), "y": Worker()}) as (mux, client), mux.observe() as exchanges:
        for number in range(1, 21):
            waiting = asyncio.create_task(anext(exchanges))
            await client.request("tools/list")
            for _ in range(number):  # until trio has the item, asyncio has it, and the task is done
                await asyncio.sleep(0)
            if waiting.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                waiting = asyncio.create_task(anext(exchanges))
            assert (await waiting).number == number


@on_asyncio
async def test_another_event_loop_is_refused_with_advice():
    async with open_local({"x": Worker()}) as (_, client):
        other = asyncio.to_thread(lambda: asyncio.run(client.request("tools/list")))
        with pytest.raises(LocalProtocolError, match="in another event loop"):
            await other


def test_an_interrupt_leaves_the_event_loop_at_once():
    loop = asyncio.new_event_loop()

    async def visit() -> None:
        async with open_local({"x": Worker()}):
            signal.raise_signal(signal.SIGINT)
            await asyncio.Event().wait()

    visiting = loop.create_task(visit())
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(visiting)
    visiting.cancel()
    with pytest.raises(LocalProtocolError, match="mcpmux has ended"):
        loop.run_until_complete(visiting)
    assert not _runs and not trio.lowlevel.in_trio_run()
    loop.close()


@on_asyncio
async def test_an_error_of_the_program_ends_everything_and_leaves_as_it_is():
    worker = Worker()
    with pytest.raises(ZeroDivisionError):
        async with open_local({"x": worker, "y": Worker()}) as (_, client):
            task = asyncio.create_task(call(client, "x__hang"))
            await client._guest.run(worker.hangs.wait)
            raise ZeroDivisionError
    with pytest.raises(LocalProtocolError, match="mcpmux has ended"):
        await task
    with pytest.raises(LocalProtocolError, match="mcpmux has ended"):
        await call(client, "x__work")


@on_asyncio
async def test_several_are_open_and_each_ends_for_itself():
    async with open_local({"x": Worker()}) as (_, first):
        async with open_local({"x": (other := Worker())}) as (_, second):
            hanging = asyncio.create_task(call(second, "x__hang"))
            await second._guest.run(other.hangs.wait)
            await call(first, "x__work")
        with pytest.raises(LocalProtocolError, match="mcpmux has ended"):
            await hanging
        await call(first, "x__work")
    async with open_local({"x": Worker()}) as (_, client):
        await call(client, "x__work")


@on_asyncio
async def test_one_is_opened_while_another_ends():
    async with asyncio.TaskGroup() as tasks:
        for _ in range(8):
            tasks.create_task(visit())
    ending = asyncio.create_task(visit())
    while not ending.done():
        await visit()


async def visit_until_it_leaves() -> asyncio.Task[None]:
    """Return a task that has opened one, and waits for the end of the last."""
    visiting = asyncio.create_task(visit())
    while not (run := _runs.get(asyncio.get_running_loop())) or not run.leaving.is_set():  # noqa: ASYNC110 - `leaving` is an event of trio
        await asyncio.sleep(0)
    return visiting


@on_asyncio
async def test_two_are_opened_while_the_last_one_ends():
    last = await visit_until_it_leaves()
    await asyncio.gather(last, visit(), visit())


@on_asyncio
async def test_cancelled_while_the_last_one_ends_it_is_forgotten():
    last = await visit_until_it_leaves()
    last.cancel()
    with pytest.raises(asyncio.CancelledError):
        await last
    assert not _runs


async def test_a_program_on_trio_is_refused_with_advice():
    async def visit() -> None:
        async with open_local({"x": Worker()}):
            pytest.fail("it began")

    with pytest.raises(LocalProtocolError, match=r"use `mcpmux\.library`"):
        asyncio.run(visit())


@on_asyncio
async def test_cancelled_while_it_begins_it_begins_no_more() -> None:
    begun = asyncio.Event()
    given_up: list[bool] = []

    @asynccontextmanager
    async def context() -> AsyncIterator[None]:
        begun.set()
        try:
            with trio.move_on_after(5):
                await trio.sleep_forever()
        except trio.Cancelled:
            given_up.append(True)
            raise
        yield

    async def begin() -> None:
        async with open_guest(context()):
            pytest.fail("it began")

    task = asyncio.create_task(begin())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert given_up == [True]


@on_asyncio
async def test_an_error_of_mcpmux_leaves_at_the_end() -> None:
    crash = trio.Event()

    @asynccontextmanager
    async def context() -> AsyncIterator[trio.Event]:
        async def fail() -> None:
            await crash.wait()
            raise ZeroDivisionError

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            yield crash

    async def hang() -> None:
        crash.set()
        await trio.sleep_forever()

    with pytest.raises(ExceptionGroup) as caught:
        async with open_guest(context()) as (guest, _):
            for _ in range(2):
                with pytest.raises(LocalProtocolError, match="mcpmux has ended"):
                    await guest.run(hang)
    assert caught.group_contains(ZeroDivisionError)


@on_asyncio
async def test_what_cannot_begin_says_why() -> None:
    @asynccontextmanager
    async def context() -> AsyncIterator[None]:
        await trio.lowlevel.checkpoint()
        raise ZeroDivisionError
        yield

    with pytest.raises(ZeroDivisionError):
        async with open_guest(context()):
            pytest.fail("it began")


@on_asyncio
async def test_cancelled_at_its_end_it_ends_first() -> None:
    left = asyncio.Event()
    ending = asyncio.Event()

    @asynccontextmanager
    async def context() -> AsyncIterator[None]:
        yield
        ending.set()
        for _ in range(10):
            await trio.lowlevel.checkpoint()
        left.set()

    async def visit() -> None:
        async with open_guest(context()):
            pass

    task = asyncio.create_task(visit())
    await ending.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left.is_set()
