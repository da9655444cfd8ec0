from __future__ import annotations

from mcpmux.traffic.reading.summary import passages
from mcpmux.traffic.record import Record
from tests.traffic.made import Play


def seqs(records: list[Record]) -> list[tuple[list[int], int]]:
    return [([each.seq for each in before], after.seq) for before, after in passages(records)]


def test_a_request_goes_on_and_its_answer_comes_back():
    play = Play()
    play.read()
    assert seqs(play.records) == [([1], 2), ([3], 4)]


def test_a_list_of_several_upstreams_is_merged():
    play = Play()
    here = {"exchange": 1, "method": "resources/list"}
    play.put(id=1, **here)
    for name in ("docs", "git"):
        play.put(id=5, leg="upstream", peer=name, direction="out", **here)
    for name, kind in (("git", "error"), ("docs", "result")):
        play.put(id=5, leg="upstream", peer=name, kind=kind, **here)
    play.put(id=1, kind="result", direction="out", **here)
    assert seqs(play.records) == [([1], 2), ([1], 3), ([4, 5], 6)]


def test_a_request_that_is_sent_again_is_compared_with_the_last_one():
    play = Play()
    for number in (1, 2):
        play.put(id=number, method="tools/call")
        play.put(id=number, method="tools/call", leg="upstream", direction="out")
    assert seqs(play.records) == [([1], 2), ([3], 4)]


def test_notifications_go_on_one_by_one():
    play = Play()
    for direction, leg in (("in", "upstream"), ("in", "upstream"), ("out", "client"), ("out", "client")):
        play.say(leg=leg, direction=direction)
    assert seqs(play.records) == [([1], 3), ([2], 4)]


def test_a_question_of_the_server_goes_the_other_way():
    play = Play()
    here = {"method": "sampling/createMessage", "exchange": 1}
    play.put(id=9, leg="upstream", **here)
    play.put(id=3, direction="out", **here)
    play.put(id=3, kind="result", **here)
    play.put(id=9, kind="result", leg="upstream", direction="out", **here)
    assert seqs(play.records) == [([1], 2), ([3], 4)]


def test_what_mcpmux_says_by_itself_comes_from_nothing():
    play = Play()
    play.call()
    play.put(method="server/discover", leg="upstream", direction="out")
    assert seqs(play.records) == []
