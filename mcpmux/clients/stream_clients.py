"""Serve many clients, each on one stream: WebSocket, TCP, Unix sockets.

Promises: each is served like a client on standard input, in either era; on stop no new client is admitted,
pending requests are answered, then the streams are closed. A client of a line stream has to begin with JSON.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio
from trio.abc import Stream

from mcpmux.clients.service import Service
from mcpmux.clients.stdio_client import LINGER_SECONDS, serve_messages
from mcpmux.config import Limits
from mcpmux.errors import MessageTooLarge, RpcError, TransportClosed
from mcpmux.mux.share import Share
from mcpmux.mux.view import BadNarrowing
from mcpmux.protocol.codes import INVALID_REQUEST, Busy
from mcpmux.protocol.envelope import encode_error
from mcpmux.protocol.principal import ANYONE, Admission, Principal, Turned, certified
from mcpmux.protocol.raw_json import BOM
from mcpmux.transports.body_budget import BodyBudget, Holding, budget_client
from mcpmux.transports.byte_stream import address_of
from mcpmux.transports.message_stream import MessageStream, open_line_stream
from mcpmux.transports.stream import PatientStream
from mcpmux.transports.tls import HANDSHAKE_SECONDS, holder_of
from mcpmux.transports.websocket import (
    GOING_AWAY,
    POLICY_VIOLATION,
    HandshakePolicy,
    HandshakeRefusal,
    open_websocket_client,
)

if TYPE_CHECKING:
    from mcpmux.auth.gate import Gate

FIRST_SECONDS = 60.0  # for the first message of a client; a silent one only holds a connection
CROWDED = "too many connections; try again later"
STOPPING = "mcpmux is stopping; try again later"
NO_VIEW = "Invalid request: there is nothing for you here; closing"
NO_JSON = "Invalid request: this port takes JSON-RPC messages, one on each line; closing"


@dataclass(frozen=True)
class StreamClients:
    """Serves the clients of one listener.

    `door`: the policy for WebSocket handshakes; None for lines of JSON. `gate` authenticates clients. `view`:
    the view of clients that name none by a path. `share` limits the streams of one client. `bodies`: the
    budget for large messages of clients.
    """

    service: Service
    limits: Limits
    stopping: trio.Event
    door: HandshakePolicy | None
    gate: Gate | None = None
    view: str = ""
    share: Share | None = None
    bodies: BodyBudget | None = None

    async def serve(self, stream: Stream, crowded: str) -> None:
        """Serve one client, from its connection to its end. Errors of its stream do not leave this.

        `crowded`: the setting of the connection limit that is reached, "" for none.
        """
        if self.door is None:
            await self._serve_lines(stream, crowded)
        else:
            await self._serve_websocket(self.door, stream, crowded)

    async def _serve_websocket(self, door: HandshakePolicy, stream: Stream, crowded: str) -> None:
        gate, limits = self.gate, self.limits
        admission, principal, counted = Admission(ANYONE), ANYONE, ExitStack()

        def busy() -> str | None:
            return CROWDED if crowded else STOPPING if self.stopping.is_set() else None

        async def guard(target: str, headers: Mapping[str, str]) -> HandshakeRefusal | None:
            nonlocal admission, principal
            if gate is not None:
                try:
                    admission = await gate.admit(headers, await _holder_of(stream))
                except Turned as turned:
                    return turned.status, str(turned), turned.fields
            path, _, query = target.partition("?")
            view = "" if path == door.path else path.rpartition("/")[2]
            try:
                entered = self.service.enter(admission.principal, view, query)
                if entered is not None and (judging := self.service.judging(entered)) is not None:
                    await judging
            except BadNarrowing as mistake:
                return 400, str(mistake), ()
            if entered is None:  # as for a path that does not exist, so that views cannot be probed
                return door.elsewhere
            # Last, so that no refused handshake is counted.
            try:
                counted.enter_context(self._counted(entered))
            except Busy as many:
                return many.status, str(many), (("Retry-After", str(many.retry_seconds)),)
            principal = entered
            return None

        def hold() -> Holding | None:
            return self._holding(principal, stream)

        patient = PatientStream(stream, limits.client_stall)
        with counted:
            largest = limits.max_message_bytes
            async with open_websocket_client(patient, door, busy, largest, guard, hold) as messages:
                if messages is None:
                    return
                messages.close_code = GOING_AWAY
                with gate.stay(admission) if gate is not None else nullcontext():
                    await self._serve_messages(messages, stream, "websocket", principal, linger=0)
                if not self.stopping.is_set():  # its token has expired or was taken back, or it does not read
                    messages.close_code = POLICY_VIOLATION

    def _holding(self, principal: Principal, stream: Stream) -> Holding | None:
        """Return the object that counts a client's large messages; None without a budget."""
        bodies = self.bodies
        if bodies is None:
            return None
        return Holding(bodies, _holder_in(principal, stream), patience=self.limits.body_timeout)

    def _counted(self, principal: Principal) -> AbstractContextManager[None]:
        """Return a context that counts one more stream of a principal, and raises Busy for too many.

        Principals without a name are not counted: the listener limits the connections of their addresses.
        """
        # Otherwise one client's streams could take all connections of the listener.
        if self.share is None or not principal.name:
            return nullcontext()
        return self.share.counted(principal.name)

    async def _serve_lines(self, stream: Stream, crowded: str) -> None:
        patient = PatientStream(stream, self.limits.client_stall)
        # A line that does not end counts, too.
        holding = self._holding(ANYONE, stream)
        async with open_line_stream(patient, self.limits.max_message_bytes, holding) as messages:
            if crowded:
                await messages.send(encode_error(None, Busy("too many connections", crowded)))
                return
            principal = ANYONE
            if self.gate is not None:
                try:
                    principal = certified(await _holder_of(stream)).principal
                except Turned as turned:
                    await messages.send(encode_error(None, turned.as_error()))
                    return
            entered = self.service.enter(principal, self.view)
            if entered is None:
                await messages.send(encode_error(None, RpcError(INVALID_REQUEST, NO_VIEW)))
                return
            try:
                with self._counted(entered):
                    transport = "tcp"
                    if sys.platform != "win32" and isinstance(stream, trio.SocketStream):
                        transport = "unix" if stream.socket.family == socket.AF_UNIX else "tcp"
                    await self._serve_messages(JsonStream(messages), stream, transport, entered)
            except Busy as many:
                await messages.send(encode_error(None, many))

    async def _serve_messages(
        self,
        messages: MessageStream,
        stream: Stream,
        transport: str,
        principal: Principal,
        linger: float = LINGER_SECONDS,
    ) -> None:
        client = transport, principal, self.gate, self.stopping, linger
        counted = True, self.bodies, _holder_in(principal, stream)
        await serve_messages(messages, self.service, self.limits, *client, *counted)


def _holder_in(principal: Principal, stream: Stream) -> str:
    """Return the client that large messages on a stream count for."""
    plain = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
    return budget_client(principal, address_of(plain)) if isinstance(plain, trio.SocketStream) else ""


async def _holder_of(stream: Stream) -> str:
    """Return the holder of a client's certificate; "" without TLS. Raises trio.BrokenResourceError."""
    if not isinstance(stream, trio.SSLStream):
        return ""
    # trio makes the handshake when data is first sent or received; the certificate is needed before.
    with trio.fail_after(HANDSHAKE_SECONDS):
        await stream.do_handshake()
    return holder_of(stream.getpeercert())


class JsonStream:
    """A stream of lines that ends at once unless its first message begins like JSON."""

    def __init__(self, messages: MessageStream) -> None:
        self._messages = messages
        self._trusted = False
        self.send, self.aclose, self.offer = messages.send, messages.aclose, messages.offer

    def receive_nowait(self) -> bytes | None:
        """Return a message that is there, or None; always None before the first, which `receive` checks."""
        return self._messages.receive_nowait() if self._trusted else None

    async def receive(self) -> bytes:
        if self._trusted:
            return await self._messages.receive()
        message = b""
        try:
            with trio.move_on_after(FIRST_SECONDS) as patience:
                message = await self._messages.receive()
        except MessageTooLarge as error:
            return await self._refuse(f"Invalid request: {error}; closing")
        if patience.cancelled_caught:
            return await self._refuse(f"Invalid request: no message within {FIRST_SECONDS:g} s; closing")
        # A web page could make its browser send an HTTP request here, with a JSON-RPC message in its body.
        if message.removeprefix(BOM).lstrip()[:1] not in (b"{", b"["):
            return await self._refuse(NO_JSON)
        self._trusted = True
        return message

    async def _refuse(self, reason: str) -> bytes:
        await self._messages.send(encode_error(None, RpcError(INVALID_REQUEST, reason)))
        raise TransportClosed(reason)
