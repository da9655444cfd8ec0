"""A small MCP server (modern, JSON over HTTP) whose reads take known times, and which times them itself.

Usage: timed_server SCRIPT. SCRIPT is one of SCRIPTS. Prints its URL; when its standard input ends, a JSON
object: for each URI a list of [received, sent], in seconds, one pair for a read in the order received.
`received` is taken after the request has come in whole, `sent` just before the answer goes out, so a client
waits for the answer at least that long. Needs nothing but Python's own library.
"""

import asyncio
import json
import re
import sys
import time
from collections.abc import Callable
from typing import Any

LENGTH = re.compile(rb"content-length: *(\d+)\r\n", re.IGNORECASE)
URI = "memo:1"
LISTED = {"resources": [{"uri": URI, "name": "1"}], "ttlMs": 0, "cacheScope": "private"}
FACTS = {"supportedVersions": ["2026-07-28"], "capabilities": {"resources": {}}}
STALL_FROM, STALL_TO = 2.0, 4.0  # seconds after the first read of a URI
FAST, SLOW, STEADY = 0.005, 0.05, 0.02  # seconds


def stall(number: int, now: float) -> float:
    """Return the delay of an answer: 20 ms, but until `STALL_TO` during the stall of two seconds."""
    return (STALL_TO - now if STALL_FROM <= now < STALL_TO else 0.0) + STEADY


SCRIPTS: dict[str, Callable[[int, float], float]] = {
    "constant": lambda number, now: STEADY,
    "bimodal": lambda number, now: SLOW if number % 5 == 4 else FAST,
    "stall": stall,
}
"""Seconds that an answer takes, by the number of a URI's read from 0 and the seconds since its first."""


class Script:
    """Planned and real times of each read."""

    def __init__(self, name: str) -> None:
        self.delay = SCRIPTS[name]
        self.times: dict[str, list[list[float]]] = {}

    def begin(self, uri: str) -> tuple[list[float], float]:
        """Note that a read was received now. Return its times, to be completed, and its delay in seconds."""
        now = time.monotonic()
        reads = self.times.setdefault(uri, [])
        reads.append([now])
        return reads[-1], self.delay(len(reads) - 1, now - reads[0][0])


class Connection(asyncio.Protocol):
    """One request after the other."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.data = b""
        self.transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, separator, rest = self.data.partition(b"\r\n\r\n")
        length = LENGTH.search(head + b"\r\n")
        if not separator or length is None or len(rest) < int(length[1]):
            return
        self.data = rest[int(length[1]) :]
        self.answer(json.loads(rest[: int(length[1])]))

    def answer(self, message: dict[str, Any]) -> None:
        if message["method"] != "resources/read":
            self.send(message["id"], LISTED if message["method"] == "resources/list" else FACTS)
            return
        uri = message["params"]["uri"]
        times, delay = self.script.begin(uri)
        result = {"contents": [{"uri": uri, "text": "read"}], "ttlMs": 0, "cacheScope": "private"}
        asyncio.get_running_loop().call_later(delay, self.send, message["id"], result, times)

    def send(self, number: object, result: object, times: list[float] | None = None) -> None:
        assert self.transport is not None
        whole = {"jsonrpc": "2.0", "id": number, "result": {"resultType": "complete", **result}}  # type: ignore[dict-item]
        text = json.dumps(whole).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
        if times is not None:
            times.append(time.monotonic())
        self.transport.write(head.encode() + text)


async def main(name: str) -> None:
    """Serve until standard input ends."""
    script = Script(name)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(script), "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()
    print(json.dumps(script.times), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
