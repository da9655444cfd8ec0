"""Annotated tools: learned from lists, mirrored into headers, left out when invalid."""

from __future__ import annotations

import json
from typing import Any

from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import decode_any, raw
from mcpmux.protocol.headers import HEADER_CHARS, ToolHeaders


def tool(name: str, *headers: Any, kind: str = "string") -> dict[str, Any]:
    properties = {f"p{n}": {"type": kind, "x-mcp-header": header} for n, header in enumerate(headers)}
    return {"name": name, "inputSchema": {"type": "object", "properties": properties}}


def call(name: str, **arguments: Any) -> Call:
    return Call("tools/call", {"name": raw(name), "arguments": raw(arguments)}, {})


def test_a_call_carries_the_headers_of_its_tool():
    headers = ToolHeaders()
    assert headers.learn({"tools": raw([tool("a", "Region", "Zone"), tool("b")])}) == []
    assert headers.headers_of(call("a", p0="us", p1="日本")) == (
        ("Mcp-Param-Region", "us"),
        ("Mcp-Param-Zone", "=?base64?5pel5pys?="),
    )
    assert headers.headers_of(call("a", p1=None)) == ()
    assert headers.headers_of(call("b", p0="us")) == ()
    assert headers.headers_of(call("unknown", p0="us")) == ()


def test_an_invalid_tool_is_cut_out_and_the_others_keep_their_bytes():
    headers = ToolHeaders()
    spaced = '{"name": "good",  "inputSchema": {"type": "object"}, "n": 1.0}'
    bad = [tool("bad", "not a token"), tool("twice", "A", "a"), tool("number", "N", kind="number")]
    bad.append(tool("long", "A" * (HEADER_CHARS + 1)))
    result = {"tools": raw([*bad]).__class__(f"[{spaced},{json.dumps(bad)[1:-1]}]".encode())}
    assert [name for name, _ in headers.learn(result)] == ["bad", "twice", "number", "long"]
    assert decode_any(result["tools"]) == [json.loads(spaced)]
    assert b"1.0" in bytes(result["tools"])


def test_a_tool_that_loses_its_annotations_loses_its_headers():
    headers = ToolHeaders()
    headers.learn({"tools": raw([tool("a", "Region")])})
    headers.learn({"tools": raw([tool("a")])})
    assert headers.headers_of(call("a", p0="us")) == ()


def test_what_is_no_list_of_tools_is_left_alone():
    headers = ToolHeaders()
    for result in ({}, {"tools": raw(["x-mcp-header"])}, {"tools": raw("x-mcp-header")}):
        assert headers.learn(result) == []
