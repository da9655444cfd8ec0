"""Where two answers differ."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.config.traffic import parse_path
from mcpmux.traffic.replay.report import DIFFERENCE_LIMIT, compare, covers, show_path

NAMES = st.text(min_size=1, max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


def found(captured: Any, now: Any, *ignore: str) -> list[tuple[str, str]]:
    patterns = [parse_path(text) for text in ignore]
    return [(show_path(d.path), d.kind) for d in compare(captured, now, patterns)]


def result(**members: Any) -> dict[str, Any]:
    return {"result": members}


@given(VALUES)
def test_nothing_differs_from_itself(value: Any):
    assert compare(value, value) == []
    assert compare({"result": value}, {"result": value}) == []


@given(VALUES, VALUES)
def test_what_is_not_equal_differs(one: Any, other: Any):
    assert bool(compare([one], [other])) == (repr(one) != repr(other) and not _same(one, other))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and bool(one == other)


@given(VALUES, VALUES)
def test_every_path_can_be_ignored(one: Any, other: Any):
    differences = compare({"r": one}, {"r": other})
    ignore = [parse_path(show_path(d.path)) for d in differences]
    assert compare({"r": one}, {"r": other}, ignore) == []


CASES: dict[str, tuple[Any, Any, list[tuple[str, str]]]] = {
    "value": (result(a=1), result(a=2), [("result.a", "changed")]),
    "kind": (result(a=1), result(a="1"), [("result.a", "changed")]),
    "true is not 1": (result(a=True), result(a=1), [("result.a", "changed")]),
    "member": (result(a=1), result(b=1), [("result.a", "removed"), ("result.b", "added")]),
    "by place": (
        result(a=[1, 2]),
        result(a=[1, 3, 4]),
        [("result.a[1]", "changed"), ("result.a[2]", "added")],
    ),
    "error": ({"error": {"code": 1}}, {"error": {"code": 2}}, [("error.code", "changed")]),
    "result or error": (result(), {"error": {}}, [("result", "removed"), ("error", "added")]),
    "strange name": (result(**{"a.b": 1}), result(**{"a.b": 2}), [('result["a.b"]', "changed")]),
    "one more of named things": (
        result(tools=[{"name": "a"}, {"name": "b", "x": 1}]),
        result(tools=[{"name": "new"}, {"name": "a"}, {"name": "b", "x": 2}]),
        [("result.tools[1].x", "changed"), ("result.tools[0]", "added")],
    ),
    "moved": (
        result(resources=[{"uri": "a:1"}, {"uri": "a:2"}]),
        result(resources=[{"uri": "a:2"}, {"uri": "a:1"}]),
        [("result.resources", "moved")],
    ),
    "cursor": (result(nextCursor="a"), result(nextCursor="b"), []),
    "no cursor": (result(nextCursor="a"), result(), [("result.nextCursor", "removed")]),
    "cursor elsewhere": (
        result(structuredContent={"nextCursor": "a"}),
        result(structuredContent={"nextCursor": "b"}),
        [("result.structuredContent.nextCursor", "changed")],
    ),
    "state": (result(requestState="a"), result(requestState="b"), []),
    "wishes": (
        result(inputRequests={"q1": {"method": "roots/list"}}),
        result(inputRequests={"q2": {"method": "roots/list"}}),
        [],
    ),
    "other wishes": (
        result(inputRequests={"q1": {"method": "roots/list"}}),
        result(inputRequests={"q2": {"method": "sampling/createMessage"}}),
        [("result.inputRequests[0].method", "changed")],
    ),
    "task": (
        result(task={"taskId": "1", "createdAt": "x", "status": "working"}),
        result(task={"taskId": "2", "createdAt": "y", "status": "failed"}),
        [("result.task.status", "changed")],
    ),
    "redacted": (result(a="to [redacted: email] now"), result(a="to me@example.com now"), []),
    "around redacted": (
        result(a="to [redacted: email] now"),
        result(a="from me@example.com now"),
        [("result.a", "changed")],
    ),
}


@pytest.mark.parametrize(("captured", "now", "differences"), CASES.values(), ids=CASES)
def test_each_difference_is_told_at_its_place(captured: Any, now: Any, differences: list[tuple[str, str]]):
    assert found(captured, now) == differences


@pytest.mark.parametrize(
    ("pattern", "path", "covered"),
    [
        ("result.a", ("result", "a"), True),
        ("result.a", ("result", "a", 0, "b"), True),
        ("result.a", ("result",), False),
        ("result.*", ("result", "x"), True),
        ("result.a[*].b", ("result", "a", 7, "b"), True),
        ("result.a[0]", ("result", "a", 1), False),
        ("..b", ("result", "a", 7, "b"), True),
        ("..b", ("result", "a"), False),
    ],
)
def test_patterns_cover_what_they_name_and_what_is_in_it(pattern: str, path: Any, covered: bool):
    assert covers(parse_path(pattern), path) is covered


def test_many_differences_and_deep_values_are_bounded():
    many = {str(number): number for number in range(1000)}
    assert len(compare(many, {})) == DIFFERENCE_LIMIT
    first: Any = 1
    other: Any = 2
    for _ in range(300):
        first, other = [first], [other]
    [difference] = compare(first, other)
    assert len(difference.path) == 64
