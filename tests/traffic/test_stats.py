from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.traffic.outcome import ERROR, TOOL_ERROR
from mcpmux.traffic.reading import stats
from mcpmux.traffic.reading.stats import CLIENTS, HTTP, OTHERS, SLOTS, Stats, Timeline
from mcpmux.traffic.reading.summary import Targets
from mcpmux.traffic.record import Record
from tests.traffic.made import Play, record


def counted(records: list[Record], *, by_name: bool = False) -> Stats:
    stats = Stats(by_name=by_name)
    for message in records:
        stats.add(message)
    return stats


def test_each_leg_and_method_is_counted():
    play = Play()
    for number in range(10):
        play.read(seconds=0.1, error=-32602 if number == 0 else None)
    play.read(upstream="git", seconds=0.2)
    play.read(answered=False)
    play.call(failed=True)
    play.say(exchange=1, direction="out")
    stats = counted(play.records)
    rows = {(group.upstream, group.method): group for group in stats.groups()}
    assert list(rows) == [
        (CLIENTS, "resources/read"),
        (CLIENTS, "notifications/progress"),
        (CLIENTS, "tools/call"),
        ("docs", "resources/read"),
        ("git", "resources/read"),
    ]
    docs = rows["docs", "resources/read"]
    assert (docs.requests, docs.answers, docs.open, docs.failed[ERROR], docs.failures) == (11, 10, 1, 1, 1)
    assert docs.error_rate == 0.1
    assert docs.latency.percentiles([50]) == [pytest.approx(0.1, rel=0.001)]
    assert docs.latency.most == 0.1
    assert rows[CLIENTS, "resources/read"].answers == 11
    assert rows[CLIENTS, "tools/call"].failed == {TOOL_ERROR: 1}
    assert rows[CLIENTS, "notifications/progress"].notifications == 1
    assert stats.messages == len(play.records)
    assert stats.latency("git").count == 1
    assert stats.latency(CLIENTS).count == 12
    assert stats.bytes == sum(record.size for record in play.records)


def test_names_have_their_own_rows_with_the_slowest_exchange_first():
    play = Play()
    for seconds in (0.1, 0.3, 0.2):
        play.read(seconds=seconds)
    play.call()
    groups = counted(list(map(Targets().fill, play.records)), by_name=True).groups()
    names = [(group.upstream, group.method, group.name, group.slowest) for group in groups]
    assert names[:2] == [
        (CLIENTS, "resources/read", "docs+file:///a.md", 2),
        (CLIENTS, "tools/call", "find", 4),
    ]
    assert ("docs", "resources/read", "file:///a.md", 2) in names


def test_answers_to_clients_make_the_timeline():
    play = Play()
    for _ in range(5):
        play.read(seconds=1.0, error=-1)
    stats = counted(play.records)
    assert sum(slot.answers for slot in stats.timeline.slots()) == 5
    assert sum(slot.failed for slot in stats.timeline.slots()) == 5
    upstream = counted([record for record in play.records if record.leg == "upstream"])
    assert sum(slot.answers for slot in upstream.timeline.slots()) == 5


def test_statuses_of_http_are_failures_and_answers_without_requests_are_not_open():
    stats = counted([record(kind="result", direction="out", method="ping", status=500)])
    (group,) = stats.groups()
    assert (group.failed[HTTP], group.failures, group.open, group.error_rate) == (1, 1, 0, 1.0)


def test_what_is_no_message_is_counted_apart():
    stats = counted([record(kind="start", leg=None), record(kind="invalid", size=7), record(kind="new kind")])
    assert (stats.messages, stats.invalid, stats.bytes) == (2, 2, 7)
    assert stats.groups() == []


def test_strangers_methods_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stats, "GROUPS_LIMIT", 3)
    counts = counted([record(method=f"m{number}") for number in range(10)])
    assert [group.method for group in counts.groups()] == ["m0", "m1", "m2", OTHERS]
    assert counts.groups()[-1].requests == 7


def test_times_that_are_none_do_no_harm():
    made = record(kind="result", direction="out")
    odd = Record(v=1, run="r", time="noon", kind="result", leg="client", direction="out")
    stats = counted([made, odd])
    assert sum(slot.answers for slot in stats.timeline.slots()) == 1
    assert stats.messages == 2


def test_machines_get_the_same():
    play = Play()
    play.read(seconds=0.5)
    report = json.loads(json.dumps(counted(play.records).as_json()))
    assert report["messages"] == 4
    assert report["groups"][0]["upstream"] is None
    assert report["groups"][1]["latencyMs"] == {"p50": 500, "p90": 500, "p99": 500, "max": 500, "mean": 500}
    assert report["timeline"]["slots"] == [{"start": 1795262400, "answers": 1, "failed": 0}]
    assert json.loads(json.dumps(Stats().as_json()))["from"] is None


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
    first, other = Timeline(), Timeline()
    for moment, failed in moments:
        first.add(moment, failed)
    for moment, failed in reversed(moments):
        other.add(moment, failed)
    assert (first.slots(), first.width) == (other.slots(), other.width)


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
