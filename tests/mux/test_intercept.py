"""The laws of interceptors: for which exchanges they are, and what their verdicts may do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.config import Intercept
from mcpmux.errors import RpcError
from mcpmux.mux.intercept import (
    FIXED,
    PASS,
    Ask,
    BadVerdict,
    Change,
    Hold,
    InterceptedMessage,
    InterceptorRule,
    Refuse,
    change_call,
    change_outcome,
    plain,
    read_headers,
    read_verdict,
)
from mcpmux.mux.naming import Naming
from mcpmux.mux.rewrite import Namespace
from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.principal import Principal
from mcpmux.protocol.raw_json import Fields, Raw

NAMING = Naming(Namespace({"docs": "docs", "web": "web"}))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(texts, values, max_size=4)


def fields(members: dict[str, Any]) -> Fields:
    """Return members in an odd spelling, which must stay."""
    return {key: Raw(json.dumps(value, indent=1).encode()) for key, value in members.items()}


def as_bytes(members: Fields) -> dict[str, bytes]:
    return {key: bytes(value) for key, value in members.items()}


def call(method: str = "tools/call", **params: Any) -> Call:
    return Call(method, fields(params), {})


def result_of(method: str, **result: Any) -> InterceptedMessage:
    outcome = {"resultType": raw("complete"), **fields(result)}
    return InterceptedMessage("result", call(method, name="docs__t"), "docs", "t", {}, outcome)


@given(objects, objects)
def test_members_that_are_as_before_keep_their_bytes(params, arguments):
    members = {key: value for key, value in params.items() if key not in FIXED["request"]}
    original = call(name="t", arguments=arguments, **{f"x{key}": value for key, value in members.items()})
    after = change_call(original, plain(original.params), None)
    assert as_bytes(after.params) == as_bytes(original.params)
    changed = change_call(original, {**plain(original.params), "xnew": 1}, None)
    assert as_bytes(changed.params) == {**as_bytes(original.params), "xnew": b"1"}


@given(objects, st.sampled_from(sorted(FIXED["request"])), values)
def test_what_decides_where_a_call_goes_never_changes(arguments, member, value):
    original = call(name="t", arguments=arguments, **({member: "old"} if member != "name" else {}))
    params = plain(original.params)
    for other in ({**params, member: value}, {key: params[key] for key in params if key != member}):
        if other.get(member, ...) != params[member]:
            with pytest.raises(BadVerdict):
                change_call(original, other, None)


@given(objects)
def test_a_message_is_decoded_anew_for_each_interceptor(arguments):
    message = InterceptedMessage("request", call(name="t", arguments=arguments), "docs", "t", {})
    first, second = message.as_json(), message.as_json()
    assert first == second
    first["params"]["arguments"]["other"] = 1
    assert second == message.as_json()


@given(values)
def test_any_value_is_a_verdict_or_a_bad_one(value):
    for given_ in (value, {"verdict": value}, {"verdict": "change", "params": value}):
        try:
            verdict = read_verdict(given_)
        except BadVerdict:
            continue
        assert isinstance(verdict, (type(PASS), Refuse, Change, Ask, Hold))


def test_verdicts_have_one_form_each():
    assert read_verdict(None) is PASS is read_verdict({"verdict": "pass"})
    assert read_verdict({"verdict": "refuse", "reason": "r"}) == Refuse("r")
    assert read_verdict({"verdict": "change", "result": {}}) == Change(result={})
    assert read_verdict({"verdict": "change", "params": {}, "headers": {}}) == Change({}, headers={})
    assert read_verdict({"verdict": "ask", "message": "m", "url": "https://x"}) == Ask("m", "https://x")
    assert read_verdict({"verdict": "hold"}) == Hold("")
    for bad in (
        {"verdict": "pass", "params": {}},
        {"verdict": "ask"},
        {"verdict": "refuse", "reason": 1},
        {"verdict": "refuse", "reason": "x" * 3000},
        {"verdict": "change", "arguments": {}},
        {"verdict": "change", "result": {}, "headers": {}},
    ):
        with pytest.raises(BadVerdict):
            read_verdict(bad)


def test_headers_of_mcpmux_and_of_the_connection_stay():
    assert read_headers({"X-A": "1", "x-b": ""}, ["X-C"]) == (("X-A", "1"), ("x-b", ""))
    for bad in ("Host", "mcp-session-id", "Authorization", "Content-Type", "TE", "x-c", "a b", ""):
        with pytest.raises(BadVerdict):
            read_headers({bad: "1"}, ["X-C"])
    for headers in ({"X-A": "1\r\nX-B: 2"}, {"X-A": 1}, {"X-A": "1", "x-a": "2"}):
        with pytest.raises(BadVerdict):
            read_headers(headers, [])


SHAPES: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "tools/call": (
        {"content": [{"type": "text", "text": ""}, {"type": "other"}]},
        [
            *({}, {"content": {}}, {"content": [{}]}, {"content": [{"type": "text"}]}),
            *({"content": [{"type": "resource", "resource": ""}]}, {"content": [], "isError": 1}),
        ],
    ),
    "resources/read": ({"contents": [{"uri": "a:b"}]}, [{}, {"contents": [1]}, {"contents": [{"text": ""}]}]),
    "prompts/get": ({"messages": [{"role": "user"}]}, [{}, {"messages": [{}]}]),
    "completion/complete": ({"completion": {"values": []}}, [{}, {"completion": {}}, {"completion": []}]),
    "tools/list": ({"tools": [{"name": "t"}]}, [{}, {"tools": [{"name": "u"}]}, {"tools": [1]}]),
}


@pytest.mark.parametrize("method", SHAPES)
def test_a_changed_result_has_what_the_protocol_asks_for(method):
    good, bad_ones = SHAPES[method]
    message = result_of(method, **good)
    complete = {"resultType": "complete"}
    assert isinstance(change_outcome(message, Change(result={**complete, **good, "x": 1}), None), dict)
    for bad in bad_ones:
        with pytest.raises(BadVerdict):
            change_outcome(message, Change(result=complete | bad), None)


def test_states_cursors_tasks_and_questions_of_a_result_stay():
    questions = {"inputRequests": {"a": {"method": "roots/list"}}, "requestState": "s"}
    outcome = fields({"resultType": "input_required", **questions})
    message = InterceptedMessage("result", call(name="t"), "docs", "t", {}, outcome)
    same = {"resultType": "input_required", **questions}
    assert as_bytes(change_outcome(message, Change(result=same), None)) == as_bytes(outcome)  # type: ignore[arg-type]
    for other in (
        {**same, "requestState": "t"},
        {**same, "resultType": "complete", "content": []},
        {**same, "inputRequests": {}},
        {**same, "inputRequests": []},
    ):
        with pytest.raises(BadVerdict):
            change_outcome(message, Change(result=other), None)
    listed = result_of("tools/list", tools=[], nextCursor="c")
    with pytest.raises(BadVerdict):
        change_outcome(listed, Change(result={"resultType": "complete", "tools": []}), None)
    related = {"io.modelcontextprotocol/related-task": {"taskId": "1"}}
    related_result = result_of("tools/call", content=[], _meta=related)
    with pytest.raises(BadVerdict):
        change_outcome(related_result, Change(result={"resultType": "complete", "content": []}), None)


def test_an_error_keeps_its_code_and_no_result_becomes_one():
    message = InterceptedMessage("result", call(name="t"), "docs", "t", {}, RpcError(-1, "secret", {"a": 1}))
    changed = change_outcome(message, Change(error={"code": -1, "message": "m"}), None)
    assert isinstance(changed, RpcError) and (changed.message, changed.data) == ("m", None)
    for bad in ({"code": -2, "message": "m"}, {"code": -1}):
        with pytest.raises(BadVerdict):
            change_outcome(message, Change(error=bad), None)
    with pytest.raises(BadVerdict):
        change_outcome(result_of("tools/call", content=[]), Change(error={"code": 1, "message": ""}), None)


# For which exchanges


def rule(**settings: Any) -> InterceptorRule:
    return InterceptorRule(Intercept(builtin="redact", **settings), "intercept[0]", NAMING)


def test_a_rule_that_names_nothing_is_for_everything():
    everything = rule()
    for method in ("tools/call", "resources/read", "tools/list", "vendor/x"):
        assert set(everything.stages(method, "docs")) == {"request", "result"}
        assert everything.fits(call(method), "docs", "t", {})


def test_a_subscription_has_no_result():
    assert rule().stages("resources/subscribe", "docs") == {"request"}
    assert not rule(methods=("tools/*",)).stages("resources/subscribe", "docs")


def test_the_request_for_a_merged_list_is_not_of_a_few_upstreams():
    assert set(rule().stages("tools/list", None)) == {"request", "result"}
    assert set(rule(upstreams=("docs",)).stages("tools/list", None)) == {"result"}


def test_tools_are_intercepted_in_their_tasks_results_as_well():
    calls = rule(methods=("tools/call",), names=("delete",))
    for method in ("tasks/get", "tasks/result"):
        assert set(calls.stages(method, "docs")) == {"result"}
        assert calls.fits(call(method), "docs", "delete", {})
        assert calls.fits(call(method), "docs", None, {})  # it may be a task of that tool
        assert not calls.fits(call(method), "docs", "look", {})
    assert not calls.stages("tasks/list", "docs")


@pytest.mark.parametrize("name", ["delete", "docs__delete", "del*", "*__del*"])
def test_names_fit_in_every_spelling(name):
    named = rule(names=(name,))
    assert named.fits(call(), "docs", "delete", {})
    assert not named.fits(call(), "docs", "look", {})
    assert named.fits(call(), "web", "delete", {}) is (name != "docs__delete")


@pytest.mark.parametrize("uri", ["file:///etc/passwd", "file:///x/../etc/passwd", "file:///etc/%70asswd"])
def test_uris_fit_in_every_reading(uri):
    named = rule(names=("file:///etc/*",))
    assert named.fits(call("resources/read"), "docs", uri, {})
    assert not named.fits(call("resources/read"), "docs", "file:///home", {})


def test_annotations_views_and_principals_must_fit_as_well():
    narrow = rule(annotations={"readOnlyHint": True}, views=("dev*",), principals=("a*",))
    who = Principal("alice", view="dev?tools=x")
    use = Call("tools/call", {}, {}, principal=who)
    assert narrow.fits(use, "docs", "t", {"readOnlyHint": True})
    assert not narrow.fits(use, "docs", "t", {"readOnlyHint": False})
    assert not narrow.fits(
        Call("tools/call", {}, {}, principal=Principal("bob", view="dev")), "docs", "t", {}
    )
    assert not narrow.stages("resources/read", "docs") and not narrow.stages("tools/list", "docs")
    named = rule(principals=("a*",))
    assert named.fits(use, "docs", "t", {})
    for other in (Principal("bob"), Principal("")):
        assert not named.fits(Call("tools/call", {}, {}, principal=other), "docs", "t", {})
    assert not rule(names=("t",)).stages("tools/list", "docs")
