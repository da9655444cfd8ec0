from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mcpmux.mux.replay import Gone, KeptEvent, ReplayBounds, ReplayBuffer

BOUNDS = ReplayBounds(events=6, bytes=40, seconds=10)

streams = st.integers(0, 3)


class Replay(RuleBasedStateMachine):
    """The buffer against what its rules say of every event that was ever added."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = ReplayBuffer(BOUNDS)
        self.now = 0.0
        self.kept: list[KeptEvent] = []
        self.gone: dict[int, int] = defaultdict(int)
        self.closed: set[int] = set()
        self.opened: set[int] = set()
        self.last: dict[int, int] = defaultdict(int)
        self.repeating: dict[tuple[int, bytes], KeptEvent] = {}

    @rule(stream=streams)
    def open(self, stream: int) -> None:
        if stream not in self.closed:
            self.buffer.open(stream)
            self.opened.add(stream)

    @rule(stream=streams, size=st.sampled_from([0, 1, 10, 39, 41, 100]))
    def add(self, stream: int, size: int) -> None:
        if stream not in self.closed:
            self.expect(stream, bytes(size), self.buffer.add(stream, bytes(size), self.now))

    @rule(stream=streams, data=st.sampled_from([b"", bytes(1), b"a is new", b"b is new", bytes(41)]))
    def add_repeating(self, stream: int, data: bytes) -> None:
        if stream in self.closed:
            return
        replaced = self.repeating.get((stream, data))
        self.kept = [event for event in self.kept if event is not replaced]
        self.expect(stream, data, self.buffer.add(stream, data, self.now, (stream, data)))
        self.repeating[stream, data] = self.kept[-1]

    def expect(self, stream: int, data: bytes, event: KeptEvent) -> None:
        self.last[stream] += 1
        self.opened.add(stream)
        assert event == KeptEvent(stream, self.last[stream], data, self.now)
        self.kept.append(event)
        self.let_go()

    def let_go(self) -> None:
        """Drop what the bounds do not allow: the oldest events and those past their time."""
        kept: list[KeptEvent] = []
        for event in reversed(self.kept[-BOUNDS.events :]):
            if event.at < self.now - BOUNDS.seconds:
                break
            if kept and sum(len(earlier.data) for earlier in [*kept, event]) > BOUNDS.bytes:
                break
            kept.insert(0, event)
        for event in self.kept[: len(self.kept) - len(kept)]:
            self.gone[event.stream] = event.number
        self.kept = kept

    @rule(stream=streams)
    def close(self, stream: int) -> None:
        if stream in self.opened:
            self.buffer.close(stream)
            self.closed.add(stream)

    @rule(seconds=st.sampled_from([0.0, 1.0, 4.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.buffer.trim(self.now)
        self.let_go()

    @rule(stream=streams, data=st.data())
    def resume(self, stream: int, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, self.last[stream] + 1))
        later = [event for event in self.kept if event.stream == stream and event.number > number]
        try:
            found_stream, events = self.buffer.after(f"{stream}-{number}", self.now)
        except Gone:
            never_sent = number > self.last[stream] or stream not in self.opened
            assert never_sent or number < self.gone[stream] or (stream in self.closed and not later)
        else:
            assert found_stream == stream
            assert number >= self.gone[stream]
            assert events == later

    @invariant()
    def what_is_kept_is_bounded(self) -> None:
        size = sum(len(event.data) for event in self.kept)
        assert repr(self.buffer).startswith(f"<ReplayBuffer {len(self.kept)} events, {size} bytes, ")

    @invariant()
    def every_kept_event_can_be_asked_for_again(self) -> None:
        for event in self.kept:
            _, again = self.buffer.after(f"{event.stream}-{event.number - 1}", self.now)
            assert again[0] == event


TestReplay = Replay.TestCase


@pytest.mark.parametrize(
    "event_id",
    ["", "-", "1", "1-", "-1", "a-1", "1-a", "1-1-1", "1--1", " 1-1", "1-2", "2-0", "9" * 50 + "-1", "١-١x"],
)
def test_what_was_never_sent_is_gone(event_id: str):
    buffer = ReplayBuffer(BOUNDS)
    buffer.add(1, b"data", 0.0)
    with pytest.raises(Gone, match="never sent"):
        buffer.after(event_id, 0.0)


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


def test_an_ended_stream_without_kept_events_is_forgotten():
    buffer = ReplayBuffer(BOUNDS)
    buffer.add(1, b"x", 0.0)
    buffer.trim(100.0)
    assert "1 streams" in repr(buffer)
    buffer.close(1)
    assert "0 streams" in repr(buffer)


def test_events_of_an_earlier_process_are_restored_once_under_their_numbers():
    buffer = ReplayBuffer(BOUNDS)
    for number in (5, 5, 6):
        buffer.restore(1, number, b"%d" % number, 0.0)
    assert [event.data for event in buffer.after("1-4", 0.0)[1]] == [b"5", b"6"]
    assert repr(buffer) == "<ReplayBuffer 2 events, 2 bytes, 1 streams>"
    with pytest.raises(Gone, match="not kept any more"):
        buffer.after("1-3", 0.0)
    for number in (9, 8):
        buffer.skip_to(1, number)
    assert buffer.add(1, b"next", 0.0).number == 10
