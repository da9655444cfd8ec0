"""A WebSocket client made of bytes, sharing no code with mcpmux: it can do what is not allowed."""

from __future__ import annotations

import struct
from contextlib import suppress

import trio
from trio.abc import HalfCloseableStream

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
MASK = b"\x01\x02\x03\x04"


def handshake(
    path: str = "/mcp", host: str = "127.0.0.1", protocols: str | None = "mcp", **more: str
) -> bytes:
    """Return the request of a client; `more` are headers, with _ for -."""
    headers = {
        "Host": host,
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version": "13",
    }
    if protocols is not None:
        headers["Sec-WebSocket-Protocol"] = protocols
    headers |= {name.replace("_", "-"): value for name, value in more.items()}
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def frame(opcode: int, payload: bytes, *, fin: bool = True) -> bytes:
    """Return one masked frame."""
    first = opcode | (0x80 if fin else 0)
    if len(payload) < 126:
        head = struct.pack("!BB", first, 0x80 | len(payload))
    elif len(payload) < 2**16:
        head = struct.pack("!BBH", first, 0x80 | 126, len(payload))
    else:
        head = struct.pack("!BBQ", first, 0x80 | 127, len(payload))
    masked = bytes(byte ^ MASK[place % 4] for place, byte in enumerate(payload))
    return head + MASK + masked


class RawClient:
    """One end of a stream whose other end is a WebSocket server."""

    def __init__(self, stream: HalfCloseableStream) -> None:
        self.stream = stream
        self._rest = b""

    async def head(self) -> tuple[int, str, bytes]:
        """Return status, head and body of the answer to the handshake. A refusal's body is all to the end."""
        while b"\r\n\r\n" not in self._rest:
            self._rest += await self._more()
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        body = b""
        if status != 101:
            while True:
                chunk = await self.stream.receive_some()
                if not chunk:
                    break
                self._rest += chunk
            body, self._rest = self._rest, b""
        return status, head.decode(), body

    async def frame(self) -> tuple[int, bytes]:
        """Opcode and payload of the next frame of the server, none of which may be masked or fragmented."""
        first, second = await self._take(2)
        assert first & 0x80
        assert not second & 0x80
        size = second & 0x7F
        if size == 126:
            (size,) = struct.unpack("!H", await self._take(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", await self._take(8))
        return first & 0x0F, await self._take(size)

    async def close_code(self) -> int:
        """Return the code of the close frame that comes next."""
        opcode, payload = await self.frame()
        assert opcode == CLOSE, (opcode, payload)
        code: int = struct.unpack("!H", payload[:2])[0]
        return code

    async def expect_end(self) -> None:
        """Check that no message follows."""
        with suppress(trio.BrokenResourceError):
            assert await self.stream.receive_some() == b""

    async def _take(self, size: int) -> bytes:
        while len(self._rest) < size:
            self._rest += await self._more()
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    async def _more(self) -> bytes:
        chunk = bytes(await self.stream.receive_some())
        assert chunk, f"the stream has ended after {self._rest!r}"
        return chunk
