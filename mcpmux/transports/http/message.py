"""The head of an HTTP/1.1 message, as both sides send and receive it. Pure.

Header fields that we send are a tuple of pairs, so that a set of fields which is used again and again is
checked and encoded once. A head that comes again and again on one connection is parsed once, see KnownHead.
"""

from __future__ import annotations

import re
from functools import lru_cache
from http import HTTPStatus
from time import gmtime
from typing import Final

from mcpmux.errors import LocalProtocolError

Fields = tuple[tuple[str, str], ...]


NAMES: Final = 256  # of fields, that are known to be good or bad
ENCODED_HEADS: Final = 1024  # heads kept encoded: a few per session and method in use
JOIN_BYTES: Final = 16 * 1024  # below this, copying a body behind its head is cheaper than a second send
# Bytes; parts of a body that are smaller are gathered, as each costs more than it holds.
SMALL_PART: Final = 512
LAST_CHUNK: Final = b"0\r\n\r\n"

_FRAMING: Final = frozenset({"connection", "content-length", "transfer-encoding"})
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FIELD_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_TARGET: Final = re.compile(r"[\x21-\x7e]+")


def encode_fields(fields: Fields) -> bytes:
    """`(("A", "b"),)` -> b"A: b\\r\\n". Raises LocalProtocolError for what would break the framing."""
    text = ""
    for name, value in fields:
        plain = value.isascii() and value.isprintable()  # which most are
        if not _is_name(name) or not (plain or _FIELD_VALUE.fullmatch(value)):
            raise LocalProtocolError(f"not a header field that can be sent: {name!r}: {value!r}")
        text += f"{name}: {value}\r\n"
    return text.encode("latin-1")


@lru_cache(maxsize=NAMES)
def _is_name(name: str) -> bool:
    """Whether a field that is sent may be called that."""
    return name.lower() not in _FRAMING and _TOKEN.fullmatch(name) is not None


@lru_cache(maxsize=ENCODED_HEADS)
def encode_response_head(status: int, fields: Fields) -> bytes:
    """Status line and fields, still open: whoever sends it adds the framing and the empty line."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return b"HTTP/1.1 %d %b\r\n%b" % (status, phrase.encode(), encode_fields(fields))


def is_target(text: str) -> bool:
    """Whether `text` can stand as the target of a request."""
    return _TARGET.fullmatch(text) is not None


@lru_cache(maxsize=ENCODED_HEADS)
def encode_request_head(method: str, target: str, fields: Fields) -> bytes:
    """Request line and fields, still open."""
    if not _TOKEN.fullmatch(method) or not _TARGET.fullmatch(target):
        raise LocalProtocolError(f"not a request that can be sent: {method!r} {target!r}")
    return f"{method} {target} HTTP/1.1\r\n".encode() + encode_fields(fields)


def has_no_body(status: int) -> bool:
    """Answers that end with their head, whatever it says (RFC 9112 section 6.3)."""
    return status < 200 or status in (204, 304)


def add_part(parts: list[bytes | bytearray], part: bytes) -> None:
    """One more part of a body: memory stays near its size, however small its parts are."""
    if not parts or len(part) >= SMALL_PART:
        parts.append(part)
        return
    last = parts[-1]
    if isinstance(last, bytearray):
        last += part
    else:
        parts.append(bytearray(part))


def encode_chunk(data: bytes) -> bytes:
    """One chunk of a chunked body. Empty data is no chunk: it would end the body."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


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
    """A good head, made by `learn`, with which the next message on the same connection is compared.

    Who keeps a connection open says the same again and again. So only the values of VARYING are read: visible
    ASCII on one line, which no parser reads in another way. All else is left to the parser, from its first
    byte on: a head that differs, a message that is not in one piece, and whatever stands before or behind it.
    What is made of a message here is what the parser would have made of it.
    """

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


# Dates as HTTP writes them. Pure; RFC 9110, section 5.6.7.
#
# The standard library has this among all that e-mail needs, which is more than a server's start should pay
# for.

_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def http_date(seconds: float) -> str:
    """`Sun, 06 Nov 1994 08:49:37 GMT` of seconds since 1970."""
    then = gmtime(seconds)
    clock = f"{then.tm_hour:02}:{then.tm_min:02}:{then.tm_sec:02}"
    day = f"{then.tm_mday:02} {_MONTHS[then.tm_mon - 1]} {then.tm_year:04}"
    return f"{_DAYS[then.tm_wday]}, {day} {clock} GMT"
