"""The laws of overridden parameters: what is hidden is nowhere, and what the shown schema takes is sent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mcpmux.config.report import InvalidValue
from mcpmux.config.views import Parameter
from mcpmux.mux.override import (
    SIZE_LIMIT,
    BadArguments,
    NotJudged,
    check_arguments,
    fill_in,
    find_bad_values,
    find_mistake,
    override_schema,
)
from mcpmux.protocol.envelope import raw, value_of
from mcpmux.protocol.raw_json import Raw

SCHEMA = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "What to look for"},
        "limit": {"type": "integer", "minimum": 1},
        "tenant": {"type": "string"},
    },
    "required": ["query", "tenant"],
    "additionalProperties": False,
}

parameters = st.one_of(
    st.builds(
        Parameter, description=st.none() | st.just("said"), required=st.sampled_from([None, True, False])
    ),
    st.builds(Parameter, default=st.just("d"), description=st.none() | st.just("said")),
    st.builds(Parameter, value=st.just("v")),
    st.builds(Parameter, hidden=st.just(True), default=st.none() | st.just("d")),
)
overridden = st.dictionaries(st.sampled_from(["query", "tenant", "other"]), parameters)
values = st.sampled_from(["x", 1, 0, None])
arguments = st.dictionaries(st.sampled_from(["query", "limit", "tenant", "other"]), values)


@given(overridden)
def test_a_shown_schema_is_a_schema_without_what_is_hidden(said):
    shown = override_schema(SCHEMA, said)
    Draft202012Validator.check_schema(shown)
    for name, parameter in said.items():
        if not parameter.is_shown:
            assert name not in shown["properties"] and name not in shown.get("required", ())
    assert set(shown.get("required", ())) <= set(shown["properties"])


@given(overridden, arguments)
def test_what_the_shown_schema_takes_is_sent_with_what_is_fixed(said, given_arguments):
    shown = override_schema(SCHEMA, said)
    is_valid = Draft202012Validator(shown).is_valid(given_arguments)
    names_hidden = any(name in said and not said[name].is_shown for name in given_arguments)
    written = {name: raw(value) for name, value in given_arguments.items()}
    if not is_valid or names_hidden:
        with pytest.raises(BadArguments):
            check_arguments(written, SCHEMA, said)
        return
    check_arguments(written, SCHEMA, said)
    sent = {name: value_of(value) for name, value in fill_in(written, said).items()}
    for name, value in given_arguments.items():
        assert sent[name] == value
    for name, parameter in said.items():
        if parameter.value is not None:
            assert sent[name] == parameter.value
        elif parameter.default is not None:
            assert sent[name] == given_arguments.get(name, parameter.default)


def test_without_overrides_a_schema_stays_as_it_is():
    assert override_schema(SCHEMA, {}) == SCHEMA
    assert override_schema({"type": "object"}, {"x": Parameter(hidden=True)}) == {"type": "object"}


def test_an_overridden_parameter_replaces_what_the_server_declares():
    overrides = {
        "query": Parameter(description="Short words", default="all"),
        "limit": Parameter(required=True),
    }
    shown = override_schema(SCHEMA, overrides)
    assert shown["properties"]["query"] == {"type": "string", "description": "Short words", "default": "all"}
    assert shown["required"] == ["tenant", "limit"]


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        ({"tenant": "x", "query": "q"}, "there is no argument tenant"),
        ({}, "'query' is a required property"),
        ({"query": 1}, "query: 1 is not of type 'string'"),
        ({"query": "q", "limit": 0}, "limit: 0 is less than the minimum of 1"),
        ({"query": "q", "more": 1}, "('more' was unexpected)"),
    ],
)
def test_an_error_names_the_argument_that_does_not_fit(sent, sentence):
    written = {name: raw(value) for name, value in sent.items()}
    with pytest.raises(BadArguments) as caught:
        check_arguments(written, SCHEMA, {"tenant": Parameter(value="acme")})
    assert sentence in str(caught.value)


@pytest.mark.parametrize("name", ["Tenant", "TENANT", "tenanT"])
@pytest.mark.parametrize("said", [Parameter(hidden=True), Parameter(value="acme")])
def test_a_hidden_name_is_refused_in_any_case(name, said):
    schemas: list[dict[str, Any]] = [
        {},
        {"properties": {"tenant": {}}},
        {"properties": {name: {}}},
        {"$ref": "https://example.com/schema.json"},
    ]
    for schema in schemas:
        with pytest.raises(BadArguments, match=f"there is no argument {name}, in any case"):
            check_arguments({name: raw("other")}, schema, {"tenant": said})
    check_arguments({name: raw("other")}, {}, {"tenant": Parameter(default="acme")})
    both: dict[str, Any] = {"properties": {"tenant": {}, name: {}}}
    check_arguments({name: raw("other")}, both, {"tenant": said})


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "https://example.com/schema.json"},
        {"type": "nonsense"},
        {"properties": {"a": {"type": "integer"}, "b": {"pattern": "("}}, "patternProperties": {"(": {}}},
        {"properties": {"a": {"$ref": "#/$defs/none"}}},
        {"minProperties": "x"},
        {"properties": {"a": {"minimum": "x"}}},
        {"properties": {"a": {"type": "integer", "$ref": 7}}},
        {"type": "object", "patternProperties": {"^(a+)+$": {}}},
        {"allOf": [{"$schema": "http://json-schema.org/draft-07/schema#"}], "$schema": "x"},
    ],
)
def test_what_cannot_be_understood_is_left_to_the_server(schema):
    with pytest.raises(NotJudged):
        check_arguments({"a": raw(1)}, schema, {"b": Parameter(value=2)})


def doubled(depth: int, end: dict[str, object]) -> dict[str, object]:
    """Return a schema in which each definition refers to the next one twice."""
    steps = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(depth)}
    return {"$ref": "#/$defs/a0", "$defs": {**steps, f"a{depth}": end}}


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ("x", doubled(40, {"type": "string"})),
        ("x", doubled(40, {"type": "integer"})),
        ("x", {"$ref": "#"}),
        ([{"n": n} for n in range(2000)], {"uniqueItems": True}),
        (
            ["x"] * 500,
            {"$defs": {f"d{n}": {"$anchor": f"a{n}"} for n in range(999)}, "items": {"$ref": "#a998"}},
        ),
        ("x" * (SIZE_LIMIT + 1), {"type": "string"}),
        ("x", {"enum": [str(n) for n in range(SIZE_LIMIT)]}),
        ("a" * 40, {"pattern": "^((((a{999}){999}){999}){999})$"}),
    ],
    ids=["doubled", "doubled errors", "loop", "unique", "anchors", "long value", "long schema", "repeats"],
)
def test_a_schema_past_its_budget_is_left_to_the_server(value, schema):
    with pytest.raises(NotJudged):
        find_mistake(value, schema)


def test_a_pattern_takes_no_time_that_doubles():
    assert find_mistake("a" * 2000 + "!", {"pattern": "^(a+)+$"}) is not None
    assert find_mistake("a" * 2000, {"pattern": "^(a+)+$"}) is None


@pytest.mark.parametrize("draft", ["http://json-schema.org/draft-07/schema#", "https://example.com/dialect"])
def test_a_schema_that_names_its_draft_has_the_same_budget(draft):
    looped = {"$schema": draft, "type": "object", "properties": {"a": {"$ref": "#"}}}
    assert find_mistake({"a": {"a": {}}}, looped) is None
    assert find_mistake({"a": {"a": 1}}, looped) == "a.a: 1 is not of type 'object'"
    with pytest.raises(NotJudged):
        find_mistake("x", {"$schema": draft, **doubled(40, {"type": "string"})})


def test_hidden_names_are_in_no_part_of_the_schema():
    either = {"type": "object", "properties": SCHEMA["properties"]}
    either["anyOf"] = [{"required": ["tenant"]}, {"required": ["limit"], "properties": {"tenant": {}}}]
    either["if"] = {"allOf": [{"required": ["tenant"]}]}
    shown = override_schema(either, {"tenant": Parameter(value="acme")})
    assert "tenant" not in str(shown)
    check_arguments({"query": raw("q")}, either, {"tenant": Parameter(value="acme")})


@pytest.mark.parametrize("number", [b"1e2", b"1.0", b"1e400", b"123456789012345678901234567890"])
def test_arguments_are_sent_as_they_are_written(number):
    filled = fill_in({"limit": Raw(number)}, {"tenant": Parameter(value="acme")})
    assert {name: bytes(value) for name, value in filled.items()} == {"limit": number, "tenant": b'"acme"'}


def test_a_number_that_is_too_large_is_left_to_the_server():
    with pytest.raises(NotJudged):
        check_arguments({"limit": Raw(b"1e400")}, SCHEMA, {"tenant": Parameter(value="acme")})


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"tenant": Parameter(value="acme"), "limit": Parameter(default=3)}, []),
        ({"limit": Parameter(value="x")}, ["`value` of limit: 'x' is not of type 'integer'"]),
        ({"limit": Parameter(default=0)}, ["`default` of limit: 0 is less than the minimum of 1"]),
        ({"tenat": Parameter(value="x")}, ["there is no parameter tenat"]),
        (
            {"tenant": Parameter(hidden=True)},
            ["tenant is hidden, but the server requires it; give it a `value`"],
        ),
    ],
)
def test_values_that_the_server_does_not_take_are_found(said, told):
    assert find_bad_values(SCHEMA, said) == told


@pytest.mark.parametrize(
    "settings",
    [
        {"value": 1, "hidden": True},
        {"value": 1, "default": 1},
        {"hidden": True, "required": True},
        {"value": 1, "description": "x"},
        {"required": True, "default": 1},
    ],
)
def test_what_does_not_go_together_is_a_mistake(settings):
    with pytest.raises(InvalidValue):
        Parameter(**settings)
