"""Many clients, each on a stream of its own: WebSocket, TCP, Unix sockets.

Promises: each is served as the one on standard input is, in either era; on stop nobody new is let in, what
was asked is answered, then the streams are closed. A client of the lines has to begin with JSON: a web page
could make its browser send an HTTP request there, with a message of its own in the body.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio
from trio.abc import Stream

from mcpmux.errors import MessageTooLarge, RpcError, TransportClosed
from mcpmux.protocol.codes import BUSY, INVALID_REQUEST
from mcpmux.protocol.envelope import encode_error
from mcpmux.runtime.downstreams.service import Service
from mcpmux.runtime.downstreams.stdio_client import serve_pipe
from mcpmux.transports.pipe import MessagePipe, open_line_pipe
from mcpmux.transports.stream import PatientStream
from mcpmux.transports.websocket.pipe import GOING_AWAY, allowance
from mcpmux.transports.websocket.server import Door, open_websocket_client

CROWDED = "too many connections; try again later"
STOPPING = "mcpmux is stopping; try again later"
NO_JSON = "Invalid request: this port takes JSON-RPC messages, one on each line; closing"


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """What one client may do: the longest message, and seconds without reading anything."""

    message_bytes: int
    stall: float


class StreamClients:
    """Serves the clients of one listener."""

    def __init__(self, front: Service, limits: StreamLimits, stopping: trio.Event, door: Door | None) -> None:
        """`door`: who gets through over WebSocket; None is lines of JSON."""
        self._front = front
        self._limits = limits
        self._stopping = stopping
        self._door = door

    def __repr__(self) -> str:
        return f"<StreamClients {'websocket' if self._door else 'lines'}, stopping={self._stopping.is_set()}>"

    async def serve(self, stream: Stream, crowded: bool) -> None:
        """One client, from its connection to its end. Errors of its stream do not leave this."""
        if self._door is None:
            await self._serve_lines(stream, crowded)
        else:
            await self._serve_websocket(self._door, stream, crowded)

    async def _serve_websocket(self, door: Door, stream: Stream, crowded: bool) -> None:
        limit = self._limits.message_bytes
        patient = PatientStream(stream, self._limits.stall, allowance(limit))

        def busy() -> str | None:
            return CROWDED if crowded else STOPPING if self._stopping.is_set() else None

        async with open_websocket_client(patient, door, busy, limit) as pipe:
            if pipe is not None:
                await serve_pipe(
                    pipe,
                    self._front,
                    self._limits.stall,
                    linger=0,
                    stopping=self._stopping,
                    transport="websocket",
                )
                if self._stopping.is_set():
                    pipe.close_code = GOING_AWAY

    async def _serve_lines(self, stream: Stream, crowded: bool) -> None:
        patient = PatientStream(stream, self._limits.stall)
        async with open_line_pipe(patient, self._limits.message_bytes) as pipe:
            if crowded:
                await pipe.send(encode_error(None, RpcError(BUSY, f"Busy: {CROWDED}")))
                return
            kind = "unix" if _is_unix(stream) else "tcp"
            await serve_pipe(
                JsonPipe(pipe), self._front, self._limits.stall, stopping=self._stopping, transport=kind
            )


def _is_unix(stream: Stream) -> bool:
    return isinstance(stream, trio.SocketStream) and stream.socket.family == trio.socket.AF_UNIX


class JsonPipe:
    """`pipe`, which ends at once when it does not begin with JSON."""

    def __init__(self, pipe: MessagePipe) -> None:
        self._pipe = pipe
        self._trusted = False

    async def send(self, message: bytes) -> None:
        """See MessagePipe."""
        await self._pipe.send(message)

    async def receive(self) -> bytes:
        """See MessagePipe."""
        if self._trusted:
            return await self._pipe.receive()
        try:
            message = await self._pipe.receive()
        except MessageTooLarge as error:
            return await self._refuse(f"Invalid request: {error}; closing")
        if message.lstrip()[:1] not in (b"{", b"["):
            return await self._refuse(NO_JSON)
        self._trusted = True
        return message

    async def _refuse(self, reason: str) -> bytes:
        await self._pipe.send(encode_error(None, RpcError(INVALID_REQUEST, reason)))
        raise TransportClosed(reason)

    async def aclose(self) -> None:
        """See MessagePipe."""
        await self._pipe.aclose()
