from __future__ import annotations

import json
from typing import Any

import pytest

from mcpmux.cli.client import KINDS, read_items_left_out, read_left_out
from mcpmux.protocol.envelope import decode_fields
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
        {"inputSchema": {"properties": [], "required": 7}, "arguments": [7, {"name": 7}]},
    ],
)
def test_item_of_a_sloppy_server_still_has_every_cell(kind: str, item: dict[str, Any]) -> None:
    assert all(isinstance(text, str) for text in cells(kind, item).values())


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
