"""Task ids outward and back."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mcpmux.mux import rewrite
from mcpmux.mux.rewrite import Namespace
from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import decode_any, decode_fields, raw
from tests.mux.prefixes import prefix_tables, texts

RELATED = "io.modelcontextprotocol/related-task"
tables_and_ids = prefix_tables().flatmap(
    lambda table: st.tuples(st.just(table), st.lists(texts(table), min_size=1, max_size=6, unique=True))
)
SPACE = Namespace({"x": "x", "y": "y"}).spaces["x"]


def exposed(method: str, result: Any) -> Any:
    return decode_any(raw(rewrite.expose_result(method, decode_fields(raw(result)), SPACE)))


@given(tables_and_ids)
def test_resolving_an_exposed_id_gives_its_owner_and_the_owners_id(case: tuple[dict[str, str], list[str]]):
    table, ids = case
    namespace = Namespace(table)
    seen = set()
    for upstream, space in namespace.spaces.items():
        for task_id in ids:
            assert namespace.resolve_task(space.expose_task(task_id)) == (upstream, task_id)
            seen.add(space.expose_task(task_id))
            assert not space.transparent or space.expose_task(task_id) == task_id
    assert len(seen) == len(ids) * len(table)


def test_every_place_of_an_id_is_exposed_and_nothing_else():
    meta = {"_meta": {RELATED: {"taskId": "t", "x": 1}, "y": 2}}
    shown = {"_meta": {RELATED: {"taskId": "x+t", "x": 1}, "y": 2}}
    rest = {"ttl": None, "taskId_": "t"}
    assert exposed(m.TOOLS_CALL, {"task": {"taskId": "t", **rest}}) == {"task": {"taskId": "x+t", **rest}}
    made = {"resultType": "task", "taskId": "t"}
    assert exposed(m.TOOLS_CALL, made) == {**made, "taskId": "x+t"}
    for method in (m.TASKS_GET, m.TASKS_CANCEL):
        assert exposed(method, {"taskId": "t", **rest}) == {"taskId": "x+t", **rest}
    assert exposed(m.TASKS_RESULT, {"content": [], **meta}) == {"content": [], **shown}
    plain = {"content": [], "taskId": "t", "structuredContent": {"taskId": "t"}}
    assert exposed(m.TOOLS_CALL, plain) == plain
    event = rewrite.expose_event(m.PROGRESS, decode_fields(raw(meta)), SPACE)
    assert decode_any(raw(event)) == shown
    item = rewrite.expose_item(m.TASKS_LIST, decode_fields(raw({"taskId": "t", **rest})), SPACE)
    assert decode_any(raw(item)) == {"taskId": "x+t", **rest}


def test_content_inside_a_task_is_exposed_like_any_result():
    link = {"type": "resource_link", "uri": "file:///a"}
    task = exposed(m.TASKS_GET, {"taskId": "t", "result": {"content": [link]}})
    assert task["result"] == {"content": [{**link, "uri": "x+file:///a"}]}


def test_tasks_of_questions_are_exposed_and_tasks_of_answers_resolved():
    question = {
        "method": "elicitation/create",
        "params": {"_meta": {RELATED: {"taskId": "t"}}, "message": "m"},
    }
    shown = exposed(m.TASKS_RESULT, {"inputRequests": {"a": question, "b": 1}})["inputRequests"]
    assert shown["a"]["params"] == {"_meta": {RELATED: {"taskId": "x+t"}}, "message": "m"}
    assert shown["b"] == 1
    answers = {"a": {"action": "accept", "_meta": {RELATED: {"taskId": "x+t"}}}, "b": 1, "c": {}}
    resolved = rewrite.resolve_answers(
        decode_fields(raw({"inputResponses": answers})), lambda task_id: task_id.removeprefix("x+")
    )
    assert decode_any(resolved["inputResponses"]) == {
        "a": {"action": "accept", "_meta": {RELATED: {"taskId": "t"}}},
        "b": 1,
        "c": {},
    }
    assert rewrite.resolve_answers({}, str) == {}


def test_what_makes_no_sense_stays_as_it_is():
    for result in ({"taskId": 1}, {"task": 1}, {"_meta": 1}, {"_meta": {RELATED: 1}}, {"inputRequests": [1]}):
        assert exposed(m.TASKS_RESULT, result) == result
