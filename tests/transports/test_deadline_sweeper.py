"""What has an end in time is cut off then, by one task, on a virtual clock."""

from __future__ import annotations

import math
import weakref

import pytest
import trio
import trio.testing

from mcpmux.transports.waiting import SWEEP_SECONDS, DeadlineSweeper


async def test_it_rests_while_nothing_is_watched(autojump_clock):
    """A task that woke ten times a second for each idle server would cost more than it saves."""
    deadlines = DeadlineSweeper()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.run)
        before = autojump_clock.current_time()
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(1000):
            await trio.sleep_forever()
        assert autojump_clock.current_time() - before == pytest.approx(1000)
        statistics = trio.lowlevel.current_statistics()
        assert statistics.seconds_to_next_deadline == math.inf
        nursery.cancel_scope.cancel()


class Thing:
    """Something with a time of its own. `ended`: when it was cut off, each time."""

    def __init__(self, until):
        self.until = until
        self.ended = []

    def cut_off(self):
        self.ended.append(trio.current_time())


async def test_each_is_cut_off_at_its_own_time_and_again_until_it_is_forgotten(autojump_clock):
    deadlines = DeadlineSweeper()
    things = [Thing(until) for until in (7.0, 3.0, 20.0, math.inf)]
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.run)
        for thing in things:
            thing.until += began
            deadlines.watch(thing)
        await trio.sleep(30)
        for thing in things[:3]:
            assert thing.until <= thing.ended[0] <= thing.until + SWEEP_SECONDS + 1e-6
            assert len(thing.ended) > 1
            deadlines.forget(thing)
        assert not things[3].ended
        cut = [len(thing.ended) for thing in things]
        await trio.sleep(30)
        assert cut == [len(thing.ended) for thing in things]
        nursery.cancel_scope.cancel()


async def test_a_time_that_moves_is_the_one_that_counts(autojump_clock):
    deadlines = DeadlineSweeper()
    thing = Thing(trio.current_time() + 5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.run)
        deadlines.watch(thing)
        await trio.sleep(4)
        thing.until += 5
        await trio.sleep(4)
        assert not thing.ended
        await trio.sleep(3)
        assert thing.ended
        nursery.cancel_scope.cancel()


async def test_nothing_that_was_forgotten_is_kept(autojump_clock):
    deadlines = DeadlineSweeper()
    thing = Thing(5.0)
    alive = weakref.ref(thing)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.run)
        deadlines.watch(thing)
        await trio.sleep(6)
        assert thing.ended
        deadlines.forget(thing)
        del thing
        await trio.testing.wait_all_tasks_blocked()
        assert alive() is None
        nursery.cancel_scope.cancel()
