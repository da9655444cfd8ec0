"""A reply of the HTTP server whose connection is a stand-in."""

from __future__ import annotations

from typing import Any, Protocol

from mcpmux.config import Limits
from mcpmux.transports.body_budget import BodyBudget
from mcpmux.transports.http.message import HttpRequest
from mcpmux.transports.http.reply import HttpReply
from mcpmux.transports.http.server_connection import ServerState


class Sending(Protocol):
    """All that a reply asks of its connection."""

    async def send(self, data: bytes) -> None: ...


def server_state() -> ServerState:
    unused: Any = None  # what handles requests and refuses them
    return ServerState(unused, unused, Limits(), 0.0, b"", BodyBudget(0), unused)


def reply_on(connection: Sending, request: HttpRequest) -> HttpReply:
    """Return a reply to `request` that writes to `connection`."""
    stand_in: Any = connection
    unused: Any = None
    return HttpReply(request, stand_in, server_state(), unused)
