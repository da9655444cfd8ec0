"""Raw JSON values, the JSON-RPC messages around them as structs, and the repair of text with mistakes.

Never compiled: a compiled class keeps too little of its annotations for msgspec.

Many programs make the same mistakes, which are repaired:

    a byte order mark at the start                          is left out
    bytes that are not UTF-8                                become U+FFFD
    half a surrogate pair, written as an escape             becomes U+FFFD
    a control character inside a string                     becomes its escape
    NaN, Infinity, -Infinity                                become null, as JSON.stringify writes them

Promises: the rest of the text keeps its bytes; valid JSON is returned unchanged. Refuses to guess: text with
any other mistake stays malformed, and the decoder reports it.

Source: RFC 8259; "replacement of maximal subparts" in the Unicode Standard, section 3.9, for UTF-8.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, final

import msgspec
from msgspec import UNSET, Meta, UnsetType

if TYPE_CHECKING:
    # The stubs of msgspec make it a subclass of `bytes`, which it is not; mypyc would rely on that.
    @final
    class Raw:
        """A JSON value that msgspec decodes and encodes as it stands."""

        def __init__(self, msg: bytes | bytearray | memoryview | str = b"", /) -> None: ...
        def __buffer__(self, flags: int, /) -> memoryview: ...
        def __len__(self) -> int: ...
        def copy(self) -> Raw: ...
else:
    from msgspec import Raw as Raw

Fields = dict[str, Raw]
"""A JSON object whose members are still encoded."""

Id = int | str

SHORT_CHARS: Final = 4096
"""The limit for an id, a token, a method or a name from a peer: they are remembered in many places."""

_Short = Annotated[str, Meta(max_length=SHORT_CHARS)]
_ShortId = int | _Short


class Wire(msgspec.Struct, gc=False):
    """Any message."""

    jsonrpc: str | UnsetType = UNSET
    id: _ShortId | float | UnsetType | None = UNSET
    method: _Short | UnsetType | None = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class WireError(msgspec.Struct, gc=False):
    """The value of `error`."""

    code: int
    message: str = ""
    data: Raw | UnsetType = UNSET


class WireReply(msgspec.Struct, gc=False):
    """A successful answer, decoded together with its result's members."""

    jsonrpc: str
    id: _ShortId
    result: Fields
    method: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class WireRequest(msgspec.Struct, gc=False):
    """A request, decoded together with its parameters' members."""

    jsonrpc: str
    id: _ShortId
    method: _Short
    params: Fields | None = None


_NONE: Final = Raw(b"")


class WireLarge(msgspec.Struct, gc=False):
    """Members of parameters and results that may well be large; all others are skipped."""

    content: Raw = _NONE
    structuredContent: Raw = _NONE  # noqa: N815 - as MCP spells it
    contents: Raw = _NONE
    tools: Raw = _NONE
    resources: Raw = _NONE
    resourceTemplates: Raw = _NONE  # noqa: N815
    prompts: Raw = _NONE
    messages: Raw = _NONE
    tasks: Raw = _NONE
    arguments: Raw = _NONE
    inputRequests: Raw = _NONE  # noqa: N815
    inputResponses: Raw = _NONE  # noqa: N815


class RequestOut(msgspec.Struct, gc=False, tag_field="jsonrpc", tag="2.0"):
    """A request to encode."""

    id: Id
    method: str
    params: Mapping[str, Any] | UnsetType = UNSET


class ReplyOut(msgspec.Struct, gc=False, tag_field="jsonrpc", tag="2.0"):
    """A successful answer to encode."""

    id: Id
    result: Mapping[str, Any]


# Repair

BOM: Final = b"\xef\xbb\xbf"
# Limits for one text. The event loop waits while it is repaired, so all together take at most a tenth of a
# second; a text with more mistakes is not a slip.
REPAIR_BYTES: Final = 4 * 1024 * 1024
REPAIR_MARKS: Final = 250_000  # quotes and backslashes, as each ends a match of the patterns below
REPAIR_LIMIT: Final = 10_000  # places that are repaired
PIECE_BYTES: Final = 64 * 1024  # of text that is decoded at a time

_PAIR: Final = rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
# Parts of a string that need no repair. Another mistake in them is left to the decoder.
_SOUND: Final = rb"[^\"\\\x00-\x1f]++|\\[^u]|" + _PAIR + rb"|\\u(?![dD][89a-fA-F][0-9a-fA-F]{2})"
_INSIDE: Final = re.compile(rb"(?:%b)*+" % _SOUND, re.DOTALL)
_OUTSIDE: Final = re.compile(rb'(?:[^"NI]++|"(?:%b)*+")*+' % _SOUND, re.DOTALL)
_NO_NUMBER: Final = re.compile(rb"NaN|Infinity")
_QUOTE: Final = 0x22
_BACKSLASH: Final = 0x5C
_HALF_BYTES: Final = len(rb"\ud83d")


def repaired(data: bytes) -> bytes:
    """Return `data` with the mistakes above repaired; the same object if it has none, or is too much work."""
    if len(data) > REPAIR_BYTES or data.count(b'"') + data.count(b"\\") > REPAIR_MARKS:
        return data
    text = data.removeprefix(BOM)
    try:
        text.decode()
    except UnicodeDecodeError:
        decoded = _replaced(text)
        if decoded is None:
            return data
        text = decoded
    parts: list[bytes] = []
    copied = position = 0
    inside = False
    while len(parts) < 2 * REPAIR_LIMIT:
        sound = (_INSIDE if inside else _OUTSIDE).match(text, position)
        position = position if sound is None else sound.end()
        if position == len(text):
            break
        byte = text[position]
        if byte == _QUOTE:
            inside = not inside
            position += 1
            continue
        start, length = position, 1
        if inside:
            length = _HALF_BYTES if byte == _BACKSLASH else 1
            stand_in = rb"\ufffd" if byte == _BACKSLASH else rb"\u%04x" % byte
        elif (name := _NO_NUMBER.match(text, position)) is not None:
            length, stand_in = len(name[0]), b"null"
            start -= text[position - 1 : position] == b"-"
        else:
            break  # a mistake of another kind
        parts += text[copied:start], stand_in
        copied = position = position + length
    parts.append(text[copied:])
    return text if len(parts) == 1 else b"".join(parts)


def _replaced(data: bytes) -> bytes | None:
    """Return `data` with U+FFFD for invalid UTF-8; None if it has more than REPAIR_LIMIT of them."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text, count = bytearray(), 0
    for start in range(0, len(data), PIECE_BYTES):
        end = start + PIECE_BYTES
        piece = decoder.decode(data[start:end], final=end >= len(data))
        count += piece.count("\ufffd")
        if count > REPAIR_LIMIT:
            return None
        text += piece.encode()
    return bytes(text)
