"""One keep-alive HTTP connection of the load generator, as cheap as Python makes it.

No parser and no tasks: it reads answers with a Content-Length, which is what a JSON answer has, and chunked
ones, which is how others send an answer that is an event stream. It takes anything else for a failure of the
measurement.
"""

from __future__ import annotations

import re
import socket
import ssl
import struct
from typing import NamedTuple
from urllib.parse import urlsplit

from benchmarks.events import LAST_CHUNK, answer_in, unchunked

FIRST_BUFFER_BYTES = 64 * 1024  # it doubles when an answer needs more
SHOWN_BYTES = 2048  # of an answer that is not understood
SILENCE_SECONDS = 30  # after which a measurement is given up

_HEAD = re.compile(
    rb"HTTP/1\.1 (\d{3})[^\r]*\r\n(?:.*?\r\n)??(?i:content-length): *(\d+)\r\n(?:.*?\r\n)??\r\n", re.DOTALL
)
_CHUNKED = re.compile(
    rb"HTTP/1\.1 (\d{3})[^\r]*\r\n(?:.*?\r\n)??(?i:transfer-encoding): *chunked\r\n", re.DOTALL
)
_STREAM = re.compile(rb"\r\ncontent-type: *text/event-stream", re.IGNORECASE)
_BRACE = ord("{")  # how JSON begins; an event stream never does
_UNKNOWN = 1 << 62  # bytes of an answer whose end is only seen when it comes
_SESSION = re.compile(rb"\r\nmcp-session-id: *([^\r]+)\r\n", re.IGNORECASE)


class WrongAnswer(Exception):
    """The answer is not the one that was asked for, or none came."""


class Answer(NamedTuple):
    """One response. `head` is status line and fields as they came; `body` is overwritten by the next one."""

    status: int
    head: bytes
    body: memoryview

    @property
    def session(self) -> str | None:
        """The session that the answer opens."""
        found = _SESSION.search(self.head)
        return found[1].decode() if found else None


class Connection:
    """A connection to the host of `url`, with one request at a time."""

    def __init__(self, url: str, trust: ssl.SSLContext | None = None) -> None:
        """`trust`: whom to trust over HTTPS; None for HTTP."""
        parts = urlsplit(url)
        self.authority = parts.netloc
        self.path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        self.socket = socket.create_connection((parts.hostname, parts.port), SILENCE_SECONDS)
        self.socket.settimeout(None)  # the kernel's own limit costs nothing per receive
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", SILENCE_SECONDS, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if trust is not None:
            self.socket = trust.wrap_socket(self.socket, server_hostname=parts.hostname)
        self._buffer = bytearray(FIRST_BUFFER_BYTES)
        self._filled = 0
        self._head_bytes = 0  # until the head is in
        self._answer_bytes = 0
        self._status = 0

    def __repr__(self) -> str:
        return f"<Connection {self.authority} {self._filled} bytes received>"

    def send(self, data: bytes) -> None:
        """Send a whole request."""
        self.socket.sendall(data)

    def receive(self) -> Answer | None:
        """Receive once: the answer when that completes it. Raises WrongAnswer."""
        if self._filled == len(self._buffer):
            self._grow()
        try:
            count = self.socket.recv_into(memoryview(self._buffer)[self._filled :])
        except BlockingIOError:
            raise WrongAnswer(f"nothing came for {SILENCE_SECONDS} s") from None
        if not count:
            raise WrongAnswer(f"the connection ended after {self._start()!r}")
        self._filled += count
        if not self._head_bytes:
            self._find_head()
        if not self._head_bytes:
            return None
        if self._filled < self._answer_bytes:
            return self._take_chunked() if self._answer_bytes == _UNKNOWN else None
        return self._take()

    def exchange(self, data: bytes) -> Answer:
        """Send a request and wait for its answer."""
        self.send(data)
        while (answer := self.receive()) is None:
            pass
        return answer

    def close(self) -> None:
        """Give the socket back."""
        self.socket.close()

    def _grow(self) -> None:
        """A larger buffer; answers that still look into the old one keep it."""
        self._buffer = self._buffer + bytes(len(self._buffer))

    def _find_head(self) -> None:
        found = _HEAD.match(self._buffer, 0, self._filled)
        if found is not None:
            self._head_bytes = found.end()
            self._status = int(found[1])
            self._answer_bytes = self._head_bytes + int(found[2])
        elif b"\r\n\r\n" in self._start():
            found = _CHUNKED.match(self._buffer, 0, self._filled)
            if found is None:
                raise WrongAnswer(f"an answer without a length: {self._start()!r}")
            self._head_bytes = self._buffer.index(b"\r\n\r\n") + 4
            self._status = int(found[1])
            self._answer_bytes = _UNKNOWN

    def _start(self) -> bytes:
        return bytes(self._buffer[: min(self._filled, SHOWN_BYTES)])

    def _take(self) -> Answer:
        if self._filled > self._answer_bytes:
            raise WrongAnswer("more bytes than the answer has")
        received = memoryview(self._buffer)[: self._filled]
        head_bytes, self._head_bytes, self._filled = self._head_bytes, 0, 0
        head, body = bytes(received[:head_bytes]), received[head_bytes:]
        if body and body[0] != _BRACE:
            body = self._contents(head, bytes(body))
        return Answer(self._status, head, body)

    def _take_chunked(self) -> Answer | None:
        """The answer when its last chunk is in."""
        if self._buffer[self._filled - len(LAST_CHUNK) : self._filled] != LAST_CHUNK:
            return None
        received = bytes(self._buffer[: self._filled])
        head, body = received[: self._head_bytes], received[self._head_bytes :]
        self._head_bytes, self._filled = 0, 0
        return Answer(self._status, head, self._contents(head, unchunked(body)))

    def _contents(self, head: bytes, body: bytes) -> memoryview:
        """What a body says: if it is an event stream, its answer."""
        if _STREAM.search(head) is None:
            return memoryview(body)
        try:
            return memoryview(answer_in(body))
        except ValueError as error:
            raise WrongAnswer(f"{error}: {body[:SHOWN_BYTES]!r}") from None
