from __future__ import annotations

import json
from typing import Any

import pytest

from mcpmux.cli.client import Content, decode_contents, render_block
from mcpmux.errors import RemoteProtocolError
from mcpmux.protocol.envelope import decode_fields


def contents(*items: Any) -> list[Content]:
    return decode_contents(decode_fields(json.dumps({"contents": items}).encode()))


def test_text_and_blobs_are_decoded() -> None:
    text = {"uri": "a:b", "mimeType": "text/plain", "text": "ü"}
    blob = {"uri": "a:c", "blob": "AP8="}
    assert contents(text, blob) == [Content("a:b", "text/plain", "ü"), Content("a:c", "", b"\x00\xff")]
    assert contents(text)[0].as_bytes == "ü".encode()
    assert contents(blob)[0].as_bytes == b"\x00\xff"


def test_blob_that_is_no_base64_is_the_servers_fault() -> None:
    with pytest.raises(RemoteProtocolError, match="a:c is not base64"):
        contents({"uri": "a:c", "blob": "?"})


@pytest.mark.parametrize("result", ["{}", '{"contents": 7}', '{"contents": [7]}'])
def test_result_without_contents_is_the_servers_fault(result: str) -> None:
    with pytest.raises(RemoteProtocolError, match="no contents"):
        decode_contents(decode_fields(result.encode()))


@pytest.mark.parametrize(
    ("block", "shown"),
    [
        ({"type": "text", "text": "hello"}, "hello"),
        (
            {"type": "image", "mimeType": "image/png", "data": "AA=="},
            "[image, image/png; --json has its data]",
        ),
        ({"type": "resource_link", "uri": "a:b", "name": "n", "title": "T"}, "[link] a:b T"),
        ({"type": "resource_link", "uri": "a:b"}, "[link] a:b"),
        ({"type": "resource", "resource": {"uri": "a:b", "text": "hello"}}, "[a:b]\nhello"),
        (
            {"type": "resource", "resource": {"uri": "a:b", "mimeType": "x/y", "blob": "AA=="}},
            "[a:b]\n[x/y, 1 bytes]",
        ),
        ({"type": "novelty", "x": 1}, '{"type":"novelty","x":1}'),
        ({"type": "resource", "resource": 7}, '{"type":"resource","resource":7}'),
    ],
)
def test_content_blocks_are_shown_as_text(block: dict[str, Any], shown: str) -> None:
    assert render_block(block) == shown
