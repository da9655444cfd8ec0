"""The short way for single requests, against a server of which every byte is scripted. Real sockets."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio

from mcpmux.bench.http_lane import CLIENT_INFO, HttpLane
from mcpmux.bench.operation import Ask, Kind
from mcpmux.config import Http, Limits, Upstream
from mcpmux.errors import ConnectFailed, MessageTooLarge, RemoteProtocolError, RpcError, TransportClosed
from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import raw
from mcpmux.runtime.upstreams.channels import ChannelOpener
from mcpmux.runtime.upstreams.http_peer import HttpStatusError, SessionExpired
from mcpmux.transports.process import StopLadder

Answer = Callable[[dict[str, Any]], bytes | None]
"""The bytes that answer a request; None closes the connection instead."""


class Server:
    """Answers each request with bytes by a function. `heads` and `bodies` are what came."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.heads: list[bytes] = []
        self.bodies: list[dict[str, Any]] = []
        self.connections = 0
        self.idle: list[trio.SocketStream] = []

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # one side has left
            await self._serve(stream)
        await stream.aclose()

    async def _serve(self, stream: trio.SocketStream) -> None:
        data = b""
        async for chunk in stream:
            data += chunk
            head, found, rest = data.partition(b"\r\n\r\n")
            size = next(
                (int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:")), 0
            )
            if not found or len(rest) < size:
                continue
            self.heads.append(head)
            self.bodies.append(json.loads(rest[:size]))
            data = b""
            answer = self.answer(self.bodies[-1])
            if answer is None:
                break
            self.idle.append(stream)
            await stream.send_all(answer)


@asynccontextmanager
async def lane_to(answer: Answer, modern: bool = True, limits: Limits | None = None) -> AsyncIterator[Any]:
    server = Server(answer)
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, server.serve, [listener])
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/mcp"
        opener = ChannelOpener(1 << 20, 1 << 16, StopLadder(close_seconds=1, terminate_seconds=1))
        upstream = Upstream(name="x", target=Http(url))
        with trio.fail_after(20):
            async with opener.open(upstream, lambda _: None) as channel:
                info = CLIENT_INFO if modern else None
                lane = HttpLane(url, channel, info, limits or Limits())  # type: ignore[arg-type]  # it is HTTP
                yield lane, server
                lane.close()
        nursery.cancel_scope.cancel()


def http(body: bytes, status: str = "200 OK", kind: str = "application/json", more: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def result(message: dict[str, Any], value: Any = None) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": value or {"contents": []}}).encode()


def read(uri: str = "memo:1") -> Ask:
    return Ask("read", Kind.ONCE, Call("resources/read", {"uri": raw(uri)}, {}), uri)


CALL = Ask("tool t", Kind.ONCE, Call("tools/call", {"name": raw("t"), "arguments": raw({"a": 1})}, {}))


async def test_requests_are_those_of_a_client_of_the_newest_revision() -> None:
    async with lane_to(lambda message: http(result(message))) as (lane, server):
        for ask in (read("memo:1"), read("memo:2"), read("memo:1"), CALL):
            assert set(await lane.exchange(ask)) == {"contents"}
    assert [body["method"] for body in server.bodies] == ["resources/read"] * 3 + ["tools/call"]
    assert [body["params"].get("uri") for body in server.bodies] == ["memo:1", "memo:2", "memo:1", None]
    assert len({body["id"] for body in server.bodies}) == 4
    meta = server.bodies[0]["params"]["_meta"]
    assert meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
    assert meta["io.modelcontextprotocol/clientInfo"]["name"] == "mcpmux-bench"
    for name in (b"mcp-method: resources/read", b"mcp-name: memo:1", b"mcp-protocol-version: 2026-07-28"):
        assert name in server.heads[0].lower()
    assert server.connections == 1


async def test_a_legacy_session_has_no_modern_members() -> None:
    async with lane_to(lambda message: http(result(message)), modern=False) as (lane, server):
        await lane.exchange(read())
    assert "_meta" not in server.bodies[0]["params"]


async def test_requests_at_the_same_time_take_a_connection_each_and_keep_it() -> None:
    async with lane_to(lambda message: http(result(message))) as (lane, server):
        for _ in range(3):
            async with trio.open_nursery() as nursery:
                for number in range(5):
                    nursery.start_soon(lane.exchange, read(f"memo:{number}"))
    assert len(server.bodies) == 15
    assert server.connections == 5


async def test_an_answer_may_come_as_a_stream_with_other_messages_before_it() -> None:
    def answer(message: dict[str, Any]) -> bytes:
        progress = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{}}'
        body = b": hello\n\ndata: " + progress + b"\n\nevent: message\ndata: " + result(message) + b"\n\n"
        return http(body, kind="text/event-stream")

    async with lane_to(answer) as (lane, _):
        assert set(await lane.exchange(read())) == {"contents"}


def rpc_error(message: dict[str, Any]) -> bytes:
    return http(json.dumps({"id": message["id"], "error": {"code": -32602, "message": "no such"}}).encode())


BAD: dict[str, tuple[Answer, type[Exception], str]] = {
    "error": (rpc_error, RpcError, "no such"),
    "status": (lambda _: http(b"busy", "503 Busy"), HttpStatusError, "HTTP status 503"),
    "no JSON": (lambda _: http(b"<html>"), RemoteProtocolError, "no JSON-RPC response"),
    "another id": (lambda _: http(b'{"id": 5, "result": {}}'), RemoteProtocolError, "no JSON-RPC response"),
    "neither": (
        lambda m: http(b'{"id": %d}' % m["id"]),
        RemoteProtocolError,
        "neither a result nor an error",
    ),
    "a list": (lambda m: http(result(m, [1])), RemoteProtocolError, "its result is no object"),
    "an empty stream": (
        lambda _: http(b": nothing\n\n", kind="text/event-stream"),
        RemoteProtocolError,
        "no JSON-RPC response",
    ),
    "too large": (lambda m: http(result(m, {"text": "x" * 200_000})), MessageTooLarge, "larger than 100000"),
    "closed": (lambda _: None, TransportClosed, ""),
    "no HTTP": (lambda _: b"hello\r\n\r\n", RemoteProtocolError, ""),
}


@pytest.mark.parametrize(("answer", "kind", "words"), BAD.values(), ids=BAD)
async def test_bad_answers_are_told_and_the_lane_goes_on(
    answer: Answer, kind: type[Exception], words: str
) -> None:
    limits = Limits(max_message_bytes=100_000)
    async with lane_to(answer, limits=limits) as (lane, server):
        with pytest.raises(kind, match=words or None):
            await lane.exchange(read())
        server.answer = lambda message: http(result(message))
        assert set(await lane.exchange(read())) == {"contents"}


@pytest.mark.parametrize("modern", [True, False])
async def test_a_forgotten_session_is_told_apart(modern: bool) -> None:
    async with lane_to(lambda _: http(b"", "404 Not Found"), modern=modern) as (lane, _):
        with pytest.raises(HttpStatusError if modern else SessionExpired):
            await lane.exchange(read())


async def test_a_connection_that_was_closed_while_idle_is_replaced() -> None:
    async with lane_to(lambda message: http(result(message))) as (lane, server):
        await lane.exchange(read())
        server.idle.pop().socket.shutdown(socket.SHUT_WR)
        await lane.exchange(read())
    assert server.connections == 2


async def test_a_call_is_not_sent_twice_when_its_connection_breaks() -> None:
    """A tool may have been run already: only what changes nothing is asked again."""
    async with lane_to(lambda message: http(result(message))) as (lane, server):
        await lane.exchange(read())
        server.answer = lambda _: None
        with pytest.raises(TransportClosed):
            await lane.exchange(CALL)
    assert [body["method"] for body in server.bodies] == ["resources/read", "tools/call"]


async def test_connection_close_is_heeded() -> None:
    async with lane_to(lambda message: http(result(message), more="Connection: close\r\n")) as (lane, server):
        await lane.exchange(read())
        await lane.exchange(read())
    assert server.connections == 2


async def test_a_request_that_is_cut_off_gives_its_connection_up() -> None:
    silent = trio.Event()

    def say_nothing(_message: dict[str, Any]) -> bytes:
        silent.set()
        return b""

    async with lane_to(say_nothing) as (lane, server):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lane.exchange, read())
            await silent.wait()
            nursery.cancel_scope.cancel()
        server.answer = lambda message: http(result(message))
        await lane.exchange(read())
    assert server.connections == 2


async def test_nobody_there_is_told() -> None:
    async with lane_to(lambda _: None) as (lane, _):
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        await listeners[0].aclose()
        lane._origin = type(lane._origin).from_url(f"http://127.0.0.1:{port}/")
        with pytest.raises(ConnectFailed, match="cannot connect to"):
            await lane.exchange(read())
