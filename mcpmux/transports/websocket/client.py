"""Connecting to a server over WebSocket.

Promises: a refused handshake is told with its status and what the server said. A server that chooses no
subprotocol is taken as it is: some accept `mcp` without saying so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, RejectConnection, RejectData, Request
from wsproto.utilities import ProtocolError

from mcpmux.config import ClientTls
from mcpmux.errors import ConnectFailed
from mcpmux.transports.http.route import HttpOrigin, target_of
from mcpmux.transports.message_stream import RECEIVE_BYTES
from mcpmux.transports.send_queue import BROKEN
from mcpmux.transports.stream import PatientStream, open_tcp
from mcpmux.transports.websocket.stream import SUBPROTOCOL, WebSocketStream, open_websocket_stream

BODY_BYTES = 200  # of a refusal that are worth telling

Headers = Sequence[tuple[str, str]]


class HandshakeRefused(ConnectFailed):
    """The server answered the handshake with an HTTP status. `challenge`: its WWW-Authenticate."""

    def __init__(self, text: str, status: int, challenge: str) -> None:
        super().__init__(text)
        self.status = status
        self.challenge = challenge


@asynccontextmanager
async def open_websocket(
    url: str, headers: Headers, tls: ClientTls, max_message_bytes: int, patience: float
) -> AsyncIterator[WebSocketStream]:
    """A message stream to the server at `url`, ws:// or wss://; `patience`: seconds for the handshake.

    Raises ConnectFailed, and ConfigError for a file of the TLS settings.
    """
    origin = HttpOrigin.from_url("http" + url.removeprefix("ws"))
    target = target_of(url)
    where = origin.authority + target.partition("?")[0]  # a query may hold secrets
    stream: PatientStream | None = None
    protocol: WSConnection | None = None
    try:
        with trio.move_on_after(patience):
            stream = PatientStream(await open_tcp(origin.host, origin.port, tls if origin.secure else None))
            protocol = await _shake_hands(stream, origin.authority, target, headers)
        if stream is None:
            raise ConnectFailed(f"cannot connect to {origin.host}:{origin.port}: not within {patience:g} s")
        if protocol is None:
            raise ConnectFailed(f"no WebSocket at {where}: no answer within {patience:g} s")
        async with open_websocket_stream(protocol, stream, max_message_bytes) as messages:
            yield messages
    finally:
        if stream is not None:
            await trio.aclose_forcefully(stream)


async def _shake_hands(stream: PatientStream, host: str, target: str, headers: Headers) -> WSConnection:
    """What goes on with the frames. Raises ConnectFailed."""
    nothing_there = f"no WebSocket at {host}{target.partition('?')[0]}"  # a query may hold secrets
    protocol = WSConnection(ConnectionType.CLIENT)
    extra = [(key.encode("latin-1"), value.encode("latin-1")) for key, value in headers]
    request = Request(host, target, extra_headers=extra, subprotocols=[SUBPROTOCOL])
    rejected: RejectConnection | None = None
    body = b""
    is_whole = False  # or so much of a refusal as is worth telling
    try:
        await stream.send_all(protocol.send(request))
        while not is_whole and (data := await stream.receive_some(RECEIVE_BYTES)):
            protocol.receive_data(bytes(data))
            while not is_whole and (event := next(protocol.events(), None)) is not None:
                if isinstance(event, AcceptConnection):
                    return protocol
                if isinstance(event, RejectConnection):
                    rejected, is_whole = event, not event.has_body
                elif isinstance(event, RejectData):
                    body += event.data
                    is_whole = event.body_finished or len(body) >= BODY_BYTES
    except BROKEN:
        pass
    except (ProtocolError, UnicodeError) as error:  # the latter of a header that should be ASCII
        raise ConnectFailed(f"{nothing_there}: the server's handshake makes no sense: {error}") from None
    if rejected is None:
        raise ConnectFailed(f"{nothing_there}: the server closed the connection within the handshake")
    text = body[:BODY_BYTES].decode(errors="replace").strip()
    words = f"the server answered {rejected.status_code}" + (f": {text}" if text else "")
    said = [bytes(value) for name, value in rejected.headers if bytes(name) == b"www-authenticate"]
    challenge = b", ".join(said).decode("latin-1")
    raise HandshakeRefused(f"{nothing_there}: {words}", rejected.status_code, challenge)
