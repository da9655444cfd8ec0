"""Summaries of messages: exchanges, requests with their answers, and messages passed from leg to leg."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.traffic.outcome import http_words, statuses_of
from mcpmux.traffic.reading import summary
from mcpmux.traffic.reading.summary import (
    ExchangeSummary,
    Summarizer,
    Targets,
    pair_up,
    passages,
)
from mcpmux.traffic.record import Record
from tests.traffic.made import Play, record


def ended(records: list[Record], summarizer: Summarizer | None = None) -> list[ExchangeSummary]:
    summarizer = summarizer or Summarizer()
    return [exchange for record in records for exchange in summarizer.add(record)]


def test_an_exchange_has_what_both_legs_know():
    play = Play()
    play.read("file:///a.md", seconds=0.5)
    (exchange,) = ended(play.records)
    assert (exchange.exchange, exchange.method, exchange.client, exchange.upstream) == (
        1,
        "resources/read",
        "claude-ai",
        ("docs",),
    )
    assert exchange.target == ("docs+file:///a.md", "file:///a.md")
    assert (exchange.ms, exchange.status, exchange.statuses) == (500, 200, ("ok",))
    assert (exchange.leg, exchange.direction) == (("client", "upstream"), ("in", "out"))
    assert exchange.size == play.records[0].size
    assert exchange.answer_size == play.records[-1].size
    assert exchange.transport == ("http", "stdio")


def test_exchanges_end_in_the_order_of_their_answers():
    first, other = Play(), Play()
    first.read()
    other.exchanges = 1
    other.read(error=-32002)
    mixed = [*first.records[:2], *other.records, *first.records[2:]]
    assert [exchange.exchange for exchange in ended(mixed)] == [2, 1]
    assert ended(mixed)[0].statuses[0] == "error"
    assert ended(mixed)[0].code == -32002


def test_numbers_of_two_runs_are_not_mixed_up():
    first, other = Play("aaaa"), Play("bbbb")
    first.read()
    other.read()
    mixed = [record for pair in zip(first.records, other.records, strict=True) for record in pair]
    assert [(exchange.run, exchange.ms) for exchange in ended(mixed)] == [("aaaa", 10), ("bbbb", 10)]


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
    (exchange,) = ended(play.records, summarizer)
    assert exchange.statuses == ("cancelled",)
    assert summarizer.rest() == []


def test_an_answer_to_a_servers_question_does_not_end_the_exchange():
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
    assert [exchange.exchange for exchange in ended(play.records, summarizer)] == [1, 2]
    assert [exchange.exchange for exchange in summarizer.rest()] == [3, 4, 5]


def test_a_watch_hears_any_message_of_an_exchange():
    play = Play()
    play.read()
    play.call()
    leg, kind = (lambda record: record.leg == "upstream"), (lambda record: record.kind == "result")
    ends = ended(play.records, Summarizer([leg, kind]))
    assert [exchange.passed_tests for exchange in ends] == [{leg, kind}, {kind}]


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
    start = len(play.records)
    play.now += 0.5
    play.call()
    assert [exchange.statuses for exchange in ended(play.records[start:], summarizer)] == [("ok",)]
    start = len(play.records)
    play.now += 1
    play.say()
    assert [
        (exchange.exchange, exchange.statuses) for exchange in ended(play.records[start:], summarizer)
    ] == [(1, ("cancelled",))]
    assert summarizer.rest() == []


def test_an_exchange_is_given_up_after_a_run_that_ended_with_one():
    earlier, play = Play("earlier"), Play()
    for run in (earlier, play):
        run.read(answered=False)
        given_up(run)
    play.now += 2
    play.say()
    summarizer = Summarizer()
    assert [exchange.run for exchange in ended([*earlier.records, *play.records], summarizer)] == [play.run]
    assert [(exchange.run, exchange.statuses) for exchange in summarizer.rest()] == [
        ("earlier", ("cancelled",))
    ]


def test_a_late_upstream_is_given_up_and_the_client_gets_an_error():
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
    assert [exchange.statuses for exchange in ended(play.records)] == [("error", "timeout")]


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
    assert [exchange.statuses for exchange in summarizer.rest()] == [("open",)]


# Requests and their answers


def pairs_of(records: list[Record]) -> list[tuple[int, int | None]]:
    return [(first.seq, answer.seq if answer else None) for first, answer in pair_up(records)]


def test_answers_find_their_request_on_their_leg():
    play = Play()
    play.read()
    play.say()
    play.read(answered=False)
    assert pairs_of(play.records) == [(2, 3), (1, 4), (5, None), (6, None), (7, None)]


def test_an_answer_is_that_to_the_request_it_names():
    play = Play()
    play.put(id=1, method="ping")
    play.put(id=1, method="ping")
    play.put(id=1, kind="result", direction="out", answers=2)
    play.put(id="1", kind="result", direction="out")
    assert pairs_of(play.records) == [(2, 3), (4, None), (1, None)]


MESSAGES = st.builds(
    lambda kind, leg, direction, request_id, run: {
        "kind": kind,
        "leg": leg,
        "direction": direction,
        "id": request_id,
        "run": run,
    },
    st.sampled_from(["request", "result", "error", "notification", "invalid"]),
    st.sampled_from(["client", "upstream"]),
    st.sampled_from(["in", "out"]),
    st.sampled_from([1, 2, "1", None]),
    st.sampled_from(["a", "b"]),
)


@given(st.lists(MESSAGES, max_size=30))
def test_every_message_comes_once(made: list[dict[str, object]]):
    records = [record(seq, **facts) for seq, facts in enumerate(made, 1)]  # type: ignore[arg-type]
    pairs = list(pair_up(records))
    numbers = [record.seq for first, answer in pairs for record in (first, answer) if record is not None]
    assert sorted(numbers) == [record.seq for record in records]
    for first, answer in pairs:
        if answer is not None:
            assert (first.run, first.leg, first.id) == (answer.run, answer.leg, answer.id)
            assert first.direction != answer.direction
            assert first.seq < answer.seq


def test_answers_get_the_target_of_their_request():
    play = Play()
    play.read("file:///a.md")
    targets = Targets()
    uris = [targets.fill(record).target for record in play.records]
    assert uris == ["docs+file:///a.md", "file:///a.md", "file:///a.md", "docs+file:///a.md"]


def test_memory_of_open_requests_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(summary, "OPEN_LIMIT", 2)
    records = [record(seq, id=seq, target="t") for seq in (1, 2, 3)]
    answer = record(4, id=1, kind="result", direction="out")
    assert pairs_of([*records, answer]) == [(1, None), (4, None), (2, None), (3, None)]
    targets = Targets()
    for request in records:
        targets.fill(request)
    assert targets.fill(answer).target is None


# Messages that mcpmux passed on


def passages_of(records: list[Record]) -> list[tuple[list[int], int]]:
    return [([record.seq for record in earlier], after.seq) for earlier, after in passages(records)]


def test_a_request_goes_on_and_its_answer_comes_back():
    play = Play()
    play.read()
    assert passages_of(play.records) == [([1], 2), ([3], 4)]


def test_a_list_of_several_upstreams_is_merged():
    play = Play()
    here: dict[str, Any] = {"exchange": 1, "method": "resources/list"}
    play.put(id=1, **here)
    for name in ("docs", "git"):
        play.put(id=5, leg="upstream", peer=name, direction="out", **here)
    for name, kind in (("git", "error"), ("docs", "result")):
        play.put(id=5, leg="upstream", peer=name, kind=kind, **here)
    play.put(id=1, kind="result", direction="out", **here)
    assert passages_of(play.records) == [([1], 2), ([1], 3), ([4, 5], 6)]


def test_a_request_that_is_sent_again_is_compared_with_the_last_one():
    play = Play()
    for number in (1, 2):
        play.put(id=number, method="tools/call")
        play.put(id=number, method="tools/call", leg="upstream", direction="out")
    assert passages_of(play.records) == [([1], 2), ([3], 4)]


def test_notifications_go_on_one_by_one():
    play = Play()
    for direction, leg in (("in", "upstream"), ("in", "upstream"), ("out", "client"), ("out", "client")):
        play.say(leg=leg, direction=direction)
    assert passages_of(play.records) == [([1], 3), ([2], 4)]


def test_a_question_of_the_server_goes_the_other_way():
    play = Play()
    here: dict[str, Any] = {"method": "sampling/createMessage", "exchange": 1}
    play.put(id=9, leg="upstream", **here)
    play.put(id=3, direction="out", **here)
    play.put(id=3, kind="result", **here)
    play.put(id=9, kind="result", leg="upstream", direction="out", **here)
    assert passages_of(play.records) == [([1], 2), ([3], 4)]


def test_what_mcpmux_says_by_itself_comes_from_nothing():
    play = Play()
    play.call()
    play.put(method="server/discover", leg="upstream", direction="out")
    assert passages_of(play.records) == []


# The status of an exchange that has ended

STATUSES: list[tuple[dict[str, Any], str]] = [
    ({"kind": "result"}, "ok"),
    ({"kind": "result", "status": 200}, "ok"),
    ({"kind": "result", "status": 503}, "http-503 http-5xx"),
    ({"kind": "result", "failed": True}, "tool_error"),
    ({"kind": "result", "failed": True, "status": 404}, "tool_error http-404 http-4xx"),
    ({"kind": "error", "status": 200}, "error"),
    ({"kind": "error", "status": 400}, "error http-400 http-4xx"),
    ({"kind": "invalid"}, "invalid"),
    ({"kind": "invalid", "status": 502}, "invalid http-502 http-5xx"),
    ({"kind": "request"}, ""),
    ({"kind": "request", "status": 401}, "http-401 http-4xx"),
    ({"kind": "notification", "status": 202}, ""),
    ({"kind": "start"}, ""),
    ({"kind": "of another time"}, ""),
]


@pytest.mark.parametrize(("facts", "words"), STATUSES)
def test_how_a_message_ended_is_told_in_words(facts: dict[str, Any], words: str):
    assert " ".join(statuses_of(record(**facts))) == words


def test_only_what_is_wrong_has_http_words():
    assert http_words(399) == ()
    assert http_words(None) == ()
    assert http_words(400) == ("http-400", "http-4xx")
