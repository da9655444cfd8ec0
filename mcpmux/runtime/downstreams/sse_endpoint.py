"""Clients over HTTP+SSE: a GET is a session's stream out, POSTs to the address that it names the way in.

Promises: a session lives as long as its stream; when the client leaves, its calls are cancelled. What the
messages say is the business of the duplex client that serves them, as on stdio: any revision may travel here.

Source: "HTTP with SSE" in "Transports", 2024-11-05.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import parse_qs

import structlog
import trio

from mcpmux.errors import TransportClosed
from mcpmux.protocol.codes import INVALID_REQUEST, Busy
from mcpmux.protocol.envelope import BadMessage, decode_message, encode_error, is_batch
from mcpmux.protocol.headers import SESSION_KEY
from mcpmux.protocol.principal import Principal
from mcpmux.runtime.downstreams.http_answer import JSON, headers_of, refuse_with
from mcpmux.runtime.downstreams.service import Service
from mcpmux.runtime.downstreams.stdio_client import serve_messages
from mcpmux.transports.http.message import HttpRequest
from mcpmux.transports.http.server_connection import HttpReply
from mcpmux.transports.http.sse_streams import SseServerStream, open_sse_server_stream

if TYPE_CHECKING:
    from mcpmux.auth.gate import Gate

log = structlog.get_logger()

SESSION_BYTES: Final = 18  # of randomness in a session id: it is a bearer's proof, so it must not be guessed


class SseLimits(NamedTuple):
    """What is granted to clients."""

    is_full: Callable[[], bool]  # whether no more sessions may be opened
    idle: float  # seconds until the first POST
    stall: float  # seconds without reading what waits
    in_flight: int  # requests of one client at a time


class _Session(NamedTuple):
    """One client's stream; `scope` ends it, in time unless the client says something."""

    messages: SseServerStream
    scope: trio.CancelScope
    principal: Principal


@dataclass(eq=False)
class SseEndpoint:
    """All clients of one listener that use HTTP+SSE. They share `path`: GET is the stream, POST the input.

    `gate` knows which scopes a method needs; `mark` stands in front of every session id.
    """

    service: Service
    path: str
    limits: SseLimits
    gate: Gate | None = None
    mark: str = ""
    _sessions: dict[str, _Session] = field(default_factory=dict, repr=False)
    _stopping: trio.Event = field(default_factory=trio.Event)

    def __len__(self) -> int:
        return len(self._sessions)

    def drain(self) -> None:
        """Nothing new is taken; what clients have asked is answered, then their streams end."""
        self._stopping.set()

    async def handle(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer one HTTP request to `path`; its Host and Origin are checked already."""
        if request.method == "GET":
            await self._open(request.principal, reply)
        elif request.method == "POST" and (session_ids := parse_qs(request.query).get(SESSION_KEY)):
            await self._post(self._sessions.get(session_ids[0]), request, reply)
        else:
            # What a client hears that tries Streamable HTTP first; it goes on with GET then.
            sentence = "This is the endpoint of HTTP+SSE: open its event stream with GET"
            await refuse_with(reply, 405, sentence, (("Allow", "GET, POST"),))

    async def _open(self, principal: Principal, reply: HttpReply) -> None:
        if self.limits.is_full():
            error = Busy("too many sessions are open; end one", "limits.max_sessions")
            await reply.send(error.status, headers_of(error.status), encode_error(None, error))
            return
        session_id = self.mark + secrets.token_urlsafe(SESSION_BYTES)
        with trio.CancelScope(deadline=trio.current_time() + self.limits.idle) as scope:
            async with open_sse_server_stream(reply, f"{self.path}?{SESSION_KEY}={session_id}") as messages:
                self._sessions[session_id] = _Session(messages, scope, principal)
                log.info("stream opened", streams=len(self))
                try:
                    await serve_messages(
                        messages,
                        self.service,
                        self.limits.stall,
                        stopping=self._stopping,
                        transport="sse",
                        in_flight=self.limits.in_flight,
                        principal=principal,
                        gate=self.gate,
                    )
                finally:
                    del self._sessions[session_id]
                    log.info("stream ended", streams=len(self))
        if scope.cancelled_caught:
            log.info("a client that never said anything is closed")

    async def _post(self, session: _Session | None, request: HttpRequest, reply: HttpReply) -> None:
        if session is None or session.principal.name != request.principal.name:
            await refuse_with(reply, 404, "Session not found: its event stream has ended; open a new one")
            return
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            await refuse_with(reply, 415, "Content-Type must be application/json")
            return
        try:
            if is_batch(request.body):
                raise BadMessage(INVALID_REQUEST, "Invalid request: batches do not travel over HTTP+SSE")
            decode_message(request.body)
        except BadMessage as bad:
            await reply.send(400, JSON, encode_error(bad.id, bad))
            return
        session.scope.deadline = math.inf
        try:
            await session.messages.take(request.body)
        except TransportClosed as error:
            await refuse_with(reply, 404, f"Session not found: {error}")
            return
        await reply.send(202, ())
