"""`python -m benchmarks.lean`: the quickest server that Python has, on uvloop and httptools.

It shares nothing of mcpmux's transports, and its heads vary as those of real servers do: the date, and an id
of each answer. Its answers are those of a Site, encoded before the first request. One process; prints one URL
for each port.
"""

from __future__ import annotations

import asyncio
import itertools
from email.utils import formatdate
from typing import cast

import click
import httptools
import uvloop

from benchmarks.upstream import LEGACY, MODERN, Site
from mcpmux.protocol import method as m
from mcpmux.transports.sse import encode_event

NO_ANSWER = {True: b"HTTP/1.1 202 Accepted\r\n", False: b"HTTP/1.1 405 Method Not Allowed\r\n"}
OK = b"HTTP/1.1 200 OK\r\n"
LAST_CHUNK = b"0\r\n\r\n"


class Heads:
    """The changing fields of a head: the date, by the second, and a number."""

    def __init__(self) -> None:
        self._date = b""
        self._numbers = itertools.count()

    def tick(self) -> None:
        """Tell the time, now and every second."""
        self._date = formatdate(usegmt=True).encode()
        asyncio.get_running_loop().call_later(1, self.tick)

    def head(self, status_line: bytes, rest: bytes) -> bytes:
        """Return a head that ends with the fields of `rest`."""
        number = next(self._numbers)
        return b"%bdate: %b\r\nserver: lean\r\nx-request-id: %016x\r\n%b\r\n" % (
            status_line,
            self._date,
            number,
            rest,
        )


class Connection(asyncio.Protocol):
    """Answers one request after the other, as long as the client keeps the connection."""

    def __init__(self, site: Site, heads: Heads, streams: bool) -> None:
        self._site = site
        self._heads = heads
        self._streams = streams
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_body(self, body: bytes) -> None:
        """See httptools."""
        self._body += body

    def on_message_complete(self) -> None:
        """See httptools."""
        body, self._body = self._body, b""
        is_post = self._parser.get_method() == b"POST"
        method, answer = self._site.answer(body) if is_post else ("", None)
        write, head = self._transport.write, self._heads.head
        if answer is None:
            write(head(NO_ANSWER[is_post], b"content-length: 0\r\n"))
        elif self._streams and method != m.INITIALIZE:
            fields = b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
            event = encode_event(answer, event="message")
            write(head(OK, fields) + b"%x\r\n%b\r\n" % (len(event), event))
            write(LAST_CHUNK)
        else:
            session = b"mcp-session-id: lean\r\n" if method == m.INITIALIZE else b""
            fields = b"content-type: application/json\r\ncontent-length: %d\r\n%b" % (len(answer), session)
            write(head(OK, fields) + answer)
        if not self._parser.should_keep_alive():
            self._transport.close()


async def serve(site: Site, ports: list[int], streams: bool) -> None:
    """Serve `site` on every port, printing each URL, until cancelled."""
    loop, heads = asyncio.get_running_loop(), Heads()
    heads.tick()
    for port in ports:
        server = await loop.create_server(lambda: Connection(site, heads, streams), "127.0.0.1", port)
        click.echo(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp")
    await loop.create_future()


@click.command()
@click.option("--era", type=click.Choice([MODERN, LEGACY]), default=MODERN, show_default=True)
@click.option("--port", "ports", type=int, multiple=True, help="Serve HTTP there; 0 is any. May be repeated.")
@click.option("--streams", is_flag=True, help="Answer each request in an event stream.")
def main(era: str, ports: tuple[int, ...], streams: bool) -> None:
    """Serve the fastest MCP server to measure against."""
    uvloop.run(serve(Site(era, 1000, 100), list(ports or (0,)), streams))


if __name__ == "__main__":
    main()
