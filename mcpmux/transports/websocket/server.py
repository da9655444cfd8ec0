"""Answering the WebSocket handshakes of clients.

Promises: only a client that may connect, asks for the right path and speaks our subprotocol gets through; any
other hears why, in a status and a sentence. The handshake is bounded in time (HANDSHAKE_SECONDS) and in size
(80 KiB: 16 that the parser waits with, and one receive).

    404  another path                  403  a Host or Origin that the listener does not accept
    401  and 403 as `guard` says, which finds out who a client is
    400  no WebSocket handshake        503  too many connections, or mcpmux is stopping
    400  subprotocols offered, none of them `mcp`; a client that offers none at all is accepted
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import structlog
import trio
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, RejectConnection, RejectData, Request
from wsproto.utilities import RemoteProtocolError

from mcpmux.protocol.headers import OriginPolicy
from mcpmux.transports.http.message import Fields
from mcpmux.transports.message_stream import RECEIVE_BYTES
from mcpmux.transports.send_queue import BROKEN
from mcpmux.transports.stream import PatientStream
from mcpmux.transports.websocket.stream import (
    CLOSE_SECONDS,
    LINGER_RECEIVES,
    SUBPROTOCOL,
    WebSocketStream,
    open_websocket_stream,
)

log = structlog.get_logger()

HANDSHAKE_SECONDS = 10.0  # from the connection to the end of its request's head, TLS included
END_OF_HEAD = b"\r\n\r\n"

Refusal = tuple[int, str, Fields]  # status, sentence and header fields for a client that does not get through
Busy = Callable[[], str | None]  # why nobody new is served at the moment, None when somebody is

AdmitClient = Callable[[Mapping[str, str]], Awaitable[Refusal | None]]
"""Finds out who a client is, by its headers (lower-case names): None, or why it is refused."""


@dataclass(frozen=True, slots=True)
class Door:
    """Who gets through: at which path, from where."""

    path: str
    policy: OriginPolicy

    def refuses(self, request: Request, headers: dict[str, str]) -> Refusal | None:
        """For a request that does not get through."""
        if request.target.partition("?")[0] != self.path:
            return 404, f"the WebSocket endpoint is at {self.path}", ()
        reason = self.policy.refuses(headers.get("host", ""), headers.get("origin"))
        if reason is not None:
            return 403, reason, ()
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return 400, "a WebSocket handshake has no body", ()  # behind it come the frames
        if request.subprotocols and SUBPROTOCOL not in request.subprotocols:
            return 400, f"the subprotocol here is {SUBPROTOCOL!r}; offer it, or none", ()
        return None


def _headers(request: Request) -> dict[str, str]:
    """Lower-case names; of several Origins all, which no policy accepts."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in request.extra_headers:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    headers["host"] = request.host  # which the library keeps apart
    return headers


@asynccontextmanager
async def open_websocket_client(
    stream: PatientStream, door: Door, busy: Busy, max_message_bytes: int, guard: AdmitClient | None = None
) -> AsyncIterator[WebSocketStream | None]:
    """The message stream to a client that got through the door, None when there is none. Closes `stream`.

    `guard` is asked last.
    """
    try:
        protocol = None
        with suppress(*BROKEN):
            protocol = await _Handshake(stream).admit(door, busy, guard)
        if protocol is None:
            yield None
        else:
            async with open_websocket_stream(protocol, stream, max_message_bytes) as messages:
                yield messages
    finally:
        await trio.aclose_forcefully(stream)


class _Handshake:
    """The handshake of one client. What a broken stream raises leaves it."""

    def __init__(self, stream: PatientStream) -> None:
        self._stream = stream
        self._protocol = WSConnection(ConnectionType.SERVER)
        self._early = b""  # what the client has sent behind its request

    async def admit(self, door: Door, busy: Busy, guard: AdmitClient | None) -> WSConnection | None:
        """What goes on with the frames; None for a client that does not get through, and was told why."""
        request = None
        with trio.move_on_after(HANDSHAKE_SECONDS):
            request = await self._await_request()
        if request is None:
            return None
        headers = _headers(request)
        refusal = door.refuses(request, headers)
        if refusal is None and (reason := busy()) is not None:
            refusal = 503, reason, ()
        if refusal is None and guard is not None:
            refusal = await guard(headers)
        if refusal is not None:
            await self._reject(*refusal)
            return None
        chosen = SUBPROTOCOL if request.subprotocols else None
        await self._stream.send_all(self._protocol.send(AcceptConnection(chosen)))
        self._protocol.receive_data(self._early)
        return self._protocol

    async def _await_request(self) -> Request | None:
        """None when the client leaves, or makes no sense and was told so."""
        head = b""
        while data := await self._stream.receive_some(RECEIVE_BYTES):
            head += data
            try:
                self._protocol.receive_data(bytes(data))
            except RemoteProtocolError as error:
                hint = error.event_hint
                wrong = hint if isinstance(hint, RejectConnection) else RejectConnection()
                fields = tuple((name.decode(), value.decode()) for name, value in wrong.headers)
                await self._reject(wrong.status_code, str(error), fields)
                return None
            except UnicodeError:  # in a header that should be ASCII
                await self._reject(400, "the request's head makes no sense", ())
                return None
            for event in self._protocol.events():
                if isinstance(event, Request):
                    self._early = head.partition(END_OF_HEAD)[2]
                    return event
        log.debug("no websocket handshake")
        return None

    async def _reject(self, status: int, sentence: str, fields: Fields) -> None:
        """Answer, then receive a bounded rest: closing on unread bytes would reset the answer away."""
        log.debug("websocket refused", status=status, reason=sentence)
        body = sentence.encode()
        said = [
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
            *fields,
        ]
        headers = [(name.encode(), value.encode("latin-1", "replace")) for name, value in said]
        answer = self._protocol.send(RejectConnection(status, headers, has_body=True))
        answer += self._protocol.send(RejectData(body))
        with trio.move_on_after(CLOSE_SECONDS):
            await self._stream.send_all(answer)
            await self._stream.send_eof()
            for _ in range(LINGER_RECEIVES):
                if not await self._stream.receive_some(RECEIVE_BYTES):
                    return
