"""Connecting to a server over WebSocket.

Promises: a refused handshake is told with its status and what the server said. A server that chooses no
subprotocol is taken as it is: some accept `mcp` without saying so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import trio
from trio_websocket import ConnectionRejected, WebSocketConnection, wrap_client_stream

from mcpmux.config import ClientTls
from mcpmux.errors import ConnectFailed
from mcpmux.transports.pipe import RECEIVE_BYTES
from mcpmux.transports.stream import PatientStream, open_tcp
from mcpmux.transports.websocket.pipe import (
    SUBPROTOCOL,
    ReaderNursery,
    WebSocketPipe,
    allowance,
    open_websocket_pipe,
)

BODY_BYTES = 200  # of a refusal that are worth telling
DEFAULT_PORTS = {"ws": 80, "wss": 443}

Headers = Sequence[tuple[str, str]]


@asynccontextmanager
async def open_websocket(
    url: str, headers: Headers, tls: ClientTls, max_message_bytes: int, patience: float
) -> AsyncIterator[WebSocketPipe]:
    """A pipe to the server at `url`, ws:// or wss://, which has `patience` seconds for the handshake.

    Raises ConnectFailed, and ConfigError for a file of the TLS settings.
    """
    place = _Place.of(url)
    began = trio.current_time()
    stream: PatientStream | None = None
    with trio.move_on_after(patience):
        plain = await open_tcp(place.host, place.port, tls if place.secure else None)
        stream = PatientStream(plain, allowance=allowance(max_message_bytes))
    if stream is None:
        raise ConnectFailed(f"cannot connect to {place.host}:{place.port}: not within {patience:g} s")
    try:
        async with trio.open_nursery() as nursery:
            reader = ReaderNursery(nursery)
            with trio.move_on_at(began + patience) as scope:
                connection = await _shake_hands(reader, stream, place, headers, max_message_bytes)
            if scope.cancelled_caught:
                raise ConnectFailed(f"no WebSocket at {place}: no answer within {patience:g} s")
            async with open_websocket_pipe(connection, reader, stream, max_message_bytes) as pipe:
                yield pipe
            nursery.cancel_scope.cancel()
    finally:
        await trio.aclose_forcefully(stream)


class _Place(NamedTuple):
    """Where a URL points to. `name` is the Host header, `target` the path with its query."""

    secure: bool
    host: str
    port: int
    name: str
    target: str

    @classmethod
    def of(cls, url: str) -> _Place:
        parts = urlsplit(url)
        port = parts.port or DEFAULT_PORTS[parts.scheme]
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        name = parts.netloc.rpartition("@")[2]
        return cls(parts.scheme == "wss", parts.hostname or "", port, name, target)

    def __str__(self) -> str:
        return self.name + self.target.partition("?")[0]  # a query may hold secrets


async def _shake_hands(
    reader: ReaderNursery, stream: PatientStream, place: _Place, headers: Headers, limit: int
) -> WebSocketConnection:
    """The open connection. Raises ConnectFailed."""
    connection = await reader.unless_ended(
        partial(
            wrap_client_stream,
            reader.as_nursery,
            # The library only sends, receives and closes; its annotation names two kinds of stream too few.
            cast(trio.SocketStream, stream),
            place.name,
            place.target,
            subprotocols=[SUBPROTOCOL],
            extra_headers=[(key.encode("latin-1"), value.encode("latin-1")) for key, value in headers],
            max_message_size=limit,
            receive_buffer_size=RECEIVE_BYTES,
        )
    )
    if connection is None:
        raise ConnectFailed(f"no WebSocket at {place}: {_explain(reader.failure)}")
    return connection


def _explain(failure: Exception | None) -> str:
    if isinstance(failure, ConnectionRejected):
        body = (failure.body or b"")[:BODY_BYTES].decode(errors="replace").strip()
        return f"the server answered {failure.status_code}" + (f": {body}" if body else "")
    if failure is None:
        return "the server closed the connection within the handshake"
    return f"the server's handshake makes no sense: {failure}"
