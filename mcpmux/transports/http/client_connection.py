"""One client connection to one origin, carrying one request at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from mcpmux.errors import McpmuxError, TransportClosed
from mcpmux.transports.byte_stream import RECEIVE_BYTES
from mcpmux.transports.http.message import JOIN_BYTES
from mcpmux.transports.http.response_parser import ResponseParser
from mcpmux.transports.http.route import PoolLimits
from mcpmux.transports.tls import ByteStream
from mcpmux.transports.waiting import DeadlineSweeper, ReadinessPoller

Over = Callable[["HttpConnection"], None]
"""Called when a response of which only the end was awaited has ended, or will not."""

ROOM_BYTES: Final = 4 * 2**20  # for a body, as soon as its length is known


class HttpConnection:
    """A byte stream and the parser of its responses.

    `until`: the time, in trio's, after which the end of a response is awaited no longer.

    An exchange has a task, or it is `post`ed: then a poller receives for it, and `hear` is called once, when
    the response is complete or needs attention: a failure, a stream, a large body. If `hear` sets itself
    again during that call, and only then, it is called again when there is more.
    """

    def __init__(self, byte_stream: ByteStream, deadlines: DeadlineSweeper, limits: PoolLimits) -> None:
        self.byte_stream = byte_stream
        self.parser = ResponseParser(limits.head_bytes, limits.head_fields)
        self.idle_since = 0.0
        self.until = math.inf
        self._deadlines = deadlines
        self._over: Over | None = None  # to be called, if only the end of the response is awaited
        self._poller: ReadinessPoller | None = None  # that watches the stream
        self.hear: Callable[[], None] | None = None
        self.failure: McpmuxError | None = None  # of an exchange that was posted

    async def exchange(self, head: bytes, body: bytes) -> None:
        """Send a request and receive the response's head. Raises TransportClosed, RemoteProtocolError.

        Any error closes the stream.
        """
        byte_stream = self.byte_stream
        if len(body) <= JOIN_BYTES:
            head, body = head + body, b""
        self.parser.begin()
        try:
            try:
                sent = byte_stream.send_nowait(head)
                if sent < len(head):
                    await byte_stream.send(head[sent:])
                if body:
                    await byte_stream.send(body)
            except TransportClosed:
                pass  # a server may refuse before it has read all: go on to its answer
            while not self.parser.status:
                self.parser.feed(await byte_stream.receive())
        except BaseException:
            self.close()
            raise

    def post(self, request: bytes, poller: ReadinessPoller, hear: Callable[[], None]) -> bool:
        """Send a small request without waiting, and let the poller receive the response.

        `take_over` lets a task go on with it. Return False, closing the stream, if only a part was sent: the
        server cannot act on a part. So it is if the stream has something to receive already.
        """
        byte_stream = self.byte_stream
        if self._poller is None:
            if byte_stream.early:
                self.close()
                return False
            self._be_watched(poller)
        self.parser.begin()
        self.failure = None
        try:
            if byte_stream.send_nowait(request) < len(request):
                self.close()
                return False
        except TransportClosed:
            pass  # a server may refuse before it has read all: its answer is to be read, or its end
        self.hear = hear
        return True

    def _be_watched(self, poller: ReadinessPoller) -> None:
        poller.watch(self.byte_stream.descriptor, self._receive)
        self._poller = poller

    async def wait_for_head(self) -> None:
        """Receive the response's head for a posted request. Closes the stream and raises as `exchange`."""
        parser, failure = self.parser, self.failure
        self.take_over()
        try:
            if failure is not None and not (parser.status and isinstance(failure, TransportClosed)):
                raise failure
            # With a head, a broken connection is left to the reader of the body, which meets it again after
            # the bytes that came before.
            while not parser.status:
                parser.feed(await self.byte_stream.receive())
        except BaseException:
            self.close()
            raise

    def take_over(self) -> None:
        """Let tasks receive from now on, until something is posted again."""
        self.hear = None
        if self._poller is not None:
            self._poller.forget(self.byte_stream.descriptor)
            self._poller = None

    def _receive(self) -> None:
        """Receive for a posted exchange, or the end of its stream, or of the connection."""
        if self.hear is None:
            if self._over is not None:
                self.hear_end()
            else:
                self.take_over()  # the next user of the connection sees what it is
            return
        parser = self.parser
        try:
            data = self.byte_stream.receive_nowait()
            if data is not None:
                parser.feed(data)
        except McpmuxError as error:
            self.failure = error
        if (
            self.failure is None
            and not parser.complete
            and (not parser.status or 0 < parser.length - parser.body_bytes <= RECEIVE_BYTES)
        ):
            return  # the rest of a head or of a small body comes with the next call
        hear, self.hear = self.hear, None
        try:
            hear()
        except Exception:  # the poller forgets the descriptor of a call that fails
            self.take_over()
            raise

    async def receive_rest(self) -> bytearray:
        """Return a body whose length is known, received without another copy. Raises as `exchange`.

        The memory is at most twice what the server has sent, or ROOM_BYTES, however much it announces.
        """
        parser = self.parser
        begun = parser.take_body()
        filled, size = len(begun), len(begun) + parser.missing
        body = bytearray(min(size, max(filled, ROOM_BYTES)))
        body[:filled] = begun
        while filled < size:
            if filled == len(body):
                body += bytes(min(filled, size - filled))
            with memoryview(body) as room, room[filled:] as rest:
                count = await self.byte_stream.receive_into(rest)
            if not count:
                parser.feed_eof()
            filled += count
        parser.skip_rest()
        return body

    def close(self) -> None:
        """Close the connection, also in the middle of an exchange."""
        self._over = None
        self._deadlines.forget(self)
        self.take_over()
        self.byte_stream.close()

    def cut_off(self) -> None:
        """Stop waiting for the end of a response, which is late."""
        if not self.hear_end():
            self._tell_over()

    def end_by(self, until: float, over: Over, poller: ReadinessPoller | None) -> None:
        """Wait only for the end of the response: `over` is called when it has come, or by the time `until`.

        Then the response is complete, or the connection is useless. Without a `poller`, `hear_end` must be
        called now and then.
        """
        self._over = over
        self.until = until
        self._deadlines.watch(self)
        if poller is not None and self._poller is None:
            self._be_watched(poller)

    def hear_end(self) -> bool:
        """Discard received bytes of a response of which only the end matters; return whether it is over."""
        parser = self.parser
        if parser.complete:
            return True
        with suppress(McpmuxError):  # a broken connection is over, too
            data = self.byte_stream.receive_nowait()
            if data is not None:
                parser.feed(data)
                parser.take_body()
            if not parser.complete:
                return False
        self._tell_over()
        return True

    def _tell_over(self) -> None:
        over, self._over = self._over, None
        self._deadlines.forget(self)
        if over is not None:
            over(self)
