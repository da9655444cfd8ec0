"""The server's side of HTTP+SSE as a MessagePipe: one client's event stream, and what it POSTs.

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
from mcpmux.transports.http.reply import HttpReply
from mcpmux.transports.sse import encode_event

QUEUE_BYTES = 256 * 1024  # waiting to be written, after which `send` waits, as on stdio
KEEP_ALIVE_SECONDS = 15.0  # between comments on a quiet stream
FLUSH_SECONDS = 2.0  # for the last messages when closing; a client that does not read loses them
CLOSED = "the client's event stream has ended"
STREAM_HEADERS: Fields = (
    ("Content-Type", "text/event-stream"),
    ("Cache-Control", "no-store"),
    ("X-Accel-Buffering", "no"),
)


class SseServerPipe:
    """A MessagePipe to one client. Made by `open_sse_server_pipe`."""

    def __init__(self, reply: HttpReply) -> None:
        self._reply = reply
        self._queue: list[bytes] = []
        self._queued_bytes = 0
        self._work = trio.lowlevel.ParkingLot()
        self._room = trio.lowlevel.ParkingLot()
        self._closed = False
        self._writer_done = trio.Event()
        # Nothing is kept here: a POST waits, with its message, until the reader takes it.
        self._posted, self._inbox = trio.open_memory_channel[bytes](0)

    def __repr__(self) -> str:
        return f"<SseServerPipe {self._queued_bytes} bytes queued{', closed' if self._closed else ''}>"

    async def take(self, message: bytes) -> None:
        """A message that the client has POSTed; waits until it is received. Raises TransportClosed."""
        try:
            await self._posted.send(message)
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            raise TransportClosed(CLOSED) from None

    async def send(self, message: bytes) -> None:
        """See MessagePipe."""
        while self._queued_bytes >= QUEUE_BYTES and not self._closed:
            await self._room.park()
        if self._closed:
            raise TransportClosed(CLOSED)
        event = encode_event(message, event="message")
        self._queue.append(event)
        self._queued_bytes += len(event)
        self._work.unpark()

    async def receive(self) -> bytes:
        """See MessagePipe."""
        try:
            return await self._inbox.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            raise TransportClosed(CLOSED) from None

    async def aclose(self) -> None:
        """See MessagePipe."""
        self._refuse()
        self._inbox.close()
        self._posted.close()
        with trio.move_on_after(FLUSH_SECONDS):
            await self._writer_done.wait()

    async def run_writer(self) -> None:
        """Write what is queued, and comments when there is nothing, until the pipe is closed."""
        try:
            while self._queue or not self._closed:
                if self._queue:
                    await self._reply.write(self._take_queue())
                    continue
                with trio.move_on_after(KEEP_ALIVE_SECONDS) as quiet:
                    await self._work.park()
                if quiet.cancelled_caught:
                    await self._reply.write(b":\n\n")
        finally:
            self._refuse()
            self._take_queue()
            self._writer_done.set()

    def _take_queue(self) -> bytes:
        data = b"".join(self._queue)
        self._queue.clear()
        self._queued_bytes = 0
        self._room.unpark_all()
        return data

    def _refuse(self) -> None:
        self._closed = True
        self._work.unpark()
        self._room.unpark_all()


@asynccontextmanager
async def open_sse_server_pipe(reply: HttpReply, endpoint: str) -> AsyncIterator[SseServerPipe]:
    """Answer a GET with an event stream that names `endpoint`, the URI to POST to, and then is a pipe.

    Leaving writes the queue, within bounds; the reply is the caller's to finish.
    """
    await reply.open(200, STREAM_HEADERS, encode_event(endpoint.encode(), event="endpoint"))
    async with trio.open_nursery() as nursery:
        pipe = SseServerPipe(reply)
        nursery.start_soon(pipe.run_writer, name="sse writer")
        try:
            yield pipe
        finally:
            await pipe.aclose()
            nursery.cancel_scope.cancel()
