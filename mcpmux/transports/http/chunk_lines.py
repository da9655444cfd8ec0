"""Check the lines before the chunks of a request's body, beside httptools. Pure.

httptools skips the extensions of a chunk. Readers that do not agree where one ends can be played off against
each other, and no client needs them, so only a size may stand before a chunk. For that the lines are found
once more in the bytes that httptools gets, from the end of the head on:

    (head) -- its end, chunked --> SIZE -- a size line --> DATA -- the chunk's end --> SIZE
                                        -- of size 0 ----> TRAILER -- its empty line --> (next head)
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

from mcpmux.transports.http.known_head import HEAD_END, LINE_END

_EMPTY_LINES: Final = re.compile(rb"[\r\n]+")  # before a request they are ignored (RFC 9112 section 2.2)
_SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,16})\r\n")
_SIZE_BEGUN: Final = re.compile(rb"[0-9A-Fa-f]{0,16}\r?")


class Part(Enum):
    """The part of a request that comes next."""

    HEAD = auto()
    BODY = auto()
    """A body that is not chunked, or none."""
    SIZE = auto()
    DATA = auto()
    TRAILER = auto()


class ChunkLines:
    """The bytes that are fed now, and the position up to which their parts are known.

    `feed` them before httptools gets them, call the other methods from its callbacks, then `keep_tail`.
    """

    __slots__ = ("_fed", "_part", "_position", "_tail")

    def __init__(self) -> None:
        self._part = Part.HEAD
        self._fed = b""  # behind `_tail`
        self._position = 0
        self._tail = b""  # of the bytes fed before, for the end of a head or a trailer, or a size line

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        self._fed, self._position = self._tail + data, 0

    def begin_head(self) -> None:
        """Note the beginning of a request, before which there may be empty lines."""
        self._part = Part.HEAD
        if (blank := _EMPTY_LINES.match(self._fed, self._position)) is not None:
            self._position = blank.end()

    def end_head(self) -> None:
        """Note the end of a head."""
        self._part = Part.BODY
        self._position = self._fed.find(HEAD_END, self._position) + len(HEAD_END)

    def begin_chunks(self) -> None:
        """Note that the body whose head has ended is chunked."""
        self._part = Part.SIZE

    def take_body(self, size: int) -> None:
        """Note `size` bytes of a body."""
        self._position += size

    def take_size(self) -> bool:
        """Note that a chunk begins; return whether only its size stands before it."""
        end = self._fed.find(b"\n", self._position) + 1
        size = _SIZE_LINE.fullmatch(self._fed, self._position, end)
        if size is None:
            return False
        self._position = end
        self._part = Part.DATA if int(size[1], 16) else Part.TRAILER
        return True

    def end_chunk(self) -> None:
        """Note the end of a chunk; the last one, of size 0, is followed by the trailer."""
        if self._part is Part.DATA:
            self._position += len(LINE_END)
            self._part = Part.SIZE

    def end_body(self) -> None:
        """Note the end of a request."""
        if self._part is Part.TRAILER:
            start = max(0, self._position - len(LINE_END))
            self._position = self._fed.find(HEAD_END, start) + len(HEAD_END)
        self._part = Part.HEAD

    def keep_tail(self, *, in_head: bool) -> bool:
        """Keep the last bytes that must be seen together with the next ones. Return False for a bad line.

        `in_head`: a head has begun.
        """
        fed, self._fed = self._fed, b""
        # The empty line at the end of a head or a trailer may be cut by the end of what was received.
        if in_head or self._part is Part.TRAILER:
            self._tail = fed[1 - len(HEAD_END) :]
            return True
        is_chunked = self._part is Part.SIZE or self._part is Part.DATA
        self._tail = fed[self._position :] if is_chunked else b""
        # Anything but a size is refused at once, so that the tail stays short.
        return self._part is not Part.SIZE or _SIZE_BEGUN.fullmatch(self._tail) is not None
