"""Parse the responses of one connection with httptools. Pure.

Interim responses (1xx) are skipped, trailers are ignored:

    (begin) -- head of a final status --> `status` is set
            -- body bytes -->             `take_body` gives them, as they come
            -- end of message -->         `complete`
"""

from __future__ import annotations

from typing import Final

import httptools

from mcpmux.errors import RemoteProtocolError, TransportClosed
from mcpmux.transports.http.known_head import KnownHead
from mcpmux.transports.http.message import HEAD_FIELDS, has_no_body
from mcpmux.transports.http.message_parser import MessageParser
from mcpmux.transports.sse import add_part

_LENGTH_FIELDS: Final = frozenset({"content-length", "transfer-encoding"})
# The beginnings of an alert and a handshake, with which a TLS port answers plain HTTP.
_TLS_RECORDS: Final = (b"\x15\x03", b"\x16\x03")


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
        first = not self.received_bytes
        if first and self._known is not None and self._take_known(self._known, data):
            return
        if self._lacks:
            self._take_lacking(data)
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
        if not self.complete and (self._in_head or self.received_bytes > 2 * self._head_limit):
            self._check_growth()
        elif first and self._lessons and (self.keep_alive if self.complete else self.may_keep_alive):
            is_first = data.startswith(b"%d " % self.status, 9)  # otherwise an interim response came first
            if self._learns(data, is_first and not has_no_body(self.status)):
                self._known_status = self.status

    def _take_known(self, known: KnownHead, data: bytes) -> bool:
        """Take `data` if it is one response with the known head, or its beginning; return False if not."""
        values = known.read(data)
        if values is None or self.complete:
            return False
        headers, position, self._lacks = values
        if position > self._head_limit:
            self._lacks = 0
            return False
        body = data[position:]
        self.headers, self.status = headers, self._known_status
        self._in_head = False
        self.complete = self.keep_alive = not self._lacks
        self.received_bytes = len(data)
        self.body_bytes = len(body)
        self.length = self.body_bytes + self._lacks
        if body:
            self._body.append(body)
        return True

    def _take_lacking(self, data: bytes) -> None:
        """Take more of a body behind a known head."""
        body = data[: self._lacks]
        self._lacks -= len(body)
        self.received_bytes += len(data)
        self.on_body(body)
        self.complete = not self._lacks
        self.keep_alive = self.complete and body == data  # bytes behind it belong to no request

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


def _reason(error: Exception) -> str:
    if isinstance(error, httptools.HttpParserUpgrade):
        return "it switches to a protocol that was not asked for"
    if isinstance(error, httptools.HttpParserCallbackError):  # raised by one of our callbacks
        return str(error.__context__ or error)
    return str(error)
