"""Translation of generated values (cursors, states, names) from one run to those of another."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcpmux.protocol.envelope import ErrorReply, Reply, decode_fields, raw
from mcpmux.traffic.reading.dialogue import CapturedRequest
from mcpmux.traffic.replay.mapping import Unmapped, ValueMapping

RELATED = "io.modelcontextprotocol/related-task"


def made(method: str, params: Any, meta: Any, answer: Reply | ErrorReply) -> CapturedRequest:
    raw_params, raw_meta = (decode_fields(json.dumps(value or {}).encode()) for value in (params, meta))
    facts: dict[str, Any] = {"target": None, "id": 1, "exchange": 1, "revision": None, "answer": answer}
    return CapturedRequest(position=1, at=0.0, method=method, params=raw_params, meta=raw_meta, **facts)


def applied(mapping: ValueMapping, method: str, params: Any, meta: Any = None, succeeded: bool = True) -> Any:
    answer = Reply(1, raw({})) if succeeded else ErrorReply(1, 0, "no")
    changed = mapping.apply(made(method, params, meta, answer))
    return tuple({key: json.loads(bytes(value)) for key, value in fields.items()} for fields in changed)


def learned(method: str, captured: Any, now: Any, params: Any = None) -> ValueMapping:
    mapping = ValueMapping()
    mapping.learn(made(method, params, None, Reply(1, raw(captured))), now)
    return mapping


def test_a_cursor_is_that_of_the_same_list():
    mapping = learned("tools/list", {"nextCursor": "then"}, {"nextCursor": "now"})
    assert applied(mapping, "tools/list", {"cursor": "then"}) == ({"cursor": "now"}, {})
    with pytest.raises(Unmapped, match="from before the capture"):
        applied(mapping, "prompts/list", {"cursor": "then"})


def test_names_of_questions_without_a_state_are_known_by_the_tool():
    mapping = learned("tools/call", {"inputRequests": {"a": {}}}, {"inputRequests": {"x": {}}}, {"name": "t"})
    result, _ = applied(mapping, "tools/call", {"name": "t", "inputResponses": {"a": 1}})
    assert result["inputResponses"] == {"x": 1}


@pytest.mark.parametrize(
    "shape",
    [lambda task: {"taskId": task}, lambda t: {"task": {"taskId": t}}, lambda t: {"tasks": [{"taskId": t}]}],
)
def test_a_task_is_known_wherever_it_was_named(shape: Any):
    mapping = learned("tools/call", shape("then"), shape("now"))
    assert applied(mapping, "tasks/get", {"taskId": "then"})[0] == {"taskId": "now"}
    _, meta = applied(mapping, "tools/call", {}, {RELATED: {"taskId": "then", "more": 1}})
    assert meta == {RELATED: {"taskId": "now", "more": 1}}


def test_what_nobody_gave_is_sent_again_when_it_was_refused():
    assert applied(ValueMapping(), "tools/list", {"cursor": "mine"}, succeeded=False)[0] == {"cursor": "mine"}


@pytest.mark.parametrize("strange", [None, 3, [], "x", {"task": 3, "tasks": "x", "inputRequests": [1]}])
def test_strange_results_teach_nothing(strange: Any):
    mapping = learned("tools/call", strange, strange)
    assert applied(mapping, "tools/call", {"name": "t", "inputResponses": 3})[0]["name"] == "t"
