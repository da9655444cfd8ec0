"""In front of an HTTP endpoint: finds out who asks and whether they may, and which worker answers.

Promises: before its client has been let in, nothing of a request is looked into but Host and Origin; a stream
(GET, or a listen) ends when the token that opened it expires or is taken back. The protected resource's
metadata is for everybody. Listeners that ask nobody have no guard, and cost nothing.

With several workers, what belongs to another one (a legacy session, a stream of HTTP+SSE, a parked call, a
task) is passed on before anything else is looked at, so that its own worker asks who comes and what they may.

Source: "Authorization" of 2025-06-18 to 2026-07-28; RFC 6750, section 3.1; RFC 9728.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mcpmux.errors import Refused
from mcpmux.mux.rewrite import owner_of_request
from mcpmux.protocol import method as m
from mcpmux.protocol.codes import INVALID_REQUEST
from mcpmux.protocol.envelope import encode_error
from mcpmux.protocol.headers import METHOD_HEADER, OriginPolicy
from mcpmux.protocol.principal import Turned
from mcpmux.protocol.raw_json import Id
from mcpmux.runtime.downstreams.http_answer import JSON, refuse_with
from mcpmux.transports.http.message import HttpRequest
from mcpmux.transports.http.server_connection import Handler, HttpReply
from mcpmux.transports.inline import in_task

if TYPE_CHECKING:
    from mcpmux.auth.gate import Gate

METADATA: Final = (*JSON, ("Cache-Control", "max-age=300"))


@dataclass(frozen=True)
class HttpGuard:
    """Handles the requests of one listener: lets in, then hands on to its endpoint, which is at `path`."""

    gate: Gate
    policy: OriginPolicy
    path: str
    endpoint: Handler

    async def handle(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer one request."""
        refusal = self.policy.refuses(request.headers.get("host", ""), request.headers.get("origin"))
        if refusal is not None:
            await refuse_with(reply, 403, refusal)
            return
        resource = self.gate.resource
        if resource is not None and resource.is_metadata(request.path, self.path):
            if request.method in ("GET", "HEAD"):
                await reply.send(200, METADATA, resource.document)
            else:
                await refuse_with(reply, 405, "Method not allowed", (("Allow", "GET, HEAD"),))
            return
        await in_task()
        try:
            admission = await self.gate.admit(request.headers, request.holder)
        except Turned as turned:
            await turn_away(reply, turned)
            return
        request.principal = admission.principal
        if request.method != "GET" and request.headers.get(METHOD_HEADER) != m.LISTEN:
            await self.endpoint(request, reply)
            return
        with self.gate.stay(admission) as scope:  # as it opens a stream
            await self.endpoint(request, reply)
        if scope.cancelled_caught and not reply.started:
            await turn_away(reply, self.gate.expired())


async def turn_away(reply: HttpReply, turned: Turned, request_id: Id | None = None) -> None:
    """Answer somebody who is not let in, or not for that."""
    await reply.send(turned.status, (*JSON, *turned.fields), encode_error(request_id, as_error(turned)))


def as_error(turned: Turned) -> Refused:
    """The same where there is nothing but JSON-RPC."""
    text = str(turned)
    return Refused(INVALID_REQUEST, text[:1].upper() + text[1:], "auth")


def handle_by_owner(
    own: int, workers: int, handler: Handler, request: HttpRequest, reply: HttpReply
) -> Coroutine[Any, Any, None]:
    """Answer an HTTP request by the handler of worker `own` of `workers`, or have its owner answer it."""
    owner = owner_of_request(request.headers, request.query, request.body)
    if owner is None or owner == own or owner > workers:
        return handler(request, reply)
    reply.pass_on(owner)
    return _done()


async def _done() -> None:
    """Nothing is left to do here."""
