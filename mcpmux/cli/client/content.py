"""The contents of resources, and the content blocks of tools, prompts and questions, as text and as bytes."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, NamedTuple

from mcpmux.errors import RemoteProtocolError
from mcpmux.protocol.envelope import raw


class Content(NamedTuple):
    """One item of `contents`: text, or the bytes of a blob."""

    uri: str
    mime_type: str
    data: str | bytes

    @property
    def as_bytes(self) -> bytes:
        return self.data if isinstance(self.data, bytes) else self.data.encode(errors="replace")

    def as_text(self, hint: str = "") -> str:
        """Return the text; `[image/png, 311 bytes]`, with a hint, in place of bytes."""
        if isinstance(self.data, str):
            return self.data
        return f"[{self.mime_type or 'unknown type'}, {len(self.data)} bytes{hint}]"


def text_in(item: Mapping[str, Any], key: str) -> str | None:
    """Return a member that is text, None for no or another one."""
    return text if isinstance(text := item.get(key), str) else None


def decode_content(item: Mapping[str, Any]) -> Content:
    """Return one item of `contents`. Raises RemoteProtocolError for a blob that is no base64."""
    uri, mime_type = text_in(item, "uri") or "", text_in(item, "mimeType") or ""
    text, blob = text_in(item, "text"), text_in(item, "blob")
    if text is not None or blob is None:
        return Content(uri, mime_type, text or "")
    return Content(uri, mime_type, _decode_base64(blob, f"the blob of {uri}"))


def _decode_base64(text: str, what: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)  # some encoders break lines
    except (binascii.Error, ValueError):  # characters beyond ASCII are a ValueError
        raise RemoteProtocolError(f"{what} is not base64") from None


def render_block(block: Mapping[str, Any], hint: str = "") -> str:
    """Return a content block as text; one of bytes as a label, with a hint. Raises RemoteProtocolError."""
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind == "resource_link":
        return f"[link] {block.get('uri')} {block.get('title') or block.get('name') or ''}".rstrip()
    if kind == "resource" and isinstance(block.get("resource"), dict):
        content = decode_content(block["resource"])
        return f"[{content.uri}]\n{content.as_text(hint)}"
    if kind in ("image", "audio"):
        return f"[{kind}, {block.get('mimeType')}{hint}]"
    return bytes(raw(block)).decode()


def block_bytes(block: Mapping[str, Any]) -> bytes:
    """Return a block for a file: the bytes of an image, a sound or a resource, or its text."""
    if isinstance(resource := block.get("resource"), dict):
        return decode_content(resource).as_bytes
    if block.get("type") in ("image", "audio"):
        return _decode_base64(str(block.get("data")), f"the {block['type']} of the result")
    return f"{render_block(block)}\n".encode(errors="replace")
