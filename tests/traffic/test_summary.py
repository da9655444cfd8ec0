from __future__ import annotations

import pytest

from mcpmux.traffic.reading import summary
from mcpmux.traffic.reading.summary import ExchangeSummary, Summarizer
from mcpmux.traffic.record import Record
from tests.traffic.made import Play


def ended(records: list[Record], summarizer: Summarizer | None = None) -> list[ExchangeSummary]:
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
    assert (found.ms, found.status, found.statuses) == (500, 200, ("ok",))
    assert (found.leg, found.direction) == (("client", "upstream"), ("in", "out"))
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
    assert [(each.run, each.ms) for each in ended(mixed)] == [("aaaa", 10), ("bbbb", 10)]


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
    leg, kind = (lambda record: record.leg == "upstream"), (lambda record: record.kind == "result")
    ends = ended(play.records, Summarizer([leg, kind]))
    assert [each.passed_tests for each in ends] == [{leg, kind}, {kind}]


def given_up(play: Play, upstream: str = "docs") -> None:
    play.say(
        "notifications/cancelled",
        leg="upstream",
        direction="out",
        peer=upstream,
        upstream=upstream,
        exchange=play.exchanges,
    )


@pytest.mark.parametrize("refused", [False, True])
def test_an_exchange_that_is_given_up_upstream_and_not_answered_was_cancelled(refused: bool):
    play = Play()
    play.read(answered=False)
    given_up(play)
    if refused:
        error = {"id": 101, "error": {"code": 0, "message": "Request cancelled"}}
        theirs = {"leg": "upstream", "peer": "docs", "upstream": "docs", "method": "resources/read"}
        play.put(error, kind="error", id=101, exchange=1, **theirs)
    summarizer = Summarizer()
    assert ended(play.records, summarizer) == []
    before = len(play.records)
    play.now += 0.5
    play.call()
    assert [each.statuses for each in ended(play.records[before:], summarizer)] == [("ok",)]
    before = len(play.records)
    play.now += 1
    play.say()
    assert [(each.exchange, each.statuses) for each in ended(play.records[before:], summarizer)] == [
        (1, ("cancelled",))
    ]
    assert summarizer.rest() == []


def test_an_upstream_that_took_too_long_is_given_up_and_the_client_has_an_error():
    play = Play()
    play.read(answered=False)
    given_up(play)
    play.put(
        {"id": 1, "error": {"code": -31002, "message": "too long"}},
        kind="error",
        code=-31002,
        direction="out",
        id=1,
        exchange=1,
        method="resources/read",
    )
    play.now += 5
    play.say()
    assert [each.statuses for each in ended(play.records)] == [("error",)]


def test_an_exchange_that_waits_for_another_upstream_is_open_still():
    play = Play()
    play.read(answered=False)
    theirs = {"leg": "upstream", "peer": "git", "upstream": "git", "direction": "out"}
    play.put({"id": 9, "method": "resources/read"}, id=9, method="resources/read", exchange=1, **theirs)
    given_up(play)
    play.now += 5
    play.say()
    summarizer = Summarizer()
    assert ended(play.records, summarizer) == []
    assert [each.statuses for each in summarizer.rest()] == [("open",)]
