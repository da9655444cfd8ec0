"""What is in results: the contents of resources, the content blocks of tools, in words and bytes."""

from __future__ import annotations

import base64
import binascii
from typing import Any, NamedTuple

from mcpmux.errors import RemoteProtocolError
from mcpmux.protocol.envelope import decode_list, raw, text_of
from mcpmux.protocol.raw_json import Fields


class Content(NamedTuple):
    """One item of `contents`: text, or the bytes of a blob."""

    uri: str
    mime_type: str
    data: str | bytes

    @property
    def as_bytes(self) -> bytes:
        """What goes into a file."""
        return self.data if isinstance(self.data, bytes) else self.data.encode(errors="replace")


def decode_contents(result: Fields) -> list[Content]:
    """The contents in the result of a read. Raises RemoteProtocolError when there are none."""
    try:
        return [decode_content(item) for item in decode_list(result["contents"])]
    except (KeyError, ValueError):
        raise RemoteProtocolError("the answer to resources/read has no contents in it") from None


def decode_content(item: Fields) -> Content:
    """One item. Raises RemoteProtocolError for a blob that is no base64."""
    uri, mime_type = text_of(item.get("uri")) or "", text_of(item.get("mimeType")) or ""
    text, blob = text_of(item.get("text")), text_of(item.get("blob"))
    if text is not None or blob is None:
        return Content(uri, mime_type, text or "")
    try:
        return Content(uri, mime_type, base64.b64decode(blob, validate=True))
    except binascii.Error:
        raise RemoteProtocolError(f"the blob of {uri} is not base64") from None


def describe_bytes(data: bytes, mime_type: str) -> str:
    """`[image/png, 311 bytes]`, in place of what no terminal can show."""
    return f"[{mime_type or 'unknown type'}, {len(data)} bytes]"


def render_block(block: dict[str, Any]) -> str:
    """A content block of a tool's result as text."""
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind == "resource_link":
        return f"[link] {block.get('uri')} {block.get('title') or block.get('name') or ''}".rstrip()
    if kind == "resource" and isinstance(block.get("resource"), dict):
        content = decode_content({key: raw(value) for key, value in block["resource"].items()})
        shown = (
            content.data if isinstance(content.data, str) else describe_bytes(content.data, content.mime_type)
        )
        return f"[{content.uri}]\n{shown}"
    if kind in ("image", "audio"):
        return f"[{kind}, {block.get('mimeType')}; --json has its data]"
    return bytes(raw(block)).decode()
