"""A TCP proxy in front of one server, which harms what passes, connection by connection and chunk by chunk.

pass      no harm                           garbage   a chunk of the server's is replaced by other bytes
refuse    connections are reset at once     cut       a connection ends in the middle of an answer
hang      nothing passes, nothing ends      slow      every chunk comes late
"""

from __future__ import annotations

import random
import socket
import struct

import trio

MODES = ("refuse", "hang", "garbage", "cut", "slow")
SLOW_SECONDS = 0.15
CHUNK_BYTES = 65536
_RESET = struct.pack("ii", 1, 0)


class FaultProxy:
    """Set `mode` at any time; `port` is the server's, None while there is none."""

    def __init__(self, chance: random.Random) -> None:
        self.mode = "pass"
        self.port: int | None = None
        self.passing = 0  # connections at the moment
        self._chance = chance
        self._healed = trio.Event()

    async def serve(self, task_status: trio.TaskStatus[int]) -> None:
        """Serve until cancelled, on a free port, which is given to `task_status`."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        task_status.started(listeners[0].socket.getsockname()[1])
        await trio.serve_listeners(self._pass_on, listeners)

    def become(self, mode: str) -> None:
        """Change the mode of harm from now on."""
        self.mode = mode
        self._healed.set()
        self._healed = trio.Event()

    async def _pass_on(self, near: trio.SocketStream) -> None:
        if self.mode == "refuse" or self.port is None:
            _reset(near)
            return
        try:
            far = await trio.open_tcp_stream("127.0.0.1", self.port)
        except OSError:
            _reset(near)
            return
        self.passing += 1
        try:
            async with far, near, trio.open_nursery() as nursery:
                ends = nursery.cancel_scope
                nursery.start_soon(self._pump, near, far, ends, False)
                nursery.start_soon(self._pump, far, near, ends, True)
        finally:
            self.passing -= 1

    async def _pump(
        self, source: trio.SocketStream, target: trio.SocketStream, ends: trio.CancelScope, harms: bool
    ) -> None:
        try:
            while data := await source.receive_some(CHUNK_BYTES):
                passed = await self._spoilt(bytes(data)) if harms else data
                await target.send_all(passed)
                if len(passed) < len(data):
                    break
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        ends.cancel()

    async def _spoilt(self, data: bytes) -> bytes:
        """Return the bytes to pass on for `data`. When they are fewer, the connection ends with them."""
        while self.mode == "hang":
            await self._healed.wait()
        if self.mode == "slow":
            await trio.sleep(self._chance.uniform(0, SLOW_SECONDS))
        if self.mode == "garbage" and self._chance.random() < 0.5:
            return self._chance.randbytes(len(data))
        if self.mode in ("cut", "refuse") and self._chance.random() < 0.5:
            return data[: self._chance.randrange(len(data))]
        return data


def _reset(stream: trio.SocketStream) -> None:
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    stream.socket.close()
