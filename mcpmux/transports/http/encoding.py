"""The bytes of an HTTP/1.1 message that both sides send: heads, chunks, parts of a body. Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from http import HTTPStatus
from typing import Final

from mcpmux.errors import LocalProtocolError
from mcpmux.transports.http.message import Fields

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
