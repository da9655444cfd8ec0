"""Content for older revisions: the closest thing that they can carry."""

from __future__ import annotations

from typing import Any

import pytest

from mcpmux.protocol.content import downgrade_content
from mcpmux.protocol.envelope import decode_any, raw
from mcpmux.protocol.revisions import LEGACY
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
