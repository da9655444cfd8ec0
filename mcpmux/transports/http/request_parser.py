"""Parse the requests of one connection with httptools. Pure.

The phases of a request:

    IDLE -- first byte -->      HEAD
    HEAD -- empty line -->      BODY   `wants_continue` if the client waits for a go-ahead
    BODY -- end of message -->  IDLE   the request is appended to `requests`
    any  -- `refusal` is set -->       the parser is spent

The lines before the chunks of a body are checked beside httptools, see `ChunkLines`.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import httptools

from mcpmux.transports.body_budget import SMALL_BODY
from mcpmux.transports.http.message import HEAD_END, LINE_END, HttpRequest, MessageParser, Refusal
from mcpmux.transports.sse import add_part

if TYPE_CHECKING:  # a parser of foreign bytes needs no library for settings
    from mcpmux.config import Limits

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

_EMPTY_LINES: Final = re.compile(rb"[\r\n]+")  # before a request they are ignored (RFC 9112 section 2.2)
_SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,16})\r\n")
_SIZE_BEGUN: Final = re.compile(rb"[0-9A-Fa-f]{0,16}\r?")
_CHUNKED_LAST: Final = re.compile(r"[,][ \t]*chunked\Z")
_CHUNK_LINE: Final = Refusal(400, "malformed request: before a chunk stands its size, without extensions")
_VERSION_REFUSAL: Final = Refusal(505, "the only versions supported are HTTP/1.1 and HTTP/1.0")
# As httptools words it; PRI begins a connection of HTTP/2.
_OTHER_VERSIONS: Final = ("Invalid HTTP version", "Pause on PRI/Upgrade")
_TLS_HANDSHAKE: Final = b"\x16\x03"
_TLS_REFUSAL: Final = Refusal(400, "this port speaks plain HTTP, not TLS: use http://")


class Part(Enum):
    """The part of a request that comes next."""

    HEAD = auto()
    BODY = auto()
    """A body that is not chunked, or none."""
    SIZE = auto()
    DATA = auto()
    TRAILER = auto()


class ChunkLines:
    """The bytes that are fed now, and the position up to which their parts are known.

    httptools skips the extensions of a chunk. Readers that do not agree where one ends can be played off
    against each other, and no client needs them, so only a size may stand before a chunk. For that the lines
    are found once more in the bytes that httptools gets, from the end of the head on:

        (head) -- its end, chunked --> SIZE -- a size line --> DATA -- the chunk's end --> SIZE
                                            -- of size 0 ----> TRAILER -- its empty line --> (next head)

    `feed` them before httptools gets them, call the other methods from its callbacks, then `keep_tail`.
    """

    __slots__ = ("_fed", "_part", "_position", "_tail")

    def __init__(self) -> None:
        self._part = Part.HEAD
        self._fed = b""  # behind `_tail`
        self._position = 0
        self._tail = b""  # of the bytes fed before, for the end of a head or a trailer, or a size line

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        self._fed, self._position = self._tail + data, 0

    def begin_head(self) -> None:
        """Note the beginning of a request, before which there may be empty lines."""
        self._part = Part.HEAD
        if (blank := _EMPTY_LINES.match(self._fed, self._position)) is not None:
            self._position = blank.end()

    def end_head(self) -> None:
        """Note the end of a head."""
        self._part = Part.BODY
        self._position = self._fed.find(HEAD_END, self._position) + len(HEAD_END)

    def begin_chunks(self) -> None:
        """Note that the body whose head has ended is chunked."""
        self._part = Part.SIZE

    def take_body(self, size: int) -> None:
        """Note `size` bytes of a body."""
        self._position += size

    def take_size(self) -> bool:
        """Note that a chunk begins; return whether only its size stands before it."""
        end = self._fed.find(b"\n", self._position) + 1
        size = _SIZE_LINE.fullmatch(self._fed, self._position, end)
        if size is None:
            return False
        self._position = end
        self._part = Part.DATA if int(size[1], 16) else Part.TRAILER
        return True

    def end_chunk(self) -> None:
        """Note the end of a chunk; the last one, of size 0, is followed by the trailer."""
        if self._part is Part.DATA:
            self._position += len(LINE_END)
            self._part = Part.SIZE

    def end_body(self) -> None:
        """Note the end of a request."""
        if self._part is Part.TRAILER:
            start = max(0, self._position - len(LINE_END))
            self._position = self._fed.find(HEAD_END, start) + len(HEAD_END)
        self._part = Part.HEAD

    def keep_tail(self, *, in_head: bool) -> bool:
        """Keep the last bytes that must be seen together with the next ones. Return False for a bad line.

        `in_head`: a head has begun.
        """
        fed, self._fed = self._fed, b""
        # The empty line at the end of a head or a trailer may be cut by the end of what was received.
        if in_head or self._part is Part.TRAILER:
            self._tail = fed[1 - len(HEAD_END) :]
            return True
        is_chunked = self._part is Part.SIZE or self._part is Part.DATA
        self._tail = fed[self._position :] if is_chunked else b""
        # Anything but a size is refused at once, so that the tail stays short.
        return self._part is not Part.SIZE or _SIZE_BEGUN.fullmatch(self._tail) is not None


class RequestRefused(Exception):
    """A refusal on its way out of a callback of httptools; `feed` makes a `Refusal` of its arguments."""


class RequestParser(MessageParser):
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
        self.holder = ""  # of the client's certificate
        self._limits = limits
        self._peer = peer
        self.coming: HttpRequest | None = None  # whose body is being received, still without the body
        self._length = 0  # of its body, if the head says it
        self._chunk_lines = ChunkLines()
        self._body_withheld = False  # httptools takes an Upgrade for the end of the message
        self._known_line = ("", "", "")  # of a request that came before: its method, path and query
        self._parser = httptools.HttpRequestParser(self)

    def close(self) -> None:
        """Free the parser of httptools. No more bytes may be fed."""
        # It and we hold each other, and a reference cycle would wait for the garbage collector.
        del self._parser

    @property
    def is_large(self) -> bool:
        """Whether the body that is being received has more than SMALL_BODY, or may have."""
        return self._length > SMALL_BODY or "transfer-encoding" in self.headers

    @property
    def body_size(self) -> int:
        """Bytes of the body that is being received: by its head, or received so far."""
        return max(self._length, self.body_bytes)

    def forget_body(self) -> None:
        """Free the received bytes of requests that no handler answers. No more bytes may be fed."""
        self._body.clear()
        self.requests.clear()
        self.coming = None

    def feed(self, data: bytes) -> None:
        """Parse received bytes. Never raises: see `refusal`."""
        head = self._known
        if head is not None and self.phase is IDLE and (values := head.read(data)) is not None:
            headers, position, missing = values
            limits, size = self._limits, len(data) - position
            # The parser gets those that are not whole, and refuses those that are too large.
            if not missing and position <= limits.max_head_bytes and size <= limits.max_message_bytes:
                method, path, query = self._known_line
                request = HttpRequest(
                    method, path, query, headers, data[position:], self._peer, False, True, self.holder
                )
                self.requests.append(request)
                return
        complete, phase = len(self.requests), self.phase
        self.received_bytes += len(data)
        self._chunk_lines.feed(data)
        self._parse(data)
        is_sound = self._chunk_lines.keep_tail(in_head=self.phase is HEAD)
        if self.refusal is None and not is_sound:
            self.refusal = _CHUNK_LINE
        if self.refusal is not None:
            return
        if len(self.requests) > complete:
            self.received_bytes = 0
            if self._lessons and phase is IDLE:
                # With a known head, HTTP/1.1 and an open connection are taken for granted.
                last = self.requests[-1]
                is_fit = last.method == "POST" and last.keep_alive and not last.http_1_0
                if self._learns(data, is_fit):
                    self._known_line = last.method, last.path, last.query
        elif self.phase is not IDLE:
            try:
                self._check_growth()
            except RequestRefused as refused:
                self.refusal = Refusal(*refused.args)

    def _parse(self, data: bytes) -> None:
        while data:
            try:
                self._parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as upgrade:
                # httptools stops after an Upgrade. It is ignored (RFC 9110 section 7.8), so HTTP goes on.
                data = data[upgrade.args[0] :]
                if self._body_withheld:
                    # A head of ours makes httptools read the body that it left out.
                    self._body_withheld = False
                    length = self.headers.get("content-length", "")
                    is_chunked = "transfer-encoding" in self.headers
                    field = "Transfer-Encoding: chunked" if is_chunked else f"Content-Length: {length}"
                    data = f"POST / HTTP/1.1\r\n{field}\r\n\r\n".encode() + data
            except httptools.HttpParserError as error:
                reason = str(error)
                if data[:2] == _TLS_HANDSHAKE:
                    self.refusal = _TLS_REFUSAL
                elif isinstance(error.__context__, RequestRefused):  # raised by one of our callbacks
                    self.refusal = Refusal(*error.__context__.args)
                elif reason in _OTHER_VERSIONS:
                    self.refusal = _VERSION_REFUSAL
                else:
                    self.refusal = Refusal(400, f"malformed request: {reason}")
                return

    def on_message_begin(self) -> None:
        if self.phase is IDLE:
            self._chunk_lines.begin_head()
            self.phase = HEAD
            self._in_head = True
            self.coming = None
            self._target = b""
            self.headers = {}
            self._repeats = 0
            self._body = []
            self.body_bytes = 0
            self.wants_continue = False

    def on_url(self, part: bytes) -> None:
        self._target += part

    def on_headers_complete(self) -> None:
        if self.phase is not HEAD:  # the head of ours in `_parse`, which is no request
            return
        self.phase = BODY
        self._in_head = False
        self._chunk_lines.end_head()
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
            raise RequestRefused(*_VERSION_REFUSAL)
        elif "transfer-encoding" in headers:
            raise RequestRefused(400, "malformed request: HTTP/1.0 has no Transfer-Encoding")
        self._length = 0
        if "content-length" in headers or "transfer-encoding" in headers:
            self._length = int(headers.get("content-length", "0"))
            if self._length > self._limits.max_message_bytes:  # before any of the body is received
                raise self._body_too_large()
            if "transfer-encoding" in headers:
                coding = headers["transfer-encoding"].lower()
                if coding != "chunked":
                    # Without it at the end, a body has no known length (RFC 9112 sections 6.1 and 6.3).
                    if _CHUNKED_LAST.search(coding) and coding.count("chunked") == 1:
                        raise RequestRefused(501, "the only transfer coding supported is chunked")
                    raise RequestRefused(400, "malformed request: its last transfer coding is not chunked")
                self._chunk_lines.begin_chunks()
            self._body_withheld = self._parser.should_upgrade()
        if "expect" in headers:
            if headers["expect"].lower() != "100-continue":
                raise RequestRefused(417, "the only expectation supported is 100-continue")
            self.wants_continue = version == "1.1"
        self.coming = self._start_request(version)

    def on_body(self, part: bytes) -> None:
        self.body_bytes += len(part)
        if self.body_bytes > self._limits.max_message_bytes:
            raise self._body_too_large()
        self._chunk_lines.take_body(len(part))
        add_part(self._body, part)
        self.wants_continue = False  # the client has not waited for it

    def on_chunk_header(self) -> None:
        if not self._chunk_lines.take_size():
            raise RequestRefused(*_CHUNK_LINE)

    def on_chunk_complete(self) -> None:
        self._chunk_lines.end_chunk()

    def on_message_complete(self) -> None:
        if not self._body_withheld:
            assert self.coming is not None  # its head came first
            self._chunk_lines.end_body()
            body = self._body
            self.coming.body = bytes(body[0]) if len(body) == 1 else b"".join(body)
            body.clear()  # the next request may come much later
            self.requests.append(self.coming)
            self.coming = None
            self.phase = IDLE
            self.wants_continue = False  # there was no body to wait for

    def _start_request(self, version: str) -> HttpRequest:
        target = self._target.decode("latin-1")
        if target[0] != "/" and target != "*":
            try:
                url = urlsplit(target)
            except ValueError as error:
                raise RequestRefused(400, "malformed request: the target is not a URL") from error
            host, path = url.netloc, url.path or "/"
            if url.scheme not in ("http", "https") or "@" in host:
                raise RequestRefused(400, "malformed request: the target is neither a path nor an http URL")
            target = f"{path}?{url.query}" if url.query else path
            # Two hosts in one request: a proxy in front may have judged the other one.
            if self.headers.setdefault("host", host).lower() != host.lower():
                raise RequestRefused(400, "malformed request: the target and Host name different hosts")
        path, _, query = target.partition("?")
        method, stays = self._parser.get_method().decode("latin-1"), self._parser.should_keep_alive()
        old = version == "1.0"
        return HttpRequest(method, path, query, self.headers, b"", self._peer, old, stays, self.holder)

    def _refused(self, status: int, sentence: str) -> Exception:
        return RequestRefused(status, sentence)

    def _body_too_large(self) -> RequestRefused:
        most = self._limits.max_message_bytes
        return RequestRefused(413, f"the request's body is larger than {most} bytes")
