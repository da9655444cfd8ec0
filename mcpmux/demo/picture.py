"""A picture made of arithmetic: a gradient as a PNG file.

Source: PNG specification (ISO/IEC 15948), sections 5 and 11: signature, IHDR, IDAT, IEND.
"""

from __future__ import annotations

import struct
import zlib

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_RGB_8_BIT = (8, 2, 0, 0, 0)  # bits per sample, colour type, compression, filter, interlace


def draw_cover(side: int) -> bytes:
    """A square PNG, `side` pixels wide, from red on the left to blue at the bottom."""
    rows = (b"\0" + b"".join(_pixel(x, y, side) for x in range(side)) for y in range(side))
    header = struct.pack(">IIBBBBB", side, side, *_RGB_8_BIT)
    image = zlib.compress(b"".join(rows))
    return _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", image) + _chunk(b"IEND", b"")


def _pixel(x: int, y: int, side: int) -> bytes:
    return bytes((255 - 255 * x // side, 64, 255 * y // side))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
