"""Which messages are kept, and how much of each, on both legs."""

from __future__ import annotations

from typing import Any

import pytest

from mcpmux.channels.tap import Leg
from mcpmux.config import Capture, CaptureRule
from mcpmux.traffic.capture.capture import REMEMBERED, Levels
from mcpmux.traffic.observer import Observation

CLIENT = Leg("client", "c1", "http")
DOCS = Leg("upstream", "docs", "stdio", "docs")
HR = Leg("upstream", "hr@legacy", "stdio", "hr")
PREFIXES = {"docs": "docs", "hr": "people"}


def seen(
    leg: Leg, direction: str, kind: str, method: str | None, exchange: int = 0, target: str | None = None
):
    return Observation(leg, direction, b"{}", 0.0, kind, exchange, method, 1, target)  # type: ignore[arg-type]


def levels(*rules: CaptureRule, level: str = "full") -> Levels:
    return Levels(Capture(level=level, rules=rules), PREFIXES)


def test_without_rules_all_messages_have_one_level():
    assert levels(level="metadata").level(seen(CLIENT, "in", "request", "ping")) == "metadata"


def test_the_first_rule_that_fits_counts():
    rules = levels(
        CaptureRule(method="resources/*", level="truncated"),
        CaptureRule(method="resources/read", level="off"),
        CaptureRule(method="*", level="metadata"),
    )
    assert rules.level(seen(CLIENT, "in", "request", "resources/read")) == "truncated"
    assert rules.level(seen(CLIENT, "in", "request", "tools/call")) == "metadata"
    assert rules.level(seen(CLIENT, "in", "invalid", None)) == "full"


def test_a_rule_may_name_upstream_and_method():
    rules = levels(CaptureRule(upstream="d*", method="tools/call", level="off"))
    assert rules.level(seen(DOCS, "out", "request", "tools/call")) == "off"
    assert rules.level(seen(DOCS, "out", "request", "tools/list")) == "full"
    assert rules.level(seen(HR, "out", "request", "tools/call")) == "full"


def test_a_message_left_out_on_one_leg_is_not_kept():
    rules = levels(CaptureRule(upstream="hr", level="off"))
    request = seen(CLIENT, "in", "request", "resources/read", 1, "people+file:///salaries")
    assert rules.level(request) == "off"
    assert rules.level(seen(HR, "out", "request", "resources/read", 1, "file:///salaries")) == "off"
    assert rules.level(seen(HR, "in", "result", "resources/read", 1)) == "off"
    assert rules.level(seen(CLIENT, "out", "notification", "notifications/progress", 1)) == "off"
    assert rules.level(seen(CLIENT, "out", "result", "resources/read", 1)) == "off"


def test_what_came_of_several_upstreams_has_the_least_of_their_levels():
    rules = levels(CaptureRule(upstream="hr", level="metadata"))
    assert rules.level(seen(CLIENT, "in", "request", "tools/list", 1)) == "full"
    rules.level(seen(DOCS, "out", "request", "tools/list", 1))
    rules.level(seen(HR, "out", "request", "tools/list", 1))
    assert rules.level(seen(CLIENT, "out", "result", "tools/list", 1)) == "metadata"


@pytest.mark.parametrize("target", ["people__find", "people+memo:1", "ui://people/x", "people__a__b"])
def test_a_clients_request_is_known_by_its_prefix(target: str):
    rules = levels(CaptureRule(upstream="hr", level="off"))
    assert rules.level(seen(CLIENT, "in", "request", "tools/call", 1, target)) == "off"
    assert rules.level(seen(CLIENT, "in", "request", "tools/call", 2, "docs__find")) == "full"
    assert rules.level(seen(CLIENT, "out", "error", "tools/call", 2)) == "full"


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(("in", "request", "tools/call", 1, "find_person"), id="renamed tool"),
        pytest.param(("in", "request", "resources/read", 1, "file:///salaries"), id="URI without prefix"),
        pytest.param(("in", "request", "tasks/update", 1), id="task"),
        pytest.param(("out", "result", "tools/list", 1), id="cached list"),
        pytest.param(("out", "notification", "notifications/message"), id="log message"),
    ],
)
def test_a_message_that_may_be_of_any_upstream_has_the_least_level(message: tuple[Any, ...]):
    rules = levels(CaptureRule(upstream="hr", level="off"))
    assert rules.level(seen(CLIENT, *message)) == "off"
    rules.adopt({"docs": "docs"})
    assert rules.level(seen(CLIENT, *message)) == "full"


def test_each_update_of_a_listen_has_the_level_of_its_own_upstream():
    rules = levels(CaptureRule(upstream="hr", level="off"))
    rules.level(seen(CLIENT, "in", "request", "subscriptions/listen", 1))
    update = "out", "notification", "notifications/resources/updated", 1
    for target, level in [("people+memo:1", "off"), ("docs+memo:1", "full"), ("people+memo:1", "off")]:
        assert rules.level(seen(CLIENT, *update, target)) == level


def test_an_answer_from_a_cache_has_the_level_of_its_request():
    rules = levels(CaptureRule(upstream="hr", level="off"))
    rules.level(seen(CLIENT, "in", "request", "resources/read", 1, "people+file:///salaries"))
    assert rules.level(seen(CLIENT, "out", "result", "resources/read", 1)) == "off"
    assert rules.level(seen(CLIENT, "in", "request", "initialize", 2)) == "full"


def test_a_single_upstream_without_prefix_is_meant_by_everything_with_a_target():
    rules = Levels(Capture(level="full", rules=(CaptureRule(upstream="hr", level="off"),)), {"hr": ""})
    assert rules.level(seen(CLIENT, "in", "request", "resources/read", 1, "file:///x")) == "off"


def test_what_is_remembered_is_bounded():
    rules = levels(CaptureRule(upstream="hr", level="off"))
    for number in range(2 * REMEMBERED):
        rules.level(seen(HR, "out", "request", f"x/{number}", number + 1))
    assert len(rules._asked) <= REMEMBERED
    assert len(rules._found) <= REMEMBERED
