"""An HTTP/1.1 client for one origin: a bounded pool of connections, the last one used first.

A request is a context: inside it the response is read, whole or as it comes. Leaving before the
response is complete closes the connection, which is how HTTP cancels. No redirects, no
decompression, no HEAD, no deadlines: the caller owns those. No task works behind the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import trio

from mcpmux.errors import LocalProtocolError, MessageTooLarge, TransportClosed, TransportError
from mcpmux.transports.http.connection import HttpConnection, HttpOrigin
from mcpmux.transports.http.message import Fields, encode_request_head
from mcpmux.transports.http.proxy import Proxy
from mcpmux.transports.http.route import Route, direct_route

LENGTHLESS_METHODS = frozenset({"GET", "DELETE", "OPTIONS"})  # say no Content-Length without a body


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """How much a pool asks of its origin, and how much it takes from it."""

    head_bytes: int = 64 * 1024
    body_bytes: int = 64 * 1024 * 1024  # of a response that is read whole
    connections: int = 256  # every running request holds one, streams included
    waiting: int = 1024  # requests queued for a connection; one more fails at once
    idle: int = 64  # connections kept for reuse
    idle_seconds: float = 30  # most servers close theirs sooner, which is noticed


class HttpResponse:
    """A response whose head is in. To be read inside the request's context, by one task."""

    __slots__ = ("_body_limit", "_connection", "headers", "status")

    def __init__(self, connection: HttpConnection, body_limit: int) -> None:
        self.status = connection.parser.status
        self.headers = connection.parser.headers
        self._connection: HttpConnection | None = connection
        self._body_limit = body_limit

    def __repr__(self) -> str:
        return f"HttpResponse({self.status}, {'over' if self._connection is None else 'open'})"

    async def read(self) -> bytes:
        """The rest of the body. Raises MessageTooLarge, TransportClosed, RemoteProtocolError."""
        parts: list[bytes] = []
        size = 0
        while data := await self.receive_some():
            size += len(data)
            if size > self._body_limit:
                raise MessageTooLarge(f"the response's body is larger than {self._body_limit} bytes")
            parts.append(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def receive_some(self) -> bytes:
        """The next bytes of the body as they come, b"" at its end. Raises as `read` does."""
        if self._connection is None:
            raise LocalProtocolError("the request's context was left")
        parser = self._connection.parser
        while True:
            data = parser.take_body()
            if data or parser.complete:
                return data
            await self._connection.receive()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        data = await self.receive_some()
        if not data:
            raise StopAsyncIteration
        return data

    def detach(self) -> HttpConnection:
        """Take the connection back from the reader."""
        connection = self._connection
        if connection is None:
            raise LocalProtocolError("the request's context was left")
        self._connection = None
        return connection


class HttpPool:
    """Connections to one origin. `close` it, or use it as a context."""

    def __init__(
        self,
        origin: HttpOrigin,
        *,
        limits: PoolLimits | None = None,
        route: Route | None = None,
    ) -> None:
        """`route` leads to `origin`; without one it is direct, and verified with the system's authorities."""
        self.origin = origin
        self.limits = limits or PoolLimits()
        self.route = route = route or direct_route(origin)
        self._own_fields: Fields = (("Host", origin.authority), ("Accept-Encoding", "identity"))
        self._prefix = ""  # of a target
        self.asked_proxy: Proxy | None = None  # that sees our requests
        if route.proxy is not None and route.sends_whole_urls:
            self._own_fields += route.proxy.fields
            self._prefix = f"http://{origin.authority}"
            self.asked_proxy = route.proxy
        self._slots = trio.Semaphore(self.limits.connections)
        self._idle: list[HttpConnection] = []  # the longest idle first
        self._closed = False

    def __repr__(self) -> str:
        running = self.limits.connections - self._slots.value
        return f"HttpPool({self.origin.authority}, running={running}, idle={len(self._idle)})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close what is idle now, and the rest as its requests end."""
        self._closed = True
        while self._idle:
            self._idle.pop().wire.close()

    def request(
        self, method: str, target: str, headers: Sequence[tuple[str, str]], body: bytes, *, idempotent: bool
    ) -> HttpExchange:
        """A context whose value is the HttpResponse. `target` is path and query as they are sent.

        Entering it raises ConnectFailed, TransportClosed (no answer came; an `idempotent` request that
        met a dying connection was repeated before), RemoteProtocolError, or TransportError when too
        many requests wait already.
        """
        if method == "HEAD":
            raise LocalProtocolError("HEAD is not supported")
        head = encode_request_head(method, self._prefix + target, (*self._own_fields, *headers))
        if body or method not in LENGTHLESS_METHODS:
            head = b"%bContent-Length: %d\r\n" % (head, len(body))
        return HttpExchange(self, head + b"\r\n", body, idempotent)

    async def claim(self) -> None:
        """Wait for the right to hold a connection; first come, first served."""
        if self._closed:
            raise TransportClosed("the connection pool is closed")
        try:
            self._slots.acquire_nowait()
        except trio.WouldBlock:
            if self._slots.statistics().tasks_waiting >= self.limits.waiting:
                raise TransportError(f"too many requests wait for {self.origin.authority}") from None
            await self._slots.acquire()

    def release(self) -> None:
        self._slots.release()

    def take_idle(self) -> HttpConnection | None:
        """The connection that was used last, if it is still good."""
        oldest = trio.current_time() - self.limits.idle_seconds
        while self._idle:
            connection = self._idle.pop()
            # Whatever an idle connection has to say, it is the end, an error, or not for us.
            if connection.idle_since >= oldest and not connection.wire.is_readable():
                return connection
            connection.wire.close()
        return None

    async def open(self) -> HttpConnection:
        return HttpConnection(await self.route.open(), self.limits.head_bytes)

    def put_back(self, connection: HttpConnection) -> None:
        """Keep the connection for reuse, or close it."""
        parser = connection.parser
        if self._closed or not parser.complete or not parser.keep_alive:
            connection.wire.close()
            return
        connection.idle_since = trio.current_time()
        self._idle.append(connection)
        if len(self._idle) > self.limits.idle:
            self._idle.pop(0).wire.close()


class HttpExchange:
    """One request and its response, as a context. Made by `HttpPool.request`."""

    __slots__ = ("_body", "_head", "_idempotent", "_pool", "_response")

    def __init__(self, pool: HttpPool, head: bytes, body: bytes, idempotent: bool) -> None:
        self._pool = pool
        self._head = head
        self._body = body
        self._idempotent = idempotent

    async def __aenter__(self) -> HttpResponse:
        await self._pool.claim()
        try:
            connection = await self._send()
            if self._pool.asked_proxy is not None:
                self._pool.asked_proxy.check_answer(connection)
        except BaseException:
            self._pool.release()
            raise
        self._response = HttpResponse(connection, self._pool.limits.body_bytes)
        return self._response

    async def __aexit__(self, *_: object) -> None:
        self._pool.put_back(self._response.detach())
        self._pool.release()

    async def _send(self) -> HttpConnection:
        """Send on an idle connection or a new one, and receive the head of the response."""
        connection = self._pool.take_idle()
        if connection is not None:
            try:
                await connection.exchange(self._head, self._body)
                return connection
            except TransportClosed:
                if connection.parser.wire_bytes or not self._idempotent:
                    raise
        connection = await self._pool.open()
        await connection.exchange(self._head, self._body)
        return connection
