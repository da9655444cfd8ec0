"""HTTP+SSE: a GET opens a session's stream to the client, which POSTs messages to the address named in it.

A session lives as long as its stream; when the client leaves, its calls are cancelled. DuplexClient serves
the messages, as on stdio, so any revision may be spoken here.

Source: "HTTP with SSE" of 2024-11-05.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qs

import structlog
import trio

from mcpmux.clients.http_answer import (
    NOT_JSON,
    answer_error,
    is_json,
    refuse_with,
)
from mcpmux.clients.service import Service
from mcpmux.clients.stdio_client import LINGER_SECONDS, serve_messages
from mcpmux.config import Limits
from mcpmux.errors import TransportClosed
from mcpmux.mux.share import Share, client_of, origin_of
from mcpmux.protocol.codes import INVALID_REQUEST, Busy
from mcpmux.protocol.envelope import BadMessage, decode_message, is_batch
from mcpmux.protocol.headers import SESSION_KEY
from mcpmux.protocol.principal import NARROWED, Principal
from mcpmux.transports.body_budget import BodyBudget, budget_client
from mcpmux.transports.http.message import HttpRequest
from mcpmux.transports.http.reply import HttpReply
from mcpmux.transports.http.sse_streams import SseServerStream, open_sse_server_stream
from mcpmux.transports.inline import in_task

if TYPE_CHECKING:
    from mcpmux.auth.gate import Gate

log = structlog.get_logger()


class SseSession(NamedTuple):
    """One client's stream over HTTP+SSE. `scope` ends it when no message comes in time."""

    messages: SseServerStream
    scope: trio.CancelScope
    principal: Principal


class SseEndpoint:
    """All clients of one listener that speak HTTP+SSE at `path`. Its length is the number of open streams."""

    def __init__(
        self,
        path: str,
        service: Service,
        limits: Limits,
        gate: Gate | None,
        stopping: trio.Event | None,
        new_id: Callable[[], str],
        is_full: Callable[[], bool],
        share: Share,
        bodies: BodyBudget | None,
    ) -> None:
        """`new_id` makes session ids. `is_full` returns whether the listener has as many sessions as allowed.

        `share` limits the streams of one client. `bodies`: the budget for large messages until they are
        answered. See HttpEndpoint for the others.
        """
        self.path = path
        self._service = service
        self._limits = limits
        self._gate = gate
        self._stopping = stopping
        self._new_id = new_id
        self._is_full = is_full
        self._share = share
        self._bodies = bodies
        self._streams: dict[str, SseSession] = {}

    def __len__(self) -> int:
        return len(self._streams)

    async def handle(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer a request at the path."""
        await in_task()
        if request.method == "GET":
            try:
                with self._share.counted(client_of(request.principal, origin_of(request.peer))):
                    await self._open_stream(request, reply)
            except Busy as error:
                await answer_error(reply, error)
        elif request.method == "POST" and (session_ids := parse_qs(request.query).get(SESSION_KEY)):
            await self._post_to_stream(self._streams.get(session_ids[0]), request, reply)
        else:
            # A client that tries Streamable HTTP first falls back to GET on this status ("Backwards
            # Compatibility").
            sentence = "This is the endpoint of HTTP+SSE: open its event stream with GET"
            await refuse_with(reply, 405, sentence, (("Allow", "GET, POST"),))

    async def _open_stream(self, request: HttpRequest, reply: HttpReply) -> None:
        """Serve a session from its GET to the end of its stream. Raises Busy."""
        session_id = self._new_id()
        # Together with those of Streamable HTTP: both are clients of one listener.
        if self._is_full():
            raise Busy("too many sessions are open; end one", "limits.max_sessions")
        await self._service.session_counter.begin(session_id, request.principal)
        try:
            await self._serve_stream(session_id, request, reply)
        finally:
            self._service.session_counter.end(session_id)

    async def _serve_stream(self, session_id: str, request: HttpRequest, reply: HttpReply) -> None:
        principal, holder = request.principal, budget_client(request.principal, request.peer)
        counted = LINGER_SECONDS, False, self._bodies, holder
        # The first message removes this deadline: a client that never sends one only holds a connection.
        with trio.CancelScope(deadline=trio.current_time() + self._limits.session_idle) as scope:
            # The address repeats view and query, as the principal of a POST is compared with the stream's.
            view, _, narrowing = principal.view.partition(NARROWED)
            query = f"{narrowing}&" if narrowing else ""
            address = f"{self.path}{view and f'/{view}'}?{query}{SESSION_KEY}={session_id}"
            async with open_sse_server_stream(reply, address) as messages:
                self._streams[session_id] = SseSession(messages, scope, principal)
                log.info("stream opened", streams=len(self._streams))
                try:
                    client = "sse", principal, self._gate, self._stopping
                    await serve_messages(messages, self._service, self._limits, *client, *counted)
                finally:
                    del self._streams[session_id]
                    log.info("stream ended", streams=len(self._streams))
        if scope.cancelled_caught:
            log.info("a client that never said anything is closed")

    async def _post_to_stream(
        self, session: SseSession | None, request: HttpRequest, reply: HttpReply
    ) -> None:
        # The same answer for a session of another principal: its id must not be confirmed.
        if session is None or session.principal.key != request.principal.key:
            await refuse_with(reply, 404, "Session not found: its event stream has ended; open a new one")
            return
        if not is_json(request):
            await refuse_with(reply, 415, NOT_JSON)
            return
        try:
            if is_batch(request.body):
                raise BadMessage(INVALID_REQUEST, "Invalid request: batches do not travel over HTTP+SSE")
            decode_message(request.body)
        except BadMessage as bad:
            # Passed on, so that the question fails at once: it would wait for minutes otherwise.
            if bad.is_answer:
                with suppress(TransportClosed):
                    await session.messages.take(request.body, request.holding)
            await answer_error(reply, bad, None if bad.is_answer else bad.id)
            return
        session.scope.deadline = math.inf
        try:
            await session.messages.take(request.body, request.holding)
        except TransportClosed as error:
            await refuse_with(reply, 404, f"Session not found: {error}")
        else:
            await reply.send(202, ())
