"""What `ls`, `read` and `call` make of the answers of servers, sloppy ones too."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcpmux.cli.client.content import Content, decode_content, render_block
from mcpmux.cli.client.listing import KINDS, group_by_server
from mcpmux.cli.client.requesting import FILE_HINT, objects_in
from mcpmux.cli.client.visit import read_items_left_out, read_left_out
from mcpmux.errors import RemoteProtocolError
from mcpmux.protocol.envelope import decode_fields, text_of
from mcpmux.protocol.raw_json import Fields


def fields(value: dict[str, Any]) -> Fields:
    return decode_fields(json.dumps(value).encode())


def cells(kind: str, item: dict[str, Any]) -> dict[str, str]:
    return {heading: text(fields(item)) for heading, text in KINDS[kind].columns.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "item",
    [
        {},
        {"uri": 7, "name": None, "title": [], "description": {}, "inputSchema": [], "arguments": {}},
        {"inputSchema": {"properties": [], "required": 7}},
        {"arguments": [7, {"name": 7}]},
    ],
)
def test_item_of_a_sloppy_server_still_has_every_cell(kind: str, item: dict[str, Any]) -> None:
    assert all(isinstance(text, str) for text in cells(kind, item).values())


def test_an_item_with_a_number_that_no_program_can_hold_is_shown() -> None:
    item = decode_fields(b'{"name":"n","inputSchema":{"properties":{"a":{"maximum":1e400}}},"_meta":1e400}')
    assert KINDS["tools"].columns["NAME"](item) == "n"
    assert KINDS["tools"].columns["ARGUMENTS"](item) == ""


def test_title_is_shown_before_the_name() -> None:
    assert cells("resources", {"name": "n"})["TITLE"] == "n"
    assert cells("resources", {"name": "n", "title": "T"})["TITLE"] == "T"


def test_only_the_first_line_of_a_description_is_shown() -> None:
    assert cells("tools", {"description": "\n First. \nSecond."})["DESCRIPTION"] == "First."


def test_optional_arguments_are_in_brackets() -> None:
    schema = {"properties": {"a": {}, "b": {}}, "required": ["b"]}
    assert cells("tools", {"inputSchema": schema})["ARGUMENTS"] == "[a] b"
    arguments = [{"name": "a"}, {"name": "b", "required": True}]
    assert cells("prompts", {"arguments": arguments})["ARGUMENTS"] == "[a] b"


def test_items_of_a_server_stand_beside_each_other() -> None:
    uris = ["b+x:1", "a+x:1", "plain:1", "b+x:2", "http://a/b+c", "a+x:2"]
    grouped = group_by_server([fields({"uri": uri, "name": "n"}) for uri in uris])
    assert [text_of(item["uri"]) for item in grouped] == [
        *("b+x:1", "b+x:2", "a+x:1", "a+x:2", "plain:1", "http://a/b+c")
    ]
    names = ["b__x", "plain", "a__x", "b__y"]
    grouped = group_by_server([fields({"name": name}) for name in names])
    assert [text_of(item["name"]) for item in grouped] == ["b__x", "b__y", "plain", "a__x"]


def test_items_that_are_left_out_are_read_from_the_result() -> None:
    problems = [
        {"item": "a__b", "problem": "has no inputSchema", "leftOut": True},
        {"item": "a__c", "problem": "has no type", "leftOut": False},
        {"problem": "7 is no object", "leftOut": True},
        7,
    ]
    result = fields({"_meta": {"dev.mcpmux/items": {"a": problems, "b": 7}}})
    assert read_items_left_out(result) == {
        "`a__b` of a": "has no inputSchema",
        "a part of a": "7 is no object",
    }


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        (None, {}),
        (7, {}),
        ({"dev.mcpmux/upstreams": 7}, {}),
        ({"dev.mcpmux/upstreams": {"a": 7, "b": {}}}, {"b": ""}),
        ({"dev.mcpmux/upstreams": {"a": {"state": "down", "reason": "gone"}}}, {"a": "gone"}),
    ],
)
def test_what_is_left_out_is_read_from_the_result(meta: Any, expected: dict[str, str]) -> None:
    assert read_left_out(fields({"_meta": meta})) == expected


def contents(*items: Any) -> list[Content]:
    return [decode_content(item) for item in objects_in(fields({"contents": items}), "contents", "it")]


def test_text_and_blobs_are_decoded() -> None:
    text = {"uri": "a:b", "mimeType": "text/plain", "text": "ü"}
    blob = {"uri": "a:c", "blob": "AP8="}
    assert contents(text, blob) == [Content("a:b", "text/plain", "ü"), Content("a:c", "", b"\x00\xff")]
    assert contents(text)[0].as_bytes == "ü".encode()
    assert contents(blob)[0].as_bytes == b"\x00\xff"
    assert contents(blob | {"blob": "AP\r\n8=\n"})[0].data == b"\x00\xff"  # as encoders for mail break lines


def test_blob_that_is_no_base64_is_the_servers_fault() -> None:
    with pytest.raises(RemoteProtocolError, match="a:c is not base64"):
        contents({"uri": "a:c", "blob": "?"})


@pytest.mark.parametrize(
    "result", ["{}", '{"contents": 7}', '{"contents": [7]}', '{"contents": [{"x": 1e400}]}']
)
def test_result_without_contents_is_the_servers_fault(result: str) -> None:
    with pytest.raises(RemoteProtocolError, match="no contents"):
        objects_in(decode_fields(result.encode()), "contents", "resources/read")


@pytest.mark.parametrize(
    ("block", "shown"),
    [
        ({"type": "text", "text": "hello"}, "hello"),
        (
            {"type": "image", "mimeType": "image/png", "data": "AA=="},
            "[image, image/png; -o FILE writes it to a file]",
        ),
        ({"type": "resource_link", "uri": "a:b", "name": "n", "title": "T"}, "[link] a:b T"),
        ({"type": "resource_link", "uri": "a:b"}, "[link] a:b"),
        ({"type": "resource", "resource": {"uri": "a:b", "text": "hello"}}, "[a:b]\nhello"),
        (
            {"type": "resource", "resource": {"uri": "a:b", "mimeType": "x/y", "blob": "AA=="}},
            "[a:b]\n[x/y, 1 bytes; -o FILE writes it to a file]",
        ),
        ({"type": "novelty", "x": 1}, '{"type":"novelty","x":1}'),
        ({"type": "resource", "resource": 7}, '{"type":"resource","resource":7}'),
    ],
)
def test_content_blocks_are_shown_as_text(block: dict[str, Any], shown: str) -> None:
    assert render_block(block, FILE_HINT) == shown
