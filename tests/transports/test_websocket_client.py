"""Connecting over WebSocket, to servers that are right and to others."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
import trustme
from trio_websocket import ConnectionClosed, serve_websocket

from mcpmux.config import ClientTls, ServerTls
from mcpmux.errors import ConnectFailed, TransportClosed
from mcpmux.transports.tls import server_context
from mcpmux.transports.websocket import open_websocket

LIMIT = 1000
open_pipe = partial(open_websocket, headers=(), tls=ClientTls(), max_message_bytes=LIMIT, patience=5)


async def echo(request) -> None:
    connection = await request.accept(subprotocol="mcp")
    try:
        while True:
            await connection.send_message(await connection.get_message())
    except ConnectionClosed:
        pass


@asynccontextmanager
async def serving(handler, context=None):
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            server = await nursery.start(partial(serve_websocket, handler, "127.0.0.1", 0, context))
            yield f"{'ws' if context is None else 'wss'}://127.0.0.1:{server.port}"
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def answering(data: bytes, *, end: bool):
    """Open a server that sends `data` to any request, and then hangs up or is silent."""

    async def handle(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            await stream.send_all(data)
            if not end:
                await trio.sleep_forever()

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(partial(trio.serve_tcp, handle, 0, host="127.0.0.1"))
            yield f"ws://127.0.0.1:{listeners[0].socket.getsockname()[1]}/mcp?key=secret"
            nursery.cancel_scope.cancel()


async def test_the_handshake_says_where_to_and_carries_the_headers():
    seen = []

    async def look(request) -> None:
        seen.append((request.path, list(request.proposed_subprotocols), dict(request.headers)))
        await echo(request)

    headers = (("X-Key", "schlüssel"),)
    async with serving(look) as url, open_pipe(url + "/a/b?c=d", headers=headers) as pipe:
        await pipe.send("grüße".encode())
        assert await pipe.receive() == "grüße".encode()
    ((path, offered, received),) = seen
    assert (path, offered) == ("/a/b?c=d", ["mcp"])
    assert received[b"x-key"] == "schlüssel".encode("latin-1")


async def test_a_server_that_chooses_no_subprotocol_is_taken_as_it_is():
    async def handle(request) -> None:
        connection = await request.accept()
        await connection.send_message("{}")
        await trio.sleep_forever()

    async with serving(handle) as url, open_pipe(url) as pipe:
        assert await pipe.receive() == b"{}"


async def test_tls_wraps_it(tmp_path: Path):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    context = server_context(ServerTls(certificate=str(tmp_path / "server.pem")))
    async with serving(echo, context) as url:
        async with open_pipe(url, tls=ClientTls(ca=str(tmp_path / "ca.pem"))) as pipe:
            await pipe.send(b"{}")
            assert await pipe.receive() == b"{}"
        with pytest.RaisesGroup(ConnectFailed, flatten_subgroups=True, allow_unwrapped=True) as caught:
            async with open_pipe(url):
                pass
        assert "is not trusted" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "end", "reason"),
    [
        (b"", True, "the server closed the connection within the handshake"),
        (b"", False, "no answer within 0.5 s"),
        (b"HTTP/1.1 401 No\r\nContent-Length: 6\r\n\r\nlog in", False, "the server answered 401: log in"),
        (b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", True, "the server answered 404"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", True, "the server answered 200: <html>"),
        (b"SSH-2.0-x\r\n", True, "the server closed the connection within the handshake"),
        (
            b"HTTP/1.1 101 Yes\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
            False,
            "the server's handshake makes no sense",
        ),
    ],
)
async def test_a_server_that_does_not_open_a_websocket_is_explained(data: bytes, end: bool, reason: str):
    async with answering(data, end=end) as url:
        with pytest.RaisesGroup(ConnectFailed, flatten_subgroups=True, allow_unwrapped=True) as caught:
            async with open_pipe(url, patience=0.5):
                pass
        (error,) = caught.value.exceptions if isinstance(caught.value, ExceptionGroup) else (caught.value,)
        assert isinstance(error, ConnectFailed)
        assert str(error).startswith("no WebSocket at 127.0.0.1:")
        assert f"/mcp: {reason}" in error.in_full
        assert "secret" not in error.in_full


async def test_nobody_there_is_told():
    with pytest.raises(ConnectFailed, match=r"cannot connect to 127\.0\.0\.1:1: connection refused"):
        async with open_pipe("ws://127.0.0.1:1/mcp"):
            pass


@pytest.mark.parametrize(("message", "code"), [(b"binary", 1003), ("x" * (LIMIT + 1), 1009)])
async def test_a_server_that_sends_what_it_may_not_is_left(message, code: int):
    closed = []

    async def handle(request) -> None:
        connection = await request.accept(subprotocol="mcp")
        await connection.send_message(message)
        with pytest.raises(ConnectionClosed):
            await connection.get_message()
        closed.append(connection.closed.code)

    async with serving(handle) as url, open_pipe(url) as pipe:
        for _ in range(2):
            with pytest.raises(TransportClosed):
                await pipe.receive()
    assert closed == [code]


async def test_a_server_that_says_goodbye_is_told_with_its_reason():
    async def handle(request) -> None:
        connection = await request.accept(subprotocol="mcp")
        await connection.aclose(1011, "out of order")

    async with serving(handle) as url, open_pipe(url) as pipe:
        with pytest.raises(TransportClosed, match="the connection was closed with 1011: out of order"):
            await pipe.receive()
