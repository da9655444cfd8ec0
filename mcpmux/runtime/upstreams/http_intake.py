"""What a server says over HTTP besides answers: notifications and questions, taken to where they belong.

Source: "Streamable HTTP" of 2026-07-28, "Transports" of 2025-03-26, 2025-06-18 and 2025-11-25.
"""

from __future__ import annotations

from typing import Final

import trio

from mcpmux.errors import RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Event
from mcpmux.protocol.envelope import (
    Message,
    Notification,
    Request,
    decode_fields,
    encode_error,
    encode_reply,
    id_of,
)
from mcpmux.protocol.input_requests import ASKS
from mcpmux.protocol.tasks import related_task
from mcpmux.runtime.calls import Calls, Hear
from mcpmux.runtime.incoming import Answer
from mcpmux.runtime.upstreams.http_peer import HttpPeer
from mcpmux.runtime.upstreams.http_ticket import HttpTicket

_OF_REQUESTS: Final = frozenset({m.PROGRESS, m.LOG_MESSAGE, m.ACKNOWLEDGED})
"""What means nothing where there is no request that it belongs to."""


class Intake:
    """Takes the messages of one server that answer nothing."""

    def __init__(
        self, peer: HttpPeer, calls: Calls, answer: Answer, hear: Hear, nursery: trio.Nursery
    ) -> None:
        """`answer` answers what the server asks of mcpmux itself; `hear` hears what belongs to no call."""
        self._peer = peer
        self._calls = calls
        self._answer = answer
        self._hear = hear
        self._nursery = nursery

    def __repr__(self) -> str:
        return f"<Intake {self._peer!r}>"

    async def take(self, message: Message, ticket: HttpTicket | None) -> None:
        """A message on the stream of one request, or without a `ticket` on the server's own stream."""
        if isinstance(message, Notification):
            self._take_notification(message, ticket)
        elif isinstance(message, Request):
            await self._take_question(message, ticket)

    async def _take_question(self, request: Request, ticket: HttpTicket | None) -> None:
        if request.method not in ASKS:
            await self._serve(request)
            return
        asked = ticket if ticket is not None and ticket.call.method in self._calls.may_ask else None
        if asked is not None and asked.call.method != m.RESOURCES_SUBSCRIBE:
            await self._calls.take_question(request, asked)
        else:
            self._nursery.start_soon(self._calls.take_question, request, asked, name="server's question")

    def _take_notification(self, message: Notification, ticket: HttpTicket | None) -> None:
        try:
            params = decode_fields(message.params)
        except ValueError:
            return
        method = message.method
        if method == m.CANCELLED:
            self._calls.withdraw_question(id_of(params.get("requestId")))
        elif method in m.UNASKED or (method == m.PROGRESS and related_task(params) is not None):
            self._hear(message)  # progress of a task goes on when the call that made it has been answered
        elif ticket is None:
            if method not in _OF_REQUESTS:
                self._hear(message)
        elif ticket.call.method == m.LISTEN and method != m.ACKNOWLEDGED:
            self._hear(message)
        else:
            ticket.push(Event(method, params))

    async def _serve(self, request: Request) -> None:
        """A legacy server asks something while it works on our request: answer in a POST of its own."""
        try:
            data = encode_reply(request.id, await self._answer(request, unheard))
        except RpcError as error:
            data = encode_error(request.id, error)
        await self._peer.tell(data)


async def unheard(_event: Event) -> None:
    """Where nobody waits for what a call says on its way."""
