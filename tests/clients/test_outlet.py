"""An outbox with an outlet: told at once while the client keeps up, kept and told together when not."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from mcpmux.protocol import method as m
from mcpmux.protocol.call import Event
from mcpmux.protocol.envelope import raw
from mcpmux.runtime.client_outbox import ClientOutbox


def update(number: int) -> Event:
    return Event(m.RESOURCE_UPDATED, {"uri": raw(f"memo:{number}")})


class Client:
    """A stream that takes `room` events at once, unencoded; the next is stuck until `make_room`."""

    def __init__(self, outbox: ClientOutbox, room: int) -> None:
        self.outbox = outbox
        self.heard: list[Event] = []
        self.by_reader: list[Event] = []
        self.flushes = 0
        self._room = room
        self._stuck: Event | None = None
        self._freed = trio.Event()

    def write_nowait(self, event: Event) -> bool:
        assert self._stuck is None, "told before it was flushed"
        if len(self.heard) < self._room:
            self.heard.append(event)
            return True
        self._stuck = event
        return False

    async def flush(self) -> None:
        if self._stuck is None:
            return
        await self._freed.wait()
        self.heard.append(self._stuck)
        self._stuck = None
        self.flushes += 1

    def make_room(self, room: int) -> None:
        self._room = room
        self._freed.set()
        self._freed = trio.Event()

    async def read(self) -> None:
        while (event := await self.outbox.take(self)) is not None:
            await self.flush()
            self.heard.append(event)
            self.by_reader.append(event)


async def test_a_waiting_client_hears_at_once_and_nobody_is_woken(autojump_clock):
    client = Client(ClientOutbox(frozenset()), room=100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.read)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(3):
            client.outbox.put(update(number))
            assert len(client.heard) == number + 1  # without a turn of the scheduler
        client.outbox.put(Event("notifications/unknown", {}), is_known=False)
        assert len(client.heard) == 4
        client.outbox.close()
    assert client.by_reader == []
    assert client.outbox.merged == 0


async def test_before_the_reader_waits_everything_is_kept_for_it(autojump_clock):
    client = Client(ClientOutbox(frozenset()), room=100)
    async with trio.open_nursery() as nursery:
        client.outbox.put(update(0))
        nursery.start_soon(client.read)
        client.outbox.put(update(1))
        assert client.heard == []
        await trio.testing.wait_all_tasks_blocked()
        client.outbox.put(update(2))
        client.outbox.close()
        client.outbox.put(update(3))
    assert client.heard == [update(number) for number in range(4)]


async def test_a_slow_client_gets_changes_once_in_order_in_bounded_memory(autojump_clock):
    client = Client(ClientOutbox(frozenset()), room=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.read)
        await trio.testing.wait_all_tasks_blocked()
        client.outbox.put(update(0))
        client.outbox.put(update(1))  # is begun, and stuck
        for _ in range(1000):
            client.outbox.put(update(2))
            client.outbox.put(update(3))
        await trio.testing.wait_all_tasks_blocked()
        client.outbox.put(update(2))
        assert client.heard == [update(0)]
        assert client.outbox.merged == 1999
        client.make_room(100)
        await trio.testing.wait_all_tasks_blocked()
        assert client.heard == [update(number) for number in range(4)]
        client.outbox.put(update(4))
        assert client.heard[-1] == update(4)  # it keeps up again: at once
        client.outbox.close()
    assert client.flushes == 1
    assert client.by_reader == [update(2), update(3)]


@pytest.mark.parametrize("stuck", [False, True])
async def test_a_reader_that_goes_leaves_what_comes_later_to_the_next(autojump_clock, stuck: bool):
    client = Client(ClientOutbox(frozenset()), room=0 if stuck else 100)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.read)
            await trio.testing.wait_all_tasks_blocked()
            client.outbox.put(update(0))
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    client.outbox.put(update(1))
    with trio.fail_after(30):
        assert await client.outbox.take() == update(1)


async def test_the_reader_before_does_not_take_the_outlet_of_the_next(autojump_clock):
    outbox = ClientOutbox(frozenset())
    earlier, after = Client(outbox, room=100), Client(outbox, room=100)
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as first:
                first.start_soon(earlier.read)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
                nursery.start_soon(after.read)
        await trio.testing.wait_all_tasks_blocked()
        outbox.put(update(0))
        assert (earlier.heard, after.heard) == ([], [update(0)])
        outbox.close()
