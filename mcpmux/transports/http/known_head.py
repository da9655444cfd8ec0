"""A message whose head is, but for a few values, the one that came before on the same connection. Pure.

Who keeps a connection open says the same again and again. What was parsed and found good once is compared
from then on, byte by byte, and only the values of VARYING are read: visible ASCII on one line, which no
parser reads in another way. All else is left to the parser, from its first byte on: a head that differs,
a message that is not in one piece, and whatever stands before or behind it.

Promises: what is made of a message here is what the parser would have made of it.
"""

from __future__ import annotations

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


_UNFIT: Final = frozenset({"expect", "transfer-encoding", "upgrade"})  # these change how the rest is read
_LINE_END: Final = b"\r\n"
_HEAD_END: Final = b"\r\n\r\n"
_RETURN: Final = "\r"
_VISIBLE: Final = bytes(byte if 0x20 <= byte < 0x7F else (byte + 1) % 2 for byte in range(256))
"""Leaves what may be in a value as it is, and nothing else. At its ends there is no space."""
_DIGITS: Final = 15


class KnownHead:
    """A good head, as `learn` has made it."""

    __slots__ = ("_end", "_headers", "_most", "_varying")

    def __init__(self, fields: tuple[tuple[str, str | None], ...], between: tuple[str, ...]) -> None:
        """`between`: what stands before, between and behind the values of those fields that vary (None)."""
        *befores, self._end = between
        keys = [key for key, value in fields if value is None]
        self._headers = {key: value or "" for key, value in fields}
        self._varying = [(before, key, VARYING[key]) for before, key in zip(befores, keys, strict=True)]
        self._most = sum(map(len, between)) + sum(VARYING[key] for key in keys)

    def __repr__(self) -> str:
        return f"<KnownHead {list(self._headers)}>"

    def read(self, data: bytes) -> tuple[dict[str, str], int] | None:
        """The fields of the one message that `data` is, and where its body begins; None for anything else."""
        text = data[: self._most].decode("latin-1")
        fields = self._headers.copy()
        position = 0
        for before, key, most in self._varying:
            start = position + len(before)
            if text[position:start] != before:
                return None
            position = text.find(_RETURN, start, start + most)
            if position <= start or text[start] == " " or text[position - 1] == " ":
                return None
            value = data[start:position]
            if value.translate(_VISIBLE) != value:
                return None
            fields[key] = text[start:position]
        body = position + len(self._end)
        length = fields[LENGTH]
        if text[position:body] != self._end or not length.isdigit() or len(length) > _DIGITS:
            return None
        return (fields, body) if len(data) - body == int(length) else None


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
    between = [first + _LINE_END]
    fields: list[tuple[str, str | None]] = []
    for line, (key, value) in zip(lines, headers.items(), strict=True):
        name, colon, _ = line.partition(b": ")
        varies = bool(colon) and key in VARYING and name.lower() == key.encode("latin-1")
        between[-1] += name + colon if varies else line + _LINE_END
        if varies:
            between.append(_LINE_END)
        fields.append((key, None if varies else value))
    if len(between) == 1:
        return None  # not even its length is written as it mostly is
    between[-1] += _LINE_END
    if sum(map(len, between)) > LEARNED_BYTES:
        return None
    known = _known(tuple(fields), tuple(part.decode("latin-1") for part in between))
    return known if known.read(data) is not None else None
