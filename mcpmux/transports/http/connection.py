"""One client connection to one origin, carrying one request at a time."""

from __future__ import annotations

import math
from urllib.parse import urlsplit

import msgspec

from mcpmux.errors import Overdue, TransportClosed
from mcpmux.transports.http.message import HEAD_FIELDS, JOIN_BYTES
from mcpmux.transports.http.response import ResponseParser
from mcpmux.transports.punctuality import Punctuality
from mcpmux.transports.wire import Wire


class HttpOrigin(msgspec.Struct, frozen=True):
    """Scheme, host and port of a URL."""

    secure: bool
    host: str
    port: int

    @classmethod
    def from_url(cls, url: str) -> HttpOrigin:
        """Raises ValueError when `url` is not an http or https URL."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not an http or https URL: {url!r}")
        secure = parts.scheme == "https"
        port = _default_port(secure) if parts.port is None else parts.port
        return cls(secure, parts.hostname.encode("idna").decode(), port)

    @property
    def authority(self) -> str:
        """What the Host field says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _default_port(self.secure) else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """Without a path."""
        return f"{'https' if self.secure else 'http'}://{self.authority}"


ROOM_BYTES = 4 * 2**20  # for a body, as soon as its length is known


class HttpConnection:
    """A wire and the parser of what comes from it.

    `until`: when its exchange is cut off, in trio's time.
    """

    __slots__ = ("_overdue", "_punctuality", "idle_since", "parser", "until", "wire")

    def __init__(
        self, wire: Wire, punctuality: Punctuality, head_limit: int, field_limit: int = HEAD_FIELDS
    ) -> None:
        self.wire = wire
        self.parser = ResponseParser(head_limit, field_limit)
        self.idle_since = 0.0
        self.until = math.inf
        self._punctuality = punctuality
        self._overdue = False

    def __repr__(self) -> str:
        return f"HttpConnection({self.wire}, {self.parser})"

    async def exchange(self, head: bytes, body: bytes, until: float) -> None:
        """Send a request and receive until the response's head is in. Closes the wire on any error.

        Raises TransportClosed, RemoteProtocolError, Overdue.
        """
        parser, wire = self.parser, self.wire
        if len(body) <= JOIN_BYTES:
            head, body = head + body, b""
        parser.begin()
        self._overdue = False
        if until < math.inf:
            self.until = until
            self._punctuality.watch(self)
        try:
            try:
                sent = wire.send_nowait(head)
                if body or sent < len(head):
                    await self._send_rest(head[sent:], body)
            except TransportClosed:
                self._check_time()  # else a server may refuse before it has read all: go on to its answer
            while not parser.status:
                data = await wire.receive()
                if data:
                    parser.feed(data)
                else:
                    parser.feed_eof()
        except TransportClosed:
            self.close()
            self._check_time()
            raise
        except BaseException:
            self.close()
            raise

    async def _send_rest(self, rest: bytes, body: bytes) -> None:
        for part in (rest, body):
            if part:
                await self.wire.send(part)

    async def receive(self) -> None:
        """Feed the parser once. Raises TransportClosed, RemoteProtocolError, Overdue."""
        try:
            data = await self.wire.receive()
        except TransportClosed:
            self._check_time()
            raise
        if data:
            self.parser.feed(data)
        else:
            self.parser.feed_eof()

    async def receive_rest(self) -> bytearray:
        """All of a body whose length is known, received where it stays. Raises as `receive`.

        A server that promises much gets memory for no more than twice what it has sent, or ROOM_BYTES.
        """
        parser = self.parser
        begun = parser.take_body()
        filled, size = len(begun), len(begun) + parser.missing
        body = bytearray(min(size, max(filled, ROOM_BYTES)))
        body[:filled] = begun
        try:
            while filled < size:
                if filled == len(body):
                    body += bytes(min(filled, size - filled))
                with memoryview(body) as room, room[filled:] as rest:
                    count = await self.wire.receive_into(rest)
                if not count:
                    parser.feed_eof()
                filled += count
        except TransportClosed:
            self._check_time()
            raise
        parser.skip_rest()
        return body

    def close(self) -> None:
        """In the middle of an exchange: its end is not waited for any more."""
        self._punctuality.forget(self)
        self.wire.close()

    def cut_off(self) -> None:
        """Its time is over: whoever waits for it, now or later, hears that."""
        self._overdue = True
        self.wire.interrupt()

    def _check_time(self) -> None:
        if self._overdue:
            raise Overdue("no answer in time") from None


def _default_port(secure: bool) -> int:
    return 443 if secure else 80
