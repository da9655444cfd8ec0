"""JSON text with mistakes that many programs make, as the text that they meant.

    a byte order mark at the start                          is left out
    bytes that are not UTF-8                                become U+FFFD
    half a surrogate pair, written as an escape             becomes U+FFFD
    a control character inside a string                     becomes its escape
    NaN, Infinity, -Infinity                                become null, as JSON.stringify writes them

Promises: the rest of the text keeps its bytes; valid JSON comes back as it is. Refuses to guess: text with
any other mistake stays malformed, and the decoder says so. It costs more than decoding, so it is used only
for text that the decoder has refused.

Source: RFC 8259; "replacement of maximal subparts" in the Unicode Standard, section 3.9, for UTF-8.
"""

from __future__ import annotations

import re
from typing import Final

BOM: Final = b"\xef\xbb\xbf"
REPAIR_BYTES: Final = 16 * 1024 * 1024  # of one text; it takes a second at worst, in which all others wait
REPAIR_LIMIT: Final = 100_000  # places in one text; they take a tenth of a second, and more are no slips

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
    """Return `data` with the mistakes above repaired; the same object if it has none or is too long."""
    if len(data) > REPAIR_BYTES:
        return data
    text = data.removeprefix(BOM)
    try:
        text.decode()
    except UnicodeDecodeError:
        text = text.decode(errors="replace").encode()
    parts: list[bytes] = []
    copied = position = 0
    inside = False
    while len(parts) < 2 * REPAIR_LIMIT:
        sound = (_INSIDE if inside else _OUTSIDE).match(text, position)
        position = position if sound is None else sound.end()
        if position == len(text):
            break
        found = text[position]
        if found == _QUOTE:
            inside = not inside
            position += 1
            continue
        start, length = position, 1
        if inside:
            length = _HALF_BYTES if found == _BACKSLASH else 1
            stand_in = rb"\ufffd" if found == _BACKSLASH else rb"\u%04x" % found
        elif (name := _NO_NUMBER.match(text, position)) is not None:
            length, stand_in = len(name[0]), b"null"
            start -= text[position - 1 : position] == b"-"
        else:
            break  # a mistake of another kind
        parts += text[copied:start], stand_in
        copied = position = position + length
    parts.append(text[copied:])
    return text if len(parts) == 1 else b"".join(parts)
