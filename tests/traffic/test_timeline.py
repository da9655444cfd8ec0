from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcpmux.traffic.reading.stats import SLOTS, Timeline

MOMENTS = st.lists(st.tuples(st.floats(0, 4e9), st.booleans()), min_size=1, max_size=50)


@given(MOMENTS)
def test_everything_is_in_one_slot_and_slots_are_few(moments: list[tuple[float, bool]]):
    timeline = Timeline()
    for moment, failed in moments:
        timeline.add(moment, failed)
    slots = timeline.slots()
    assert len(slots) <= SLOTS
    assert sum(slot.answers for slot in slots) == len(moments)
    assert sum(slot.failed for slot in slots) == sum(failed for _, failed in moments)
    starts = [slot.start for slot in slots]
    assert starts == list(range(starts[0], starts[0] + len(slots) * timeline.width, timeline.width))
    assert starts[0] <= min(moments)[0] < starts[0] + timeline.width


@given(MOMENTS)
def test_the_order_does_not_matter(moments: list[tuple[float, bool]]):
    one, other = Timeline(), Timeline()
    for moment, failed in moments:
        one.add(moment, failed)
    for moment, failed in reversed(moments):
        other.add(moment, failed)
    assert (one.slots(), one.width) == (other.slots(), other.width)


def test_a_short_time_has_slots_of_a_second():
    timeline = Timeline()
    for second in range(SLOTS):
        timeline.add(1000.5 + second, second == 3)
    assert timeline.width == 1
    timeline.add(1000 + SLOTS, False)
    assert timeline.width == 2
    assert timeline.slots()[1] == (1002, 2, 1)


def test_nothing_has_no_slots():
    assert Timeline().slots() == []
