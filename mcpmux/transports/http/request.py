"""Bytes of one connection in, complete requests out. Pure: httptools' parser and what we add to it.

httptools (llhttp, strict) already refuses bare line feeds, folded lines, blanks before a colon, a
repeated Content-Length or one next to Transfer-Encoding, and malformed chunks. Refused here: what it
lets pass although it is ambiguous, too large, or not HTTP/1.x; chunk extensions are, too, for which the lines
between chunks are looked at a second time (`chunk_lines`). An Upgrade is declined by ignoring it.

    IDLE -- first byte -->      HEAD
    HEAD -- empty line -->      BODY   `wants_continue` if the client waits for a go-ahead
    BODY -- end of message -->  IDLE   the request is appended to `requests`
    any  -- `refusal` is set -->       the parser is spent
"""

from __future__ import annotations

import re
from collections import deque
from enum import Enum, auto
from itertools import islice
from typing import Final
from urllib.parse import urlsplit

import httptools

from mcpmux.protocol.envelope import Value
from mcpmux.protocol.principal import ANYONE, Principal
from mcpmux.transports.http.chunk_lines import ChunkLines
from mcpmux.transports.http.limits import FRAMING_PER_BODY_BYTE, HttpLimits, Refusal
from mcpmux.transports.http.message import LESSONS, KnownHead, add_part, learn


class HttpRequest(Value):
    """One complete request.

    `path` and `query` are as sent, percent-escapes included; `headers` have lower-case names, repeated
    fields are joined by ", ". `peer`: the client's address and port. `keep_alive` says whether the connection
    outlives the answer. `holder`: of the client's certificate, see `holder_of`; `principal`: set by whoever
    finds out who it is.
    """

    __slots__ = (
        "body",
        "headers",
        "holder",
        "http_1_0",
        "keep_alive",
        "method",
        "path",
        "peer",
        "principal",
        "query",
    )

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
        principal: Principal = ANYONE,
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.body = body
        self.peer = peer
        self.http_1_0 = http_1_0
        self.keep_alive = keep_alive
        self.holder = holder
        self.principal = principal

    def parts(self) -> tuple[object, ...]:
        target = (self.method, self.path, self.query)
        where = (self.peer, self.http_1_0, self.keep_alive, self.holder, self.principal)
        return *target, self.headers, self.body, *where


# Fields that mean something else to every reader when they come twice.
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
_HEAD_END: Final = b"\r\n\r\n"
_CHUNK_LINE: Final = Refusal(400, "malformed request: before a chunk stands its size, without extensions")
_TLS_HANDSHAKE: Final = b"\x16\x03"
_TLS_REFUSAL: Final = Refusal(400, "this port speaks plain HTTP, not TLS: use http://")


class RequestRefused(Exception):
    """A decision on its way out of a parser callback; `feed` turns it into `refusal`."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.refusal = Refusal(status, sentence)


class RequestParser:
    """Feed it, answer `requests` in order, then look at `refusal`. The `on_…` are httptools' callbacks."""

    __deletable__ = ("_parser",)  # by `close`, where this is compiled

    def __init__(self, limits: HttpLimits, peer: str) -> None:
        self.phase = IDLE
        self.requests: deque[HttpRequest] = deque()
        self.refusal: Refusal | None = None
        self.wants_continue = False
        self.holder = ""  # of the client's certificate
        self._limits = limits
        self._peer = peer
        self._wire_bytes = 0  # of the unfinished request, or a little less when it was pipelined
        self.body_bytes = 0  # of the unfinished request
        self._request: HttpRequest | None = None  # whose head is complete and whose body is not
        self._chunks: ChunkLines | None = None  # of a body that has begun
        self._chunked = False  # whether such a body has begun in what is fed
        self._tail = b""  # of an unfinished head
        self._body_withheld = False  # httptools takes an Upgrade for the end of the message
        self._known: KnownHead | None = None  # of a request that came before
        self._known_line = ("", "", "")  # its method, path and query
        self._lessons = LESSONS + 1  # one more, as a connection's only request teaches nothing
        self._parser = httptools.HttpRequestParser(self)

    def __repr__(self) -> str:
        return f"RequestParser({self.phase.name}, complete={len(self.requests)}, refusal={self.refusal})"

    def close(self) -> None:
        """Nothing more is fed: httptools and we hold each other no longer."""
        del self._parser

    def feed(self, data: bytes) -> None:
        """Take what was received. Never raises: see `refusal`."""
        if (request := self.read_whole(data)) is not None:
            self.requests.append(request)
            return
        complete, phase, body_bytes = len(self.requests), self.phase, self.body_bytes
        self._wire_bytes += len(data)
        self._parse(data)
        if self._chunked or self._chunks is not None:
            self._look_at_chunks(data, phase, body_bytes, complete)
        if self.refusal is not None:
            return
        if self.phase is HEAD:
            self._tail = (self._tail + data)[1 - len(_HEAD_END) :]
        if len(self.requests) > complete:
            self._wire_bytes = 0
            if self._lessons and phase is IDLE:
                self._learn(data)
        else:
            self._check_growth()

    def read_whole(self, data: bytes) -> HttpRequest | None:
        """The one request that `data` is, when its head is known; None, and nothing is done, for all else."""
        known = self._known
        if known is None or self.phase is not IDLE or (found := known.read(data)) is None:
            return None
        headers, position = found
        limits = self._limits
        if position > limits.head_bytes or len(data) - position > limits.body_bytes:
            return None
        method, path, query = self._known_line
        body = data[position:]
        return HttpRequest(method, path, query, headers, body, self._peer, False, True, self.holder)

    def _learn(self, data: bytes) -> None:
        """Have the next request compared with the one that `data` was, if it was one and had its length."""
        request = self.requests[0]
        self._lessons -= 1
        if self._lessons >= LESSONS or self._repeats or request.method != "POST":
            return
        if request.http_1_0 or not request.keep_alive:
            return
        known = learn(data, request.headers)
        if known is not None:
            self._known, self._known_line = known, (request.method, request.path, request.query)

    def _parse(self, data: bytes) -> None:
        while data:
            try:
                self._parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as upgrade:
                data = self._body_head() + data[upgrade.args[0] :]
            except httptools.HttpParserError as error:
                self.refusal = _TLS_REFUSAL if data[:2] == _TLS_HANDSHAKE else _refusal(error)
                return

    def _look_at_chunks(self, data: bytes, phase: Phase, body_bytes: int, complete: int) -> None:
        """See that no request in `data` has chunk extensions.

        The parser does not say where in `data` what is: it is found again by the requests it has made of it.
        The rest is how everything was before: `body_bytes` of an unfinished body, requests `complete`.
        """
        self._chunked = False
        found = list(islice(self.requests, complete, None))
        if self._request is not None:
            found.append(self._request)
        position = 0
        for number, request in enumerate(found, complete):
            if number > complete or phase is not BODY:
                position = _find_body(
                    data, position, self._tail if phase is HEAD and number == complete else b""
                )
                body_bytes = 0
                if "transfer-encoding" in request.headers:
                    self._chunks = ChunkLines(self._limits.body_bytes)
            if self._chunks is None:
                position += int(request.headers.get("content-length", 0)) - body_bytes
                continue
            position = self._chunks.feed(data, position)
            if self._chunks.found:
                self.refusal = _CHUNK_LINE
                while len(self.requests) > number:
                    self.requests.pop()
                return
            if self._chunks.over:
                self._chunks = None

    def on_message_begin(self) -> None:
        if self.phase is IDLE:
            self.phase = HEAD
            self._request = None
            self._target = b""
            self._headers: dict[str, str] = {}
            self._repeats = 0
            self._body: list[bytes | bytearray] = []
            self.body_bytes = 0
            self.wants_continue = False

    def on_url(self, part: bytes) -> None:
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.phase is not HEAD:
            return  # a trailer must not pass for a header
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1").rstrip(" \t")
        if key in self._headers:
            if key in SINGLETONS:
                raise RequestRefused(400, f"malformed request: {key} is repeated")
            text = f"{self._headers[key]}, {text}"
            self._repeats += 1
            self._check_fields()
        self._headers[key] = text

    def on_headers_complete(self) -> None:
        if self.phase is not HEAD:
            return
        self.phase = BODY
        headers = self._headers
        self._check_fields()
        if self._wire_bytes > self._limits.head_bytes:
            self._check_head_size()
        version = self._parser.get_http_version()
        if version != "1.1":
            _check_old_version(version, headers)
        elif "host" not in headers:
            raise RequestRefused(400, "malformed request: Host is missing")
        if "content-length" in headers or "transfer-encoding" in headers:
            self._check_body_headers()
        if "expect" in headers:
            self._check_expectation(version)
        self._request = self._start_request(version)

    def on_body(self, part: bytes) -> None:
        self.body_bytes += len(part)
        if self.body_bytes > self._limits.body_bytes:
            raise self._body_too_large()
        add_part(self._body, part)
        self.wants_continue = False

    def on_message_complete(self) -> None:
        if not self._body_withheld:
            assert self._request is not None  # its head came first
            body = self._body
            self._request.body = bytes(body[0]) if len(body) == 1 else b"".join(body)
            body.clear()  # the next request may be long in coming
            self.requests.append(self._request)
            self._request = None
            self.phase = IDLE
            self.wants_continue = False  # there was no body to wait for

    def _start_request(self, version: str) -> HttpRequest:
        target = self._target.decode("latin-1")
        if target[0] != "/" and target != "*":
            target, host = _origin_form(target)
            if self._headers.setdefault("host", host).lower() != host.lower():
                raise RequestRefused(400, "malformed request: the target and Host name different hosts")
        path, _, query = target.partition("?")
        return HttpRequest(
            self._parser.get_method().decode("latin-1"),
            path,
            query,
            self._headers,
            b"",
            self._peer,
            version == "1.0",
            self._parser.should_keep_alive(),
            self.holder,
        )

    def _check_growth(self) -> None:
        limit = self._limits.head_bytes
        if self.phase is HEAD:
            try:
                self._check_fields()
                if self._wire_bytes > limit:
                    raise self._head_too_large()
            except RequestRefused as refused:
                self.refusal = refused.refusal
        elif self.phase is BODY and self._wire_bytes > 2 * limit + FRAMING_PER_BODY_BYTE * self.body_bytes:
            self.refusal = Refusal(400, "malformed request: chunks are mostly framing")

    def _check_head_size(self) -> None:
        size = len(self._target) + sum(len(name) + len(value) + 4 for name, value in self._headers.items())
        if size > self._limits.head_bytes:
            raise self._head_too_large()

    def _check_body_headers(self) -> None:
        if int(self._headers.get("content-length", "0")) > self._limits.body_bytes:
            raise self._body_too_large()
        if "transfer-encoding" in self._headers:
            _check_coding(self._headers["transfer-encoding"].lower())
            self._chunked = True
        self._body_withheld = self._parser.should_upgrade()

    def _check_expectation(self, version: str) -> None:
        if self._headers["expect"].lower() != "100-continue":
            raise RequestRefused(417, "the only expectation supported is 100-continue")
        self.wants_continue = version == "1.1"

    def _body_head(self) -> bytes:
        """After an Upgrade: a head that makes httptools read the body which it left out."""
        if not self._body_withheld:
            return b""
        self._body_withheld = False
        if "transfer-encoding" in self._headers:
            return b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        return b"POST / HTTP/1.1\r\nContent-Length: %b\r\n\r\n" % self._headers["content-length"].encode()

    def _check_fields(self) -> None:
        limit = self._limits.head_fields
        if len(self._headers) + self._repeats > limit:
            raise RequestRefused(431, f"the request has more than {limit} header fields")

    def _head_too_large(self) -> RequestRefused:
        return RequestRefused(431, f"the request's head is larger than {self._limits.head_bytes} bytes")

    def _body_too_large(self) -> RequestRefused:
        return RequestRefused(413, f"the request's body is larger than {self._limits.body_bytes} bytes")


def _find_body(data: bytes, position: int, tail: bytes) -> int:
    """Where the head ends that begins at `position`, or with `tail` before `data`."""
    if tail:
        return (tail + data).find(_HEAD_END) + len(_HEAD_END) - len(tail)
    while data[position : position + 1] in (b"\r", b"\n"):
        position += 1  # empty lines before a request are nothing
    return data.find(_HEAD_END, position) + len(_HEAD_END)


def _check_old_version(version: str, headers: dict[str, str]) -> None:
    if version != "1.0":
        raise RequestRefused(505, "the only versions supported are HTTP/1.1 and HTTP/1.0")
    if "transfer-encoding" in headers:
        raise RequestRefused(400, "malformed request: HTTP/1.0 has no Transfer-Encoding")


def _check_coding(coding: str) -> None:
    """Where a body ends that is not chunked in the end, nobody can say (RFC 9112 sections 6.1 and 6.3)."""
    if coding == "chunked":
        return
    if _CHUNKED_LAST.search(coding) and coding.count("chunked") == 1:
        raise RequestRefused(501, "the only transfer coding supported is chunked")
    raise RequestRefused(400, "malformed request: its last transfer coding is not chunked")


def _origin_form(target: str) -> tuple[str, str]:
    """`http://host/path?query` -> (`/path?query`, `host`)."""
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
        return error.__context__.refusal
    if reason in ("Invalid HTTP version", "Pause on PRI/Upgrade"):
        return Refusal(505, "the only versions supported are HTTP/1.1 and HTTP/1.0")
    return Refusal(400, f"malformed request: {reason}")
