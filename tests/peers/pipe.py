"""A pair of message pipes in memory: what is sent into one comes out of the other."""

from __future__ import annotations

import trio

from mcpmux.errors import TransportClosed
from mcpmux.transports.message_stream import MessageStream

CAPACITY = 16  # messages each way before `send` waits


class MemoryPipe(MessageStream):
    """One end of the pair."""

    def __init__(self, sender: trio.MemorySendChannel[bytes], receiver: trio.MemoryReceiveChannel[bytes]):
        self._sender = sender
        self._receiver = receiver

    async def send(self, message: bytes) -> None:
        try:
            await self._sender.send(message)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise TransportClosed("the pipe is closed") from None

    async def receive(self) -> bytes:
        try:
            return await self._receiver.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            raise TransportClosed("the stream has ended") from None

    def stop_reading(self) -> None:
        """Lose all that the other end sends from now on; it still receives."""
        self._receiver.close()

    async def aclose(self) -> None:
        self._sender.close()
        self._receiver.close()


class PromptMemoryPipe(MemoryPipe):
    """One end that can be used without waiting, too."""

    def offer(self, message: bytes) -> bool:
        try:
            self._sender.send_nowait(message)
        except (trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        return True

    def receive_nowait(self) -> bytes | None:
        try:
            return self._receiver.receive_nowait()
        except (trio.WouldBlock, trio.EndOfChannel, trio.ClosedResourceError):
            return None


def open_memory_pipes(
    capacity: int = CAPACITY, kind: type[MemoryPipe] = MemoryPipe
) -> tuple[MemoryPipe, MemoryPipe]:
    """Return two connected ends. Closing one ends the other."""
    to_right, from_left = trio.open_memory_channel[bytes](capacity)
    to_left, from_right = trio.open_memory_channel[bytes](capacity)
    return kind(to_right, from_right), kind(to_left, from_left)
