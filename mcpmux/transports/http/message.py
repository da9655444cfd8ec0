"""HTTP/1.1 messages: a request as handlers see it, and how heads and chunks are encoded. Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from http import HTTPStatus
from itertools import chain
from time import gmtime, strftime
from typing import Final, NamedTuple

from mcpmux.errors import LocalProtocolError
from mcpmux.protocol.principal import ANYONE, Principal
from mcpmux.transports.body_budget import Holding

HEAD_FIELDS: Final = 100  # browsers send 20, proxies add a few; each costs more memory than its bytes


class Refusal(NamedTuple):
    """A request that the transport answers itself, closing the connection afterwards.

    `limit`: the setting that was reached, where the status is 429 or 503.
    """

    status: int
    sentence: str
    limit: str = "limits.max_connections"


# Immutable, so that a set of fields that is used repeatedly is checked and encoded once.
HeaderFields = tuple[tuple[str, str], ...]

NAMES: Final = 256  # of fields, that are known to be good or bad
ENCODED_HEADS: Final = 1024  # heads kept encoded: a few per session and method in use
KEPT_CHARS: Final = 4096  # of a head that is kept, so that all of them take some 12 MB
NAME_CHARS: Final = 256  # of the name of a field
JOIN_BYTES: Final = 16 * 1024  # below this, copying a body behind its head is cheaper than a second send
LAST_CHUNK: Final = b"0\r\n\r\n"

_FRAMING: Final = frozenset({"connection", "content-length", "transfer-encoding"})
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FIELD_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_TARGET: Final = re.compile(r"[\x21-\x7e]+")


def encode_fields(fields: HeaderFields) -> bytes:
    """Encode `(("A", "b"),)` as b"A: b\\r\\n". Raises LocalProtocolError for what would break the framing."""
    text = ""
    for name, value in fields:
        plain = value.isascii() and value.isprintable()  # as most are, and cheaper than the pattern
        if len(name) > NAME_CHARS or not _is_name(name) or not (plain or _FIELD_VALUE.fullmatch(value)):
            raise LocalProtocolError(f"not a header field that can be sent: {name!r}: {value!r}")
        text += f"{name}: {value}\r\n"
    return text.encode("latin-1")


@lru_cache(maxsize=NAMES)
def _is_name(name: str) -> bool:
    return name.lower() not in _FRAMING and _TOKEN.fullmatch(name) is not None


def encode_response_head(status: int, fields: HeaderFields) -> bytes:
    """Return status line and fields, still open: the sender adds the framing and the empty line."""
    is_short = sum(map(len, chain.from_iterable(fields))) <= KEPT_CHARS
    return (_kept_response_head if is_short else _response_head)(status, fields)


def _response_head(status: int, fields: HeaderFields) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return b"HTTP/1.1 %d %b\r\n%b" % (status, phrase.encode(), encode_fields(fields))


_kept_response_head: Final = lru_cache(ENCODED_HEADS)(_response_head)


def is_target(text: str) -> bool:
    """Return whether `text` can be the target of a request."""
    return _TARGET.fullmatch(text) is not None


def encode_request_head(method: str, target: str, fields: HeaderFields) -> bytes:
    """Return request line and fields, still open. Raises LocalProtocolError for what cannot be sent."""
    is_short = sum(map(len, (method, target, *chain.from_iterable(fields)))) <= KEPT_CHARS
    return (_kept_request_head if is_short else _request_head)(method, target, fields)


def _request_head(method: str, target: str, fields: HeaderFields) -> bytes:
    if not _TOKEN.fullmatch(method) or not _TARGET.fullmatch(target):
        raise LocalProtocolError(f"not a request that can be sent: {method!r} {target!r}")
    return f"{method} {target} HTTP/1.1\r\n".encode() + encode_fields(fields)


_kept_request_head: Final = lru_cache(ENCODED_HEADS)(_request_head)


def has_no_body(status: int) -> bool:
    """Return whether responses of this status never have a body (RFC 9112 section 6.3)."""
    return status < 200 or status in (204, 304)


def encode_chunk(data: bytes) -> bytes:
    """Return one chunk of a chunked body; b"" for empty data, as an empty chunk would end the body."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def http_date(seconds: float) -> str:
    """Return seconds since 1970 as `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110, section 5.6.7)."""
    # Not `email.utils`, whose import slows the start. The names are English, as mcpmux sets no locale.
    return strftime("%a, %d %b %Y %H:%M:%S GMT", gmtime(seconds))


class HttpRequest:
    """One complete request.

    `path` and `query` are as sent, percent-escapes included; `headers` have lower-case names, repeated
    fields are joined by ", ". `peer`: the client's address and port. `keep_alive`: whether the connection
    outlives the answer. `holder`: of the client's certificate, see `holder_of`. `principal`: set when the
    client is authenticated. `holding`: counts a large body in a budget while it is needed.
    """

    def __init__(
        self,
        method: str,
        path: str,
        query: str,
        headers: dict[str, str],
        body: bytes,
        peer: str,
        http_1_0: bool,
        keep_alive: bool,
        holder: str = "",
    ) -> None:
        self.method, self.path, self.query = method, path, query
        self.headers, self.body = headers, body
        self.peer, self.holder = peer, holder
        self.http_1_0, self.keep_alive = http_1_0, keep_alive
        self.principal: Principal = ANYONE
        self.holding: Holding | None = None

    def __repr__(self) -> str:
        return f"HttpRequest({self.method} {self.path})"  # the rest may be secret
