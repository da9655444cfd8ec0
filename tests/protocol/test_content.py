"""Results for older revisions: the closest thing that they can carry, and never something invalid."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpmux.protocol import method as m
from mcpmux.protocol.call import upgrade_result
from mcpmux.protocol.envelope import decode_any, decode_fields, raw
from mcpmux.protocol.era import downgrade_content, downgrade_result
from mcpmux.protocol.revisions import LEGACY, NEWEST
from tests.examples import examples
from tests.oracle import SchemaOracle

TEXT = {"type": "text", "text": "t", "annotations": {"priority": 1}}
LINK = {
    "type": "resource_link",
    "uri": "docs+file:///a",
    "name": "a",
    "title": "A",
    "annotations": {"priority": 1},
}
AUDIO = {"type": "audio", "data": "AAE=", "mimeType": "audio/wav"}
LINK_AS_TEXT = {"type": "text", "text": "A: docs+file:///a", "annotations": {"priority": 1}}
AUDIO_AS_RESOURCE = {
    "type": "resource",
    "resource": {"uri": "audio:", "mimeType": "audio/wav", "blob": "AAE="},
}
EXPECTED = {
    "2024-11-05": [TEXT, LINK_AS_TEXT, AUDIO_AS_RESOURCE],
    "2025-03-26": [TEXT, LINK_AS_TEXT, AUDIO],
    "2025-06-18": [TEXT, LINK, AUDIO],
    "2025-11-25": [TEXT, LINK, AUDIO],
}


@pytest.mark.parametrize("revision", LEGACY)
def test_every_block_becomes_something_that_the_revision_can_carry(revision):
    result = downgrade_content("tools/call", {"content": raw([TEXT, LINK, AUDIO])}, revision)
    content = decode_any(result["content"])
    assert content == EXPECTED[revision]
    answer = {"jsonrpc": "2.0", "id": 1, "result": {"content": content}}
    SchemaOracle(revision).check_from_server(answer, "tools/call")


@pytest.mark.parametrize("revision", LEGACY)
def test_prompts_carry_the_same(revision):
    messages = [{"role": "user", "content": block} for block in (TEXT, LINK, AUDIO)]
    result = downgrade_content("prompts/get", {"messages": raw(messages)}, revision)
    assert [message["content"] for message in decode_any(result["messages"])] == EXPECTED[revision]


@pytest.mark.parametrize("value", [3, "x", [1], {"content": "x"}])
def test_what_makes_no_sense_is_left_alone(value: Any):
    for method, key in (("tools/call", "content"), ("prompts/get", "messages")):
        assert decode_any(downgrade_content(method, {key: raw(value)}, "2024-11-05")[key]) == value
        assert downgrade_content(method, {}, "2024-11-05") == {}


# Structured output

STRUCTURED = [{"a": 1.0}, [1], 7, "x", None, True]


@pytest.mark.parametrize("revision", LEGACY)
@pytest.mark.parametrize("structured", STRUCTURED, ids=repr)
def test_structured_output_is_there_as_text_where_nobody_looks_at_it(structured: Any, revision: str):
    fields = decode_fields(raw({"content": [], "structuredContent": structured}))
    down = decode_any(raw(downgrade_content("tools/call", fields, revision)))
    is_object = isinstance(structured, dict)
    expected = [] if is_object and revision >= "2025-06-18" else [json.dumps(structured)]
    assert [json.dumps(json.loads(block["text"])) for block in down["content"]] == expected
    assert ("structuredContent" in down) is is_object
    SchemaOracle(revision).check_from_server({"jsonrpc": "2.0", "id": 1, "result": down}, "tools/call")


@pytest.mark.parametrize("revision", LEGACY)
def test_what_is_said_as_text_already_is_not_said_twice(revision: str):
    fields = {"content": raw([LINK, TEXT]), "structuredContent": raw([1])}
    down = downgrade_content("tools/call", fields, revision)
    assert len(decode_any(down["content"])) == 2


@given(st.sampled_from(LEGACY))
def test_structured_output_without_sound_content_is_no_trouble(revision: str):
    fields = {"content": raw(3), "structuredContent": raw([1])}
    assert downgrade_content("tools/call", fields, revision) == {"content": raw(3)}


# Laws: all that a server of 2026-07-28 sends, in every older revision

Members = dict[str, st.SearchStrategy[Any]]
"""The values of each member of an object."""

texts = st.text(max_size=5)
names = st.text("abc-_.", min_size=1, max_size=5)
uris = names.map(lambda name: f"memo:{name}")
marks = st.fixed_dictionaries(
    {},
    optional={
        "audience": st.lists(st.sampled_from(["user", "assistant"]), max_size=2),
        "priority": st.floats(0, 1),
        "lastModified": st.just("2026-01-01T00:00:00Z"),
    },
)
icons = st.just([{"src": "https://example.com/i.png", "mimeType": "image/png", "sizes": ["16x16"]}])
described: Members = {
    "title": texts,
    "description": texts,
    "icons": icons,
    "_meta": st.just({"example.com/a": 1}),
}
data = st.sampled_from(["", "AAE=", "UklGRg=="])


def block(kind: str, members: Members) -> st.SearchStrategy[Any]:
    optional: Members = {"annotations": marks, "_meta": st.just({"a": 1})}
    required: Members = {"type": st.just(kind), **members}
    return st.fixed_dictionaries(required, optional=optional)


contents = st.fixed_dictionaries({"uri": uris, "text": texts}) | st.fixed_dictionaries(
    {"uri": uris, "blob": data}
)
link: Members = {"type": st.just("resource_link"), "uri": uris, "name": names}
blocks: st.SearchStrategy[Any] = st.one_of(
    block("text", {"text": texts}),
    block("image", {"data": data, "mimeType": st.just("image/png")}),
    block("audio", {"data": data, "mimeType": st.just("audio/wav")}),
    block("resource", {"resource": contents}),
    st.fixed_dictionaries(link, optional={**described, "annotations": marks, "size": st.integers(0, 9)}),
)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
schemas = st.booleans() | st.fixed_dictionaries(
    {},
    optional={"type": st.sampled_from(["string", "array"]), "enum": st.just(["a"]), "items": st.booleans()},
)
object_schemas = st.fixed_dictionaries(
    {"type": st.just("object")},
    optional={
        "properties": st.dictionaries(names, schemas, max_size=3),
        "required": st.lists(names, max_size=2),
        "additionalProperties": st.booleans(),
        "$schema": st.just("https://json-schema.org/draft/2020-12/schema"),
    },
)
tools = st.fixed_dictionaries(
    {"name": names, "inputSchema": object_schemas},
    optional={
        **described,
        "outputSchema": object_schemas | st.fixed_dictionaries({"type": st.just("array"), "items": schemas}),
        "annotations": st.fixed_dictionaries({}, optional={"title": texts, "readOnlyHint": st.booleans()}),
    },
)
called = st.fixed_dictionaries(
    {"content": st.lists(blocks, max_size=4)}, optional={"structuredContent": plain, "isError": st.booleans()}
)
prompted = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": blocks}), max_size=4
).map(lambda messages: {"messages": messages})
listed = st.lists(tools, max_size=3).map(lambda items: {"tools": items})
results = st.one_of(
    called.map(lambda result: (m.TOOLS_CALL, result)),
    prompted.map(lambda result: (m.PROMPTS_GET, result)),
    listed.map(lambda result: (m.TOOLS_LIST, result)),
)


def judged(revision: str, method: str, result: Any) -> Any:
    SchemaOracle(revision).check_from_server({"jsonrpc": "2.0", "id": 1, "result": result}, method)
    return result


@settings(max_examples=examples(80), deadline=None)
@given(results, st.sampled_from(LEGACY))
def test_every_result_is_good_in_every_older_revision(result: tuple[str, Any], revision: str):
    method, members = result
    modern = upgrade_result(method, decode_fields(raw(members)))
    judged(NEWEST, method, decode_any(raw(modern)))
    down = downgrade_content(method, downgrade_result(dict(modern)), revision)
    judged_result = judged(revision, method, decode_any(raw(down)))
    again = downgrade_content(method, downgrade_result(decode_fields(raw(judged_result))), revision)
    assert decode_any(raw(again)) == judged_result  # what an older revision can express is unchanged
    judged(NEWEST, method, decode_any(raw(upgrade_result(method, again))))


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(blocks, max_size=4), st.sampled_from(LEGACY))
def test_nothing_that_content_says_gets_lost(content: list[Any], revision: str):
    down = downgrade_content(m.TOOLS_CALL, {"content": raw(content)}, revision)
    older = decode_any(down["content"])
    assert len(older) == len(content)
    for block, after in zip(content, older, strict=True):
        assert after.get("annotations") == block.get("annotations")
        if after["type"] == block["type"]:
            assert after == block
        elif block["type"] == "audio":
            assert (after["resource"]["blob"], after["resource"]["mimeType"]) == (block["data"], "audio/wav")
        else:
            assert block["uri"] in after["text"]
            assert (block.get("title") or block["name"]) in after["text"]
