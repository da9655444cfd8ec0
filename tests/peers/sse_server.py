"""Any scripted server over HTTP+SSE, on a real socket. Shares no code with mcpmux but its HTTP parser."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from urllib.parse import parse_qs

import trio

from mcpmux.errors import TransportClosed
from mcpmux.transports.http.message import HttpRequest
from mcpmux.transports.http.reply import HttpReply
from tests.peers.http_server import open_http
from tests.peers.server import ScriptedServer

EVENT_STREAM = (("Content-Type", "text/event-stream; charset=utf-8"),)


class _Stream:
    """A client's stream, as the scripted server's pipe."""

    def __init__(self, reply: HttpReply) -> None:
        self._reply = reply
        self.posted, self._inbox = trio.open_memory_channel[bytes](16)
        self._writing = trio.Lock()

    async def send(self, data: bytes) -> None:
        async with self._writing:
            await self._reply.write(b"event: message\r\ndata: " + data + b"\r\n\r\n")

    async def receive(self) -> bytes:
        try:
            return await self._inbox.receive()
        except trio.EndOfChannel:
            raise TransportClosed("over") from None


class SseFace:
    """The two endpoints of `server`: the stream at `url`, POSTs at `/messages`.

    `endpoint` is the data of the first event, with `{}` for the session. `hold`: answer POSTs of requests
    only when the work is done, as some servers do. `refusal`: a status to answer all POSTs with.
    """

    def __init__(self, server: ScriptedServer) -> None:
        self.server = server
        self.endpoint = "/messages/?session_id={}"
        self.hold: trio.Event | None = None
        self.refusal: int | None = None
        self.forgotten = 404  # what is answered to a session that is not in `streams`
        self.url = ""
        self.streams: dict[str, _Stream] = {}
        self.requests: list[HttpRequest] = []
        self._ids = count(1)
        self._connections: set[trio.CancelScope] = set()

    def break_off(self) -> None:
        """Break off every stream."""
        for scope in self._connections:
            scope.cancel()

    def count(self, method: str) -> int:
        """Count the HTTP requests with a method."""
        return sum(request.method == method for request in self.requests)

    async def handle(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer one HTTP request."""
        self.requests.append(request)
        if request.method == "GET" and request.path == "/sse":
            await self._open(reply)
        elif request.method == "POST" and "session_id=" in request.query:
            await self._post(request, reply)
        else:
            await reply.send(405 if request.path == "/sse" else 404, (("Content-Type", "text/html"),), b"no")

    async def _open(self, reply: HttpReply) -> None:
        session = f"s{next(self._ids)}"
        stream = self.streams[session] = _Stream(reply)
        await reply.open(200, EVENT_STREAM, b"event: endpoint\ndata: %b\n\n" % self._address(session))
        earlier = self.server._pipe
        with trio.CancelScope() as scope:
            self._connections.add(scope)
            try:
                await self.server.serve(stream)
            finally:
                if self.server._pipe is stream:
                    self.server._pipe = earlier  # its older session goes on
                self._connections.discard(scope)
                self.streams.pop(session, None)

    def _address(self, session: str) -> bytes:
        return self.endpoint.format(session).encode()

    async def _post(self, request: HttpRequest, reply: HttpReply) -> None:
        assert request.headers["content-type"] == "application/json"
        stream = self.streams.get(parse_qs(request.query)["session_id"][0])
        if self.refusal is not None:
            await reply.send(self.refusal, (), b"not today")
        elif stream is None:
            await reply.send(self.forgotten, (), b"Could not find session")
        else:
            await stream.posted.send(request.body)
            if self.hold is not None and b'"tools/call"' in request.body:
                await self.hold.wait()
            await reply.send(202, (("Content-Type", "text/plain"),), b"Accepted")


@asynccontextmanager
async def open_sse_face(server: ScriptedServer, port: int = 0) -> AsyncIterator[SseFace]:
    """Serve `server` on a free port; its `url` is where."""
    face = SseFace(server)
    async with open_http(face.handle, port=port) as bound:
        face.url = f"http://127.0.0.1:{bound}/sse"
        yield face
