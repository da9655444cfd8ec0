"""A response as its reader has it: whole, or piece by piece."""

from __future__ import annotations

from typing import Protocol, Self

from mcpmux.errors import LocalProtocolError, MessageTooLarge
from mcpmux.transports.byte_stream import RECEIVE_BYTES
from mcpmux.transports.deadlines import DeadlineSweeper
from mcpmux.transports.http.connection import HttpConnection
from mcpmux.transports.http.route import PoolLimits


class Keeper(Protocol):
    """Whose connection a response comes on."""

    limits: PoolLimits
    deadlines: DeadlineSweeper

    def put_back(self, connection: HttpConnection) -> None:
        """The response is done with."""
        ...

    def put_back_ending(self, connection: HttpConnection) -> None:
        """The same, but for the end of the response, if that has not come yet."""
        ...


class HttpResponse:
    """A response whose head is in. To be read by one task, and released by it in the end."""

    __slots__ = ("_connection", "_pool", "headers", "status")

    def __init__(self, connection: HttpConnection, pool: Keeper) -> None:
        parser = connection.parser
        self.status = parser.status
        self.headers = parser.headers
        self._connection: HttpConnection | None = connection
        self._pool = pool

    def __repr__(self) -> str:
        return f"HttpResponse({self.status}, {'over' if self._connection is None else 'open'})"

    @property
    def is_whole(self) -> bool:
        """Whether all of it has come."""
        return self._connection is None or self._connection.parser.complete

    @property
    def body_bytes(self) -> int:
        """Of the body so far."""
        return self._connection.parser.body_bytes if self._connection is not None else 0

    def receive_nowait(self) -> bytes:
        """What has come of the body, and was not read yet."""
        return self._connection.parser.take_body() if self._connection is not None else b""

    def read_nowait(self) -> bytes | None:
        """The body when all of it came with the head and nothing of it was read yet, else None."""
        connection = self._connection
        if connection is None or not connection.parser.complete:
            return None
        return connection.parser.take_body()

    async def read(self) -> bytes:
        """The rest of the body. Raises MessageTooLarge, TransportClosed, RemoteProtocolError."""
        return bytes(await self.read_body())

    async def read_body(self) -> bytes | bytearray:
        """The same; a large body is not copied once more. Raises as `read` does."""
        if self._connection is None:
            raise LocalProtocolError("the response was released")
        limit, parser = self._pool.limits.body_bytes, self._connection.parser
        while not parser.complete and parser.body_bytes + parser.missing <= limit:
            if parser.missing > RECEIVE_BYTES:
                return await self._connection.receive_rest()
            await self._connection.receive()
        if parser.body_bytes + parser.missing > limit:
            raise MessageTooLarge(f"the response's body is larger than {limit} bytes")
        return parser.take_body()

    async def receive_some(self) -> bytes:
        """The next bytes of the body as they come, b"" at its end. Raises as `read` does."""
        if self._connection is None:
            raise LocalProtocolError("the response was released")
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

    def finish(self) -> None:
        """Done with it: all that matters was read, so that its end may come by itself. As `release` else."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if connection.parser.complete:
            self._pool.put_back(connection)
        else:
            self._pool.put_back_ending(connection)

    def release(self) -> None:
        """Done with it: an unfinished response is cut off. May be called again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.put_back(connection)
