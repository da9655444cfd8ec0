"""HTTP/1.1 messages: how they are encoded and parsed, and a request as handlers see it. Pure.

`request_parser` has the rest of the parser of requests.

httptools (llhttp, strict) already refuses bare line feeds, folded lines, blanks before a colon, a
repeated Content-Length or one next to Transfer-Encoding, and malformed chunks. The parsers refuse what
passes there although it is ambiguous, too large, or not HTTP/1.x.

A head that a connection repeats is parsed once: `learn` it, then `KnownHead.read` the next one.

Of responses, interim ones (1xx) are skipped, trailers are ignored:

    (begin) -- head of a final status --> `status` is set
            -- body bytes -->             `take_body` gives them, as they come
            -- end of message -->         `complete`
"""

from __future__ import annotations

import re
from functools import lru_cache
from http import HTTPStatus
from time import gmtime, strftime
from typing import Final, NamedTuple

import httptools

from mcpmux.errors import LocalProtocolError, RemoteProtocolError, TransportClosed
from mcpmux.protocol.principal import ANYONE, Principal
from mcpmux.transports.body_budget import Holding
from mcpmux.transports.sse import add_part

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


def _chars(fields: HeaderFields) -> int:
    size = 0
    for name, value in fields:  # `sum` over iterators takes more instructions than the rest of a head
        size += len(name) + len(value)
    return size


def encode_response_head(status: int, fields: HeaderFields) -> bytes:
    """Return status line and fields, still open: the sender adds the framing and the empty line."""
    return (_kept_response_head if _chars(fields) <= KEPT_CHARS else _response_head)(status, fields)


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
    is_short = len(method) + len(target) + _chars(fields) <= KEPT_CHARS
    return (_kept_request_head if is_short else _request_head)(method, target, fields)


def _request_head(method: str, target: str, fields: HeaderFields) -> bytes:
    if not _TOKEN.fullmatch(method) or not _TARGET.fullmatch(target):
        raise LocalProtocolError(f"not a request that can be sent: {method!r} {target!r}")
    return f"{method} {target} HTTP/1.1\r\n".encode() + encode_fields(fields)


_kept_request_head: Final = lru_cache(ENCODED_HEADS)(_request_head)


def has_no_body(status: int) -> bool:
    """Return whether responses of this status never have a body (RFC 9112 section 6.3)."""
    return status < 200 or status in (204, 304)


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
        # The rest may be secret.
        return f"HttpRequest({self.method} {self.path})"


# Parsing

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

FRAMING_PER_BODY_BYTE: Final = 8  # received; a chunk of one byte needs five, more is padding

_LENGTH_FIELDS: Final = frozenset({"content-length", "transfer-encoding"})
# The beginnings of an alert and a handshake, with which a TLS port answers plain HTTP.
_TLS_RECORDS: Final = (b"\x15\x03", b"\x16\x03")


class KnownHead:
    """A good head, made by `learn`, with which the next message on the same connection is compared.

    This reads only the values of VARYING, and of fields whose values have differed already. The parser gets
    everything else, from the message's first byte on: a head that differs, or did not come in one piece, a
    message with bytes before or behind it. The result is always that of the parser.
    """

    # A peer on a connection that stays open sends the same head again and again.

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
            # Visible ASCII on one line is what every parser reads alike.
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
    # Peers with the same software send the same head, so one is kept for all connections.
    head = _known(tuple(fields), tuple(part.decode("latin-1") for part in between))
    # A head is of use only if it reads the message that it was made from.
    return head if head.read(data) is not None else None


class MessageParser:
    """The common part of the parsers of requests and responses: the fields, and the limits.

    `name`: of such a message in errors; `malformed`: the beginning of an error about a malformed one.
    """

    def __init__(
        self, name: str, malformed: str, head_limit: int, field_limit: int, singletons: frozenset[str]
    ) -> None:
        """`singletons`: fields that may not be repeated."""
        self._name = name
        self._malformed = malformed
        self._head_limit = head_limit
        self._field_limit = field_limit
        self._singletons = singletons
        self._in_head = False
        self.headers: dict[str, str] = {}
        self._repeats = 0
        self._body: list[bytes | bytearray] = []
        self.body_bytes = 0  # of the body so far
        self.received_bytes = 0  # of the unfinished message, or a little less when it was pipelined
        self._known: KnownHead | None = None  # of a message that came before
        self._lessons = LESSONS + 1  # the first message is not learned, as it may be the only one

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer must not pass for a header, as it comes after the checks of the head
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1").rstrip(" \t")
        # Repeated fields are one list with commas (RFC 9110 section 5.3), but for those that two readers may
        # read differently.
        if key in self.headers:
            if key in self._singletons:
                raise self._refused(400, f"{self._malformed}: {key} is repeated")
            text = f"{self.headers[key]}, {text}"
            self._repeats += 1
            self._check_fields()
        self.headers[key] = text

    def _check_fields(self) -> None:
        if len(self.headers) + self._repeats > self._field_limit:
            raise self._refused(431, f"the {self._name} has more than {self._field_limit} header fields")

    def _check_head_size(self, size: int) -> None:
        """Refuse a head that is too large. `size`: bytes of an unfinished head, or without the fields."""
        if not self._in_head:
            size += sum(len(name) + len(value) + 4 for name, value in self.headers.items())
        if size > self._head_limit:
            raise self._refused(431, f"the {self._name}'s head is larger than {self._head_limit} bytes")

    def _check_growth(self) -> None:
        """Refuse a message that has begun, is not complete, and exceeds a limit."""
        if self._in_head:
            self._check_fields()
            self._check_head_size(self.received_bytes)
        elif self.received_bytes > 2 * self._head_limit + FRAMING_PER_BODY_BYTE * self.body_bytes:
            raise self._refused(400, f"{self._malformed}: chunks are mostly framing")

    def _learns(self, data: bytes, is_fit: bool) -> bool:
        """Learn the head of the message `data`, if it is fit; return whether it was learned."""
        self._lessons -= 1
        if self._lessons >= LESSONS or self._repeats or not is_fit:
            return False
        head = learn(data, self.headers, self._known)
        self._known = head or self._known
        return head is not None

    def _refused(self, status: int, sentence: str) -> Exception:
        raise NotImplementedError


class ResponseParser(MessageParser):
    """A parser of one connection's responses. httptools calls the methods `on_…`."""

    def __init__(self, head_limit: int, field_limit: int = HEAD_FIELDS) -> None:
        super().__init__("response", "malformed HTTP response", head_limit, field_limit, _LENGTH_FIELDS)
        self._parser = httptools.HttpResponseParser(self)
        self._known_status = 0  # of a response that came before
        self.begin()

    def begin(self) -> None:
        """Forget the response before, as the next request is about to be sent."""
        self.status = 0  # until the head is in
        self._in_head = True
        self.headers = {}
        self.complete = False
        self.keep_alive = False
        self.received_bytes = 0
        self._repeats = 0
        self._body = []
        self.body_bytes = 0
        self.length = 0  # of the body, where the head says it
        self._ends_with_stream = False
        self._lacks = 0  # bytes of a body whose head was known, so that they need no parser

    def feed(self, data: bytes) -> None:
        """Parse received bytes, b"" at the end of the stream. Raises RemoteProtocolError, TransportClosed."""
        if not data:
            self.feed_eof()
            return
        if self._lacks:  # more of a body behind a known head
            body = data[: self._lacks]
            self._lacks -= len(body)
            self.received_bytes += len(data)
            self.on_body(body)
            self.complete = not self._lacks
            self.keep_alive = self.complete and body == data  # bytes behind it belong to no request
            return
        head = self._known
        if head is None or self.received_bytes or self.complete or (values := head.read(data)) is None:
            self._parse(data)
            return
        headers, position, lacks = values
        if position > self._head_limit:  # the parser refuses it
            self._parse(data)
            return
        body = data[position:]
        self.headers, self.status = headers, self._known_status
        self._in_head = False
        self._lacks = lacks
        self.complete = self.keep_alive = not lacks
        self.received_bytes = len(data)
        self.body_bytes = len(body)
        self.length = len(body) + lacks
        if body:
            self._body.append(body)

    def _parse(self, data: bytes) -> None:
        first = not self.received_bytes
        self.received_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self.complete:
                reason = str(error)
                if first and data[:2] in _TLS_RECORDS:
                    raise RemoteProtocolError("the server speaks TLS there: use https://") from error
                if isinstance(error, httptools.HttpParserUpgrade):
                    reason = "it switches to a protocol that was not asked for"
                elif isinstance(error, httptools.HttpParserCallbackError):  # raised by one of our callbacks
                    reason = str(error.__context__ or error)
                raise RemoteProtocolError(f"{self._malformed}: {reason}") from error
            self.keep_alive = False  # bytes after the response belong to no request: do not use this again
        if not self.complete and (self._in_head or self.received_bytes > 2 * self._head_limit):
            self._check_growth()
        elif first and self._lessons and (self.keep_alive if self.complete else self.may_keep_alive):
            is_first = data.startswith(b"%d " % self.status, 9)  # otherwise an interim response came first
            if self._learns(data, is_first and not has_no_body(self.status)):
                self._known_status = self.status

    def feed_eof(self) -> None:
        """Note the end of the stream. Raises TransportClosed if it cuts the response short."""
        if not self.received_bytes:
            raise TransportClosed("the server closed the connection without an answer")
        if not self._ends_with_stream:
            raise TransportClosed("the server closed the connection in the middle of its answer")
        self.complete = True

    @property
    def may_keep_alive(self) -> bool:
        """Whether another response may follow on this connection, by the head."""
        return self._lacks > 0 or (not self._ends_with_stream and self._parser.should_keep_alive())

    @property
    def missing(self) -> int:
        """Bytes of the body that are still to come; 0 if unknown."""
        return max(0, self.length - self.body_bytes)

    def skip_rest(self) -> None:
        """Note that the `missing` bytes were received without the parser."""
        # A large body is received into one place, see `HttpConnection.receive_rest`.
        self.received_bytes += self.missing
        self.body_bytes = self.length
        self.complete = True
        self.keep_alive = self.may_keep_alive
        if not self._lacks:
            self._parser = httptools.HttpResponseParser(self)  # the old one still waits for the body
        self._lacks = 0

    def take_body(self) -> bytes:
        """Return the body bytes that have arrived since the last call, b"" for none."""
        parts = self._body
        if not parts:
            return b""
        data = b"".join(parts)  # of a single `bytes` no copy
        parts.clear()
        return data

    def on_message_begin(self) -> None:
        if self.complete:
            raise RemoteProtocolError("more bytes than the response has")
        self.headers = {}

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        # Interim: the final head is still to come (RFC 9110 section 15.2).
        if status < 200:
            return
        headers = self.headers
        if len(headers) + self._repeats > self._field_limit:
            self._check_fields()
        self._in_head = False
        if self.received_bytes > self._head_limit:
            self._check_head_size(0)
        if "transfer-encoding" in headers:
            if headers["transfer-encoding"].lower() != "chunked":
                raise RemoteProtocolError("its transfer coding is not chunked")
        elif status == 200 or not has_no_body(status):
            self.length = int(headers.get("content-length", 0))
            # Without a length the body goes to the end of the connection (RFC 9112 section 6.3).
            self._ends_with_stream = "content-length" not in headers
        self.status = status

    def on_body(self, part: bytes) -> None:
        self.body_bytes += len(part)
        if self._body:
            add_part(self._body, part)
        else:
            self._body.append(part)

    def on_message_complete(self) -> None:
        if self.status:
            self.complete = True
            self.keep_alive = self._parser.should_keep_alive()

    def _refused(self, status: int, sentence: str) -> Exception:
        return RemoteProtocolError(sentence)
