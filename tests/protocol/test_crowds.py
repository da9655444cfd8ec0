"""Objects of very many members are refused before they are decoded, unless MCP knows the large member."""

from __future__ import annotations

import json

import pytest

from mcpmux.protocol.envelope import (
    CROWD_TEXTS,
    Reply,
    Request,
    decode_fields,
    decode_message,
    decode_reply,
    decode_request,
    is_crowded,
)

CROWD = {f"k{number}": 1 for number in range(2 * CROWD_TEXTS)}


def message(**members: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, **members}).encode()


@pytest.mark.parametrize(
    "encode", [str, lambda text: text.replace('":', '" :'), lambda t: t.replace("k", "k\\\\")]
)
def test_a_crowd_of_members_is_not_decoded(encode):
    crowd = encode(json.dumps({**CROWD, "content": []})).encode()
    with pytest.raises(ValueError, match="50000 names and texts"):
        decode_fields(crowd)
    request = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":%b}' % crowd
    assert decode_request(request) is None
    taken = decode_message(request)
    assert isinstance(taken, Request)
    with pytest.raises(ValueError, match="50000 names and texts"):
        decode_fields(taken.payload)


def test_a_large_result_that_mcp_knows_is_taken():
    data = message(result={"content": [], "structuredContent": CROWD, "_meta": {"a": 1}})
    assert decode_reply(data) is None
    taken = decode_message(data)
    assert isinstance(taken, Reply)
    members = decode_fields(taken.result)
    assert json.loads(bytes(members["structuredContent"])) == CROWD
    assert list(members) == ["content", "structuredContent", "_meta"]


def test_a_long_text_is_no_crowd():
    text = json.dumps({"a": ['"x"'] * CROWD_TEXTS})
    data = message(result={"content": [{"type": "text", "text": text}], "more": text})
    reply = decode_reply(data)
    assert reply is not None
    assert reply.members is not None
    assert json.loads(bytes(reply.members["more"])) == text


@pytest.mark.parametrize("filler", ["", '\\"' * 7, "a" * 33])
def test_a_crowd_is_counted_to_the_last_text(filler: str):
    text = f'"{filler}",'.encode()
    # An escaped quote may stand on the border of two parts that are counted apart.
    for start in (b"[", b"[  "):
        assert not is_crowded(start + text * CROWD_TEXTS)
        assert is_crowded(start + text * CROWD_TEXTS + b'""')
