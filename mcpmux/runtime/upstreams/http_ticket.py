"""One request over HTTP that waits for its answer, and how much of its response has been read."""

from __future__ import annotations

from contextvars import Context
from typing import Final

import trio

from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import ErrorReply, Message, Reply
from mcpmux.protocol.inflight import Ticket
from mcpmux.transports.http.client import SentRequest
from mcpmux.transports.http.client_response import HttpResponse
from mcpmux.transports.sse import SseDecoder

STREAM_BYTES: Final = 64 * 1024  # that are read of a stream at once before it is left to a task

_ANSWERS: Final = (Reply, ErrorReply)


class BegunStream:
    """An event stream of which something was read: the data of its events, and who decodes the rest."""

    def __init__(self, message_limit: int) -> None:
        self.decoder = SseDecoder(message_limit)
        self.data: list[bytes] = []  # events without any only carry an id
        self.is_silent = False  # it has said nothing so far, and goes on

    def __repr__(self) -> str:
        return f"<BegunStream {len(self.data)} events, {self.decoder!r}>"

    def read(self, response: HttpResponse) -> bool:
        """Decode what has come; False, and it is left there, when that is much."""
        if response.body_bytes > min(STREAM_BYTES, self.decoder.max_event_bytes):
            return False
        self.data += [event.data for event in self.decoder.feed(response.receive_nowait()) if event.data]
        return True


class HttpTicket(Ticket):
    """A ticket whose call is POSTed.

    `sent`: the POST while no task reads what comes of it; `carrier`: cancels the task that does, which begins
    in `context`. `unsent`: it
    failed, or was taken back, before any of it was sent. `whole`: the body of its response, once it was read
    and noted; `stream`: what was read at once, if that is an event stream; `decoder`: of a stream that a task
    reads.
    """

    __slots__ = ("carrier", "context", "decoder", "sent", "stream", "unsent", "whole")

    def __init__(self, request_id: int, call: Call) -> None:
        super().__init__(request_id, call)
        self.sent: SentRequest | None = None
        self.carrier: trio.CancelScope | None = None
        self.context: Context | None = None
        self.unsent = False
        self.whole: bytes | None = None
        self.stream: BegunStream | None = None
        self.decoder: SseDecoder | None = None


def as_answer(message: Message | None, ticket: HttpTicket) -> Reply | ErrorReply | None:
    """The message, when it is the answer that is waited for."""
    if isinstance(message, _ANSWERS) and (message.id == ticket.id or message.id is None):
        return message
    return None
