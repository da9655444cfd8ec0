"""Many clients, each on a stream of its own: WebSocket, TCP, Unix sockets.

Promises: each is served as the one on standard input is, in either era; on stop nobody new is let in, what
was asked is answered, then the streams are closed. A client of the lines has to begin with JSON: a web page
could make its browser send an HTTP request there, with a message of its own in the body.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import msgspec
import trio
from trio.abc import Stream

from mcpmux.errors import MessageTooLarge, RpcError, TransportClosed
from mcpmux.protocol.codes import INVALID_REQUEST, Busy
from mcpmux.protocol.envelope import encode_error
from mcpmux.protocol.principal import ANYONE, Admission, Turned, certified
from mcpmux.runtime.downstreams.http_guard import as_error
from mcpmux.runtime.downstreams.service import Service
from mcpmux.runtime.downstreams.stdio_client import serve_pipe
from mcpmux.runtime.link import INCOMING_LIMIT
from mcpmux.transports.http.message import Fields
from mcpmux.transports.pipe import MessagePipe, offer_to, open_line_pipe, receive_from
from mcpmux.transports.stream import PatientStream
from mcpmux.transports.tls.context import holder_of
from mcpmux.transports.tls.wire import HANDSHAKE_SECONDS
from mcpmux.transports.websocket.pipe import GOING_AWAY, POLICY_VIOLATION
from mcpmux.transports.websocket.server import Door, open_websocket_client

if TYPE_CHECKING:
    from mcpmux.auth.gate import Gate

FIRST_SECONDS = 60.0  # for the first message of a client; whoever says nothing only holds a connection
CROWDED = "too many connections; try again later"
STOPPING = "mcpmux is stopping; try again later"
NO_JSON = "Invalid request: this port takes JSON-RPC messages, one on each line; closing"


class StreamLimits(msgspec.Struct, frozen=True):
    """What one client may do: the longest message, seconds without reading anything, requests in flight."""

    message_bytes: int
    stall: float
    in_flight: int = INCOMING_LIMIT


class StreamClients:
    """Serves the clients of one listener."""

    def __init__(
        self,
        front: Service,
        limits: StreamLimits,
        stopping: trio.Event,
        door: Door | None,
        gate: Gate | None = None,
    ) -> None:
        """`door`: who gets through over WebSocket; None is lines of JSON. `gate` finds out who it is."""
        self._gate = gate
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
        patient = PatientStream(stream, self._limits.stall)

        def busy() -> str | None:
            return CROWDED if crowded else STOPPING if self._stopping.is_set() else None

        asking = _Asking(self._gate, stream) if self._gate is not None else None
        guard = asking.guard if asking is not None else None
        async with open_websocket_client(patient, door, busy, limit, guard) as pipe:
            if pipe is None:
                return
            principal = asking.admission.principal if asking is not None else ANYONE
            pipe.close_code = GOING_AWAY
            with asking.stay() if asking is not None else trio.CancelScope():
                await serve_pipe(
                    pipe,
                    self._front,
                    self._limits.stall,
                    linger=0,
                    stopping=self._stopping,
                    transport="websocket",
                    in_flight=self._limits.in_flight,
                    principal=principal,
                    gate=self._gate,
                )
            if not self._stopping.is_set():  # its token has expired or was taken back, or it does not read
                pipe.close_code = POLICY_VIOLATION

    async def _serve_lines(self, stream: Stream, crowded: bool) -> None:
        patient = PatientStream(stream, self._limits.stall)
        async with open_line_pipe(patient, self._limits.message_bytes) as pipe:
            if crowded:
                await pipe.send(encode_error(None, Busy("too many connections", "limits.max_connections")))
                return
            principal = ANYONE
            if self._gate is not None:
                try:
                    principal = certified(await _holder_of(stream)).principal
                except Turned as turned:
                    await pipe.send(encode_error(None, as_error(turned)))
                    return
            kind = "unix" if _is_unix(stream) else "tcp"
            await serve_pipe(
                JsonPipe(pipe),
                self._front,
                self._limits.stall,
                stopping=self._stopping,
                transport=kind,
                in_flight=self._limits.in_flight,
                principal=principal,
                gate=self._gate,
            )


class _Asking:
    """Finds out who one WebSocket client is."""

    def __init__(self, gate: Gate, stream: Stream) -> None:
        self._gate = gate
        self._stream = stream
        self.admission = Admission(ANYONE)

    async def guard(self, headers: Mapping[str, str]) -> tuple[int, str, Fields] | None:
        """See Guard."""
        try:
            self.admission = await self._gate.admit(headers, await _holder_of(self._stream))
        except Turned as turned:
            return turned.status, str(turned), turned.fields
        return None

    def stay(self) -> AbstractContextManager[trio.CancelScope]:
        """As long as the client may stay."""
        return self._gate.stay(self.admission)


async def _holder_of(stream: Stream) -> str:
    """Whose certificate a client has shown; "" outside of TLS. Raises trio.BrokenResourceError."""
    if not isinstance(stream, trio.SSLStream):
        return ""
    with trio.fail_after(HANDSHAKE_SECONDS):
        await stream.do_handshake()
    return holder_of(stream.getpeercert())


def _is_unix(stream: Stream) -> bool:
    return isinstance(stream, trio.SocketStream) and stream.socket.family == trio.socket.AF_UNIX


class JsonPipe:
    """`pipe`, which ends at once when it does not begin with JSON."""

    def __init__(self, pipe: MessagePipe) -> None:
        self._pipe = pipe
        self._trusted = False
        self.offer = offer_to(pipe)  # see PromptPipe
        self._receive_nowait = receive_from(pipe)

    def receive_nowait(self) -> bytes | None:
        """See PromptPipe. What comes first is left to `receive`."""
        return self._receive_nowait() if self._trusted else None

    async def send(self, message: bytes) -> None:
        """See MessagePipe."""
        await self._pipe.send(message)

    async def receive(self) -> bytes:
        """See MessagePipe."""
        if self._trusted:
            return await self._pipe.receive()
        message = b""
        try:
            with trio.move_on_after(FIRST_SECONDS) as patience:
                message = await self._pipe.receive()
        except MessageTooLarge as error:
            return await self._refuse(f"Invalid request: {error}; closing")
        if patience.cancelled_caught:
            return await self._refuse(f"Invalid request: no message within {FIRST_SECONDS:g} s; closing")
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
