"""How long an exchange with an upstream may take, with and without progress."""

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.errors import Overdue
from mcpmux.transports.waiting import Deadline, limited


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
    seconds=st.floats(0.1, 100),
    maximum=st.floats(0.1, 1000),
    steps=st.lists(st.floats(0, 50), max_size=20),
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
