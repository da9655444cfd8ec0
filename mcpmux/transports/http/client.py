"""An HTTP/1.1 client for one origin: a bounded pool of connections, the last one used first.

A response is read, whole or as it comes, and released. Releasing it before it is complete closes the
connection, which is how HTTP cancels. A reader that has everything but the end of a stream calls `finish`,
and the connection is used again once that end has come. No redirects, no decompression, no HEAD. The owner
runs `deadlines`, which limits the wait for such an end; the pool has no tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Self

from trio.lowlevel import ParkingLot

from mcpmux.errors import ConnectFailed, LocalProtocolError, MessageTooLarge, TransportClosed, TransportError
from mcpmux.transports.byte_stream import RECEIVE_BYTES
from mcpmux.transports.http.client_connection import HttpConnection
from mcpmux.transports.http.message import JOIN_BYTES, HeaderFields, encode_fields, encode_request_head
from mcpmux.transports.http.route import AUTHENTICATION_REQUIRED, HttpOrigin, PoolLimits, Route
from mcpmux.transports.waiting import DeadlineSweeper, ReadinessPoller, clock


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
        kind = parser.headers.get("content-type", JSON_TYPE)
        if kind != JSON_TYPE and kind.partition(";")[0].strip().lower() == EVENT_STREAM:
            return self
        return parser.take_body() if parser.complete else None

    def hear_more(self, hear: Callable[[], None]) -> None:
        """Have `hear`, which calls this, called again when more has arrived."""
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
    def is_whole(self) -> bool:
        """Whether the whole response was received."""
        return self._connection is None or self._connection.parser.complete

    def receive_nowait(self, most: int) -> bytes | None:
        """Return the unread part of the body so far; None, leaving it, if the body has over `most` bytes."""
        connection = self._connection
        if connection is None or connection.parser.body_bytes > most:
            return None
        return connection.parser.take_body()

    def read_nowait(self) -> bytes | None:
        """Return the rest of the body if all of it has arrived, otherwise None."""
        connection = self._connection
        if connection is None or not connection.parser.complete:
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

    def finish(self) -> None:
        """Release a response of which only the end is missing: the connection is kept if that comes soon."""
        connection, self._connection = self._connection, None
        if connection is not None and connection.parser.complete:
            self._pool.put_back(connection)
        elif connection is not None:
            self._pool.put_back_ending(connection)

    def release(self) -> None:
        """Give the connection back if the response is complete, otherwise close it. May be called again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.put_back(connection)


FRESH_SECONDS: Final = 0.2  # no server closes a connection so soon after it was used
JSON_TYPE: Final = "application/json"
EVENT_STREAM: Final = "text/event-stream"
ENDING_SECONDS: Final = 3.0  # for the end of a stream to come, after everything else was read
LENGTHLESS_METHODS: Final = frozenset({"GET", "DELETE", "OPTIONS"})  # no Content-Length without a body
_NOT_SENT: Final = "nothing of the request was sent"


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
        self.deadlines = DeadlineSweeper()
        self._running = 0  # requests that hold a connection
        self._waiting = ParkingLot()
        self._idle: list[HttpConnection] = []  # the longest idle first
        self._ending: dict[HttpConnection, None] = {}  # idle as soon as their streams have ended
        self._fresh_seconds = min(FRESH_SECONDS, self.limits.idle_seconds)
        self._too_few = 0  # requests that found no connection idle, and wait for a task to be sent
        self._closed = False
        self._clock = clock()

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
        while self._ending:
            self._close_ending()

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
            connection = None if self._opens_another() else self._take_idle(idempotent)
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
        # Ending connections hold no turn, but count for the limit of connections.
        if self._ending and self._running + len(self._ending) > self.limits.connections:
            self._close_ending()
        with not_sent_yet():
            byte_stream = await self.route.open()
        connection = HttpConnection(byte_stream, self.deadlines, self.limits)
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

    def _opens_another(self) -> bool:
        """Return whether to open a connection even if one is idle by now, so that `post` has enough of them.

        Otherwise all requests might be sent in tasks: connections that come back before a task has its turn
        would be taken by `send` again.
        """
        if not self._too_few:
            return False
        self._too_few -= 1
        return self._running + len(self._idle) <= self.limits.idle

    def _take_idle(self, idempotent: bool) -> HttpConnection | None:
        """Return the connection that was used last, if it is still good, or else one used before.

        For an idempotent request, one that was just used is not checked: that costs a system call, and the
        request can be repeated.
        """
        idle = self._idle
        if not idle and self._ending and self.poller is None:  # with a poller each reports its end
            for connection in list(self._ending):
                connection.hear_end()
        now = self._clock() if idle else 0.0
        while idle:
            connection = idle.pop()
            seconds = now - connection.idle_since
            if idempotent and seconds <= self._fresh_seconds:
                return connection
            # Anything to receive on an idle connection is the end, an error, or belongs to no request.
            if seconds <= self.limits.idle_seconds and not connection.byte_stream.is_readable():
                return connection
            connection.close()
        return None

    def put_back(self, connection: HttpConnection, *, has_turn: bool = True) -> None:
        """Keep the connection for reuse, or close it, and give its turn to the next waiting request.

        `has_turn`: false for a connection whose turn was given on already.
        """
        # The lines of `_end_turn`: a call less for each exchange.
        if has_turn and (self._running < self.limits.connections or not self._waiting.unpark()):
            self._running -= 1
        parser = connection.parser
        if self._closed or not parser.complete or not parser.keep_alive:
            connection.close()
            return
        connection.idle_since = self._clock()
        self._idle.append(connection)
        if len(self._idle) > self.limits.idle:
            self._idle.pop(0).close()

    def put_back_ending(self, connection: HttpConnection) -> None:
        """Keep a connection for reuse once its response has ended, giving its turn on now."""
        if self._closed or not connection.parser.may_keep_alive or connection.hear_end():
            self.put_back(connection)
            return
        self._end_turn()
        self._ending[connection] = None
        connection.end_by(self._clock() + ENDING_SECONDS, self._take_ended, self.poller)
        if len(self._ending) > self.limits.idle:
            self._close_ending()

    def _take_ended(self, connection: HttpConnection) -> None:
        self._ending.pop(connection, None)
        self.put_back(connection, has_turn=False)

    def _close_ending(self) -> None:
        connection = next(iter(self._ending))
        del self._ending[connection]
        connection.close()
