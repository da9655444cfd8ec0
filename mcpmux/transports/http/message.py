"""Encode heads of HTTP/1.1 messages, and parse requests and responses with httptools. Pure.

A head that a connection repeats is parsed once, see `known_head`.

httptools (llhttp, strict) already refuses bare line feeds, folded lines, blanks before a colon, a
repeated Content-Length or one next to Transfer-Encoding, and malformed chunks. This module refuses what
passes there although it is ambiguous, too large, or not HTTP/1.x.

A request:
    IDLE -- first byte -->      HEAD
    HEAD -- empty line -->      BODY   `wants_continue` if the client waits for a go-ahead
    BODY -- end of message -->  IDLE   the request is appended to `requests`
    any  -- `refusal` is set -->       the parser is spent

A response; interim ones (1xx) are skipped, trailers are ignored:
    (begin) -- head of a final status --> `status` is set
            -- body bytes -->             `take_body` gives them, as they come
            -- end of message -->         `complete`
"""

from __future__ import annotations

import re
from enum import Enum, auto
from functools import lru_cache
from http import HTTPStatus
from time import gmtime, strftime
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

import httptools

from mcpmux.errors import LocalProtocolError, RemoteProtocolError, TransportClosed
from mcpmux.protocol.principal import ANYONE, Principal
from mcpmux.transports.body_budget import SMALL_BODY, Holding
from mcpmux.transports.http.known_head import HEAD_END, LESSONS, LINE_END, KnownHead, learn

if TYPE_CHECKING:  # a parser of foreign bytes needs no library for settings
    from mcpmux.config import Limits

FRAMING_PER_BODY_BYTE: Final = 8  # received; a chunk of one byte needs five, more is padding
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
# Bytes; parts of a body that are smaller are gathered, as each costs more than it holds.
SMALL_PART: Final = 512
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


def _is_short(fields: HeaderFields, size: int) -> bool:
    for name, value in fields:
        size += len(name) + len(value)
    return size <= KEPT_CHARS


def encode_response_head(status: int, fields: HeaderFields) -> bytes:
    """Return status line and fields, still open: the sender adds the framing and the empty line."""
    return _kept_response_head(status, fields) if _is_short(fields, 0) else _response_head(status, fields)


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
    is_short = _is_short(fields, len(method) + len(target))
    return (_kept_request_head if is_short else _request_head)(method, target, fields)


def _request_head(method: str, target: str, fields: HeaderFields) -> bytes:
    if not _TOKEN.fullmatch(method) or not _TARGET.fullmatch(target):
        raise LocalProtocolError(f"not a request that can be sent: {method!r} {target!r}")
    return f"{method} {target} HTTP/1.1\r\n".encode() + encode_fields(fields)


_kept_request_head: Final = lru_cache(ENCODED_HEADS)(_request_head)


def has_no_body(status: int) -> bool:
    """Return whether responses of this status never have a body (RFC 9112 section 6.3)."""
    return status < 200 or status in (204, 304)


def add_part(parts: list[bytes | bytearray], part: bytes) -> None:
    """Add a part to those of a body, joining small ones, so that memory stays near the body's size."""
    if not parts or len(part) >= SMALL_PART:
        parts.append(part)
        return
    last = parts[-1]
    if isinstance(last, bytearray):
        last += part
    else:
        parts.append(bytearray(part))


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


# Fields that readers understand differently when they come twice, which request smuggling exploits.
SINGLETONS: Final = frozenset(
    {"authorization", "content-length", "content-type", "expect", "host", "origin", "transfer-encoding"}
)


class Phase(Enum):
    IDLE = auto()
    HEAD = auto()
    BODY = auto()


# A global is found faster than an attribute of the class.
IDLE: Final = Phase.IDLE
HEAD: Final = Phase.HEAD
BODY: Final = Phase.BODY


_CHUNKED_LAST: Final = re.compile(r"[,][ \t]*chunked\Z")
_NOT: Final = 0  # the part that comes next of a body that is not chunked, and of one that is
_SIZE: Final = 1
_DATA: Final = 2
_TRAILER: Final = 3
_EMPTY_LINES: Final = re.compile(rb"[\r\n]+")  # before a request they are ignored (RFC 9112 section 2.2)
_SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,16})\r\n")
_SIZE_BEGUN: Final = re.compile(rb"[0-9A-Fa-f]{0,16}\r?")
_CHUNK_LINE: Final = Refusal(400, "malformed request: before a chunk stands its size, without extensions")
_TLS_HANDSHAKE: Final = b"\x16\x03"
_TLS_REFUSAL: Final = Refusal(400, "this port speaks plain HTTP, not TLS: use http://")


class _MessageParser:
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


class RequestRefused(Exception):
    """A refusal on its way out of a callback of httptools; `feed` makes a `Refusal` of its arguments."""


class RequestParser(_MessageParser):
    """A parser of one connection's requests. httptools calls the methods `on_…`.

    Feed it, answer `requests` in order, then check `refusal`.
    """

    __deletable__ = ("_parser",)  # by `close`, where this is compiled

    def __init__(self, limits: Limits, peer: str) -> None:
        head_limit, field_limit = limits.max_head_bytes, limits.max_header_fields
        super().__init__("request", "malformed request", head_limit, field_limit, SINGLETONS)
        self.phase = IDLE
        self.requests: list[HttpRequest] = []  # few; an empty deque is larger than all else here
        self.refusal: Refusal | None = None
        self.wants_continue = False
        self.is_large = False  # the coming body has more than SMALL_BODY, or may have
        self.holder = ""  # of the client's certificate
        self._limits = limits
        self._peer = peer
        self._request: HttpRequest | None = None  # whose head is complete and whose body is not
        self._length = 0  # of its body, if the head says it
        self._chunked = _NOT  # or what of a chunked body comes next
        self._fed = b""  # what is fed now, behind `_tail`
        self._position = 0  # in it, up to which heads and chunks are accounted for
        self._tail = b""  # of the bytes fed before, for the end of a head or a trailer, or a chunk's size
        self._body_withheld = False  # httptools takes an Upgrade for the end of the message
        self._known_line = ("", "", "")  # of a request that came before: its method, path and query
        self._parser = httptools.HttpRequestParser(self)

    def close(self) -> None:
        """Free the parser of httptools. No more bytes may be fed."""
        # It and we hold each other, and a reference cycle would wait for the garbage collector.
        del self._parser

    @property
    def coming(self) -> HttpRequest | None:
        """The request whose body is being received, still without the body."""
        return self._request

    @property
    def body_size(self) -> int:
        """Bytes of the body that is being received: by its head, or received so far."""
        return max(self._length, self.body_bytes)

    def forget_body(self) -> None:
        """Free the received bytes of requests that no handler answers. No more bytes may be fed."""
        self._body.clear()
        self.requests.clear()
        self._request = None

    def feed(self, data: bytes) -> None:
        """Parse received bytes. Never raises: see `refusal`."""
        if (request := self.read_whole(data)) is not None:
            self.requests.append(request)
            return
        complete, phase = len(self.requests), self.phase
        self.received_bytes += len(data)
        self._fed, self._position = self._tail + data, 0
        self._parse(data)
        if self.refusal is None:
            self._keep_tail()
        self._fed = b""
        if self.refusal is not None:
            return
        if len(self.requests) > complete:
            self.received_bytes = 0
            if self._lessons and phase is IDLE:
                # `read_whole` takes HTTP/1.1 and an open connection for granted.
                last = self.requests[-1]
                is_fit = last.method == "POST" and last.keep_alive and not last.http_1_0
                if self._learns(data, is_fit):
                    self._known_line = last.method, last.path, last.query
        elif self.phase is not IDLE:
            try:
                self._check_growth()
            except RequestRefused as refused:
                self.refusal = Refusal(*refused.args)

    def read_whole(self, data: bytes) -> HttpRequest | None:
        """Return the request if `data` is exactly one with the known head, otherwise None, without effect."""
        head = self._known
        if head is None or self.phase is not IDLE or (found := head.read(data)) is None:
            return None
        headers, position = found
        limits = self._limits
        # The parser refuses those that are too large.
        if position > limits.max_head_bytes or len(data) - position > limits.max_message_bytes:
            return None
        method, path, query = self._known_line
        body = data[position:]
        return HttpRequest(method, path, query, headers, body, self._peer, False, True, self.holder)

    def _parse(self, data: bytes) -> None:
        while data:
            try:
                self._parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as upgrade:
                # httptools stops after an Upgrade. It is ignored (RFC 9110 section 7.8), so HTTP goes on.
                data = self._body_head() + data[upgrade.args[0] :]
            except httptools.HttpParserError as error:
                self.refusal = _TLS_REFUSAL if data[:2] == _TLS_HANDSHAKE else _refusal(error)
                return

    def _keep_tail(self) -> None:
        """Keep the last bytes that must be seen together with the next ones."""
        # The empty line at the end of a head or a trailer may be cut by the end of what was received.
        if self.phase is HEAD or self._chunked == _TRAILER:
            self._tail = self._fed[1 - len(HEAD_END) :]
            return
        self._tail = self._fed[self._position :] if self._chunked != _NOT else b""
        # Anything but a size is refused at once, so that the tail stays short.
        if self._chunked == _SIZE and not _SIZE_BEGUN.fullmatch(self._tail):
            self.refusal = _CHUNK_LINE

    def on_message_begin(self) -> None:
        if self.phase is IDLE:
            if (blank := _EMPTY_LINES.match(self._fed, self._position)) is not None:
                self._position = blank.end()
            self.phase = HEAD
            self._in_head = True
            self._request = None
            self._target = b""
            self.headers = {}
            self._repeats = 0
            self._body = []
            self.body_bytes = 0
            self.wants_continue = False

    def on_url(self, part: bytes) -> None:
        self._target += part

    def on_headers_complete(self) -> None:
        if self.phase is not HEAD:  # the head of `_body_head`, which is no request
            return
        self.phase = BODY
        self._in_head = False
        self._position = self._fed.find(HEAD_END, self._position) + len(HEAD_END)
        headers = self.headers
        self._check_fields()
        if self.received_bytes > self._head_limit:
            self._check_head_size(len(self._target))
        version = self._parser.get_http_version()
        # RFC 9112 section 3.2 demands Host; section 6.1 distrusts Transfer-Encoding in HTTP/1.0.
        if version == "1.1":
            if "host" not in headers:
                raise RequestRefused(400, "malformed request: Host is missing")
        elif version != "1.0":
            raise RequestRefused(505, "the only versions supported are HTTP/1.1 and HTTP/1.0")
        elif "transfer-encoding" in headers:
            raise RequestRefused(400, "malformed request: HTTP/1.0 has no Transfer-Encoding")
        self._length, self.is_large = 0, False
        if "content-length" in headers or "transfer-encoding" in headers:
            self._length = int(headers.get("content-length", "0"))
            if self._length > self._limits.max_message_bytes:  # before any of the body is received
                raise self._body_too_large()
            self.is_large = self._length > SMALL_BODY or "transfer-encoding" in headers
            if "transfer-encoding" in headers:
                _check_coding(headers["transfer-encoding"].lower())
                self._chunked = _SIZE
            self._body_withheld = self._parser.should_upgrade()
        if "expect" in headers:
            if headers["expect"].lower() != "100-continue":
                raise RequestRefused(417, "the only expectation supported is 100-continue")
            self.wants_continue = version == "1.1"
        self._request = self._start_request(version)

    def on_body(self, part: bytes) -> None:
        self.body_bytes += len(part)
        if self.body_bytes > self._limits.max_message_bytes:
            raise self._body_too_large()
        self._position += len(part)
        add_part(self._body, part)
        self.wants_continue = False  # the client has not waited for it

    def on_chunk_header(self) -> None:
        # httptools skips extensions of a chunk, so the line is read once more. They are refused: readers
        # that do not agree where one ends can be played off against each other, and no client needs them.
        end = self._fed.find(b"\n", self._position) + 1
        size = _SIZE_LINE.fullmatch(self._fed, self._position, end)
        if size is None:
            raise RequestRefused(*_CHUNK_LINE)
        self._position = end
        self._chunked = _DATA if int(size[1], 16) else _TRAILER

    def on_chunk_complete(self) -> None:
        if self._chunked == _DATA:
            self._position += len(LINE_END)
            self._chunked = _SIZE

    def on_message_complete(self) -> None:
        if not self._body_withheld:
            assert self._request is not None  # its head came first
            if self._chunked == _TRAILER:
                start = max(0, self._position - len(LINE_END))
                self._position = self._fed.find(HEAD_END, start) + len(HEAD_END)
                self._chunked = _NOT
            body = self._body
            self._request.body = bytes(body[0]) if len(body) == 1 else b"".join(body)
            body.clear()  # the next request may come much later
            self.requests.append(self._request)
            self._request = None
            self.phase = IDLE
            self.wants_continue = False  # there was no body to wait for

    def _start_request(self, version: str) -> HttpRequest:
        target = self._target.decode("latin-1")
        if target[0] != "/" and target != "*":
            target, host = _origin_form(target)
            # Two hosts in one request: a proxy in front may have judged the other one.
            if self.headers.setdefault("host", host).lower() != host.lower():
                raise RequestRefused(400, "malformed request: the target and Host name different hosts")
        path, _, query = target.partition("?")
        method, stays = self._parser.get_method().decode("latin-1"), self._parser.should_keep_alive()
        old = version == "1.0"
        return HttpRequest(method, path, query, self.headers, b"", self._peer, old, stays, self.holder)

    def _body_head(self) -> bytes:
        """Return a head that makes httptools read the body that it left out after an Upgrade."""
        if not self._body_withheld:
            return b""
        self._body_withheld = False
        if "transfer-encoding" in self.headers:
            return b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        return b"POST / HTTP/1.1\r\nContent-Length: %b\r\n\r\n" % self.headers["content-length"].encode()

    def _refused(self, status: int, sentence: str) -> Exception:
        return RequestRefused(status, sentence)

    def _body_too_large(self) -> RequestRefused:
        most = self._limits.max_message_bytes
        return RequestRefused(413, f"the request's body is larger than {most} bytes")


def _check_coding(coding: str) -> None:
    """Refuse other transfer codings than chunked: without it at the end, a body has no known length.

    Source: RFC 9112 sections 6.1 and 6.3.
    """
    if coding == "chunked":
        return
    if _CHUNKED_LAST.search(coding) and coding.count("chunked") == 1:
        raise RequestRefused(501, "the only transfer coding supported is chunked")
    raise RequestRefused(400, "malformed request: its last transfer coding is not chunked")


def _origin_form(target: str) -> tuple[str, str]:
    """Split `http://host/path?query` into `/path?query` and `host`."""
    try:
        url = urlsplit(target)
    except ValueError as error:
        raise RequestRefused(400, "malformed request: the target is not a URL") from error
    if url.scheme not in ("http", "https") or "@" in url.netloc:
        raise RequestRefused(400, "malformed request: the target is neither a path nor an http URL")
    path = url.path or "/"
    return f"{path}?{url.query}" if url.query else path, url.netloc


def _refusal(error: httptools.HttpParserError) -> Refusal:
    reason = str(error)
    if isinstance(error.__context__, RequestRefused):
        return Refusal(*error.__context__.args)
    if reason in ("Invalid HTTP version", "Pause on PRI/Upgrade"):
        return Refusal(505, "the only versions supported are HTTP/1.1 and HTTP/1.0")
    return Refusal(400, f"malformed request: {reason}")


_LENGTH_FIELDS: Final = frozenset({"content-length", "transfer-encoding"})
# The beginnings of an alert and a handshake, with which a TLS port answers plain HTTP.
_TLS_RECORDS: Final = (b"\x15\x03", b"\x16\x03")


class ResponseParser(_MessageParser):
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

    def feed(self, data: bytes) -> None:
        """Parse received bytes, b"" at the end of the stream. Raises RemoteProtocolError, TransportClosed."""
        if not data:
            self.feed_eof()
            return
        first = not self.received_bytes
        if first and self._known is not None and self._take_known(self._known, data):
            return
        self.received_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self.complete:
                if self.received_bytes == len(data) and data[:2] in _TLS_RECORDS:
                    raise RemoteProtocolError("the server speaks TLS there: use https://") from error
                raise RemoteProtocolError(f"{self._malformed}: {_reason(error)}") from error
            self.keep_alive = False  # bytes after the response belong to no request: do not use this again
        if not self.complete:
            if self._in_head or self.received_bytes > 2 * self._head_limit:
                self._check_growth()
        elif first and self._lessons and self.keep_alive:
            is_first = data.startswith(b"%d " % self.status, 9)  # otherwise an interim response came first
            if self._learns(data, is_first and not has_no_body(self.status)):
                self._known_status = self.status

    def _take_known(self, known: KnownHead, data: bytes) -> bool:
        """Take `data` if it is one whole response with the known head; return False if not."""
        values = known.read(data)
        if values is None or self.complete:
            return False
        self.headers, position = values
        if position > self._head_limit:
            return False
        body = data[position:]
        self.status = self._known_status
        self.complete = self.keep_alive = True
        self.received_bytes = len(data)
        self.length = self.body_bytes = len(body)
        if body:
            self._body.append(body)
        return True

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
        return not self._ends_with_stream and self._parser.should_keep_alive()

    @property
    def missing(self) -> int:
        """Bytes of the body that are still to come; 0 if unknown."""
        return max(0, self.length - self.body_bytes)

    def skip_rest(self) -> None:
        """Note that the `missing` bytes were received without the parser."""
        self.received_bytes += self.missing
        self.body_bytes = self.length
        self.complete = True
        self.keep_alive = self._parser.should_keep_alive()
        self._parser = httptools.HttpResponseParser(self)  # the old one still waits for the body

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


def _reason(error: Exception) -> str:
    if isinstance(error, httptools.HttpParserUpgrade):
        return "it switches to a protocol that was not asked for"
    if isinstance(error, httptools.HttpParserCallbackError):  # raised by one of our callbacks
        return str(error.__context__ or error)
    return str(error)
