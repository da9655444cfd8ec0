"""The server's side of HTTP+SSE as a MessageStream: one client's event stream, and what it POSTs.

Promises: a message goes out whole or not at all; a slow reader makes `send` wait, in bounded memory, until
the HTTP server ends its connection; a quiet stream has comments, so that nothing on the way closes it.
Refuses to know what a message says and how a POST finds its stream.

Source: "HTTP with SSE" in "Transports", 2024-11-05.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from mcpmux.errors import TransportClosed
from mcpmux.transports.http.message import Fields
from mcpmux.transports.http.server_connection import HttpReply
from mcpmux.transports.message_stream import MessageStream
from mcpmux.transports.send_queue import SendQueue
from mcpmux.transports.sse import encode_event

KEEP_ALIVE_SECONDS = 15.0  # between comments on a quiet stream
FLUSH_SECONDS = 2.0  # for the last messages when closing; a client that does not read loses them
CLOSED = "the client's event stream has ended"
STREAM_HEADERS: Fields = (
    ("Content-Type", "text/event-stream"),
    ("Cache-Control", "no-store"),
    ("X-Accel-Buffering", "no"),
)


class SseServerStream(MessageStream):
    """A message stream to one client. Made by `open_sse_server_stream`."""

    def __init__(self, queue: SendQueue) -> None:
        self._queue = queue
        # Nothing is kept here: a POST waits, with its message, until the reader takes it.
        self._posted, self._inbox = trio.open_memory_channel[bytes](0)

    async def take(self, message: bytes) -> None:
        """A message that the client has POSTed; waits until it is received. Raises TransportClosed."""
        try:
            await self._posted.send(message)
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            raise TransportClosed(CLOSED) from None

    async def send(self, message: bytes) -> None:
        await self._queue.room()
        if not self._queue.offer(encode_event(message, event="message")):
            raise TransportClosed(CLOSED)

    async def receive(self) -> bytes:
        try:
            return await self._inbox.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            raise TransportClosed(CLOSED) from None

    async def aclose(self) -> None:
        self._queue.finish()
        self._inbox.close()
        self._posted.close()
        with trio.move_on_after(FLUSH_SECONDS):
            await self._queue.done.wait()


@asynccontextmanager
async def open_sse_server_stream(reply: HttpReply, endpoint: str) -> AsyncIterator[SseServerStream]:
    """Answer a GET with an event stream that names `endpoint`, the URI to POST to, and then carries messages.

    Leaving writes the queue, within bounds; the reply is the caller's to finish.
    """
    await reply.open(200, STREAM_HEADERS, encode_event(endpoint.encode(), event="endpoint"))
    queue = SendQueue(reply.write, filler=b":\n\n", quiet=KEEP_ALIVE_SECONDS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(queue.run, name="sse writer")
        messages = SseServerStream(queue)
        try:
            yield messages
        finally:
            await messages.aclose()
            nursery.cancel_scope.cancel()
