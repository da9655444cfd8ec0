"""The MCP endpoint over Streamable HTTP, both eras on one path.

What a POST is, is told by what it says: modern `_meta` or a modern version header → stateless; `initialize`
→ a new legacy session; a session header → that session. The answer is JSON until the exchange has something
to say before it, then it becomes an event stream.

Source: "Streamable HTTP" of 2026-07-28, "Transports" of 2025-03-26 to 2025-11-25.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from mcpmux.errors import RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call, Event, Notify
from mcpmux.protocol.codes import BUSY, INTERNAL_ERROR, INVALID_REQUEST
from mcpmux.protocol.envelope import (
    BadMessage,
    Fields,
    Notification,
    Request,
    decode_message,
    encode_error,
    encode_notification,
    encode_reply,
    is_batch,
)
from mcpmux.protocol.headers import SESSION_HEADER, VERSION_HEADER, check_headers
from mcpmux.protocol.modern import check_call, http_status, unsupported_version
from mcpmux.protocol.origin import OriginPolicy
from mcpmux.protocol.revisions import SUPPORTED, is_modern
from mcpmux.runtime.front import Front, read_call, says_modern
from mcpmux.runtime.session import LegacySession
from mcpmux.transports.http_message import HttpRequest
from mcpmux.transports.http_reply import HttpReply
from mcpmux.transports.sse import encode_event

log = structlog.get_logger()

Headers = tuple[tuple[str, str], ...]
Work = Callable[[Notify], Awaitable[Fields]]

JSON: Headers = (("Content-Type", "application/json"),)
STREAM_HEADERS: Headers = (
    ("Content-Type", "text/event-stream"),
    ("Cache-Control", "no-store"),
    ("X-Accel-Buffering", "no"),
)
SESSION_BYTES = 18  # of randomness in a session id: it is a bearer's proof, so it must not be guessed


class HttpEndpoint:
    """All HTTP clients of one listener. `sessions` holds the legacy ones by id."""

    def __init__(self, front: Front, path: str, policy: OriginPolicy, max_sessions: int) -> None:
        self._front = front
        self._path = path
        self._policy = policy
        self._max_sessions = max_sessions
        self.sessions: dict[str, LegacySession] = {}

    def __repr__(self) -> str:
        return f"<HttpEndpoint {self._path} {len(self.sessions)} sessions>"

    async def handle(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer one HTTP request."""
        refusal = self._policy.refuses(request.headers)
        if refusal is not None:
            await _refuse(reply, 403, refusal)
        elif request.path != self._path:
            await _refuse(reply, 404, f"Nothing here; the MCP endpoint is {self._path}")
        elif request.method == "POST":
            await self._post(request, reply)
        elif request.method == "DELETE":
            await self._delete(request, reply)
        else:
            await reply.send(405, (*JSON, ("Allow", "POST, DELETE")), _error_body("Method not allowed"))

    async def _post(self, request: HttpRequest, reply: HttpReply) -> None:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            await _refuse(reply, 415, "Content-Type must be application/json")
            return
        try:
            if is_batch(request.body):
                raise BadMessage(INVALID_REQUEST, "Invalid request: batches are not part of this revision")
            message = decode_message(request.body)
        except BadMessage as bad:
            await reply.send(400, JSON, encode_error(bad.id, bad))
            return
        if isinstance(message, Request):
            await self._take_request(message, request, reply)
        else:
            await self._take_other(message, request, reply)

    async def _take_request(self, message: Request, request: HttpRequest, reply: HttpReply) -> None:
        """Find out whose request this is, and answer it."""
        try:
            call = read_call(message)
            version = request.headers.get(VERSION_HEADER)
            if says_modern(call) or (version is not None and is_modern(version)):
                _check_modern(call, request)
                await _respond(
                    message, request, reply, lambda notify: self._front.answer(message.id, call, notify)
                )
            elif version is not None and version not in SUPPORTED:
                raise unsupported_version(version)
            elif message.method == m.INITIALIZE:
                await self._initialize(message, reply)
            else:
                session = self._session_of(request)
                await _respond(message, request, reply, partial(session.answer, message))
        except RpcError as error:
            await reply.send(_status_of(error), JSON, encode_error(message.id, error))

    async def _initialize(self, message: Request, reply: HttpReply) -> None:
        if len(self.sessions) >= self._max_sessions:
            raise RpcError(BUSY, f"Busy: {self._max_sessions} sessions are open; end one or try again later")
        session, result = await self._front.initialize(message)
        session_id = secrets.token_urlsafe(SESSION_BYTES)
        self.sessions[session_id] = session
        log.info("session opened", revision=session.revision, sessions=len(self.sessions))
        await reply.send(200, (*JSON, ("Mcp-Session-Id", session_id)), encode_reply(message.id, result))

    async def _take_other(self, message: object, request: HttpRequest, reply: HttpReply) -> None:
        """A notification or an answer: nothing to say but that it was taken."""
        try:
            if SESSION_HEADER in request.headers:
                self._session_of(request)
        except RpcError as error:
            await reply.send(_status_of(error), JSON, encode_error(None, error))
            return
        if isinstance(message, Notification):
            log.debug("client notification", method=message.method)
        await reply.send(202, ())

    async def _delete(self, request: HttpRequest, reply: HttpReply) -> None:
        session = self.sessions.pop(request.headers.get(SESSION_HEADER, ""), None)
        if session is None:
            await _refuse(reply, 404, "Session not found")
            return
        session.close()
        log.info("session ended", sessions=len(self.sessions))
        await reply.send(204, ())

    def _session_of(self, request: HttpRequest) -> LegacySession:
        session_id = request.headers.get(SESSION_HEADER)
        if session_id is None:
            raise NoSession(400, "send `initialize` first, then its Mcp-Session-Id with every request")
        session = self.sessions.get(session_id)
        if session is None:
            raise NoSession(404, "Session not found: it has ended; send `initialize` again")
        return session


class NoSession(RpcError):
    """A legacy request without a session that we know; `status` is its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(INVALID_REQUEST, message)
        self.status = status


def _status_of(error: RpcError) -> int:
    if isinstance(error, NoSession):
        return error.status
    return 503 if error.code == BUSY else http_status(error)


def _check_modern(call: Call, request: HttpRequest) -> None:
    """The body is complete, and the headers say the same. Raises RpcError."""
    check_call(call)
    check_headers(request.headers, call)


async def _respond(message: Request, request: HttpRequest, reply: HttpReply, work: Work) -> None:
    """Do the work and send its answer; its notifications first, when the client takes event streams."""
    streams = "text/event-stream" in request.headers.get("accept", "")

    async def notify(event: Event) -> None:
        if not streams:
            return
        data = encode_event(encode_notification(event.method, event.params))
        if reply.started:
            await reply.write(data)
        else:
            await reply.open(200, STREAM_HEADERS, data)

    status = 200
    try:
        data = encode_reply(message.id, await work(notify))
    except RpcError as error:
        status, data = _status_of(error), encode_error(message.id, error)
    except Exception:  # the wall around one request
        log.exception("request failed", method=message.method)
        status, data = 500, encode_error(message.id, RpcError(INTERNAL_ERROR, "Internal error"))
    if reply.started:
        await reply.finish(encode_event(data))
    else:
        await reply.send(status, JSON, data)


def _error_body(sentence: str) -> bytes:
    return encode_error(None, RpcError(INVALID_REQUEST, sentence))


async def _refuse(reply: HttpReply, status: int, sentence: str) -> None:
    await reply.send(status, JSON, _error_body(sentence))


def refuse(status: int, sentence: str) -> tuple[Headers, bytes]:
    """How the HTTP server words what it refuses itself: as a JSON-RPC error without an id."""
    return JSON, _error_body(sentence[:1].upper() + sentence[1:])
