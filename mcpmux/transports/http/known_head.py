"""Read a head that a connection repeats without parsing it: `learn` it, then `read` the next one. Pure."""

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
"""Fields that vary, and how long their values may be, roughly: the parser reads longer ones."""

OTHER_BYTES: Final = 256  # of the value of another field that has been seen to vary, such as a request's id
LENGTH: Final = "content-length"
LESSONS: Final = 4  # heads that are learned on one connection: some peers never repeat a head
LEARNED_BYTES: Final = 1024  # of a head, without the varying values: preparing a longer one takes too long
HEADS: Final = 256  # kept ready for all connections, as peers with the same software send the same head


_UNFIT: Final = frozenset({"expect", "transfer-encoding", "upgrade"})  # these change how the rest is read
_FIXED: Final = frozenset({"connection", "host", "keep-alive", "proxy-connection"})  # the parser judges them
LINE_END: Final = b"\r\n"
HEAD_END: Final = b"\r\n\r\n"
_RETURN: Final = "\r"
_VISIBLE: Final = bytes(byte if 0x20 <= byte < 0x7F else (byte + 1) % 2 for byte in range(256))
"""A table for `translate` that leaves only the bytes of a value unchanged."""
_DIGITS: Final = 15


class KnownHead:
    """A good head, made by `learn`, with which the next message on the same connection is compared.

    A peer on a connection that stays open sends the same head again and again. So this reads only the values
    of VARYING, and of fields whose values have differed already: visible ASCII on one line, which every
    parser reads alike. The parser gets everything else, from the message's first byte on: a head that
    differs, or did not come in one piece, a message with bytes before or behind it. The result is always
    that of the parser.
    """

    __slots__ = ("_end", "_headers", "_most", "_varying")

    def __init__(self, fields: tuple[tuple[str, str | None], ...], between: tuple[str, ...]) -> None:
        """`between`: the text before, between and behind the values of the fields that vary (None)."""
        *befores, self._end = between
        self._headers = {key: value or "" for key, value in fields}
        most = [(key, VARYING.get(key, OTHER_BYTES)) for key, value in fields if value is None]
        self._varying = [(text, *limits) for text, limits in zip(befores, most, strict=True)]
        self._most = sum(map(len, between)) + sum(length for _, length in most)

    def varies(self, key: str, value: str) -> bool:
        """Return whether a field has another value than in this head, and may have it."""
        return key not in _FIXED and self._headers.get(key, value) != value

    def read(self, data: bytes) -> tuple[dict[str, str], int, int] | None:
        """Return the fields of a message like this, where its body begins, and how many bytes it lacks.

        None if `data` is anything else.
        """
        text = data[: self._most].decode("latin-1")
        fields = self._headers.copy()
        position = 0
        for fixed, key, most in self._varying:
            start = position + len(fixed)
            if text[position:start] != fixed:
                return None
            position = text.find(_RETURN, start, start + most)
            # Empty values, and those with spaces around them, are left to the parser.
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
        # Bytes behind the body are another message, or an attack on the framing.
        missing = int(length) + body - len(data)
        return (fields, body, missing) if missing >= 0 else None


_known: Final = lru_cache(HEADS)(KnownHead)


def learn(data: bytes, headers: dict[str, str], before: KnownHead | None = None) -> KnownHead | None:
    """Return the head of the message `data` to compare others with; None if it is not suitable.

    The parser must have accepted the message, with the fields `headers`, none of them repeated, and the
    connection must have stayed open. `before`: the head that was learned from the connection last.
    """
    end = data.find(HEAD_END)
    if LENGTH not in headers or not _UNFIT.isdisjoint(headers) or end < 0:
        return None
    first, *lines = data[:end].split(LINE_END)
    if len(lines) != len(headers):
        return None
    between = [first + LINE_END]
    fields: list[tuple[str, str | None]] = []
    for line, (key, value) in zip(lines, headers.items(), strict=True):
        name, colon, _ = line.partition(b": ")
        may_vary = key in VARYING or (before is not None and before.varies(key, value))
        varies = bool(colon) and may_vary and name.lower() == key.encode("latin-1")
        between[-1] += name + colon if varies else line + LINE_END
        if varies:
            between.append(LINE_END)
        fields.append((key, None if varies else value))
    if len(between) == 1:
        return None  # not even the length is written in the usual way
    between[-1] += LINE_END
    if sum(map(len, between)) > LEARNED_BYTES:
        return None
    head = _known(tuple(fields), tuple(part.decode("latin-1") for part in between))
    # A head is of use only if it reads the message that it was made from.
    return head if head.read(data) is not None else None
