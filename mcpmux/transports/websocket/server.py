"""Answering the WebSocket handshakes of clients.

Promises: only a client that may connect, asks for the right path and speaks our subprotocol gets through; any
other hears why, in a status and a sentence. The handshake is bounded in time (HANDSHAKE_SECONDS) and in size
(80 KiB: 16 that the library waits with, and one receive).

    404  another path                  403  a Host or Origin that the listener does not accept
    401  and 403 as the guard says, who finds out who a client is
    400  no WebSocket handshake        503  too many connections, or mcpmux is stopping
    400  subprotocols offered, none of them `mcp`; a client that offers none at all is accepted
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

import structlog
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, WebSocketRequest, wrap_server_stream
from wsproto.utilities import ProtocolError

from mcpmux.protocol.origin import OriginPolicy
from mcpmux.transports.http.message import Fields
from mcpmux.transports.pipe import RECEIVE_BYTES
from mcpmux.transports.stream import PatientStream
from mcpmux.transports.websocket.pipe import (
    CLOSE_SECONDS,
    SUBPROTOCOL,
    ReaderNursery,
    WebSocketPipe,
    linger,
    open_websocket_pipe,
)

log = structlog.get_logger()

HANDSHAKE_SECONDS = 10.0  # from the connection to the end of its request's head, TLS included

TEXT = [(b"Content-Type", b"text/plain; charset=utf-8"), (b"Connection", b"close")]

Busy = Callable[[], str | None]
"""Why nobody new is served at the moment, None when somebody is."""

Guard = Callable[[Mapping[str, str]], Awaitable[tuple[int, str, Fields] | None]]
"""Finds out who a client is, by its headers (lower-case names): None, or why it is refused."""


@dataclass(frozen=True, slots=True)
class Door:
    """Who gets through: at which path, from where."""

    path: str
    policy: OriginPolicy

    def refuses(self, request: WebSocketRequest) -> tuple[int, str] | None:
        """Status and sentence for a request that does not get through."""
        headers = _headers(request)
        if request.path.partition("?")[0] != self.path:
            return 404, f"the WebSocket endpoint is at {self.path}"
        reason = self.policy.refuses(headers)
        if reason is not None:
            return 403, reason
        offered = request.proposed_subprotocols
        if offered and SUBPROTOCOL not in offered:
            return 400, f"the subprotocol here is {SUBPROTOCOL!r}; offer it, or none"
        return None


def _headers(request: WebSocketRequest) -> dict[str, str]:
    """Lower-case names; of several Origins all, which no policy accepts."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in request.headers:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    # The library keeps Host apart from the other headers and has no public name for it.
    headers["host"] = request._event.host
    return headers


@asynccontextmanager
async def open_websocket_client(
    stream: PatientStream, door: Door, busy: Busy, max_message_bytes: int, guard: Guard | None = None
) -> AsyncIterator[WebSocketPipe | None]:
    """The pipe to a client that got through the door, None when there is none. Closes `stream`.

    `stream` should have an `allowance`. `guard` is asked last.
    """
    try:
        async with trio.open_nursery() as nursery:
            reader = ReaderNursery(nursery)
            connection = await _admit(reader, stream, door, busy, max_message_bytes, guard)
            if connection is None:
                yield None
            else:
                async with open_websocket_pipe(connection, reader, stream, max_message_bytes) as pipe:
                    yield pipe
            nursery.cancel_scope.cancel()
    finally:
        await trio.aclose_forcefully(stream)


async def _admit(
    reader: ReaderNursery,
    stream: PatientStream,
    door: Door,
    busy: Busy,
    limit: int,
    guard: Guard | None,
) -> WebSocketConnection | None:
    request = await _await_request(reader, stream, limit)
    if request is None:
        log.debug("no websocket handshake", reason=repr(reader.failure))
        return None
    refusal = door.refuses(request) or _is_busy(busy)
    if refusal is not None:
        await _reject(request, reader, stream, *refusal)
        return None
    turned = await guard(_headers(request)) if guard is not None else None
    if turned is not None:
        await _reject(request, reader, stream, *turned)
        return None
    with suppress(ConnectionClosed, ProtocolError):
        return await request.accept(subprotocol=SUBPROTOCOL if request.proposed_subprotocols else None)
    return None


def _is_busy(busy: Busy) -> tuple[int, str] | None:
    reason = busy()
    return None if reason is None else (503, reason)


async def _await_request(reader: ReaderNursery, stream: PatientStream, limit: int) -> WebSocketRequest | None:
    """The client's handshake; None when it does not come in time, or makes no sense and was answered."""
    with trio.move_on_after(HANDSHAKE_SECONDS):
        return await reader.unless_ended(
            partial(
                wrap_server_stream,
                reader.as_nursery,
                stream,
                max_message_size=limit,
                receive_buffer_size=RECEIVE_BYTES,
            )
        )
    return None


async def _reject(
    request: WebSocketRequest,
    reader: ReaderNursery,
    stream: PatientStream,
    status: int,
    sentence: str,
    fields: Fields = (),
) -> None:
    said = [(name.encode(), value.encode("latin-1", "replace")) for name, value in fields]
    log.debug("websocket refused", status=status, reason=sentence)
    with trio.move_on_after(CLOSE_SECONDS), suppress(ConnectionClosed, ProtocolError):
        await request.reject(status, extra_headers=[*TEXT, *said], body=sentence.encode())
        await linger(stream, reader)
