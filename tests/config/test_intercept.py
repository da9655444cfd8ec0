"""`[[intercept]]`: every mistake at once, at its place."""

from __future__ import annotations

from typing import Any

import pytest

from mcpmux.config.reading import read_table
from mcpmux.errors import ConfigError

UPSTREAMS = {"docs": {"command": "x"}}


def read(*tables: dict[str, Any]) -> Any:
    return read_table({"upstreams": UPSTREAMS, "intercept": list(tables)}, {}, "").intercept


def mistakes(*tables: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as error:
        read(*tables)
    return error.value.problems


def test_each_kind_has_defaults_that_protect():
    approve, function, delay = read(
        {"builtin": "approve", "annotations": {"destructiveHint": True}},
        {"python": "pack.age:check", "name": "guard", "methods": ["tools/*"]},
        {"builtin": "delay", "seconds": "2s", "probability": 0.5},
    )
    assert (approve.stages, approve.on_failure) == (("request",), "refuse")
    assert (function.stages, function.on_failure) == (("request", "result"), "refuse")
    assert (delay.stages, delay.patience) == (("request",), 7.0)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({}, "expected one of `python`, `webhook`, `server` and `builtin`, got none"),
        ({"python": "m:f", "builtin": "hold"}, "got `python` and `builtin`"),
        ({"python": "no function"}, "expected a Python function as MODULE:FUNCTION"),
        ({"builtin": "redact", "on_failure": "pass"}, "or it would protect nothing"),
        ({"builtin": "approve", "on": ["result"]}, "is for requests"),
        ({"builtin": "limit_size"}, '`max_bytes` goes with `builtin` "limit_size"'),
        ({"python": "m:f", "seconds": 3}, '`seconds` goes with `builtin` "delay"'),
        ({"python": "m:f", "secret": "x" * 16}, "`secret` goes with `webhook`"),
        ({"python": "m:f", "methods": ["tools/call", "server/discover"]}, "no interceptor sees `server/"),
        ({"python": "m:f", "methods": ["subscriptions/listen"]}, "judged as `resources/subscribe` of each"),
        ({"python": "m:f", "methods": ["resources/subscribe"], "on": ["result"]}, "has no result"),
        ({"webhook": "https://x", "in_thread": True}, "`in_thread` goes with `python`"),
        ({"webhook": "ftp://x"}, "a URL starting with http"),
        ({"builtin": "fail", "probability": 2}, "a number from 0 to 1"),
        ({"python": "m:f", "annotations": {"safe": True}}, 'expected one of "readOnlyHint"'),
        ({"python": "m:f", "upstreams": ["doc"]}, "no upstream has the name `doc`; did you mean `docs`?"),
        ({"server": "doc"}, "no upstream has the name `doc`; did you mean `docs`?"),
        ({"python": "m:f", "method": []}, "methods"),
    ],
)
def test_a_mistake_is_told_at_its_place(table, text):
    [problem] = mistakes(table)
    assert problem.startswith("intercept[0]") and text in problem


def test_all_mistakes_are_told_at_once():
    guard = {"python": "m:f", "name": "guard"}
    problems = mistakes({"builtin": "?"}, guard, guard, {"server": "other"})
    assert [problem.partition(":")[0] for problem in problems] == [
        "intercept[0].builtin",
        "intercept[3].server",
        "intercept[2].name",
    ]
