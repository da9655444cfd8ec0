"""The lines between the chunks of one request's body, watched for what the parser library lets pass. Pure.

The library ignores chunk extensions, as RFC 9112 section 7.1.1 wants it. But readers that do not agree where
one ends can be played off against each other, and no client of ours needs them: so a line that is not a size
alone is found here.

    SIZE -- size -->     END      after that many bytes
    END -- empty -->     SIZE
    SIZE -- 0 -->        TRAILER  lines up to an empty one
    SIZE, END -- any other line --> `found`
"""

from __future__ import annotations

import re
from enum import Enum, auto

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})\r\n")
_LOOKED_AT = 20  # bytes of a line: more than the longest size has
_EMPTY = b"\r\n"


class _State(Enum):
    SIZE = auto()
    END = auto()
    TRAILER = auto()
    OVER = auto()


class ChunkLines:
    """Of one body. `found`: it has a line that is not as it must be."""

    def __init__(self, most: int) -> None:
        """`most`: bytes of a body; a longer one is refused by others."""
        self.found = False
        self._most = most
        self._state = _State.SIZE
        self._line = b""
        self._left = 0  # bytes of a chunk

    @property
    def over(self) -> bool:
        """Whether the body has ended, or is refused."""
        return self._state is _State.OVER

    def feed(self, data: bytes, start: int) -> int:
        """Look at `data` from `start` on: where the body ends in it, or the end of it."""
        while start < len(data) and not self.over:
            if self._left:
                taken = min(self._left, len(data) - start)
                self._left -= taken
                start += taken
                continue
            end = data.find(b"\n", start) + 1
            stop = end or len(data)
            self._line += data[start : min(stop, start + _LOOKED_AT - len(self._line))]
            start = stop
            if end or len(self._line) == _LOOKED_AT:
                self._take(self._line, complete=bool(end))
        return start

    def _take(self, line: bytes, *, complete: bool) -> None:
        if self._state is _State.TRAILER:
            if line == _EMPTY:
                self._state = _State.OVER
            if complete:
                self._line = b""
            return
        self._line = b""
        size = _SIZE.fullmatch(line)
        if self._state is _State.END and line == _EMPTY:
            self._state = _State.SIZE
        elif self._state is _State.SIZE and size is not None:
            self._left = int(size[1], 16)
            self._most -= self._left
            following = _State.END if self._left else _State.TRAILER
            self._state = following if self._most >= 0 else _State.OVER
        else:
            self.found = True
            self._state = _State.OVER
