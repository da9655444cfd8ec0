"""The generator's own HTTP connections, against a server of which every byte is scripted. Real sockets."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio

from mcpmux.bench.answer import Chain, Checker
from mcpmux.bench.http_pool import CLIENT_INFO, Connector, LoadPool
from mcpmux.bench.operation import Ask
from mcpmux.channels.http_peer import HttpStatusError, SessionExpired
from mcpmux.channels.opener import ChannelOpener
from mcpmux.config import Http, Limits, Upstream
from mcpmux.errors import ConnectFailed, MessageTooLarge, RemoteProtocolError, RpcError, TransportClosed
from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import raw
from mcpmux.transports.http.route import HttpOrigin
from mcpmux.transports.polling import open_readiness_poller
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
            head, separator, rest = data.partition(b"\r\n\r\n")
            size = next(
                (int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:")), 0
            )
            if not separator or len(rest) < size:
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
async def pool_to(answer: Answer, modern: bool = True, limits: Limits | None = None) -> AsyncIterator[Any]:
    server = Server(answer)
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, server.serve, [listener])
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/mcp"
        opener = ChannelOpener(Limits(), StopLadder(close_seconds=1, terminate_seconds=1))
        upstream = Upstream(name="x", target=Http(url))
        with trio.fail_after(20):
            async with opener.open(upstream, lambda _: None) as channel:
                info = CLIENT_INFO if modern else None
                async with open_readiness_poller() as poller:
                    connector = Connector(HttpOrigin.from_url(url), poller, limits or Limits(), at_once=2)
                    pool = LoadPool(connector, channel, info)  # type: ignore[arg-type]  # it is HTTP
                    yield pool, server
                    pool.close()
        nursery.cancel_scope.cancel()


def http(body: bytes, status: str = "200 OK", kind: str = "application/json", more: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def result(message: dict[str, Any], value: Any = None) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": value or {"contents": []}}).encode()


def read(uri: str = "memo:1") -> Ask:
    return Ask("read", Call("resources/read", {"uri": raw(uri)}, {}), uri)


def alone(ask: Ask) -> Chain:
    """Return a chain of one."""
    return Chain(ask, Checker(None).judge)


CALL = Ask("tool t", Call("tools/call", {"name": raw("t"), "arguments": raw({"a": 1})}, {}))


async def test_requests_are_those_of_a_client_of_the_newest_revision() -> None:
    async with pool_to(lambda message: http(result(message))) as (pool, server):
        for ask in (read("memo:1"), read("memo:2"), read("memo:1"), CALL):
            assert set(await pool.exchange(alone(ask))) == {"contents"}
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
    async with pool_to(lambda message: http(result(message)), modern=False) as (pool, server):
        await pool.exchange(alone(read()))
    assert "_meta" not in server.bodies[0]["params"]


async def test_requests_at_the_same_time_take_a_connection_each_and_keep_it() -> None:
    async with pool_to(lambda message: http(result(message))) as (pool, server):
        for _ in range(3):
            async with trio.open_nursery() as nursery:
                for number in range(5):
                    nursery.start_soon(pool.exchange, alone(read(f"memo:{number}")))
    assert len(server.bodies) == 15
    assert server.connections == 5


async def test_an_answer_may_come_as_a_stream_with_other_messages_before_it() -> None:
    def answer(message: dict[str, Any]) -> bytes:
        progress = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{}}'
        body = b": hello\n\ndata: " + progress + b"\n\nevent: message\ndata: " + result(message) + b"\n\n"
        return http(body, kind="text/event-stream")

    async with pool_to(answer) as (pool, _):
        assert set(await pool.exchange(alone(read()))) == {"contents"}


def rpc_error(message: dict[str, Any]) -> bytes:
    error = {"code": -32602, "message": "no such"}
    return http(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}).encode())


BAD: dict[str, tuple[Answer, type[Exception], str]] = {
    "error": (rpc_error, RpcError, "no such"),
    "status": (lambda _: http(b"busy", "503 Busy"), HttpStatusError, "HTTP status 503"),
    "no JSON": (lambda _: http(b"<html>"), RemoteProtocolError, "no JSON-RPC response"),
    "another id": (lambda _: http(b'{"id": 5, "result": {}}'), RemoteProtocolError, "no JSON-RPC response"),
    "neither": (
        lambda m: http(b'{"jsonrpc": "2.0", "id": %d}' % m["id"]),
        RemoteProtocolError,
        "no JSON-RPC response",
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
    async with pool_to(answer, limits=limits) as (pool, server):
        with pytest.raises(kind, match=words or None):
            await pool.exchange(alone(read()))
        server.answer = lambda message: http(result(message))
        assert set(await pool.exchange(alone(read()))) == {"contents"}


@pytest.mark.parametrize("modern", [True, False])
async def test_a_forgotten_session_is_told_apart(modern: bool) -> None:
    async with pool_to(lambda _: http(b"", "404 Not Found"), modern=modern) as (pool, _):
        with pytest.raises(HttpStatusError if modern else SessionExpired):
            await pool.exchange(alone(read()))


async def test_a_connection_that_was_closed_while_idle_is_replaced() -> None:
    async with pool_to(lambda message: http(result(message))) as (pool, server):
        await pool.exchange(alone(read()))
        server.idle.pop().socket.shutdown(socket.SHUT_WR)
        await pool.exchange(alone(read()))
    assert server.connections == 2


async def test_a_call_is_not_sent_twice_when_its_connection_breaks() -> None:
    """Repeat only read-only requests, as a tool may have been run already."""
    async with pool_to(lambda message: http(result(message))) as (pool, server):
        await pool.exchange(alone(read()))
        server.answer = lambda _: None
        with pytest.raises(TransportClosed):
            await pool.exchange(alone(CALL))
    assert [body["method"] for body in server.bodies] == ["resources/read", "tools/call"]


async def test_connection_close_is_heeded() -> None:
    async with pool_to(lambda message: http(result(message), more="Connection: close\r\n")) as (pool, server):
        await pool.exchange(alone(read()))
        await pool.exchange(alone(read()))
    assert server.connections == 2


async def test_a_request_that_is_cut_off_gives_its_connection_up() -> None:
    silent = trio.Event()

    def say_nothing(_message: dict[str, Any]) -> bytes:
        silent.set()
        return b""

    async with pool_to(say_nothing) as (pool, server):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pool.exchange, alone(read()))
            await silent.wait()
            nursery.cancel_scope.cancel()
        server.answer = lambda message: http(result(message))
        await pool.exchange(alone(read()))
    assert server.connections == 2


async def test_nobody_there_is_told() -> None:
    async with pool_to(lambda _: None) as (pool, _):
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        await listeners[0].aclose()
        pool.connector.origin = HttpOrigin.from_url(f"http://127.0.0.1:{port}/")
        with pytest.raises(ConnectFailed, match="cannot connect to"):
            await pool.exchange(alone(read()))


def following(*asks: Ask) -> tuple[Chain, list[tuple[int, int]]]:
    """Return a chain of asks, and the bytes of every answer that it has counted."""
    first, *rest = asks
    counted: list[tuple[int, int]] = []
    left = iter(rest)

    def follow(sent: int, received: int) -> Ask | None:
        next_ask = next(left, None)
        if next_ask is not None:
            counted.append((sent, received))
        return next_ask

    return Chain(first, Checker(None).judge, follow), counted


async def test_known_answers_are_followed_on_the_same_connection() -> None:
    """The first answer is parsed; from then on the head is known and each next request leaves at once."""
    async with pool_to(lambda message: http(result(message))) as (pool, server):
        await pool.exchange(alone(read()))
        chain, counted = following(*(read(f"memo:{number}") for number in range(50)))
        assert set(await pool.exchange(chain)) == {"contents"}
        assert chain.ask.subject == "memo:49"
    assert [body["params"]["uri"] for body in server.bodies[1:]] == [f"memo:{number}" for number in range(50)]
    assert len({body["id"] for body in server.bodies}) == 51
    assert (len(counted), server.connections) == (49, 1)
    assert all(sent > 0 and received > 0 for sent, received in counted)


@pytest.mark.parametrize("bad", BAD)
async def test_a_bad_answer_in_the_middle_ends_a_chain_there(bad: str) -> None:
    answer, kind, words = BAD[bad]

    def at_third(message: dict[str, Any]) -> bytes | None:
        third = message["params"]["uri"] == "memo:3"
        return answer(message) if third else http(result(message))

    async with pool_to(at_third, limits=Limits(max_message_bytes=100_000)) as (pool, _):
        await pool.exchange(alone(read()))
        chain, counted = following(*(read(f"memo:{number}") for number in range(1, 9)))
        with pytest.raises(kind, match=words or None):
            await pool.exchange(chain)
        assert (chain.ask.subject, len(counted)) == ("memo:3", 2)
        assert set(await pool.exchange(alone(read("memo:9")))) == {"contents"}


async def test_a_known_head_before_another_body_is_no_answer() -> None:
    """Same head, same length, another id: what is known is how to read it, not that it is right."""
    answers: list[bytes] = []

    def again(message: dict[str, Any]) -> bytes:
        answers.append(http(result(message)))
        return answers[0]

    async with pool_to(again) as (pool, _):
        await pool.exchange(alone(read()))
        with pytest.raises(RemoteProtocolError, match="no JSON-RPC response"):
            await pool.exchange(alone(read()))


async def test_a_large_request_leaves_in_the_middle_of_a_chain() -> None:
    large = Ask("tool t", Call("tools/call", {"name": raw("t"), "arguments": raw("x" * 9_000_000)}, {}))
    async with pool_to(lambda message: http(result(message))) as (pool, server):
        await pool.exchange(alone(read()))
        chain, counted = following(read(), large, read())
        await pool.exchange(chain)
    assert [body["method"] for body in server.bodies[1:]] == [
        "resources/read",
        "tools/call",
        "resources/read",
    ]
    assert (len(counted), server.connections) == (2, 1)


async def test_a_chain_that_is_cut_off_sends_nothing_more() -> None:
    async with pool_to(lambda message: http(result(message))) as (pool, server):
        await pool.exchange(alone(read()))
        count = 0
        with trio.CancelScope() as scope:

            def follow(_sent: int, _received: int) -> Ask:
                nonlocal count
                count += 1
                if count == 20:
                    scope.cancel()
                return read()

            await pool.exchange(Chain(read(), Checker(None).judge, follow))
        assert scope.cancelled_caught
        seen = count
        await pool.exchange(alone(read()))
        assert (count, server.connections) == (seen, 2)
