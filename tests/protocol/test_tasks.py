"""Tasks as values: who offers them, and a legacy task in the form of the extension."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.errors import RpcError
from mcpmux.protocol import tasks
from mcpmux.protocol.envelope import decode_any, decode_fields, raw
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.raw_json import Fields
from tests import task_shapes
from tests.peers.revision import LEGACY, MODERN

EXTENSION = "io.modelcontextprotocol/tasks"
CALLS: dict[str, Any] = {"requests": {"tools": {"call": {}}}}
ABLE: dict[str, Any] = {"extensions": {EXTENSION: {}}}

texts = st.text(max_size=10)
legacy_tasks = st.fixed_dictionaries(
    {
        "taskId": texts,
        "status": st.sampled_from(sorted(task_shapes.STATUSES)),
        "createdAt": texts,
        "lastUpdatedAt": texts,
        "ttl": st.none() | st.integers(0, 10**6),
    },
    optional={"pollInterval": st.integers(0, 10**6), "statusMessage": texts, "vendor": texts},
)


def fields(value: Any) -> Fields:
    return decode_fields(raw(value))


def facts(revision: str, capabilities: Any) -> ServerFacts:
    return ServerFacts(revision, capabilities)


# Laws


@given(legacy_tasks)
def test_a_raised_task_keeps_everything_and_only_renames_its_times(task: Any):
    raised = decode_any(raw(tasks.upgrade_task(fields(task))))
    back = {{"ttlMs": "ttl", "pollIntervalMs": "pollInterval"}.get(key, key): raised[key] for key in raised}
    assert back == task
    assert not {"ttl", "pollInterval"} & raised.keys()


@given(legacy_tasks, st.dictionaries(st.sampled_from(["content", "_meta", "x"]), st.just({})))
def test_every_raised_task_is_one_of_the_extension(task: Any, result: Any):
    own = fields(task)
    for shown in (
        tasks.running(own),
        tasks.completed(own, fields(result)),
        tasks.failed(own, RpcError(-1, "m", {"d": 1})),
        tasks.waiting(own, {}),
    ):
        value = decode_any(raw(shown))
        if value["status"] not in ("completed", "failed") or value.keys() & {"result", "error"}:
            task_shapes.check_result(MODERN, "tasks/get", value)
    made = tasks.upgrade_made(fields({"task": task, "_meta": {"a": 1}}), own)
    value = decode_any(raw(made))
    task_shapes.check_result(MODERN, "tools/call", value)
    assert value["_meta"] == {"a": 1}


@given(st.integers() | st.floats(allow_nan=False) | st.booleans() | texts | st.none())
def test_a_server_is_asked_neither_all_the_time_nor_never(interval: Any):
    assert 0.1 <= tasks.poll_seconds({"pollIntervalMs": raw(interval)}) <= 10
    assert tasks.poll_seconds({}) == 1


# Examples


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        (facts(LEGACY, {"tasks": CALLS}), True),
        (facts(LEGACY, {"tasks": {"list": {}}}), False),
        (facts(LEGACY, {"tasks": {"requests": {"tools": True}}}), False),
        (facts(LEGACY, ABLE), False),
        (facts("2025-06-18", {"tasks": CALLS}), False),
        (facts(MODERN, ABLE), True),
        (facts(MODERN, {"tasks": CALLS}), False),
        (facts(MODERN, {"extensions": []}), False),
    ],
)
def test_a_server_offers_tasks_in_the_way_of_its_era(server: ServerFacts, expected: bool):
    assert tasks.offers_tasks(server) is expected


@pytest.mark.parametrize(
    ("servers", "legacy", "told"),
    [
        ([], True, {}),
        ([], False, {}),
        ([facts(MODERN, ABLE)], True, {}),
        ([facts(MODERN, ABLE)], False, ABLE),
        ([facts(LEGACY, {"tasks": CALLS})], False, ABLE),
        ([facts(LEGACY, {"tasks": CALLS})], True, {"tasks": CALLS}),
        ([facts(LEGACY, {"tasks": {"list": {}, "cancel": {}}})], True, {}),
        (
            [
                facts(LEGACY, {"tasks": {**CALLS, "list": {}}}),
                facts(LEGACY, {"tasks": {**CALLS, "cancel": {}}}),
            ],
            True,
            {"tasks": {**CALLS, "list": {}, "cancel": {}}},
        ),
    ],
)
def test_a_client_is_told_what_some_server_can_do_for_it(servers: Any, legacy: bool, told: Any):
    assert tasks.task_capabilities(servers, legacy=legacy) == told


@pytest.mark.parametrize("capabilities", [None, {}, {"sampling": {}}, {"extensions": {"other": {}}}, ABLE])
def test_the_extension_is_added_beside_everything_else(capabilities: Any):
    declared = raw(capabilities) if capabilities is not None else None
    added = tasks.with_extension(declared)
    assert tasks.knows_extension(added)
    assert tasks.knows_extension(declared) is (capabilities == ABLE)
    rest = {key: value for key, value in (capabilities or {}).items() if key != "extensions"}
    assert rest.items() <= decode_any(added).items()


def test_what_we_say_about_a_missing_extension_we_understand():
    assert tasks.misses_extension(tasks.extension_missing())
    assert not tasks.misses_extension(RpcError(-32021, "m", {"requiredCapabilities": {"sampling": {}}}))
    assert not tasks.misses_extension(RpcError(-32602, "m"))


@pytest.mark.parametrize(
    ("result", "task_id"),
    [
        ({"task": {"taskId": "t"}}, "t"),
        ({"resultType": "task", "taskId": "t"}, "t"),
        ({"resultType": "complete", "taskId": "t"}, None),
        ({"task": {"taskId": "t"}, "content": []}, None),
        ({"task": "t"}, None),
        ({"task": {}}, None),
        ({"content": []}, None),
    ],
)
def test_a_made_task_is_told_from_a_result(result: Any, task_id: Any):
    made = tasks.made_task(fields(result))
    assert (decode_any(made["taskId"]) if made is not None else None) == task_id


def test_the_result_inside_a_task_does_not_name_the_task_again():
    related = {"io.modelcontextprotocol/related-task": {"taskId": "t"}}
    result = {"content": [], "_meta": {**related, "a": 1}, "resultType": "complete"}
    task = tasks.completed(fields({"taskId": "t"}), fields(result))
    assert decode_any(task["result"]) == {"content": [], "_meta": {"a": 1}}


@pytest.mark.parametrize(
    ("task", "code", "message"),
    [
        ({"error": {"code": -1, "message": "m", "data": 2}}, -1, "m"),
        ({"statusMessage": "s"}, -32603, "s"),
        ({"error": "x"}, -32603, "the task failed"),
    ],
)
def test_the_error_of_a_failed_task_is_always_one(task: Any, code: int, message: str):
    error = tasks.error_in(fields(task))
    assert (error.code, error.message) == (code, message)


def test_tools_of_a_modern_server_promise_no_legacy_tasks():
    tools: list[dict[str, Any]] = [
        {"name": "a", "execution": {"taskSupport": "required"}},
        {"name": "b"},
    ]
    tools.append({"name": "c", "execution": {"taskSupport": "optional", "x": 1}})
    shown = decode_any(tasks.without_task_support(fields({"tools": tools}))["tools"])
    assert shown == [{"name": "a"}, {"name": "b"}, {"name": "c", "execution": {"x": 1}}]
    support = {tool["name"]: tasks.support_in(fields(tool)) for tool in tools}
    assert {name for name, level in support.items() if level == "required"} == {"a"}
    assert {name for name, level in support.items() if level == "optional"} == {"c"}
    assert decode_any(tasks.without_task_support(fields({"tools": 1}))["tools"]) == 1
