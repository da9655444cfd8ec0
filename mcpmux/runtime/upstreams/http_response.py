"""One request over HTTP, and the messages in its response: one, a batch, or an event stream.

Source: "Streamable HTTP" of 2026-07-28, "Transports" of 2025-03-26, 2025-06-18 and 2025-11-25.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import Context
from typing import Final

import trio

from mcpmux.errors import RpcError
from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import (
    BadMessage,
    ErrorReply,
    Message,
    Reply,
    decode_message,
    decode_reply,
    is_batch,
)
from mcpmux.protocol.framing import read_batch
from mcpmux.protocol.inflight import PendingRequest
from mcpmux.protocol.large import LARGE_BYTES, read_large_reply
from mcpmux.transports.http.client import EVENT_STREAM, JSON_TYPE, SentRequest
from mcpmux.transports.http.client_response import HttpResponse
from mcpmux.transports.sse import SseDecoder

RETRY_SECONDS = 1.0  # before a broken event stream is opened again, when the server did not say `retry`
LEAST_RETRY_SECONDS: Final = 0.05  # a server that says 0 and closes at once must not keep us spinning
STREAM_BYTES: Final = 64 * 1024  # that are read of a stream at once before it is left to a task

_ANSWERS: Final = (Reply, ErrorReply)


def message_in(body: bytes) -> Message | None:
    """The message that a body or an event holds; None when it holds none."""
    reply = read_large_reply(body) if len(body) > LARGE_BYTES else decode_reply(body)
    if reply is not None:
        return reply
    try:
        return decode_message(body)
    except RpcError:
        return None


def messages_of(data: bytes, *, batches: bool) -> Sequence[Message]:
    """The messages that an event's data holds: one, or none; with `batches` several, as in `batch_in`."""
    if batches and is_batch(data):
        return batch_in(data)
    message = message_in(data) if data else None
    return [] if message is None else [message]


def batch_in(body: bytes) -> list[Message]:
    """The messages in a batch."""
    try:
        return [member for member in read_batch(body) if not isinstance(member, BadMessage)]
    except BadMessage:
        return []


def is_event_stream(response: HttpResponse) -> bool:
    """Whether a response is a stream of events to come."""
    kind = response.headers.get("content-type", "")
    if kind == JSON_TYPE or response.status != 200:
        return False
    return kind.partition(";")[0].strip().lower() == EVENT_STREAM


def continued(decoder: SseDecoder | None, limit: int) -> SseDecoder:
    """A decoder for the next connection of the same stream, if any: only its place in it is kept."""
    fresh = SseDecoder(limit)
    if decoder is None:
        return fresh
    fresh.last_event_id = decoder.last_event_id
    fresh.retry_milliseconds = decoder.retry_milliseconds
    return fresh


def retry_seconds(decoder: SseDecoder) -> float:
    """How long to wait before a broken stream is opened again: as the server said, or a moment."""
    milliseconds = decoder.retry_milliseconds
    return RETRY_SECONDS if milliseconds is None else max(LEAST_RETRY_SECONDS, milliseconds / 1000)


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
        for event in self.decoder.feed(response.receive_nowait()):
            if event.data:
                self.data.append(event.data)
        return True


class PendingHttpRequest(PendingRequest):
    """A request that is POSTed, and how much of its response has been read.

    `sent`: the POST, as long as no task reads what comes of it. `carrier`: cancels the task that does, which
    begins in `context`. `unsent`: it failed, or was taken back, before any of it was sent. `whole`: the body
    of its response, once that was read and noted. `stream`: what was read at once of an event stream;
    `decoder`: of a stream that a task reads.
    """

    __slots__ = ("carrier", "context", "decoder", "sent", "stream", "unsent", "whole")

    def __init__(self, id: int, call: Call) -> None:  # noqa: A002 - the protocol's word
        super().__init__(id, call)
        self.sent: SentRequest | None = None
        self.carrier: trio.CancelScope | None = None
        self.context: Context | None = None
        self.unsent = False
        self.whole: bytes | None = None
        self.stream: BegunStream | None = None
        self.decoder: SseDecoder | None = None


def as_answer(message: Message | None, pending: PendingHttpRequest) -> Reply | ErrorReply | None:
    """The message, when it is the answer that is waited for."""
    if isinstance(message, _ANSWERS) and (message.id == pending.id or message.id is None):
        return message
    return None
