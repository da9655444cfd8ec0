"""Pipes of the scripted peers on sockets: a stream of lines, and a WebSocket, without code of mcpmux."""

from __future__ import annotations

from typing import Any

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from mcpmux.errors import TransportClosed


class Lines:
    """A peer's end of a stream of lines."""

    def __init__(self, stream: Any) -> None:
        self._stream = self.resource = stream
        self._rest = b""
        self._lock = trio.Lock()

    async def send(self, message: bytes) -> None:
        async with self._lock:
            try:
                with trio.CancelScope(shield=True):  # never half a line
                    await self._stream.send_all(message + b"\n")
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise TransportClosed(str(error)) from None

    async def receive(self) -> bytes:
        while b"\n" not in self._rest:
            try:
                chunk = await self._stream.receive_some()
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise TransportClosed(str(error)) from None
            if not chunk:
                raise TransportClosed("end")
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    async def aclose(self) -> None:
        await self._stream.aclose()


class Messages:
    """A peer's end of a WebSocket."""

    def __init__(self, connection: WebSocketConnection) -> None:
        self.connection = connection
        self.resource = connection._stream  # which the library leaves open when the server closes

    async def send(self, message: bytes) -> None:
        try:
            # The library would send the next frame after half of this one.
            with trio.CancelScope(shield=True):
                await self.connection.send_message(message.decode())
        except ConnectionClosed as error:
            raise TransportClosed(str(error)) from None

    async def receive(self) -> bytes:
        try:
            message = await self.connection.get_message()
        except ConnectionClosed as error:
            raise TransportClosed(str(error)) from None
        assert isinstance(message, str)
        return message.encode()

    async def aclose(self) -> None:
        await self.connection.aclose()
