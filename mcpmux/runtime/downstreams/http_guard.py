"""Before an HTTP endpoint: who asks is found out first, and those who may not come in hear what is missing.

Promises: nothing of a request is looked into before its client has been let in, but Host and Origin, which
come first; a stream (GET, or a listen) ends when the token expires, or is taken back, that opened it. The
protected resource's metadata is for everybody. Listeners that ask nobody have no guard, and cost nothing.

Source: "Authorization" of 2025-06-18 to 2026-07-28; RFC 6750, section 3.1; RFC 9728.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from mcpmux.errors import Refused
from mcpmux.protocol import method as m
from mcpmux.protocol.codes import INVALID_REQUEST
from mcpmux.protocol.envelope import encode_error
from mcpmux.protocol.headers import METHOD_HEADER
from mcpmux.protocol.origin import OriginPolicy
from mcpmux.protocol.principal import Admission, Turned
from mcpmux.protocol.raw_json import Id
from mcpmux.runtime.downstreams.http_answer import JSON, refuse_with
from mcpmux.transports.http.reply import HttpReply
from mcpmux.transports.http.server_request import HttpRequest
from mcpmux.transports.inline import in_task

if TYPE_CHECKING:
    from mcpmux.auth.gate import Gate

Handle = Callable[[HttpRequest, HttpReply], Awaitable[None]]
METADATA = (*JSON, ("Cache-Control", "max-age=300"))


class HttpGuard:
    """Handles the requests of one listener: lets in, then hands on to `handle`."""

    def __init__(self, gate: Gate, policy: OriginPolicy, path: str, handle: Handle) -> None:
        """`path`: of the listener's endpoint."""
        self._gate = gate
        self._policy = policy
        self._path = path
        self._handle = handle

    def __repr__(self) -> str:
        return f"<HttpGuard {self._path} {self._gate!r}>"

    async def handle(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer one request."""
        refusal = self._policy.refuses(request.headers)
        if refusal is not None:
            await refuse_with(reply, 403, refusal)
            return
        resource = self._gate.resource
        if resource is not None and resource.is_metadata(request.path, self._path):
            await self._tell_metadata(request, reply, resource.document)
            return
        try:
            await in_task()
            admission = await self._gate.admit(request.headers, request.holder)
        except Turned as turned:
            await turn_away(reply, turned)
            return
        request.principal = admission.principal
        if _opens_stream(request):
            await self._handle_until(admission, request, reply)
        else:
            await self._handle(request, reply)

    async def _tell_metadata(self, request: HttpRequest, reply: HttpReply, document: bytes) -> None:
        if request.method in ("GET", "HEAD"):
            await reply.send(200, METADATA, document)
        else:
            await refuse_with(reply, 405, "Method not allowed", (("Allow", "GET, HEAD"),))

    async def _handle_until(self, admission: Admission, request: HttpRequest, reply: HttpReply) -> None:
        with self._gate.stay(admission) as scope:
            await self._handle(request, reply)
        if scope.cancelled_caught and not reply.started:
            await turn_away(reply, self._gate.expired())


def _opens_stream(request: HttpRequest) -> bool:
    return request.method == "GET" or request.headers.get(METHOD_HEADER) == m.LISTEN


async def turn_away(reply: HttpReply, turned: Turned, request_id: Id | None = None) -> None:
    """Answer somebody who is not let in, or not for that."""
    await reply.send(turned.status, (*JSON, *turned.fields), encode_error(request_id, as_error(turned)))


def as_error(turned: Turned) -> Refused:
    """The same where there is nothing but JSON-RPC."""
    text = str(turned)
    return Refused(INVALID_REQUEST, text[:1].upper() + text[1:], "auth")
