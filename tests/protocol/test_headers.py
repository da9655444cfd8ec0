from __future__ import annotations

import base64
import re
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.errors import RpcError
from mcpmux.protocol.call import Call
from mcpmux.protocol.codes import HEADER_MISMATCH, METHOD_NOT_FOUND
from mcpmux.protocol.envelope import raw, value_at
from mcpmux.protocol.headers import (
    HeaderMismatch,
    InvalidHeaderSchema,
    Path,
    check_param_headers,
    check_request,
    decode_value,
    encode_value,
    header_params,
    method_headers,
    name_headers,
    param_headers,
)
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.revisions import NEWEST

META = {
    "io.modelcontextprotocol/protocolVersion": raw(NEWEST),
    "io.modelcontextprotocol/clientCapabilities": raw({}),
}
FIELD_VALUE = re.compile(r"(?:[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?)?")  # RFC 9110 section 5.5

tokens = st.text("!#$%&'*+-.^_`|~" + string.ascii_letters + string.digits, min_size=1, max_size=12)
texts = st.text() | st.sampled_from(
    ["=?base64?", "=?base64?=", "=?base64??=", "=?base64?SGk=?=", " a", "a\t", "\t"]
)


def received(headers: list[tuple[str, str]]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers}


# Values


ENCODING_EXAMPLES = [  # "Value Encoding", 2026-07-28
    ("us-west1", "us-west1"),
    ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
    (" padded ", "=?base64?IHBhZGRlZCA=?="),
    ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
    ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
]


@pytest.mark.parametrize(("text", "value"), ENCODING_EXAMPLES)
def test_the_specifications_examples_are_encoded_and_decoded(text: str, value: str):
    assert encode_value(text) == value
    assert decode_value(value) == text


@given(texts)
def test_any_text_travels_in_a_header(text: str):
    value = encode_value(text)
    assert FIELD_VALUE.fullmatch(value)
    assert decode_value(value) == text


@given(texts)
def test_whatever_starts_and_ends_like_the_encoded_form_is_encoded(text: str):
    """ "Value Encoding", 2026-07-28: clients MUST also encode values that match the sentinel pattern."""
    value = encode_value(text)
    if text.startswith("=?base64?") and text.endswith("?="):
        assert value != text
    assert value in (text, f"=?base64?{base64.b64encode(text.encode()).decode()}?=")


@pytest.mark.parametrize(
    "value",
    [
        "=?base64?SGk?=",  # no padding
        "=?base64?SGk==?=",
        "=?base64?S Gk=?=",
        "=?base64?SGk_?=",
        "=?base64?/w==?=",  # not UTF-8
        "=?base64?7aCA?=",  # UTF-8 of a surrogate
        "=?base64?é?=",
        " a",
        "a ",
        "a\x00b",
        "a\nb",
        "é",
        "\xa0a",
    ],
)
def test_a_malformed_value_is_refused(value: str):
    with pytest.raises(HeaderMismatch):
        decode_value(value)


def test_the_marks_of_the_encoded_form_are_case_sensitive():
    assert decode_value("=?BASE64?SGk=?=") == "=?BASE64?SGk=?="
    assert decode_value("=?base64?SGk=?=") == "Hi"


# Standard headers


REQUESTS: list[tuple[str, Fields, list[tuple[str, str]]]] = [
    ("tools/list", {"cursor": raw("x")}, []),
    ("tools/call", {"name": raw("get_weather")}, [("Mcp-Name", "get_weather")]),
    ("prompts/get", {"name": raw("ü")}, [("Mcp-Name", "=?base64?w7w=?=")]),
    ("resources/read", {"uri": raw("file:///a b")}, [("Mcp-Name", "file:///a b")]),
    ("completion/complete", {"name": raw("a"), "uri": raw("b")}, []),
    ("tools/call", {"name": raw("")}, [("Mcp-Name", "")]),
    ("tools/call", {}, []),
    ("tools/call", {"name": raw(1)}, []),
]


@pytest.mark.parametrize(("method", "params", "named"), REQUESTS)
def test_a_request_says_its_method_and_name_in_headers(
    method: str, params: Fields, named: list[tuple[str, str]]
):
    """ "Standard Request Headers", 2026-07-28."""
    first = [("MCP-Protocol-Version", NEWEST), ("Mcp-Method", method)]
    assert method_headers(method, NEWEST) + name_headers(method, params) == tuple(first + named)


@given(st.sampled_from(["tools/call", "prompts/get", "resources/read", "tools/list"]), texts)
def test_headers_made_for_a_request_agree_with_it(method: str, name: str):
    call = Call(method, {"name": raw(name), "uri": raw(name)}, META)
    check_request(received([*method_headers(method, NEWEST), *name_headers(method, call.params)]), call)


@pytest.mark.parametrize("method", ["a\r\nEvil: yes", "é", " a", "a\x00"])
def test_a_method_that_no_header_can_carry_exists_nowhere(method: str):
    with pytest.raises(RpcError) as caught:
        method_headers(method, NEWEST)
    assert caught.value.code == METHOD_NOT_FOUND


CALL = Call("tools/call", {"name": raw("bar")}, META)
GOOD = {"mcp-protocol-version": NEWEST, "mcp-method": "tools/call", "mcp-name": "bar"}


@pytest.mark.parametrize(
    ("header", "value", "reason"),
    [
        ("mcp-protocol-version", None, "the MCP-Protocol-Version header is missing"),
        ("mcp-method", None, "the Mcp-Method header is missing"),
        ("mcp-name", None, "the Mcp-Name header is missing"),
        (
            "mcp-protocol-version",
            "2025-11-25",
            "MCP-Protocol-Version header value '2025-11-25' does not match body value '2026-07-28'",
        ),
        (
            "mcp-method",
            "Tools/Call",
            "Mcp-Method header value 'Tools/Call' does not match body value 'tools/call'",
        ),
        ("mcp-name", "foo", "Mcp-Name header value 'foo' does not match body value 'bar'"),
        ("mcp-name", "Bar", "Mcp-Name header value 'Bar' does not match body value 'bar'"),
        ("mcp-name", "bar, bar", "Mcp-Name header value 'bar, bar' does not match body value 'bar'"),
        ("mcp-name", "=?base64?YmF6?=", "Mcp-Name header value 'baz' does not match body value 'bar'"),
        (
            "mcp-name",
            "=?base64?YmFy",
            "Mcp-Name header value '=?base64?YmFy' does not match body value 'bar'",
        ),
        ("mcp-name", "=?base64?!?=", "'=?base64?!?=' is not valid base64"),
        ("mcp-name", "\xa0bar", "a value has characters that a header must not have"),
        ("mcp-method", "tools/call\x85", "a value has characters that a header must not have"),
    ],
)
def test_each_header_must_be_there_and_say_what_the_body_says(header: str, value: str | None, reason: str):
    """ "Server Validation", 2026-07-28."""
    headers = {name: text for name, text in {**GOOD, header: value}.items() if text is not None}
    with pytest.raises(HeaderMismatch) as caught:
        check_request(headers, CALL)
    assert (caught.value.code, caught.value.message) == (HEADER_MISMATCH, f"Header mismatch: {reason}")


@pytest.mark.parametrize("name", ["bar", " bar\t", "=?base64?YmFy?="])
def test_blanks_around_a_value_and_an_encoding_without_need_are_accepted(name: str):
    check_request({**GOOD, "mcp-name": name, "x-other": "1"}, CALL)


def test_a_name_in_the_header_alone_does_not_match():
    with pytest.raises(HeaderMismatch):
        check_request(GOOD, Call("tools/call", {}, CALL.meta))


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
def test_a_task_in_the_header_is_that_of_the_body(method: str):
    call, headers = Call(method, {"taskId": raw("bar")}, META), {**GOOD, "mcp-method": method}
    check_request(headers, call)
    check_request({name: value for name, value in headers.items() if name != "mcp-name"}, call)
    with pytest.raises(HeaderMismatch, match="'foo' does not match body value 'bar'"):
        check_request({**headers, "mcp-name": "foo"}, call)


# x-mcp-header


def schema_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def marked(header: Any, kind: Any = "string", **more: Any) -> dict[str, Any]:
    return {"type": kind, "x-mcp-header": header, **more}


VALID: list[tuple[str, Any, dict[str, Path]]] = [
    ("no schema", None, {}),
    ("none", schema_of(a={"type": "string"}), {}),
    ("one", schema_of(region=marked("Region"), query={"type": "string"}), {"Region": ("region",)}),
    (
        "each type",
        schema_of(a=marked("A"), b=marked("B", "integer"), c=marked("C", "boolean")),
        {"A": ("a",), "B": ("b",), "C": ("c",)},
    ),
    ("nested", schema_of(a=schema_of(b=schema_of(c=marked("X")))), {"X": ("a", "b", "c")}),
    (
        "every token character",
        schema_of(a=marked("!#$%&'*+-.^_`|~09azAZ")),
        {"!#$%&'*+-.^_`|~09azAZ": ("a",)},
    ),
    ("a property called so", schema_of(**{"x-mcp-header": {"type": "object"}}), {}),
    (
        "a property called properties",
        schema_of(properties=schema_of(a=marked("X"))),
        {"X": ("properties", "a")},
    ),
    ("in data", schema_of(a={"default": marked("X"), "enum": [marked("X")], "const": marked("X")}), {}),
    ("in examples", {"type": "object", "examples": [marked("X")]}, {}),
    ("a name required with it", {"type": "object", "dependentRequired": {"x-mcp-header": ["a"]}}, {}),
    ("a definition called so", {"type": "object", "$defs": {"x-mcp-header": {"type": "string"}}}, {}),
    ("properties that are no schemas", {"type": "object", "properties": {"a": True, "b": 1}}, {}),
]


@pytest.mark.parametrize(("schema", "params"), [row[1:] for row in VALID], ids=[row[0] for row in VALID])
def test_annotated_properties_are_found_with_their_paths(schema: Any, params: dict[str, Path]):
    assert header_params(schema) == params
    assert list(header_params(schema)) == list(params)


INVALID: list[tuple[str, Any]] = [
    ("empty", schema_of(a=marked(""))),
    ("blank", schema_of(a=marked("My Region"))),
    ("colon", schema_of(a=marked("A:B"))),
    ("line break", schema_of(a=marked("A\r\nEvil: yes"))),
    ("line break at the end", schema_of(a=marked("A\n"))),
    ("not ASCII", schema_of(a=marked("Région"))),
    ("no string", schema_of(a=marked(1))),
    ("null", schema_of(a=marked(None))),
    ("twice", schema_of(a=marked("X"), b=marked("X"))),
    ("twice but for case", schema_of(a=marked("Region"), b=schema_of(c=marked("rEGION")))),
    ("type number", schema_of(a=marked("X", "number"))),
    ("type object", schema_of(a=marked("X", "object"))),
    ("type array", schema_of(a=marked("X", "array"))),
    ("several types", schema_of(a=marked("X", ["string", "null"]))),
    ("no type", schema_of(a={"x-mcp-header": "X"})),
    ("on the root", marked("X")),
    ("in items", schema_of(a={"type": "array", "items": marked("X")})),
    ("in prefixItems", schema_of(a={"type": "array", "prefixItems": [marked("X")]})),
    ("in items of properties", schema_of(a={"type": "array", "items": schema_of(b=marked("X"))})),
    ("in oneOf", schema_of(a={"oneOf": [marked("X")]})),
    ("in anyOf of the root", {"type": "object", "anyOf": [schema_of(a=marked("X"))]}),
    ("in allOf", {"type": "object", "allOf": [schema_of(a=marked("X"))]}),
    ("in not", {"type": "object", "not": schema_of(a=marked("X"))}),
    ("in if", {"type": "object", "if": schema_of(a=marked("X"))}),
    ("in then", {"type": "object", "then": schema_of(a=marked("X"))}),
    ("in else", {"type": "object", "else": schema_of(a=marked("X"))}),
    ("in $defs", {"type": "object", "$defs": {"a": marked("X")}}),
    ("in additionalProperties", {"type": "object", "additionalProperties": marked("X")}),
    ("in patternProperties", {"type": "object", "patternProperties": {".": marked("X")}}),
    ("in dependentSchemas", {"type": "object", "dependentSchemas": {"a": schema_of(b=marked("X"))}}),
]


@pytest.mark.parametrize("schema", [row[1] for row in INVALID], ids=[row[0] for row in INVALID])
def test_an_annotation_that_breaks_a_rule_spoils_the_tool(schema: Any):
    """ "Schema Extension", 2026-07-28: constraints on `x-mcp-header` values."""
    with pytest.raises(InvalidHeaderSchema):
        header_params(schema)


def test_a_schema_may_be_nested_as_deeply_as_it_likes():
    names = tuple(f"p{level}" for level in range(3000))
    schema: dict[str, Any] = marked("Deep")
    hidden: dict[str, Any] = marked("Deep")
    for name in reversed(names):
        schema = schema_of(**{name: schema})
        hidden = {"not": hidden}
    assert header_params(schema) == {"Deep": names}
    with pytest.raises(InvalidHeaderSchema):
        header_params(hidden)


# Headers from arguments

scalars = st.text() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1)
arguments = st.dictionaries(
    tokens, scalars | st.none() | st.dictionaries(tokens, scalars, max_size=3), max_size=4
)


def paths_in(value: Any) -> list[Path]:
    return [
        path
        for name, part in value.items()
        for path in ([(name, *inner) for inner in paths_in(part)] if isinstance(part, dict) else [(name,)])
    ]


@given(arguments)
def test_headers_made_from_arguments_agree_with_them(values: dict[str, Any]):
    params = {
        f"P{index}": path for index, path in enumerate([*paths_in(values), ("absent",), ("absent", "x")])
    }
    headers = param_headers(params, values)
    check_param_headers(received(headers), params, values)
    for name, value in headers:
        assert FIELD_VALUE.fullmatch(value)
        missing = {header: text for header, text in received(headers).items() if header != name.lower()}
        with pytest.raises(HeaderMismatch):
            check_param_headers(missing, params, values)
        with pytest.raises(HeaderMismatch):
            check_param_headers({**received(headers), name.lower(): value + "x"}, params, values)


SPELLINGS: list[tuple[Any, str | None]] = [
    ("us-west1", "us-west1"),
    ("", ""),
    ("null", "null"),
    (42, "42"),
    (-7, "-7"),
    (0, "0"),
    (42.0, "42"),
    (1.5, "1.5"),
    (True, "true"),
    (False, "false"),
    (2**53 - 1, "9007199254740991"),
    (None, None),
    ({"a": 1}, None),
    (["a"], None),
]


@pytest.mark.parametrize(("value", "spelled"), SPELLINGS)
def test_a_value_is_spelled_as_the_specification_says_or_left_out(value: Any, spelled: str | None):
    """ "Value Encoding" (type conversion) and "Server Behavior for Custom Headers", 2026-07-28."""
    expected = [] if spelled is None else [("Mcp-Param-X", spelled)]
    assert param_headers({"X": ("a",)}, {"a": value}) == expected


AGREE: list[tuple[Any, str]] = [
    (42, "42.0"),
    (42.0, "42"),
    (42, "042"),
    (-7, "-7.00"),
    (0, "-0"),
    ("a", " a\t"),
    ("Hi", "=?base64?SGk=?="),
    (10**30, str(10**30)),
    (1.5, "1.5"),
]
DIFFER: list[tuple[Any, str]] = [
    (42, "43"),
    (42, "42.5"),
    (42, "4.2e1"),
    (42, "4_2"),
    (42, "+42"),
    (42, "0x2a"),
    (42, "٤٢"),
    (42, "=?base64?2aTZog==?="),
    (42, "=?base64?IDQy?="),  # " 42"
    (42, ""),
    (2**53, str(2**53 + 1)),
    (10**400, "1"),
    (1e300, "inf"),
    (1, "true"),
    (True, "1"),
    (True, "True"),
    (False, "0"),
    ("42", "42.0"),
    ("a", "A"),
    ("a", ""),
    (None, ""),
    (None, "null"),
    ({"a": 1}, "{'a': 1}"),
]


@pytest.mark.parametrize(("value", "said"), AGREE)
def test_headers_that_mean_the_same_as_the_body_are_accepted(value: Any, said: str):
    """ "Server Validation", 2026-07-28: integers SHOULD be compared numerically."""
    check_param_headers({"mcp-param-region": said}, {"Region": ("a",)}, {"a": value})


@pytest.mark.parametrize(("value", "said"), DIFFER)
def test_headers_that_mean_something_else_than_the_body_are_refused(value: Any, said: str):
    with pytest.raises(HeaderMismatch):
        check_param_headers({"mcp-param-region": said}, {"Region": ("a",)}, {"a": value})


def test_headers_that_the_tool_does_not_ask_for_are_ignored():
    check_param_headers({"mcp-param-other": "x"}, {}, {"a": 1})


@pytest.mark.parametrize("values", [None, [], {}, {"a": 1}, {"a": {"c": 1}}])
def test_there_is_no_value_where_the_path_does_not_lead(values: Any):
    assert value_at(values, ("a", "b")) is None
    check_param_headers({}, {"Region": ("a", "b")}, values)
