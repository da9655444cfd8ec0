"""An HTTP/1.1 client for one origin: a bounded pool of connections, the last one used first.

A response is read, whole or as it comes, and released. Releasing it before it is complete closes the
connection, unless only the end of a stream is missing: then the connection is used again once that end has
come. No redirects, no decompression, no HEAD. The pool has no tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Self

import trio
from trio.lowlevel import ParkingLot

from mcpmux.errors import (
    ConnectFailed,
    LocalProtocolError,
    McpmuxError,
    MessageTooLarge,
    TransportClosed,
    TransportError,
)
from mcpmux.transports.byte_stream import RECEIVE_BYTES
from mcpmux.transports.http.message import (
    JOIN_BYTES,
    HeaderFields,
    ResponseParser,
    encode_fields,
    encode_request_head,
)
from mcpmux.transports.http.route import AUTHENTICATION_REQUIRED, HttpOrigin, PoolLimits, Route
from mcpmux.transports.tls import ByteStream
from mcpmux.transports.waiting import DeadlineSweeper, ReadinessPoller, stopwatch

ROOM_BYTES: Final = 4 * 2**20  # for a body, as soon as its length is known
FRESH_SECONDS: Final = 0.2  # no server closes a connection so soon after it was used
JSON_TYPE: Final = "application/json"
EVENT_STREAM: Final = "text/event-stream"
ENDING_SECONDS: Final = 3.0  # for the end of a stream to come, after everything else was read
LENGTHLESS_METHODS: Final = frozenset({"GET", "DELETE", "OPTIONS"})  # no Content-Length without a body
_NOT_SENT: Final = "nothing of the request was sent"


class HttpConnection:
    """A byte stream and the parser of its responses.

    An exchange has a task, or it is `post`ed: then a poller receives for it, and `hear` is called once, when
    the response is complete or needs attention: a failure, a stream, a large body. If `hear` sets itself
    again during that call, and only then, it is called again when there is more.
    """

    def __init__(
        self, byte_stream: ByteStream, limits: PoolLimits, deadlines: DeadlineSweeper | None
    ) -> None:
        self.byte_stream = byte_stream
        self._deadlines = deadlines
        self.parser = ResponseParser(limits.head_bytes, limits.head_fields)
        self.idle_since = 0.0
        self.is_left = False  # by the reader of a response that has not ended
        self.until = 0.0  # when such a response has to end, in trio's time
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

        `take_over` lets a task go on with it. Return False, closing the stream, if not all of it was sent.
        """
        byte_stream = self.byte_stream
        if self._poller is None:
            # Bytes that have come before a request belong to none.
            if byte_stream.early:
                self.close()
                return False
            poller.watch(byte_stream.descriptor, self._receive)
            self._poller = poller
        self.parser.begin()
        self.failure = None
        try:
            if byte_stream.send_nowait(request) < len(request):
                # The server cannot act on a part, so that the request may be sent once more.
                self.close()
                return False
        except TransportClosed:
            pass  # a server may refuse before it has read all: its answer is to be read, or its end
        self.hear = hear
        return True

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
            if not self.is_left or not self.receive_end():
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
        """Return a body whose length is known, received without another copy. Raises as `exchange`."""
        parser = self.parser
        begun = parser.take_body()
        filled, size = len(begun), len(begun) + parser.missing
        body = bytearray(min(size, max(filled, ROOM_BYTES)))
        body[:filled] = begun
        while filled < size:
            # At most twice what the server has sent, or ROOM_BYTES, however much it announces.
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
        self.take_over()
        self.byte_stream.close()

    def receive_end(self) -> bool:
        """Discard what has come of a response of which only the end matters; return False if it broke off."""
        try:
            data = self.byte_stream.receive_nowait()
            if data is not None:
                self.parser.feed(data)
                self.parser.take_body()
        except McpmuxError:
            return False
        self.is_left = not self.parser.complete
        return True

    def leave(self) -> None:
        """Wait ENDING_SECONDS for the end of a response, then close."""
        # A server that sends no end may wait until the client closes.
        self.is_left = True
        if self._deadlines is not None:  # otherwise the next request looks
            self.until = trio.current_time() + ENDING_SECONDS
            self._deadlines.watch(self)

    def cut_off(self) -> None:
        """Close the connection if a response has still not ended. Called by the sweeper of deadlines."""
        assert self._deadlines is not None
        self._deadlines.forget(self)
        if self.is_left and (not self.receive_end() or self.is_left):
            self.close()


class HttpResponse:
    """A response whose head was received. One task reads it, and releases it in the end.

    After `post` the head is still to come: `take_nowait`, `wait` or `release` must follow.
    """

    __slots__ = ("_connection", "_pool", "_repeatable", "headers", "status")

    def __init__(self, connection: HttpConnection, pool: HttpPool, repeatable: bytes = b"") -> None:
        """`repeatable`: the encoded request, if it was posted and may be sent once more."""
        self.status = connection.parser.status
        self.headers = connection.parser.headers
        self._connection: HttpConnection | None = connection
        self._pool = pool
        self._repeatable = repeatable

    def take_nowait(self) -> bytes | Self | None:
        """Return the whole body of a response of status 200, or this response if it is an event stream.

        A stream must be finished or left to `wait`. Return None for anything else.
        """
        connection = self._connection
        if connection is None or connection.failure is not None or connection.parser.status != 200:
            return None
        parser = connection.parser
        self.status, self.headers = 200, parser.headers
        if parser.headers.get("content-type") != JSON_TYPE and self.is_stream:  # a call less for most
            return self
        return parser.take_body() if parser.complete else None

    @property
    def is_stream(self) -> bool:
        """Whether it is an event stream."""
        kind = self.headers.get("content-type", "")
        return self.status == 200 and kind.partition(";")[0].strip().lower() == EVENT_STREAM

    def hear_more(self, hear: Callable[[], None]) -> None:
        """Have `hear`, which calls this, called again when more has arrived."""
        # It was taken before the call, so that a reader which is done is not called again.
        assert self._connection is not None
        self._connection.hear = hear

    async def wait(self) -> HttpResponse:
        """Return this response once its head was received. Raises as `HttpPool.send` does."""
        pool, connection = self._pool, self._connection
        assert connection is not None
        try:
            try:
                await connection.wait_for_head()
            except TransportClosed:  # the server may have closed the idle connection before our request came
                if connection.parser.received_bytes or not self._repeatable:
                    raise
                self._connection = connection = await pool._exchange_anew(self._repeatable, b"")
        except BaseException:
            pool._end_turn()
            raise
        self.status, self.headers = connection.parser.status, connection.parser.headers
        return self

    @property
    def is_complete(self) -> bool:
        """Whether the whole response was received."""
        return self._connection is None or self._connection.parser.complete

    def receive_nowait(self, most: int) -> bytes | None:
        """Return the unread part of the body so far; None, leaving it, if the body has over `most` bytes."""
        connection = self._connection
        if connection is None or connection.parser.body_bytes > most:
            return None
        return connection.parser.take_body()

    async def read(self) -> bytes:
        """Return the rest of the body. Raises MessageTooLarge, TransportClosed, RemoteProtocolError."""
        return bytes(await self.read_body())

    async def read_body(self) -> bytes | bytearray:
        """Return the rest of the body as `read` does, without another copy of a large one."""
        if self._connection is None:
            raise LocalProtocolError("the response was released")
        limit, parser = self._pool.limits.body_bytes, self._connection.parser
        while not parser.complete and parser.body_bytes + parser.missing <= limit:
            if parser.missing > RECEIVE_BYTES:
                return await self._connection.receive_rest()
            parser.feed(await self._connection.byte_stream.receive())
        if parser.body_bytes + parser.missing > limit:
            raise MessageTooLarge(f"the response's body is larger than {limit} bytes")
        return parser.take_body()

    async def receive_some(self) -> bytes:
        """Return the next bytes of the body as they come, b"" at its end. Raises as `read` does."""
        if self._connection is None:
            raise LocalProtocolError("the response was released")
        parser = self._connection.parser
        while not (data := parser.take_body()) and not parser.complete:
            parser.feed(await self._connection.byte_stream.receive())
        return data

    def release(self, *, ends: bool = False) -> None:
        """Give the connection back if the response is complete, otherwise close it. May be called again.

        `ends`: only the end of the response is missing: the connection is kept if that comes soon.
        """
        connection, self._connection = self._connection, None
        if connection is None:
            return
        pool, parser = self._pool, connection.parser
        # The lines of `_end_turn`: a call less for each exchange.
        if pool._running < pool.limits.connections or not pool._waiting.unpark():
            pool._running -= 1
        stays = parser.keep_alive if parser.complete else ends and parser.may_keep_alive
        if pool._closed or not stays:
            # This is how HTTP cancels a response that is not complete.
            connection.close()
            return
        connection.idle_since = pool._clock()
        if not parser.complete:
            connection.leave()
        pool._idle.append(connection)
        if len(pool._idle) > pool.limits.idle:
            pool._idle.pop(0).close()


@contextmanager
def not_sent_yet() -> Iterator[None]:
    """Mark the errors of a block that sends no byte of a request, for `was_unsent`."""
    try:
        yield
    except BaseException as end:
        if not isinstance(end, ConnectFailed):  # which always comes before anything is sent
            end.add_note(_NOT_SENT)
        raise


def was_unsent(error: BaseException) -> bool:
    """Return whether a request had not been sent when `error` was raised."""
    return isinstance(error, ConnectFailed) or _NOT_SENT in getattr(error, "__notes__", ())


class HttpPool:
    """Connections to one origin. `close` it, or use it as a context."""

    def __init__(
        self,
        origin: HttpOrigin,
        *,
        limits: PoolLimits | None = None,
        route: Route | None = None,
        poller: ReadinessPoller | None = None,
    ) -> None:
        """`route` leads to `origin`; without one it is direct, for http only.

        `poller`: receives for posted requests; it must run as long as the pool is used. Without one, and
        where a proxy forwards each request, `post` always returns None.
        """
        self.origin = origin
        self.limits = limits or PoolLimits()
        self.route = route = route or Route(origin)
        self._own_fields: HeaderFields = (("Host", origin.authority), ("Accept-Encoding", "identity"))
        self._prefix = ""  # of a target
        self._asked_proxy = None if origin.secure else route.proxy  # in absolute form, RFC 9112 section 3.2.2
        if self._asked_proxy is not None:
            self._own_fields += self._asked_proxy.fields
            self._prefix = f"http://{origin.authority}"
        self.poller = poller if self._asked_proxy is None else None
        self._asked: tuple[str, str, HeaderFields] = ("", "", ())  # the last request, whose head is kept
        self._head = b""
        self._running = 0  # requests that hold a connection
        self._waiting = ParkingLot()
        self._idle: list[HttpConnection] = []  # the longest idle first
        self._too_few = 0  # requests that found no connection idle, and wait for a task to be sent
        self._closed = False
        self._clock = stopwatch()
        self.deadlines: DeadlineSweeper | None = None  # of the owner, if it runs any

    def __repr__(self) -> str:
        return f"HttpPool({self.origin.authority}, running={self._running}, idle={len(self._idle)})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the idle connections now, and the others as their requests end."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    async def send(
        self,
        method: str,
        target: str,
        headers: HeaderFields,
        body: bytes,
        *,
        idempotent: bool,
        more: HeaderFields = (),
    ) -> HttpResponse:
        """Send a request; return the response, once its head was received. It must be released.

        `target`: path and query, encoded. `headers` are the same for many requests, `more` differ each time.
        Raises ConnectFailed, TransportClosed (no answer came; an `idempotent` request that met a dying
        connection was repeated before), RemoteProtocolError, or TransportError when too many requests wait.
        """
        head = self._encode_head(method, target, headers, len(body), more)
        if self._closed:
            with not_sent_yet():
                raise TransportClosed("the connection pool is closed")
        if self._running < self.limits.connections:
            self._running += 1
        else:
            with not_sent_yet():
                await self._wait_for_turn()
        try:
            connection = None
            # For a request that `post` could not send, open another connection even if one is idle by now.
            # Otherwise all requests might be sent in tasks: connections that come back before a task has its
            # turn would be taken by `send` again.
            if not self._too_few or self._running + len(self._idle) > self.limits.idle:
                connection = self._take_idle(idempotent)
            self._too_few = max(0, self._too_few - 1)
            if connection is not None:
                connection.take_over()
                try:
                    await connection.exchange(head, body)
                except TransportClosed:
                    # The server may have closed the idle connection meanwhile. It may also have carried the
                    # request out, so only an idempotent one is sent again.
                    if connection.parser.received_bytes or not idempotent:
                        raise
                    connection = None
            if connection is None:
                connection = await self._exchange_anew(head, body)
            if self._asked_proxy is not None and connection.parser.status == AUTHENTICATION_REQUIRED:
                connection.close()
                raise self._asked_proxy.wants_credentials()
        except BaseException:
            self._end_turn()
            raise
        return HttpResponse(connection, self)

    def post(
        self,
        method: str,
        target: str,
        headers: HeaderFields,
        body: bytes,
        *,
        idempotent: bool,
        more: HeaderFields = (),
        hear: Callable[[], None],
    ) -> HttpResponse | None:
        """Send a request as `send` does, but without waiting.

        Return None, without sending, if that is impossible: it takes an idle connection with a poller, and a
        small request. The caller is expected to `send` it then, which opens a connection for later requests.
        `hear` is called once when there is a response to `take_nowait` or to `wait` for: it must do one of
        both, or call `hear_more`.
        """
        poller = self.poller
        if poller is None or self._running >= self.limits.connections:
            return None
        if not self._idle:
            self._too_few += 1
            return None
        if len(body) > JOIN_BYTES:
            return None
        request = self._encode_head(method, target, headers, len(body), more) + body
        connection = self._take_idle(idempotent)
        if connection is None or not connection.post(request, poller, hear):
            return None
        self._running += 1
        return HttpResponse(connection, self, request if idempotent else b"")

    def _encode_head(
        self, method: str, target: str, headers: HeaderFields, length: int, more: HeaderFields
    ) -> bytes:
        # Most requests repeat the last head. `is`: comparing the fields would cost as much as looking it up.
        last_request = self._asked
        if headers is last_request[2] and target == last_request[1] and method == last_request[0]:
            head = self._head
        elif method == "HEAD":
            raise LocalProtocolError("HEAD is not supported")
        else:
            head = encode_request_head(method, self._prefix + target, self._own_fields + headers)
            self._asked, self._head = (method, target, headers), head
        if more:
            head += encode_fields(more)
        if length or method not in LENGTHLESS_METHODS:
            return b"%bContent-Length: %d\r\n\r\n" % (head, length)
        return head + b"\r\n"

    async def _exchange_anew(self, head: bytes, body: bytes) -> HttpConnection:
        # Those whose responses have not ended are not used again yet, but count for the limit.
        if self._idle and self._running + len(self._idle) > self.limits.connections:
            self._idle.pop(0).close()
        with not_sent_yet():
            byte_stream = await self.route.open()
        connection = HttpConnection(byte_stream, self.limits, self.deadlines)
        await connection.exchange(head, body)
        return connection

    async def _wait_for_turn(self) -> None:
        """Wait for the right to hold a connection; first come, first served."""
        if len(self._waiting) >= self.limits.waiting:
            raise TransportError(f"too many requests wait for {self.origin.authority}")
        await self._waiting.park()
        if self._closed:
            self._end_turn()
            raise TransportClosed("the connection pool is closed")

    def _end_turn(self) -> None:
        """Hand the right to hold a connection to the request that has waited longest."""
        if self._running < self.limits.connections or not self._waiting.unpark():  # else no request waits
            self._running -= 1

    def _take_idle(self, idempotent: bool) -> HttpConnection | None:
        """Return the connection that was used last, if it is still good, or else one used before."""
        idle = self._idle
        usable: HttpConnection | None = None
        unended: list[HttpConnection] = []  # whose last response has not ended yet
        now = self._clock() if idle else 0.0
        while idle and usable is None:
            connection = idle.pop()
            parser, seconds = connection.parser, now - connection.idle_since
            is_whole = not connection.is_left or connection.receive_end()
            if is_whole and connection.is_left and seconds <= ENDING_SECONDS:
                unended.append(connection)
                continue
            is_good = is_whole and parser.keep_alive and seconds <= self.limits.idle_seconds
            # Anything to receive on an idle connection is the end, an error, or belongs to no request.
            # Looking for it costs a system call, which an idempotent request can save, as it can be repeated.
            if is_good and (
                (idempotent and seconds <= FRESH_SECONDS) or not connection.byte_stream.is_readable()
            ):
                usable = connection
            else:
                connection.close()
        if unended:
            idle.extend(reversed(unended))
        return usable
