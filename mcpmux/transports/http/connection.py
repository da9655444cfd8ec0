"""One client connection to one origin, carrying one request at a time."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from mcpmux.errors import TransportClosed
from mcpmux.transports.http.message import HEAD_FIELDS, JOIN_BYTES
from mcpmux.transports.http.response import ResponseParser
from mcpmux.transports.wire import Wire


@dataclass(frozen=True, slots=True)
class HttpOrigin:
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


class HttpConnection:
    """A wire and the parser of what comes from it."""

    __slots__ = ("idle_since", "parser", "wire")

    def __init__(self, wire: Wire, head_limit: int, field_limit: int = HEAD_FIELDS) -> None:
        self.wire = wire
        self.parser = ResponseParser(head_limit, field_limit)
        self.idle_since = 0.0

    def __repr__(self) -> str:
        return f"HttpConnection({self.wire}, {self.parser})"

    async def exchange(self, head: bytes, body: bytes) -> None:
        """Send a request and receive until the response's head is in. Closes the wire on any error."""
        parser, wire = self.parser, self.wire
        parser.begin()
        try:
            await self._send(head, body)
            while not parser.status:
                data = await wire.receive()
                if data:
                    parser.feed(data)
                else:
                    parser.feed_eof()
        except BaseException:
            wire.close()
            raise

    async def receive(self) -> None:
        """Feed the parser once. Raises TransportClosed, RemoteProtocolError."""
        data = await self.wire.receive()
        if data:
            self.parser.feed(data)
        else:
            self.parser.feed_eof()

    async def _send(self, head: bytes, body: bytes) -> None:
        try:
            if len(body) <= JOIN_BYTES:
                await self.wire.send(head + body)
            else:
                await self.wire.send(head)
                await self.wire.send(body)
        except TransportClosed:
            return  # a server may refuse and close before it has read all: its answer is still to be had


def _default_port(secure: bool) -> int:
    return 443 if secure else 80
