from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mcpmux.mux.replay import Gone, Kept, ReplayBounds, ReplayBuffer

BOUNDS = ReplayBounds(events=6, bytes=40, seconds=10)

streams = st.integers(0, 3)


class Replay(RuleBasedStateMachine):
    """The buffer against everything that was ever added."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = ReplayBuffer(BOUNDS)
        self.now = 0.0
        self.added: list[Kept] = []
        self.closed: set[int] = set()
        self.opened: set[int] = set()
        self.last: dict[int, int] = defaultdict(int)

    @rule(stream=streams)
    def open(self, stream: int) -> None:
        if stream not in self.closed:
            self.buffer.open(stream)
            self.opened.add(stream)

    @rule(stream=streams, size=st.sampled_from([0, 1, 10, 39, 41, 100]))
    def add(self, stream: int, size: int) -> None:
        if stream in self.closed:
            return
        data = bytes(size)
        kept = self.buffer.add(stream, data, self.now)
        self.last[stream] += 1
        self.opened.add(stream)
        assert kept == Kept(stream, self.last[stream], data, self.now)
        self.added.append(kept)

    @rule(stream=streams)
    def close(self, stream: int) -> None:
        if stream in self.opened:
            self.buffer.close(stream)
            self.closed.add(stream)

    @rule(seconds=st.sampled_from([0.0, 1.0, 4.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.buffer.trim(self.now)

    @rule(stream=streams, data=st.data())
    def resume(self, stream: int, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, self.last[stream] + 1))
        behind = [event for event in self.added if event.stream == stream and event.number > number]
        try:
            found, events = self.buffer.after(f"{stream}-{number}", self.now)
        except Gone:
            never_sent = number > self.last[stream] or stream not in self.opened
            assert never_sent or stream in self.closed or any(event not in self.kept for event in behind)
        else:
            assert found == stream
            assert events == behind

    @property
    def kept(self) -> list[Kept]:
        """What the bounds allow to keep: the newest, and nothing that is too old."""
        young = [event for event in self.added if event.at >= self.now - BOUNDS.seconds]
        kept: list[Kept] = []
        for event in reversed(young[-BOUNDS.events :]):
            if kept and sum(len(one.data) for one in [*kept, event]) > BOUNDS.bytes:
                break
            kept.insert(0, event)
        return kept

    @invariant()
    def what_is_kept_is_bounded(self) -> None:
        assert len(self.kept) <= BOUNDS.events
        size = sum(len(event.data) for event in self.kept)
        assert repr(self.buffer).startswith(f"<ReplayBuffer {len(self.kept)} events, {size} bytes, ")

    @invariant()
    def every_kept_event_can_be_asked_for_again(self) -> None:
        for event in self.kept:
            _, again = self.buffer.after(f"{event.stream}-{event.number - 1}", self.now)
            assert again[0] == event


TestReplay = Replay.TestCase


@given(st.lists(streams, max_size=30), streams, st.data())
def test_reading_from_any_event_on_gives_that_streams_rest(
    added: list[int], stream: int, data: st.DataObject
):
    buffer = ReplayBuffer(ReplayBounds())
    buffer.open(stream)
    kept = [buffer.add(of, str(index).encode(), 0.0) for index, of in enumerate(added)]
    mine = [event for event in kept if event.stream == stream]
    position = data.draw(st.integers(0, len(mine)))
    event_id = mine[position - 1].event_id if position else f"{stream}-0"
    assert buffer.after(event_id, 0.0) == (stream, mine[position:])


@pytest.mark.parametrize(
    "event_id",
    ["", "-", "1", "1-", "-1", "a-1", "1-a", "1-1-1", "1--1", " 1-1", "1-2", "2-0", "9" * 50 + "-1", "١-١x"],
)
def test_what_was_never_sent_is_gone(event_id: str):
    buffer = ReplayBuffer(BOUNDS)
    buffer.add(1, b"data", 0.0)
    with pytest.raises(Gone, match="never sent"):
        buffer.after(event_id, 0.0)


def test_an_open_stream_can_be_resumed_before_its_first_event():
    buffer = ReplayBuffer(BOUNDS)
    buffer.open(1)
    assert buffer.after("1-0", 0.0) == (1, [])


def test_a_gap_is_told_and_not_skipped():
    buffer = ReplayBuffer(ReplayBounds(events=2))
    kept = [buffer.add(1, b"x", 0.0) for _ in range(4)]
    with pytest.raises(Gone, match="not kept any more"):
        buffer.after("1-1", 0.0)
    assert buffer.after("1-2", 0.0) == (1, kept[2:])


def test_a_closed_stream_is_forgotten_with_its_last_event():
    buffer = ReplayBuffer(ReplayBounds(events=2))
    for stream in range(1000):
        buffer.open(stream)
        buffer.add(stream, b"answer", 0.0)
        buffer.close(stream)
    assert repr(buffer) == "<ReplayBuffer 2 events, 12 bytes, 2 streams>"


def test_a_stream_that_ends_empty_is_forgotten_at_once():
    buffer = ReplayBuffer(BOUNDS)
    buffer.open(1)
    buffer.close(1)
    assert repr(buffer) == "<ReplayBuffer 0 events, 0 bytes, 0 streams>"


def test_a_stream_whose_events_fell_out_before_it_ended_is_forgotten_at_its_end():
    buffer = ReplayBuffer(BOUNDS)
    buffer.add(1, b"x", 0.0)
    buffer.trim(100.0)
    assert "1 streams" in repr(buffer)
    buffer.close(1)
    assert "0 streams" in repr(buffer)


def test_one_event_over_all_bounds_stays_until_the_next_or_its_age():
    buffer = ReplayBuffer(ReplayBounds(events=1, bytes=1, seconds=5))
    big = buffer.add(1, b"too big", 0.0)
    assert buffer.after("1-0", 5.0) == (1, [big])
    with pytest.raises(Gone):
        buffer.after("1-0", 5.1)
