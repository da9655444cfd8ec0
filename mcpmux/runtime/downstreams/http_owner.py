"""Which worker answers an HTTP request, when there are several.

Promises: what belongs to another worker (a legacy session, a stream of HTTP+SSE, a parked call, a task) is
passed on before anything else is looked at, so that its own worker asks who comes and what they may do.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from mcpmux.mux.namespace import owner_of_request
from mcpmux.protocol.headers import SESSION_HEADER
from mcpmux.runtime.downstreams.sse_endpoint import SESSION_KEY
from mcpmux.transports.http.reply import HttpReply
from mcpmux.transports.http.request import HttpRequest
from mcpmux.transports.http.shared import Handler


def handle_by_owner(
    own: int, workers: int, handler: Handler, request: HttpRequest, reply: HttpReply
) -> Coroutine[Any, Any, None]:
    """Answer an HTTP request by the handler of worker `own` of `workers`, or have its owner answer it."""
    owner = owner_of_request(request.headers, request.query, request.body, SESSION_HEADER, SESSION_KEY)
    if owner is None or owner == own or owner > workers:
        return handler(request, reply)
    reply.pass_on(owner)
    return _done()


async def _done() -> None:
    """Nothing is left to do here."""
