"""Large messages: read in one pass, written without copying them together. Pure.

A decoded value of a message is a view of its bytes. What is larger than LARGE_BYTES stays one on the way out,
too: it goes from the buffer it was received in to the one it is sent from.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence
from typing import Final

from mcpmux.protocol.envelope import (
    BadMessage,
    Reply,
    decode_fields,
    decode_list,
    decode_message,
    encode,
    raw,
)
from mcpmux.protocol.raw_json import Fields, Id, Raw

LARGE_BYTES: Final = 64 * 1024  # of a value: copying a smaller one costs less than a part of its own
TAIL_BYTES: Final = 512  # behind the result: an id, and little else
PIECE_BYTES: Final = 64 * 1024  # of text that is looked at at a time
QUICK_BYTES: Final = 256  # at first, as most strings are short
# Strings, and quotes in a string, that are looked for; with more the decoder is faster.
QUOTES_LIMIT: Final = 64
_BACKSLASH: Final = 0x5C

Part = bytes | memoryview
Body = bytes | bytearray

_MEMBER: Final = rb'\s*"(?:jsonrpc|id)"\s*:\s*(?:-?[0-9]{1,18}|"[^"\\]{0,200}")\s*'
_HEAD: Final = re.compile(rb"\s*\{((?:" + _MEMBER + rb',){0,2})\s*"result"\s*:\s*(?=\{)')
_TAIL: Final = re.compile(rb"((?:," + _MEMBER + rb"){0,2})\}\s*\Z")


def read_large_reply(data: Body) -> Reply | None:
    """A successful answer with the members of its result; None for anything else, whatever it is.

    What stands around the result is read by itself. The two make a message exactly when both can be read.
    """
    head = _HEAD.match(data)
    if head is None:
        return None
    start = max(head.end(), len(data) - TAIL_BYTES)
    tail = _TAIL.search(data[start:])
    if tail is None:
        return None
    try:
        around = decode_message(b'{%b"result":{}%b}' % (head[1], tail[1]))
        result = Raw(memoryview(data)[head.end() : start + tail.start()])
        # A small value does not keep the whole message in memory.
        members = {key: v if is_large(v) else v.copy() for key, v in decode_fields(result).items()}
        check_utf8(data)
    except (BadMessage, ValueError):
        return None
    return Reply(around.id, result, members) if isinstance(around, Reply) else None


def is_large(value: Raw) -> bool:
    """Whether a value is better not copied."""
    return len(value) > LARGE_BYTES


def check_utf8(data: Body) -> None:
    """Raises UnicodeDecodeError, which is a ValueError, for what is none. Needs little memory for that."""
    if data.isascii():
        return
    if len(data) <= PIECE_BYTES:
        data.decode()
        return
    decoder = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(data)
    for start in range(0, len(view), PIECE_BYTES):
        decoder.decode(view[start : start + PIECE_BYTES])
    decoder.decode(b"", final=True)


def encode_large_reply(id: Id, result: Mapping[str, Raw]) -> list[Part]:  # noqa: A002 - the field's name
    """One successful answer in parts: its large values as they are, and what is between them."""
    return [b'{"jsonrpc":"2.0","id":%b,"result":' % encode(id), *_object(result), b"}"]


def raw_list(members: Sequence[Fields]) -> Raw:
    """Objects as a raw JSON array. Large values are copied once."""
    if not members:
        return raw([])
    parts: list[Part] = []
    for member in members:
        parts += [b"," if parts else b"[", *_object(member)]
    return Raw(b"".join([*parts, b"]"]))


def _object(fields: Mapping[str, Raw]) -> list[Part]:
    parts: list[Part] = []
    small = bytearray(b"{")
    for number, (key, value) in enumerate(fields.items()):
        view = memoryview(value)
        small += b"%b%b:" % (b"," if number else b"", encode(key))
        if len(view) > LARGE_BYTES:
            parts += [bytes(small), view]
            small = bytearray()
        else:
            small += view
    return [*parts, bytes(small + b"}")]


def read_objects(value: Raw) -> list[Fields]:
    """As `decode_list`, of valid JSON: its long strings are not looked through again. Raises ValueError."""
    view = memoryview(value)
    spans = _long_strings(view)
    if not spans:
        return decode_list(value)
    edges = [0, *(edge for span in spans for edge in span), len(view)]
    rest = [bytes(view[start:end]) for start, end in zip(edges[::2], edges[1::2], strict=True)]
    marks = _marks(b"".join(rest), len(spans))
    between = [*marks, b""]
    objects = decode_list(b"".join(text + mark for text, mark in zip(rest, between, strict=True)))
    strings = {mark: view[start:end] for mark, (start, end) in zip(marks, spans, strict=True)}
    for item in objects:
        for key, member in item.items():
            if (string := strings.pop(bytes(member), None)) is not None:
                item[key] = Raw(string)
    return decode_list(value) if strings else objects


def _marks(text: bytes, count: int) -> list[bytes]:
    """So many short strings that `text` has nothing of."""
    found: list[bytes] = []
    number = 0
    while len(found) < count:
        mark = b'"%d"' % number
        number += 1
        if mark not in text:
            found.append(mark)
    return found


def _long_strings(view: memoryview) -> list[tuple[int, int]]:
    """Where the long strings of valid JSON stand, quotes included; none when there is much else there."""
    spans: list[tuple[int, int]] = []
    position = 0
    for _ in range(QUOTES_LIMIT):
        start = _find_quote(view, position)
        if start == len(view):
            return spans
        end = start
        for _ in range(QUOTES_LIMIT):
            end = _find_quote(view, end + 1)
            if not _is_escaped(view, end):
                break
        else:
            return []
        position = end + 1
        if position - start > LARGE_BYTES:
            spans.append((start, position))
    return []


def _find_quote(view: memoryview, position: int) -> int:
    """Where the next one is; the length when there is none."""
    size = QUICK_BYTES
    while position < len(view):
        found = bytes(view[position : position + size]).find(b'"')
        if found >= 0:
            return position + found
        position += size
        size = PIECE_BYTES
    return len(view)


def _is_escaped(view: memoryview, position: int) -> bool:
    before = position
    while before and view[before - 1] == _BACKSLASH:
        before -= 1
    return (position - before) % 2 == 1
