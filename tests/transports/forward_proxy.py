"""A small HTTP proxy: whole URLs and CONNECT, with or without credentials. It notes what it is asked."""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import trio

REQUEST_LINE = re.compile(rb"(\w+) (\S+) HTTP/1\.1\r\n")
AUTHORIZATION = re.compile(rb"\r\nProxy-Authorization: ([^\r]*)\r\n", re.IGNORECASE)


class ForwardProxy:
    """`requests`: (method, target) in order; `connections`: how many were opened; `places` stand for DNS."""

    def __init__(self, port: int, authorization: bytes | None, places: dict[str, int]) -> None:
        self.port = port
        self.requests: list[tuple[str, str]] = []
        self.connections = 0
        self._authorization = authorization
        self._places = places

    async def serve(self, stream: trio.abc.Stream) -> None:
        self.connections += 1
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async with stream:
                while await self._serve_request(stream):
                    pass

    async def _serve_request(self, stream: trio.abc.Stream) -> bool:
        """Serve one request, whose head comes without bytes of the next. Return False at the end."""
        data = b""
        while b"\r\n\r\n" not in data:
            more = await stream.receive_some()
            if not more:
                return False
            data += more
        line = REQUEST_LINE.match(data)
        assert line is not None
        method, target = line[1].decode(), line[2].decode()
        self.requests.append((method, target))
        shown = AUTHORIZATION.search(data)
        if self._authorization is not None and (shown is None or shown[1] != self._authorization):
            await stream.send_all(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            return True
        if method == "CONNECT":
            host, _, port = target.rpartition(":")
            async with await self._connect(host, int(port)) as server:
                await stream.send_all(b"HTTP/1.1 200 Connection established\r\nX: y\r\n\r\n")
                await _join(stream, server)
            return False
        parts = urlsplit(target)
        data = data.replace(target.encode(), (parts.path or "/").encode(), 1)
        data = AUTHORIZATION.sub(b"\r\n", data)
        async with await self._connect(parts.hostname or "", parts.port or 80) as server:
            await server.send_all(data)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_copy, stream, server, nursery.cancel_scope)
                await _copy_answer(server, stream)
                nursery.cancel_scope.cancel()
        return True

    async def _connect(self, host: str, port: int) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self._places.get(host, port))


async def _copy_answer(server: trio.abc.Stream, client: trio.abc.Stream) -> None:
    """Read until the answer is whole: by its length, its last chunk, or the server's closing."""
    answer = b""
    while data := await server.receive_some():
        await client.send_all(data)
        answer += data
        head, _, body = answer.partition(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", head)
        if (length and len(body) >= int(length[1])) or body.endswith(b"0\r\n\r\n"):
            return


async def _join(one: trio.abc.Stream, other: trio.abc.Stream) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_copy, one, other, nursery.cancel_scope)
        nursery.start_soon(_copy, other, one, nursery.cancel_scope)


async def _copy(source: trio.abc.Stream, sink: trio.abc.Stream, until: trio.CancelScope) -> None:
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        while data := await source.receive_some():
            await sink.send_all(data)
    until.cancel()


@asynccontextmanager
async def open_proxy(
    authorization: bytes | None = None,
    places: dict[str, int] | None = None,
    context: ssl.SSLContext | None = None,
) -> AsyncIterator[ForwardProxy]:
    """Open a proxy on loopback, itself inside TLS with a `context`. `places` maps hosts to local ports."""

    async def serve(stream: trio.SocketStream) -> None:
        if context is None:
            await proxy.serve(stream)
        else:
            tls = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
            await proxy.serve(tls)

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    proxy = ForwardProxy(listeners[0].socket.getsockname()[1], authorization, places or {})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        yield proxy
        nursery.cancel_scope.cancel()
