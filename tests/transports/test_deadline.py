"""The deadlines of exchanges with upstreams, and the one task that cuts off overdue ones."""

from __future__ import annotations

import math
import weakref

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.errors import Overdue
from mcpmux.transports.waiting import SWEEP_SECONDS, Deadline, DeadlineSweeper, limited


async def test_a_wait_is_over_with_the_term(autojump_clock):
    deadline = Deadline(10, 4, 60)
    with pytest.raises(Overdue), deadline.limit():
        await trio.sleep_forever()
    assert trio.current_time() == pytest.approx(6)
    assert not deadline.exhausted


async def test_progress_renews_the_term_while_somebody_waits(autojump_clock):
    deadline = Deadline(10, 0, 60)

    async def progress():
        for _ in range(3):
            await trio.sleep(8)
            deadline.renew()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(progress)
        with pytest.raises(Overdue), deadline.limit():
            await trio.sleep_forever()
    assert trio.current_time() == pytest.approx(34)
    assert not deadline.exhausted


async def test_an_inner_limit_leaves_the_outer_one_in_force(autojump_clock):
    deadline = Deadline(10, 0, 60)
    with pytest.raises(Overdue), deadline.limit():
        with deadline.limit():
            await trio.sleep(4)
        await trio.sleep_forever()
    assert trio.current_time() == pytest.approx(10)


async def test_what_is_over_already_ends_at_once(autojump_clock):
    deadline = Deadline(10, 12, 60)
    with pytest.raises(Overdue), deadline.limit():
        await trio.sleep_forever()
    assert trio.current_time() == 0


async def test_who_is_cancelled_from_outside_is_cancelled(autojump_clock):
    deadline = Deadline(10, 0, 60)
    with trio.move_on_after(3) as scope, deadline.limit():
        await trio.sleep_forever()
    assert scope.cancelled_caught
    assert trio.current_time() == pytest.approx(3)


async def test_without_a_term_there_is_no_limit(autojump_clock):
    with limited(None):
        await trio.sleep(3600)


@given(
    seconds=st.floats(0.1, 100), maximum=st.floats(0.1, 1000), steps=st.lists(st.floats(0, 50), max_size=20)
)
def test_progress_lengthens_a_term_up_to_its_maximum(seconds, maximum, steps):
    async def main():
        deadline = Deadline(seconds, 0.0, maximum)
        deadlines = [deadline.at]
        for step in steps:
            await trio.sleep(step)
            if deadline.left < 0:
                break
            deadline.renew()
            deadlines.append(deadline.at)
        assert deadlines == sorted(deadlines)
        assert deadlines[-1] <= max(seconds, maximum) + 1e-9

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_it_rests_while_nothing_is_watched(autojump_clock):
    """A task that woke ten times a second for each idle server would cost more than it saves."""
    deadlines = DeadlineSweeper()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.run)
        start = autojump_clock.current_time()
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(1000):
            await trio.sleep_forever()
        assert autojump_clock.current_time() - start == pytest.approx(1000)
        statistics = trio.lowlevel.current_statistics()
        assert statistics.seconds_to_next_deadline == math.inf
        nursery.cancel_scope.cancel()


class Thing:
    """Something with a deadline. `ended`: the times at which it was cut off."""

    def __init__(self, until):
        self.until = until
        self.ended = []

    def cut_off(self):
        self.ended.append(trio.current_time())


async def test_each_is_cut_off_at_its_time_until_forgotten(autojump_clock):
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
