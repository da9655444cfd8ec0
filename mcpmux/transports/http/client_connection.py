"""One client connection to one origin, carrying one request at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from mcpmux.errors import McpmuxError, TransportClosed
from mcpmux.transports.byte_stream import RECEIVE_BYTES
from mcpmux.transports.http.message import JOIN_BYTES, ResponseParser
from mcpmux.transports.http.route import PoolLimits
from mcpmux.transports.tls import ByteStream
from mcpmux.transports.waiting import DeadlineSweeper, ReadinessPoller

Over = Callable[["HttpConnection"], None]
"""Is told that nothing more comes of a response of which only the end was waited for."""

ROOM_BYTES: Final = 4 * 2**20  # for a body, as soon as its length is known


class HttpConnection:
    """A byte stream and the parser of what comes from it.

    `until`: when the end of a response is not waited for any longer, in trio's time.

    An exchange has a task, or it is `post`ed: then a poller receives what comes, and `hear` is called once
    the response is there, or there is something else to see to: a failure, a stream, a large body. Set by it,
    and by nobody later, it is called again when there is more.
    """

    def __init__(self, byte_stream: ByteStream, deadlines: DeadlineSweeper, limits: PoolLimits) -> None:
        self.byte_stream = byte_stream
        self.parser = ResponseParser(limits.head_bytes, limits.head_fields)
        self.idle_since = 0.0
        self.until = math.inf
        self._deadlines = deadlines
        self._over: Over | None = None  # nothing but the end of the response matters, and who is told of it
        self._poller: ReadinessPoller | None = None  # that watches the stream
        self.hear: Callable[[], None] | None = None
        self.failure: McpmuxError | None = None  # of an exchange that was posted

    async def exchange(self, head: bytes, body: bytes) -> None:
        """Send a request and receive the response's head. Raises TransportClosed, RemoteProtocolError.

        On any error the stream is closed.
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
        """Send a small request, and have the response received; `take_over` is how a task goes on with it.

        False, and the stream is closed, when that cannot be or not all of it went: then nobody can act on it.
        """
        byte_stream = self.byte_stream
        if self._poller is None and (byte_stream.early or not self._be_watched(poller)):
            self.close()
            return False
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

    def _be_watched(self, poller: ReadinessPoller) -> bool:
        """False when the system watches too much already."""
        try:
            poller.watch(self.byte_stream.descriptor, self._receive)
        except OSError:
            return False
        self._poller = poller
        return True

    async def wait_for_head(self) -> None:
        """Go on with what was posted until the response's head is in. Closes and raises as `exchange`."""
        parser, failure = self.parser, self.failure
        self.take_over()
        try:
            if failure is not None and not (parser.status and isinstance(failure, TransportClosed)):
                raise failure
            while not parser.status:  # or whoever reads on meets a failure again, after what has come before
                parser.feed(await self.byte_stream.receive())
        except BaseException:
            self.close()
            raise

    def take_over(self) -> None:
        """From now on tasks receive here, until something is posted again."""
        self.hear = None
        if self._poller is not None:
            self._poller.forget(self.byte_stream.descriptor)
            self._poller = None

    def _receive(self) -> None:
        """There is something for an exchange that was posted, or the end of its stream or connection."""
        if self.hear is None:
            if self._over is not None:
                self.hear_end()
            else:
                self.take_over()  # whoever uses it next will see what it is
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
            return  # else it is a stream, or a large body
        hear, self.hear = self.hear, None
        try:
            hear()
        except Exception:  # whose descriptor is not watched any more
            self.take_over()
            raise

    async def receive_rest(self) -> bytearray:
        """All of a body whose length is known, received where it stays. Raises as `exchange`.

        A server that promises much gets memory for no more than twice what it has sent, or ROOM_BYTES.
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
        """In the middle of an exchange: its end is not waited for any more."""
        self._over = None
        self._deadlines.forget(self)
        self.take_over()
        self.byte_stream.close()

    def cut_off(self) -> None:
        """The end of a response has not come in time."""
        if not self.hear_end():
            self._tell_over()

    def end_by(self, until: float, over: Over, poller: ReadinessPoller | None) -> None:
        """Wait for nothing but the end of the response: `over` is called when it has come, or does not come.

        Then the response is complete, or the connection of no use. Without a `poller`, `hear_end` has to ask.
        """
        self._over = over
        self.until = until
        self._deadlines.watch(self)
        if poller is not None and self._poller is None:
            self._be_watched(poller)

    def hear_end(self) -> bool:
        """Take what has come of a response of which only the end matters; whether nothing more comes."""
        parser = self.parser
        if parser.complete:
            return True
        with suppress(McpmuxError):  # after which nothing comes either
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
