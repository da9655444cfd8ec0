"""Clients that load mcpmux: over HTTP in both eras, with a parser that is not mcpmux's, and on a stream."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from itertools import count
from typing import Any

import h11
import trio

from tests.peers.revision import LEGACY, MODERN, Json, make_fields, make_greeting, make_meta

RECEIVE_BYTES = 65536


class ClientError(Exception):
    """mcpmux itself has failed: no MCP answer came."""


class LoadClient(ABC):
    """`heard` counts the updates of each URI."""

    def __init__(self) -> None:
        self.heard: Counter[str] = Counter()
        self._ids = count(1)

    @abstractmethod
    async def ask(self, method: str, params: Json) -> Json:
        """Make one request, and return the message that answers it. Raises ClientError."""

    @abstractmethod
    async def subscribe(self, uris: list[str]) -> None:
        """Hear of changes from now on."""

    @abstractmethod
    async def open(self) -> None:
        """Begin to speak with mcpmux."""

    @abstractmethod
    async def close(self) -> None:
        """End the session or the stream."""

    def _take(self, message: Json) -> None:
        if message["method"] == "notifications/resources/updated":
            self.heard[message["params"]["uri"]] += 1


class HttpClient(LoadClient):
    """Of either era; exchanges take idle connections, as those of real clients do."""

    def __init__(self, port: int, revision: str, nursery: trio.Nursery) -> None:
        super().__init__()
        self._port, self._revision, self._nursery = port, revision, nursery
        self._idle: list[Connection] = []
        self._session: str | None = None

    def __repr__(self) -> str:
        return f"<HttpClient {self._revision}>"

    async def ask(self, method: str, params: Json) -> Json:
        answer: Json | None = None
        async with self._sent("POST", self._request(method, params)) as connection:
            async for message in connection.messages():
                if "method" in message:
                    self._take(message)
                else:
                    answer = message
        if answer is None:
            raise ClientError(f"no answer to {method}")
        return answer

    async def subscribe(self, uris: list[str]) -> None:
        if self._revision == MODERN:
            wish = self._request("subscriptions/listen", {"notifications": {"resourceSubscriptions": uris}})
            await self._nursery.start(self._hear, "POST", wish)
            return
        await self._nursery.start(self._hear, "GET", None)
        for uri in uris:
            answer = await self.ask("resources/subscribe", {"uri": uri})
            assert "result" in answer, answer

    async def open(self) -> None:
        """Open a session, where the era has one."""
        if self._revision == MODERN:
            return
        greeting = self._request("initialize", make_greeting(self._revision))
        async with self._sent("POST", greeting) as connection:
            async for message in connection.messages():
                assert "result" in message, message
            self._session = connection.headers["mcp-session-id"]
        initialized = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        async with self._sent("POST", initialized) as connection:
            assert connection.status == 202

    async def close(self) -> None:
        """End the session and every idle connection."""
        if self._session is not None:
            async with self._sent("DELETE", None) as connection:
                assert connection.status == 204
        await self.vanish()

    async def vanish(self) -> None:
        """Close all connections without a goodbye."""
        for connection in self._idle:
            await connection.stream.aclose()
        self._idle.clear()

    def _request(self, method: str, params: Json) -> Json:
        if self._revision == MODERN:
            params = {**params, "_meta": make_meta()}
        return {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}

    async def _hear(self, verb: str, message: Json | None, task_status: trio.TaskStatus[None]) -> None:
        async with self._sent(verb, message) as connection:
            if verb == "GET":
                assert connection.status == 200
                task_status.started()
            async for notification in connection.messages():
                if notification.get("method") == "notifications/subscriptions/acknowledged":
                    task_status.started()
                assert "method" in notification, f"a stream that is to stay has ended: {notification}"
                self._take(notification)

    @asynccontextmanager
    async def _sent(self, verb: str, message: Json | None) -> AsyncIterator[Connection]:
        """Yield a connection on which a request was sent and the head of its answer has come."""
        connection = self._idle.pop() if self._idle else await connect(self._port)
        try:
            await connection.send(verb, self._headers(message), message)
            yield connection
            if connection.is_reusable():
                self._idle.append(connection)
                return
        except (h11.RemoteProtocolError, trio.BrokenResourceError) as error:
            raise ClientError(f"HTTP broke: {error!r}") from error
        finally:
            if connection not in self._idle:
                with trio.CancelScope(shield=True):
                    await connection.stream.aclose()

    def _headers(self, message: Json | None) -> dict[str, str]:
        fields = make_fields(self._revision, message, self._session)
        return {"Host": f"127.0.0.1:{self._port}", **fields}


async def connect(port: int) -> Connection:
    return Connection(await trio.open_tcp_stream("127.0.0.1", port))


class Connection:
    """One connection to mcpmux: one exchange at a time. `status` and `headers` are of the last answer."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.status = 0
        self.headers: dict[str, str] = {}
        self._http = h11.Connection(h11.CLIENT)

    async def send(
        self, verb: str, headers: dict[str, str], message: Json | None, target: str = "/mcp"
    ) -> None:
        body = b"" if message is None else json.dumps(message).encode()
        fields = [*headers.items(), ("Content-Length", str(len(body)))]
        request = h11.Request(method=verb, target=target, headers=fields)
        events = (request, h11.Data(data=body), h11.EndOfMessage())
        await self.stream.send_all(b"".join(self._http.send(event) or b"" for event in events))
        head = await self._next()
        assert isinstance(head, h11.Response), head
        self.status = head.status_code
        self.headers = {key.decode(): value.decode() for key, value in head.headers}

    async def messages(self) -> AsyncGenerator[Json]:
        """Yield the messages of the answer as they arrive."""
        async with aclosing(self.events()) as events:
            async for _, message in events:
                if message is not None:
                    yield message

    async def events(self) -> AsyncGenerator[tuple[str | None, Json | None]]:
        """Yield the events of the answer as (id, message). Some events have only an id."""
        is_stream = self.headers.get("content-type", "").startswith("text/event-stream")
        data = b""
        while not isinstance(event := await self._next(), h11.EndOfMessage):
            data += event.data
            while is_stream and b"\n\n" in data:
                text, _, data = data.partition(b"\n\n")
                lines = text.split(b"\n")
                parts = [line[5:] for line in lines if line.startswith(b"data:")]
                event_id = next(
                    (line[3:].strip().decode() for line in lines if line.startswith(b"id:")), None
                )
                message = json.loads(b"".join(parts)) if any(line.strip() for line in parts) else None
                if event_id is not None or message is not None:
                    yield event_id, message
        if not is_stream and data:
            yield None, json.loads(data)

    def is_reusable(self) -> bool:
        """Return whether another exchange may follow, and make ready for it."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def _next(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(bytes(await self.stream.receive_some(RECEIVE_BYTES)))
        return event


class LineClient(LoadClient):
    """A legacy client on a stream, as on standard input and output. `run` has to run."""

    def __init__(self, stream: trio.abc.HalfCloseableStream) -> None:
        super().__init__()
        self._stream = stream
        self._sending = trio.Lock()
        self._waiting: dict[int, trio.MemorySendChannel[Json]] = {}

    def __repr__(self) -> str:
        return "<LineClient>"

    async def run(self) -> None:
        """Take what comes until the stream ends."""
        data = b""
        while chunk := await self._stream.receive_some(RECEIVE_BYTES):
            *lines, data = (data + chunk).split(b"\n")
            for message in map(json.loads, lines):
                if "method" in message:
                    self._take(message)
                elif message["id"] in self._waiting:
                    self._waiting.pop(message["id"]).send_nowait(message)

    async def ask(self, method: str, params: Json) -> Json:
        number = next(self._ids)
        self._waiting[number], answer = trio.open_memory_channel[Json](1)
        await self._send({"id": number, "method": method, "params": params})
        try:
            return await answer.receive()
        finally:
            if self._waiting.pop(number, None) is not None:
                with trio.CancelScope(shield=True):
                    await self._send({"method": "notifications/cancelled", "params": {"requestId": number}})

    async def open(self) -> None:
        """Open the stream's session."""
        answer = await self.ask("initialize", make_greeting(LEGACY))
        assert "result" in answer, answer
        await self._send({"method": "notifications/initialized"})

    async def subscribe(self, uris: list[str]) -> None:
        for uri in uris:
            answer = await self.ask("resources/subscribe", {"uri": uri})
            assert "result" in answer, answer

    async def close(self) -> None:
        """Hang up."""
        await self._stream.send_eof()

    async def _send(self, message: Json) -> None:
        async with self._sending:
            await self._stream.send_all(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
