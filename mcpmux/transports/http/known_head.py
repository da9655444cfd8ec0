"""A message whose head is, but for a few values, the one that came before on the same connection. Pure.

Who keeps a connection open says the same again and again. What was parsed and found good once is compared
from then on, byte by byte, and only the values of VARYING are read: visible ASCII on one line, which no
parser reads in another way. All else is left to the parser, from its first byte on: a head that differs,
a message that is not in one piece, and whatever stands before or behind it.

Promises: what is made of a message here is what the parser would have made of it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

VARYING: Final = {
    "authorization": 4096,
    "content-length": 32,
    "date": 64,
    "mcp-method": 64,
    "mcp-name": 512,
    "mcp-session-id": 128,
}
"""And how long their values may be, more or less: the parser reads longer ones."""

LENGTH: Final = "content-length"
LESSONS: Final = 4  # heads that are learned on one connection: some peers never say the same again
LEARNED_BYTES: Final = 1024  # of a head, without what varies: to prepare a longer one takes too long
HEADS: Final = 256  # kept ready for all connections, as those who use the same software say the same


_VALUE: Final = r"([!-~](?:[ -~]*[!-~])?)"
_DIGITS: Final = r"([0-9]{1,15})"
_UNFIT: Final = frozenset({"expect", "transfer-encoding", "upgrade"})  # these change how the rest is read
_LINE_END: Final = b"\r\n"
_HEAD_END: Final = b"\r\n\r\n"


class KnownHead:
    """A good head, as `learn` has made it."""

    __slots__ = ("_begin", "_beginning", "_end", "_headers", "_keys", "_match")

    def __init__(self, beginning: bytes, pattern: str, fields: tuple[tuple[str, str | None], ...]) -> None:
        """`pattern` matches what follows on `beginning`, and finds those of `fields` that vary (None)."""
        self._beginning = beginning
        self._begin = len(beginning)
        self._match = re.compile(pattern).match
        self._headers = {key: value or "" for key, value in fields}
        self._keys = [key for key, value in fields if value is None]
        self._end = len(beginning) + len(pattern) + sum(VARYING[key] for key in self._keys)

    def __repr__(self) -> str:
        return f"<KnownHead {list(self._headers)}>"

    def read(self, data: bytes) -> tuple[dict[str, str], int] | None:
        """The fields of the one message that `data` is, and where its body begins; None for anything else."""
        if not data.startswith(self._beginning):
            return None
        head = self._match(data[self._begin : self._end].decode("latin-1"))
        if head is None:
            return None
        fields = self._headers.copy()
        fields.update(zip(self._keys, head.groups()))  # noqa: B905 - as many, and telling it so takes time
        position = self._begin + head.end()
        return (fields, position) if len(data) - position == int(fields[LENGTH]) else None


_known: Final = lru_cache(HEADS)(KnownHead)


def learn(data: bytes, headers: dict[str, str]) -> KnownHead | None:
    """The head of `data`, whose fields are `headers`, none of which was repeated; None when it is not fit.

    It must have been parsed and found good, and have left the connection open.
    """
    end = data.find(_HEAD_END)
    if LENGTH not in headers or not _UNFIT.isdisjoint(headers) or end < 0:
        return None
    first, *lines = data[:end].split(_LINE_END)
    if len(lines) != len(headers):
        return None
    pattern: list[str] = []
    fields: list[tuple[str, str | None]] = []
    for line, (key, value) in zip(lines, headers.items(), strict=True):
        name, colon, _ = line.partition(b": ")
        varying = colon and key in VARYING and name.lower() == key.encode("latin-1")
        if varying:
            pattern.append(_exactly(name + colon) + (_DIGITS if key == LENGTH else _VALUE))
        else:
            pattern.append(_exactly(line))
        fields.append((key, None if varying else value))
    varies = [value is None for _, value in fields]
    if True not in varies:
        return None  # not even its length is written as it mostly is
    same = varies.index(True)
    beginning = b"".join(line + _LINE_END for line in (first, *lines[:same]))
    rest = _exactly(_LINE_END).join(pattern[same:]) + _exactly(_HEAD_END)
    if len(beginning) + len(rest) > LEARNED_BYTES:
        return None
    known = _known(beginning, rest, tuple(fields))
    return known if known.read(data) is not None else None


def _exactly(text: bytes) -> str:
    return re.escape(text.decode("latin-1"))
