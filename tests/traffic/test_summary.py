from __future__ import annotations

import pytest

from mcpmux.traffic.reading import summary
from mcpmux.traffic.reading.summary import Summarizer, Summary
from mcpmux.traffic.record import Record
from tests.traffic.made import Play


def ended(records: list[Record], summarizer: Summarizer | None = None) -> list[Summary]:
    summarizer = summarizer or Summarizer()
    return [each for record in records for each in summarizer.add(record)]


def test_an_exchange_has_what_both_legs_know():
    play = Play()
    play.read("file:///a.md", seconds=0.5)
    (found,) = ended(play.records)
    assert (found.exchange, found.method, found.client, found.upstream) == (
        1,
        "resources/read",
        "claude-ai",
        ("docs",),
    )
    assert found.target == ("docs+file:///a.md", "file:///a.md")
    assert (found.ms, found.status, found.statuses, found.messages) == (500, 200, ("ok",), 4)
    assert found.size == play.records[0].size
    assert found.answer_size == play.records[-1].size
    assert found.transport == ("http", "stdio")


def test_exchanges_end_in_the_order_of_their_answers():
    one, other = Play(), Play()
    one.read()
    other.exchanges = 1
    other.read(error=-32002)
    mixed = [*one.records[:2], *other.records, *one.records[2:]]
    assert [each.exchange for each in ended(mixed)] == [2, 1]
    assert ended(mixed)[0].statuses == ("error",)
    assert ended(mixed)[0].code == -32002


def test_numbers_of_two_runs_are_not_mixed_up():
    one, other = Play("aaaa"), Play("bbbb")
    one.read()
    other.read()
    mixed = [record for pair in zip(one.records, other.records, strict=True) for record in pair]
    assert [(each.run, each.messages) for each in ended(mixed)] == [("aaaa", 4), ("bbbb", 4)]


def test_what_has_no_answer_is_told_at_the_end():
    play = Play()
    play.read(answered=False)
    summarizer = Summarizer()
    assert ended(play.records, summarizer) == []
    (left,) = summarizer.rest()
    assert (left.exchange, left.statuses, left.ms) == (1, ("open",), None)
    assert summarizer.rest() == []


def test_a_cancelled_exchange_is_over():
    play = Play()
    play.read(answered=False)
    play.say("notifications/cancelled", exchange=1)
    summarizer = Summarizer()
    (found,) = ended(play.records, summarizer)
    assert found.statuses == ("cancelled",)
    assert summarizer.rest() == []


def test_an_answer_to_a_question_of_the_server_does_not_end_the_exchange():
    play = Play()
    play.read(answered=False)
    play.put({"id": 9, "method": "ping"}, id=9, exchange=1, method="ping", direction="out")
    play.put({"id": 9, "result": {}}, id=9, exchange=1, method="ping", kind="result")
    assert ended(play.records) == []


def test_without_its_beginning_an_exchange_is_none():
    play = Play()
    play.read()
    summarizer = Summarizer()
    assert ended(play.records[1:], summarizer) == []
    assert summarizer.rest() == []


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(summary, "OPEN_LIMIT", 3)
    play = Play()
    for _ in range(5):
        play.read(answered=False)
    summarizer = Summarizer()
    assert [each.exchange for each in ended(play.records, summarizer)] == [1, 2]
    assert [each.exchange for each in summarizer.rest()] == [3, 4, 5]


def test_a_watch_hears_any_message_of_an_exchange():
    play = Play()
    play.read()
    play.call()
    watches = [lambda record: record.leg == "upstream", lambda record: record.kind == "result"]
    assert [each.heard for each in ended(play.records, Summarizer(watches))] == [{0, 1}, {1}]
