"""What a server's response over HTTP holds: messages, one by one, in a batch or in an event stream.

Source: "Streamable HTTP" of 2026-07-28, "Transports" of 2025-03-26, 2025-06-18 and 2025-11-25.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mcpmux.errors import RpcError
from mcpmux.protocol.envelope import (
    BadMessage,
    Message,
    decode_message,
    decode_reply,
    is_batch,
)
from mcpmux.protocol.framing import read_batch
from mcpmux.protocol.large import LARGE_BYTES, read_large_reply
from mcpmux.transports.http.client import EVENT_STREAM, JSON_TYPE
from mcpmux.transports.http.client_response import HttpResponse
from mcpmux.transports.sse import SseDecoder

RETRY_SECONDS = 1.0  # before a broken event stream is opened again, when the server did not say `retry`
LEAST_RETRY_SECONDS: Final = 0.05  # a server that says 0 and closes at once must not keep us spinning


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
