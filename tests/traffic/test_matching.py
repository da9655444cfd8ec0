"""Which captured answer a request gets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.protocol.envelope import decode_fields
from mcpmux.traffic.replay.mock import CapturedAnswers, canonical
from tests.traffic.made import Play, read_dialogues

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
META = {"io.modelcontextprotocol/protocolVersion": MODERN}


class Script(Play):
    """Requests with answers."""

    def ask(self, method: str, params: Any, answer: Any, revision: str = MODERN, **facts: Any) -> None:
        self.exchanges += 1
        number = self.exchanges
        meta = {"_meta": META} if revision == MODERN else {}
        here = {"exchange": number, "id": number, "method": method, "revision": revision}
        self.put({"id": number, "method": method, "params": {**params, **meta}}, **here, **facts)
        self.put({"id": number, "result": answer}, kind="result", direction="out", **here)

    def answers(self, **settings: Any) -> CapturedAnswers:
        return CapturedAnswers(read_dialogues(self.records, "client").dialogues(), **settings)


def find(answers: CapturedAnswers, method: str, params: Any, revision: str = MODERN) -> Any:
    turn = answers.find(method, decode_fields(json.dumps(params).encode()), revision)
    return None if turn is None else json.loads(bytes(turn.answer.result))  # type: ignore[union-attr]


@given(st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=5), st.randoms())
def test_the_order_of_members_does_not_matter(members: dict[str, Any], random: Any):
    shuffled = list(members.items())
    random.shuffle(shuffled)
    assert canonical({"a": members}) == canonical({"a": dict(shuffled)})


def test_equal_parameters_come_first_then_the_same_tool():
    script = Script()
    script.ask("tools/call", {"name": "t", "arguments": {"a": 1, "b": 2}}, {"n": 1})
    script.ask("tools/call", {"name": "t", "arguments": {"a": 3}}, {"n": 2})
    script.ask("tools/call", {"name": "u"}, {"n": 3})
    answers = script.answers()
    assert find(answers, "tools/call", {"arguments": {"b": 2, "a": 1}, "name": "t"}) == {"n": 1}
    assert find(answers, "tools/call", {"name": "t", "arguments": {"a": 3}}) == {"n": 2}
    assert find(answers, "tools/call", {"name": "u", "arguments": {"new": 1}}) == {"n": 3}
    assert find(answers, "tools/call", {"name": "t", "arguments": {}}) == {"n": 1}
    assert find(answers, "tools/call", {"name": "t", "arguments": {}}) == {"n": 2}
    assert find(answers, "tools/call", {"name": "v"}) is None


@pytest.mark.parametrize(
    ("method", "captured", "asked"),
    [
        ("resources/list", {"cursor": "a"}, {}),
        ("resources/list", {}, {"cursor": "a"}),
        ("resources/read", {"uri": "a:1"}, {"uri": "a:2"}),
        ("tools/call", {"name": "t", "requestState": "s", "inputResponses": {}}, {"name": "t"}),
        ("tools/call", {"name": "t"}, {"name": "t", "inputResponses": {"a": {}}}),
        ("subscriptions/listen", {"notifications": {}}, {"notifications": {"toolsListChanged": True}}),
        ("tasks/get", {"taskId": "1"}, {"taskId": "2"}),
    ],
)
def test_another_page_round_resource_or_task_is_not_the_same(method: str, captured: Any, asked: Any):
    script = Script()
    script.ask(method, captured, {"n": 1})
    answers = script.answers()
    assert find(answers, method, captured) == {"n": 1}
    assert find(answers, method, asked) is None


@pytest.mark.parametrize(("cycle", "numbers"), [(False, [1, 2, 2, 2]), (True, [1, 2, 1, 2])])
def test_answers_come_in_order(cycle: bool, numbers: list[int]):
    script = Script()
    script.ask("resources/read", {"uri": "a:1"}, {"n": 1})
    script.ask("resources/read", {"uri": "a:1"}, {"n": 2})
    answers = script.answers(cycle=cycle)
    assert [find(answers, "resources/read", {"uri": "a:1"})["n"] for _ in numbers] == numbers


def test_the_same_revision_comes_before_the_same_era_before_any():
    script = Script()
    for revision in ("2024-11-05", LEGACY, MODERN):
        script.ask("tools/list", {}, {"n": revision}, revision)
    answers = script.answers()
    for revision in ("2024-11-05", LEGACY, MODERN):
        assert find(answers, "tools/list", {}, revision) == {"n": revision}
    assert find(answers, "tools/list", {}, "2025-06-18")["n"] in ("2024-11-05", LEGACY)
    only = Script()
    only.ask("tools/list", {}, {"n": 1})
    assert find(only.answers(), "tools/list", {}, LEGACY) == {"n": 1}


def test_what_cannot_be_served_is_counted():
    script = Script()
    script.put({"id": 1, "method": "tools/list"}, id=1, method="tools/list")
    script.put(None, id=2, method="tools/list")
    script.put(None, kind="result", direction="out", id=2, text='{"jsonr')
    script.ask("tools/list", {}, {"n": 1})
    answers = script.answers()
    assert [len(requests) for requests in answers.requests.values()] == [1]
    assert answers.unusable == {"no answer": 1, "an answer that is truncated": 1}


def test_the_error_of_a_request_that_was_taken_back_is_not_served():
    script = Script()
    here = {"id": 1, "exchange": 1, "method": "tools/call", "revision": MODERN}
    script.put({"id": 1, "method": "tools/call", "params": {"name": "t", "_meta": META}}, **here)
    taken_back = {"method": "notifications/cancelled", "params": {"requestId": 1}}
    script.put(taken_back, kind="notification", exchange=1, method="notifications/cancelled")
    error = {"id": 1, "error": {"code": 0, "message": "Request cancelled"}}
    script.put(error, kind="error", direction="out", **here)
    answers = script.answers()
    assert find(answers, "tools/call", {"name": "t"}) is None
    assert answers.unusable == {"an error because it was taken back": 1}


def test_the_nearest_is_named():
    script = Script()
    script.ask("resources/read", {"uri": "file:///notes/a.md"}, {}, target="file:///notes/a.md")
    answers = script.answers()
    error = answers.unknown("resources/read", decode_fields(b'{"uri": "file:///note/a.md"}'))
    assert (error.code, error.data) == (-32602, {"uri": "file:///note/a.md"})
    assert "the nearest is file:///notes/a.md" in error.message
    error = answers.unknown("resources/reed", {})
    assert error.code == -32601
    assert "the nearest is resources/read" in error.message
