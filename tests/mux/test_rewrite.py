from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.errors import RpcError
from mcpmux.mux.rewrite import (
    BLOCK_DEPTH,
    DEPTH_ALWAYS,
    DEPTH_LIMIT,
    READ_BYTES,
    Namespace,
    expose_error,
    expose_event,
    expose_item,
    expose_result,
    resolve_arguments,
)
from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import decode_fields, raw
from mcpmux.protocol.raw_json import Raw
from tests.payloads import json_texts

NAMESPACE = Namespace({"docs": "docs", "git": "git", "bare": ""})
SPACE = NAMESPACE.spaces["docs"]
OUTSIDE = {  # what stands in the tables below -> as docs says it, as clients see it
    "<uri>": ("file:///a", "docs+file:///a"),
    "<ui>": ("ui://view/a", "ui://docs/view/a"),
    "<template>": ("file:///{+path}", "docs+file:///{+path}"),
    "<name>": ("search", "docs__search"),
}


def fill(text: str, side: int, filler: str) -> str:
    for mark, sides in OUTSIDE.items():
        text = text.replace(mark, sides[side])
    return text.replace("@", filler)


# Each row: the method, and one JSON text. "@" is any JSON value, which must keep its bytes.

ITEMS = [
    (m.RESOURCES_LIST, '{"uri":"<uri>","name":"file:///a","icons":@,"_meta":@}'),
    (m.RESOURCES_LIST, '{"x":@,"uri":"<ui>"}'),
    (m.TEMPLATES_LIST, '{"uriTemplate":"<template>","uri":"file:///a","name":"search","annotations":@}'),
    (m.TOOLS_LIST, '{"name":"<name>","title":"search","inputSchema":@,"outputSchema":@}'),
    (
        m.TOOLS_LIST,
        '{"_meta":{"a":@,"ui":{"x":@,"resourceUri":"<ui>"},"ui/resourceUri":"<ui>"},"name":"<name>"}',
    ),
    (m.TOOLS_LIST, '{"name":"<name>","_meta":{"openai/outputTemplate":"<ui>","openai/x":@}}'),
    (m.TOOLS_LIST, '{"name":"<name>","_meta":{"ui":{"resourceUri":"<uri>"}}}'),
    (m.TOOLS_LIST, '{"name":"<name>","_meta":null,"uri":"file:///a"}'),
    (m.TOOLS_LIST, '{"name":"<name>","_meta":{"ui":"ui://view/a"}}'),
    (
        m.PROMPTS_LIST,
        '{"name":"<name>","arguments":[{"name":"search"}],"_meta":{"ui":{"resourceUri":"ui://view/a"}}}',
    ),
    (m.RESOURCES_LIST, '{"uri":1,"name":@}'),
    (m.RESOURCES_LIST, '{"name":"search"}'),
]

LINK = '{"type":"resource_link","uri":"<uri>","name":"search","x":@}'
EMBEDDED = '{"type":"resource","resource":{"uri":"<uri>","text":"file:///a","_meta":@},"annotations":@}'
PLAIN = '{"type":"text","text":"file:///a","uri":"file:///a","resource":{"uri":"file:///a"},"x":@}'
NESTED = f'{{"type":"tool_result","toolUseId":"search","content":[{LINK},{EMBEDDED},{PLAIN}]}}'
MESSAGES = (
    f'[{{"role":"user","content":{LINK}}},'
    f'{{"role":"user","content":[{EMBEDDED},{NESTED}]}},'
    f'{{"role":@,"content":{PLAIN}}}]'
)
SAMPLING = f'{{"method":"sampling/createMessage","params":{{"messages":{MESSAGES},"systemPrompt":@}}}}'
ELICITING = '{"method":"elicitation/create","params":{"mode":"url","url":"file:///a","messages":[@]}}'

RESULTS = [
    (
        m.RESOURCES_READ,
        '{"contents":[{"uri":"<uri>","text":"file:///a","x":@},{"x":@,"uri":"<ui>"}],"_meta":@}',
    ),
    (m.RESOURCES_READ, '{"contents":[{"uri":"<uri>","text":"file:///a \\n \\"uri\\":","x":@}]}'),
    (m.RESOURCES_READ, '{"contents":[{"uri":"<ui>","mimeType":"text/plain","text":"{"}]}'),
    (m.RESOURCES_READ, '{"contents":[{"uri":"<uri>"}]}'),
    (m.RESOURCES_READ, '{"contents":[{"uri":"<uri>","text":"file:///a","_meta":{"uri":"file:///a"}}]}'),
    (m.RESOURCES_READ, '{"contents":[{"uri":"<uri>","text":"a"},{"uri":"<uri>","text":"}"}]}'),
    (m.RESOURCES_READ, '{"contents":[{"uri":"<uri>"},5]}'),
    (m.RESOURCES_READ, '{"contents":@}'),
    (m.TOOLS_CALL, f'{{"content":[{LINK},{EMBEDDED},{PLAIN}],"structuredContent":@,"isError":false}}'),
    (
        m.TOOLS_CALL,
        '{"content":[{"type":"resource","resource":"file:///a"}],"contents":[{"uri":"file:///a"}]}',
    ),
    (m.PROMPTS_GET, f'{{"description":@,"messages":{MESSAGES}}}'),
    (m.PROMPTS_GET, '{"messages":[{"role":"user"},{"role":"user","content":@}]}'),
    (m.COMPLETE, '{"completion":{"values":["file:///a"]},"contents":[{"uri":"file:///a"}],"x":@}'),
    (
        m.TOOLS_CALL,
        f'{{"resultType":"input_required","inputRequests":{{"a":{SAMPLING},"b":{ELICITING},"c":null}},"requestState":@}}',
    ),
    (m.RESOURCES_READ, f'{{"inputRequests":{{"a":{SAMPLING}}}}}'),
    (m.TOOLS_CALL, '{"inputRequests":@}'),
]

SPELLINGS = [
    '[{"uri":"file:///a","text":"t"}]',
    '[{"uri":"file:\\/\\/\\/a","text":"t"}]',
    '[{"uri":"\\u0066ile:///a","text":"t"}]',
    '[{"uri": "file:///a", "text": "t"}]',
    '[{"uri":"file:///b","\\u0075ri":"file:///a","text":"t"}]',
    '[{"uri":"file:///b","text":"t","uri":"file:///a"}]',
    '[{"text":"t","uri":"file:///a"}]',
    ' [ {"uri":"file:///a","text":"t"} ] ',
]
"""What was read, in every way in which a server may write it."""

EVENTS = [
    (m.RESOURCE_UPDATED, '{"uri":"<uri>","x":@}'),
    (m.RESOURCE_UPDATED, '{"x":@}'),
    (m.PROGRESS, '{"progressToken":"file:///a","uri":"file:///a","x":@}'),
    (m.CANCELLED, '{"requestId":1,"uri":"file:///a"}'),
]


@given(json_texts)
def test_list_items_show_outside_names_and_are_otherwise_the_same(filler: str):
    for method, text in ITEMS:
        changed = expose_item(method, decode_fields(fill(text, 0, filler).encode()), SPACE)
        assert bytes(raw(changed)).decode() == fill(text, 1, filler)


fillers = json_texts.filter(lambda text: text[0] not in "[{")
"""What cannot be taken for contents, messages or requests; those are listed in the tables."""


@given(fillers)
def test_results_show_outside_names_and_are_otherwise_the_same(filler: str):
    for method, text in RESULTS:
        changed = expose_result(method, decode_fields(fill(text, 0, filler).encode()), SPACE)
        assert bytes(raw(changed)).decode() == fill(text, 1, filler)


@pytest.mark.parametrize("contents", SPELLINGS)
def test_what_was_read_shows_its_outside_uri_however_it_is_spelled(contents: str):
    changed = expose_result(m.RESOURCES_READ, {"contents": Raw(contents.encode())}, SPACE)
    assert json.loads(bytes(changed["contents"])) == [{"uri": "docs+file:///a", "text": "t"}]


TEXTS = st.sampled_from(
    ["file:///a", "uri", '"uri"', "}", '{"uri":"file:///a"}', "\u00e4", "\\u0061", "}]", ""]
)
CONTENTS = st.lists(
    st.one_of(st.dictionaries(st.sampled_from(["uri", "text", "x"]), TEXTS | st.lists(TEXTS)), TEXTS),
    min_size=1,
)


@given(contents=CONTENTS, as_ascii=st.booleans())
def test_what_was_read_shows_its_outside_uris_whatever_else_is_in_it(contents: list, as_ascii: bool):
    text = json.dumps(contents, separators=(",", ":"), ensure_ascii=as_ascii)
    changed = expose_result(m.RESOURCES_READ, {"contents": Raw(text.encode())}, SPACE)
    for content in contents:
        if isinstance(content, dict) and isinstance(content.get("uri"), str):
            content["uri"] = SPACE.expose_uri(content["uri"])
    assert json.loads(bytes(changed["contents"])) == contents


@given(json_texts)
def test_notifications_show_outside_names_and_are_otherwise_the_same(filler: str):
    for method, text in EVENTS:
        changed = expose_event(method, decode_fields(fill(text, 0, filler).encode()), SPACE)
        assert bytes(raw(changed)).decode() == fill(text, 1, filler)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"level":"info","data":"x"}', '{"level":"info","data":"x","logger":"docs"}'),
        ('{"logger":"","data":1.0}', '{"logger":"docs","data":1.0}'),
        ('{"logger":null}', '{"logger":"docs"}'),
        ('{"logger":"db","data":{"uri":"file:///a"}}', '{"logger":"docs/db","data":{"uri":"file:///a"}}'),
    ],
)
def test_the_logger_of_a_log_message_names_the_upstream(before: str, after: str):
    assert bytes(raw(expose_event(m.LOG_MESSAGE, decode_fields(before.encode()), SPACE))).decode() == after


@pytest.mark.parametrize("text", ['{"uri":"file:\\/\\/\\/a","x":1}', '{"uri":"file:///\\u0061","x":1}'])
def test_a_uri_that_stays_as_it_is_keeps_even_its_spelling(text: str):
    """The unprefixed upstream beside others: only what would be misread changes."""
    item = expose_item(m.RESOURCES_LIST, decode_fields(text.encode()), NAMESPACE.spaces["bare"])
    assert bytes(raw(item)).decode() == text


def test_nested_tool_results_are_followed_to_a_limit():
    def nested(depth: int, uri: str) -> str:
        if depth == 0:
            return f'{{"type":"resource_link","uri":"{uri}"}}'
        return f'{{"type":"tool_result","content":[{nested(depth - 1, uri)}]}}'

    for depth, uri in ((BLOCK_DEPTH - 1, "docs+file:///a"), (BLOCK_DEPTH, "file:///a")):
        text = f'{{"messages":[{{"content":{nested(depth, "file:///a")}}}]}}'
        changed = expose_result(m.PROMPTS_GET, decode_fields(text.encode()), SPACE)
        assert uri in bytes(raw(changed)).decode().split('"')


# Errors


@given(json_texts)
def test_the_uri_in_an_errors_data_is_the_outside_one(filler: str):
    error = RpcError(-32602, "not found", Raw(fill('{"uri":"<uri>","x":@}', 0, filler).encode()))
    exposed = expose_error(error, SPACE)
    assert (exposed.code, exposed.message) == (-32602, "not found")
    assert bytes(exposed.data).decode() == fill('{"uri":"<uri>","x":@}', 1, filler)


@pytest.mark.parametrize(
    "data", [None, {"uri": "file:///a"}, raw([1]), raw("file:///a"), raw({"x": "file:///a"})]
)
def test_an_error_without_a_uri_of_the_upstream_stays_as_it_is(data: object):
    error = RpcError(-32602, "not found", data)
    assert expose_error(error, SPACE) is error


# Arguments


def resolved(text: str, upstream: str = "docs") -> str:
    return bytes(resolve_arguments(Raw(text.encode()), upstream, NAMESPACE)).decode()


@given(json_texts)
def test_arguments_without_the_upstreams_uris_keep_their_bytes(text: str):
    if "docs+" not in text and "\\" not in text:
        assert resolved(text) == text
    assert json.dumps(read(resolved(text))) == json.dumps(put_back(read(text)))


def read(text: str) -> object:
    """Return JSON whose numbers keep their spelling."""
    return json.loads(text, parse_int=str.upper, parse_float=str.lower)


def put_back(value: object) -> object:
    match value:
        case dict():
            return {key: put_back(part) for key, part in value.items()}
        case list():
            return [put_back(part) for part in value]
        case "docs+file:///a":
            return "file:///a"
    return value


ARGUMENTS = [
    ('"docs+file:///a"', '"file:///a"'),
    ('{"uri":"docs+file:///a","n":1.0}', '{"uri":"file:///a","n":1.0}'),
    ('{"a":["docs+memo:x",{"b":"ui://docs/view"}]}', '{"a":["memo:x",{"b":"ui://view"}]}'),
    ('{"a":"\\u0064ocs+file:///a","b":1E5}', '{"a":"file:///a","b":1E5}'),
    ('{"a":"docs+file:///a","big":123456789012345678901234567890,"huge":1e400}', None),
    ('{"a":"docs+git+file:///a"}', '{"a":"git+file:///a"}'),
    ('{"a":"docs+file:///{+path}"}', '{"a":"file:///{+path}"}'),
]
LEFT_ALONE = [
    '{"a":"git+file:///a"}',  # another upstream's
    '{"a":"file:///a"}',
    '{"a":"see docs+file:///a"}',  # inside a sentence
    '{"a":"docs+tutorials"}',  # no scheme left
    '{"a":"docs+1"}',
    '{"docs+file:///a":1}',  # a name, not a value
    '{"a":"docs+"}',
    "[]",
    "null",
]


@pytest.mark.parametrize(("before", "after"), ARGUMENTS)
def test_an_exposed_uri_of_the_called_upstream_becomes_its_own_in_arguments(before: str, after: str | None):
    assert resolved(before) == (after or before.replace("docs+", ""))


@pytest.mark.parametrize("text", LEFT_ALONE)
def test_other_arguments_are_left_alone(text: str):
    assert resolved(text) == text


def test_an_unprefixed_upstream_is_called_with_its_own_uris():
    assert (
        resolved('{"a":"bare+docs+file:///a","b":"file:///b"}', "bare")
        == '{"a":"docs+file:///a","b":"file:///b"}'
    )


@given(
    st.sampled_from(list(NAMESPACE.spaces)),
    st.sampled_from(["file:///a", "docs+x:y", "ui://docs/x", "urn:x"]),
)
def test_an_exposed_uri_as_an_argument_reaches_its_upstream_unchanged(upstream: str, uri: str):
    exposed = NAMESPACE.spaces[upstream].expose_uri(uri)
    assert json.loads(resolved(json.dumps({"a": [exposed]}), upstream)) == {"a": [uri]}


@pytest.mark.parametrize(
    ("size", "limit"), [(0, DEPTH_LIMIT), (READ_BYTES // 10, 10), (READ_BYTES, DEPTH_ALWAYS)]
)
def test_arguments_are_followed_to_a_limit_which_is_lower_for_large_ones(size: int, limit: int):
    def nested(depth: int, text: str) -> str:
        members = '{"a":' * depth + f'"{text}"' + "}" * depth
        return f'{{"large":"{"x" * (size - len(members) - 20)}","a":{members}}}'

    deepest, deeper = limit - 2, limit - 1
    assert resolved(nested(deepest, "docs+a:b")) == nested(deepest, "docs+a:b").replace("docs+a:b", "a:b")
    assert resolved(nested(deeper, "docs+a:b")) == nested(deeper, "docs+a:b")
    endless = nested(100_000, "docs+a:b")
    assert resolved(endless) == endless


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Tool not found: nowx", "Tool not found: docs__nowx"),
        ("Unknown tool: 'nowx'", "Unknown tool: 'docs__nowx'"),
        ("MCP error -32602: Tool nowx not found", "MCP error -32602: Tool docs__nowx not found"),
        ("nowx is no nowx-like: nowx", "nowx is no nowx-like: docs__nowx"),
        ("nowx: no nowx here: nowx", "nowx: no nowx here: docs__nowx"),
        ("nowxy, my.nowx, nowx/2 and nowx.io", "nowxy, my.nowx, nowx/2 and nowx.io"),
        ("something else", "something else"),
    ],
)
def test_an_error_names_a_tool_as_its_client_does(message, expected):
    space = NAMESPACE.spaces["docs"]
    assert expose_error(RpcError(-32602, message), space, "nowx", "docs__nowx").message == expected


@given(st.text(), st.text(min_size=1), st.text(min_size=1))
def test_a_message_that_does_not_have_the_name_stays(message, own, shown):
    space, error = NAMESPACE.spaces["docs"], RpcError(-32602, message)
    if own not in message:
        assert expose_error(error, space, own, shown) is error
