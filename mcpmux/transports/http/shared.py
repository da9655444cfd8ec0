"""What all connections of one HTTP server have in common, and how each of them refuses a request."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import trio

from mcpmux.errors import TransportClosed
from mcpmux.transports.byte_stream import ByteStream
from mcpmux.transports.handing import Handing
from mcpmux.transports.http.limits import HttpLimits, Refusal
from mcpmux.transports.http.message import Fields
from mcpmux.transports.http.reply import HttpReply, ServerState
from mcpmux.transports.http.request import HttpRequest
from mcpmux.transports.readiness import ReadinessPoller
from mcpmux.transports.tls.context import CurrentContext

Handler = Callable[[HttpRequest, HttpReply], Coroutine[Any, Any, None]]
Refuse = Callable[[int, str], tuple[Fields, bytes]]

LINGER_SECONDS = 2.0  # how long a refused client may go on sending before it is cut off
LINGER_RECEIVES = 1024  # and how much (64 MiB at most), so that it reads our answer, not a reset


class Shared(msgspec.Struct):
    """What all connections of a server have in common; see `serve_http`."""

    handler: Handler
    refuse: Refuse
    limits: HttpLimits
    state: ServerState
    tls: CurrentContext | None = None
    handing: Handing | None = None
    poller: ReadinessPoller | None = None


async def refuse_client(byte_stream: ByteStream, refusal: Refusal, shared: Shared, peer: str) -> None:
    """Answer, then receive a bounded rest: closing on unread bytes would reset the answer away."""
    request = HttpRequest("", "", "", {}, b"", peer, http_1_0=False, keep_alive=False)
    fields, body = shared.refuse(refusal.status, refusal.sentence)
    with trio.move_on_after(LINGER_SECONDS):
        try:
            await HttpReply(request, byte_stream.send, shared.state).send(refusal.status, fields, body)
            byte_stream.send_eof()
            for _ in range(LINGER_RECEIVES):
                if not await byte_stream.receive():
                    return
        except TransportClosed:
            return
