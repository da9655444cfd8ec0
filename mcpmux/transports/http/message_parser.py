"""The common part of the parsers of HTTP/1.1 messages, which use httptools. Pure.

httptools (llhttp, strict) already refuses bare line feeds, folded lines, blanks before a colon, a
repeated Content-Length or one next to Transfer-Encoding, and malformed chunks. The parsers refuse what
passes there although it is ambiguous, too large, or not HTTP/1.x.

A head that a connection repeats is parsed once, see `known_head`.
"""

from __future__ import annotations

from typing import Final

from mcpmux.transports.http.known_head import LESSONS, KnownHead, learn

FRAMING_PER_BODY_BYTE: Final = 8  # received; a chunk of one byte needs five, more is padding


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
