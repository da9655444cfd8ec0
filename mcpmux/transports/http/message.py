"""The parts of an HTTP/1.1 message that both sides share: header fields, limits, framing bytes.

Pure. Header fields that we send are a tuple of pairs, so that a set of fields which is used again
and again is checked and encoded once.
"""

from __future__ import annotations

import re
from functools import lru_cache
from http import HTTPStatus

import msgspec

from mcpmux.errors import LocalProtocolError
from mcpmux.protocol.principal import ANYONE, Principal

Fields = tuple[tuple[str, str], ...]

NAMES = 256  # of fields, that are known to be good or bad
ENCODED_HEADS = 1024  # heads kept encoded: a few per session and method in use
JOIN_BYTES = 16 * 1024  # below this, copying a body behind its head is cheaper than a second send
FRAMING_PER_BODY_BYTE = 8  # received; a chunk of one byte needs five, more is padding
HEAD_FIELDS = 100  # browsers send 20, proxies in between add a few; each costs more than its bytes
BODY_RATE = 1024  # bytes a second, from the end of the head on: slower is not a client but a burden
SMALL_PART = 512  # bytes; parts of a body that are smaller are gathered, as each costs more than it holds
LAST_CHUNK = b"0\r\n\r\n"

_FRAMING = frozenset({"connection", "content-length", "transfer-encoding"})
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FIELD_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_TARGET = re.compile(r"[\x21-\x7e]+")


class HttpLimits(msgspec.Struct, frozen=True):
    """What a server grants its clients."""

    head_bytes: int = 32 * 1024
    head_fields: int = HEAD_FIELDS
    body_bytes: int = 64 * 1024 * 1024
    head_seconds: float = 15  # from the first byte of a head (or from accepting) to its end
    body_seconds: float = 60  # between two receives of one body, which is sent at BODY_RATE or faster
    idle_seconds: float = 120  # between two requests of one connection
    write_seconds: float = 60  # without the peer reading anything while we have something for it
    connections: int = 800  # leaves room for upstreams below the usual 1024 open files


class HttpRequest(msgspec.Struct, gc=False):
    """One complete request.

    `path` and `query` are as sent, percent-escapes included; `headers` have lower-case names, repeated
    fields are joined by ", ". `keep_alive` says whether the connection outlives the answer.
    `holder`: of the client's certificate, see `holder_of`; `principal`: set by whoever finds out who it is.
    """

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    peer: str
    http_1_0: bool
    keep_alive: bool
    holder: str = ""
    principal: Principal = ANYONE


class Refusal(msgspec.Struct, frozen=True):
    """A request that the transport answers itself, closing the connection afterwards."""

    status: int
    sentence: str


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
