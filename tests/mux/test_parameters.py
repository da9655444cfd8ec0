"""The laws of overridden parameters: what is hidden is nowhere, and what the shown schema takes is sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mcpmux.config.report import InvalidValue
from mcpmux.config.views import Parameter
from mcpmux.mux.parameters import BadArguments, fill_in, find_bad_values, override_schema

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
    if not is_valid or names_hidden:
        with pytest.raises(BadArguments):
            fill_in(given_arguments, SCHEMA, said)
        return
    sent = fill_in(given_arguments, SCHEMA, said)
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


def test_what_is_said_of_a_parameter_replaces_what_the_server_says():
    said = {"query": Parameter(description="Short words", default="all"), "limit": Parameter(required=True)}
    shown = override_schema(SCHEMA, said)
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
def test_arguments_that_do_not_fit_are_told_where(sent, sentence):
    with pytest.raises(BadArguments) as caught:
        fill_in(sent, SCHEMA, {"tenant": Parameter(value="acme")})
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "https://example.com/schema.json"},
        {"type": "nonsense"},
        {"properties": {"a": {"type": "integer"}, "b": {"pattern": "("}}, "patternProperties": {"(": {}}},
        {"properties": {"a": {"$ref": "#/$defs/none"}}},
        {"properties": 7, "required": 7},
        {"$schema": "https://example.com/dialect", "type": "object"},
    ],
)
def test_what_cannot_be_understood_is_left_to_the_server(schema):
    assert fill_in({"a": 1}, schema, {"b": Parameter(value=2)}) == {"a": 1, "b": 2}


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
