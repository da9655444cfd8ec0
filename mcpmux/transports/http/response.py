"""Bytes of one connection in, one response at a time out. Pure: httptools' parser and what we add.

(begin) -- head of a final status --> `status` is set
        -- body bytes -->             `take_body` gives them, as they come
        -- end of message -->         `complete`
Interim responses (1xx) are skipped. Trailers are ignored.
"""

from __future__ import annotations

from typing import Final

import httptools

from mcpmux.errors import RemoteProtocolError, TransportClosed
from mcpmux.transports.http.limits import FRAMING_PER_BODY_BYTE, HEAD_FIELDS
from mcpmux.transports.http.message import LESSONS, KnownHead, add_part, has_no_body, learn

_FRAMING: Final = frozenset({"content-length", "transfer-encoding"})
# An alert, a handshake: what a TLS port answers to plain HTTP.
_TLS_RECORDS: Final = (b"\x15\x03", b"\x16\x03")


class ResponseParser:
    """Reads the responses of one connection. The `on_…` are httptools' callbacks."""

    def __init__(self, head_limit: int, field_limit: int = HEAD_FIELDS) -> None:
        self._head_limit = head_limit
        self._field_limit = field_limit
        self._parser = httptools.HttpResponseParser(self)
        self._known: KnownHead | None = None  # of a response with `_known_status` that came before
        self._known_status = 0
        self._lessons = LESSONS + 1  # one more, as a connection's only response teaches nothing
        self.begin()

    def __repr__(self) -> str:
        return f"ResponseParser(status={self.status}, complete={self.complete})"

    def begin(self) -> None:
        """A request is about to be sent: forget the response before."""
        self.status = 0  # until the head is in
        self.headers: dict[str, str] = {}
        self.complete = False
        self.keep_alive = False
        self.received_bytes = 0
        self._repeats = 0
        self._body: list[bytes | bytearray] = []
        self.body_bytes = 0  # of the body so far
        self._length = 0  # of the body, where the head says it
        self._ends_with_stream = False

    def feed(self, data: bytes) -> None:
        """Take what was received. Raises RemoteProtocolError."""
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
                raise RemoteProtocolError(f"malformed HTTP response: {_reason(error)}") from error
            self.keep_alive = False  # bytes that nobody asked for: never read another response from here
        if not self.complete:
            if not self.status or self.received_bytes > 2 * self._head_limit:
                self._check_growth()
        elif first and self._lessons and self.keep_alive:
            self._learn(data)

    def _take_known(self, known: KnownHead, data: bytes) -> bool:
        """Take one whole response, when its head is the known one. False when `data` is for the parser."""
        found = known.read(data)
        if found is None or self.complete:
            return False
        self.headers, position = found
        if position > self._head_limit:
            return False
        body = data[position:]
        self.status = self._known_status
        self.complete = self.keep_alive = True
        self.received_bytes = len(data)
        self._length = self.body_bytes = len(body)
        if body:
            self._body.append(body)
        return True

    def _learn(self, data: bytes) -> None:
        """Have the next response compared with the one that `data` was, if it had its length."""
        self._lessons -= 1
        if self._lessons >= LESSONS or self._repeats or has_no_body(self.status):
            return
        if not data.startswith(b"%d " % self.status, 9):
            return  # an interim response came before it
        known = learn(data, self.headers)
        if known is not None:
            self._known, self._known_status = known, self.status

    def feed_eof(self) -> None:
        """The server ended the stream. Raises TransportClosed when that cuts the response short."""
        if not self.received_bytes:
            raise TransportClosed("the server closed the connection without an answer")
        if not self._ends_with_stream:
            raise TransportClosed("the server closed the connection in the middle of its answer")
        self.complete = True

    @property
    def may_keep_alive(self) -> bool:
        """Whether another response may follow on this connection, as far as the head tells."""
        return not self._ends_with_stream and self._parser.should_keep_alive()

    @property
    def missing(self) -> int:
        """Bytes of the body that are still to come; 0 when nobody knows."""
        return max(0, self._length - self.body_bytes)

    def skip_rest(self) -> None:
        """What is `missing` was received, and did not come here."""
        self.received_bytes += self.missing
        self.body_bytes = self._length
        self.complete = True
        self.keep_alive = self._parser.should_keep_alive()
        self._parser = httptools.HttpResponseParser(self)

    def take_body(self) -> bytes:
        """The body bytes that have come since the last call, b"" for none."""
        parts = self._body
        if not parts:
            return b""
        data = b"".join(parts)  # of one it is the very same
        parts.clear()
        return data

    def on_message_begin(self) -> None:
        if self.complete:
            raise RemoteProtocolError("more bytes than the response has")
        self.headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status:
            return  # a trailer must not pass for a header
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1").rstrip(" \t")
        if key in self.headers:
            if key in _FRAMING:
                raise RemoteProtocolError(f"malformed HTTP response: {key} is repeated")
            text = f"{self.headers[key]}, {text}"
            self._repeats += 1
            self._check_fields()
        self.headers[key] = text

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            return
        headers = self.headers
        if len(headers) + self._repeats > self._field_limit:
            self._check_fields()
        if self.received_bytes > self._head_limit:
            self._check_head_size()
        if "transfer-encoding" in headers:
            if headers["transfer-encoding"].lower() != "chunked":
                raise RemoteProtocolError("its transfer coding is not chunked")
        elif status == 200 or not has_no_body(status):
            self._length = int(headers.get("content-length", 0))
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

    def _check_fields(self) -> None:
        if len(self.headers) + self._repeats > self._field_limit:
            raise RemoteProtocolError(f"the response has more than {self._field_limit} header fields")

    def _check_head_size(self) -> None:
        size = sum(len(name) + len(value) + 4 for name, value in self.headers.items())
        if size > self._head_limit:
            raise RemoteProtocolError(f"the response's head is larger than {self._head_limit} bytes")

    def _check_growth(self) -> None:
        if not self.status:
            self._check_fields()
            if self.received_bytes > self._head_limit:
                raise RemoteProtocolError(f"the response's head is larger than {self._head_limit} bytes")
        elif self.received_bytes > 2 * self._head_limit + FRAMING_PER_BODY_BYTE * self.body_bytes:
            raise RemoteProtocolError("malformed HTTP response: chunks are mostly framing")


def _reason(error: Exception) -> str:
    if isinstance(error, httptools.HttpParserUpgrade):
        return "it switches to a protocol that was not asked for"
    if isinstance(error, httptools.HttpParserCallbackError):  # what one of our own callbacks has raised
        return str(error.__context__ or error)
    return str(error)
