"""The dialogues of a capture, put together from its records."""

from __future__ import annotations

from typing import Any

import pytest

from mcpmux.traffic.reading.dialogue import CapturedRequest, ClientNotification, Dialogue, why_not
from tests.traffic.made import Play, read_dialogues


def only(play: Play, side: Any = "client", name: str | None = None) -> Dialogue:
    [dialogue] = read_dialogues(play.records, side, name).dialogues()
    return dialogue


def requests(dialogue: Dialogue) -> list[CapturedRequest]:
    return list(dialogue.requests())


def test_each_leg_has_its_own_requests_with_their_answers():
    play = Play()
    play.read("file:///a.md", seconds=0.25)
    play.read("file:///b.md", error=-32602)
    [ours, failed] = requests(only(play))
    assert (ours.target, ours.ms, ours.answer_problem) == ("docs+file:///a.md", 250.0, None)
    assert type(failed.answer).__name__ == "ErrorReply"
    theirs = requests(only(play, "upstream", "docs"))
    assert [turn.target for turn in theirs] == ["file:///a.md", "file:///b.md"]
    assert read_dialogues(play.records, "upstream", "other").dialogues() == []


def test_runs_and_clients_are_kept_apart():
    first, second = Play("aaaa"), Play("bbbb")
    for play in (first, second):
        play.read()
        play.put({"id": 1, "method": "ping"}, id=1, method="ping", peer="c2")
    reading = read_dialogues([*first.records, *second.records], "client")
    assert [len(requests(d)) for d in reading.dialogues()] == [1, 1, 1, 1]
    assert [t.answer is not None for d in reading.dialogues() for t in d.requests()].count(True) == 2


def test_modern_requests_of_one_client_are_one_dialogue_over_any_connections():
    play = Play()
    meta = {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}}
    for peer, client in (("c1", "a"), ("c2", "a"), ("c1", "a"), ("c3", "b")):
        number = len(play.records)
        facts = {"id": number, "method": "tools/list", "peer": peer, "client": client}
        play.put({"id": number, "method": "tools/list", "params": meta}, **facts)
    dialogues = read_dialogues(play.records, "client").dialogues()
    assert [[turn.id for turn in requests(d)] for d in dialogues] == [[0, 1, 2], [3]]


def test_a_second_session_is_another_dialogue():
    play = Play()
    refused = {"error": {"code": 1, "message": "no"}}
    answers: list[dict[str, Any]] = [{"result": {}}, refused, {"result": {}}]
    for number, answer in enumerate(answers, 1):
        play.put({"id": number, "method": "initialize", "params": {}}, id=number, method="initialize")
        play.put({"id": number, **answer}, id=number, kind=next(iter(answer)), direction="out")
    assert [len(requests(d)) for d in read_dialogues(play.records, "client").dialogues()] == [2, 1]


def test_what_comes_in_between_belongs_to_its_request():
    play = Play()
    here = {"method": "tools/call", "exchange": 1}
    params = {"name": "t", "_meta": {"progressToken": "p"}}
    play.put({"id": 1, "method": "tools/call", "params": params}, id=1, **here)
    play.put(
        {"id": 2, "method": "tools/call", "params": {"name": "u"}}, id=2, method="tools/call", exchange=2
    )
    play.now = 1.0
    progress = {"method": "notifications/progress", "params": {"progressToken": "p", "progress": 1}}
    play.put(progress, kind="notification", direction="out", exchange=2)
    play.put({"id": "q", "method": "roots/list"}, id="q", direction="out", exchange=2)
    play.put({"id": "q", "result": {"roots": []}}, id="q", kind="result", method="roots/list")
    play.put({"id": 2, "result": {}}, id=2, kind="result", direction="out")
    play.put({"id": 1, "result": {}}, id=1, kind="result", direction="out")
    play.now = 3.0
    changed = {"method": "notifications/tools/list_changed"}
    play.put(changed, kind="notification", direction="out")
    dialogue = only(play)
    first, second = requests(dialogue)
    assert [(message.method, message.after) for message in first.before_answer] == [
        ("notifications/progress", 1.0)
    ]
    assert [(message.method, message.question) for message in second.before_answer] == [("roots/list", True)]
    assert [(question.method, question.during) for question in dialogue.questions] == [
        ("roots/list", second.position)
    ]
    assert [(message.method, message.after) for message in first.after_answer] == [(changed["method"], 2.0)]


def test_updates_belong_to_the_subscription_as_long_as_it_lasts():
    play = Play()

    def ask(number: int, method: str) -> None:
        here = {"id": number, "method": method}
        play.put({**here, "params": {"uri": "file:///a"}}, **here)
        play.put({"id": number, "result": {}}, kind="result", direction="out", **here)
        play.now += 1

    def update(uri: str) -> None:
        method = "notifications/resources/updated"
        play.put({"method": method, "params": {"uri": uri}}, kind="notification", direction="out")

    ask(1, "resources/subscribe")
    ask(2, "ping")
    update("file:///a/b")
    update("file:///other")
    ask(3, "resources/unsubscribe")
    update("file:///a")
    updates = [
        [(bytes(message.params["uri"]), message.after) for message in request.after_answer]
        for request in requests(only(play))
    ]
    assert updates == [[(b'"file:///a/b"', 2)], [(b'"file:///other"', 1)], [(b'"file:///a"', 1)]]


def test_a_request_that_was_taken_back_is_known_as_such():
    play = Play()
    play.put({"id": 1, "method": "resources/read", "params": {"uri": "a:1"}}, id=1, method="resources/read")
    play.put({"method": "notifications/cancelled", "params": {"requestId": 1}}, kind="notification")
    dialogue = only(play)
    [turn] = requests(dialogue)
    assert why_not(turn, with_tools=True) == "the client took it back"
    assert isinstance(dialogue.steps[-1], ClientNotification)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"redacted": 1}, "the request is redacted"),
        ({"message": None, "text": "{"}, "the request is truncated"),
        ({"message": None}, "the request is without its message (level metadata)"),
    ],
)
def test_requests_that_are_not_there_as_they_were_are_named(facts: dict[str, Any], reason: str):
    play = Play()
    body = {"id": 1, "method": "resources/read", "params": {"uri": "a:1"}}
    play.put(body, id=1, method="resources/read", **facts)
    play.put({"id": 1, "result": {}}, id=1, kind="result", direction="out")
    [turn] = requests(only(play))
    assert (turn.method, why_not(turn, with_tools=True)) == ("resources/read", reason)


def test_what_belongs_to_nothing_is_counted():
    play = Play()
    play.read()
    play.put({"id": 77, "result": {}}, id=77, kind="result", direction="out")
    play.put(None, kind="invalid", text="nonsense")
    reading = read_dialogues(play.records, "client")
    assert dict(reading.left_out) == {"an answer to nothing": 1, "truncated": 1}
    assert [len(requests(d)) for d in reading.dialogues()] == [1]
