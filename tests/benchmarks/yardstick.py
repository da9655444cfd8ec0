"""A small HTTP server of trio, httptools, msgspec and plain Python, to measure instructions by.

It must never change, and imports nothing of mcpmux: the cost of its exchanges shows only how many
instructions this Python and these libraries take, in about the mixture in which mcpmux uses them.
"""

from __future__ import annotations

import os
from functools import partial

import httptools
import msgspec
import trio

LOOPS = 200  # of plain Python in one exchange
TEXT = "All work and no play makes a dull resource. " * 24
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"


class Params(msgspec.Struct):
    uri: str


class Asked(msgspec.Struct):
    id: int
    params: Params


class Collected:
    """The requests that httptools has found, as callbacks."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.body = b""
        self.complete = False

    def on_message_begin(self) -> None:
        self.headers, self.body, self.complete = {}, b"", False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("ascii").lower()] = value.decode("latin-1").strip()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete = True


def work(words: list[str]) -> int:
    """Do calls, attribute look-ups, dictionaries and small objects: what a program is made of."""
    seen: dict[str, tuple[int, str]] = {}
    total = 0
    for number in range(LOOPS):
        word = words[number % len(words)]
        key = f"{word}:{number & 15}"
        if key not in seen:
            seen[key] = (number, word.upper())
        total += seen[key][0] + len(word)
    return total


async def reply(stream: trio.SocketStream, collected: Collected) -> None:
    request = msgspec.json.decode(collected.body, type=Asked)
    content = {"uri": request.params.uri, "text": TEXT[:1024], "total": work(TEXT[:200].split())}
    answer = {"jsonrpc": "2.0", "id": request.id, "result": {"contents": [content]}}
    body = msgspec.json.encode(answer)
    with trio.fail_after(60):
        await stream.send_all(HEAD % (len(body), body))


async def serve(stream: trio.SocketStream) -> None:
    collected = Collected()
    parser = httptools.HttpRequestParser(collected)
    async with stream, trio.open_nursery() as nursery:
        while chunk := await stream.receive_some(65536):
            parser.feed_data(bytes(chunk))
            if collected.complete:
                nursery.start_soon(partial(reply, stream, collected))


async def main() -> None:
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        port = listener.socket.getsockname()[1]
        os.write(1, b"http://127.0.0.1:%d/\n" % port)


if __name__ == "__main__":
    trio.run(main)
