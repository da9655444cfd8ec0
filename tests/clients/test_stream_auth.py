"""WebSocket, TCP and HTTP over real sockets and TLS: tokens at the handshake, certificates as principals."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from trio_websocket import ConnectionClosed, connect_websocket_url

from mcpmux.app.listeners import Serving, make_gate, serve_listener
from mcpmux.auth.bearer import hash_token
from mcpmux.auth.gate import Gate
from mcpmux.config import (
    Auth,
    Config,
    HttpListener,
    Limits,
    Listeners,
    ServerTls,
    StaticToken,
    TcpListener,
    WebSocketListener,
)
from mcpmux.errors import ConfigError
from tests.auth.made import Clock, Issuing, claims, sign
from tests.auth.made import make_gate as make_test_gate
from tests.peers.revision import CAPABILITIES, MODERN, VERSION, Json
from tests.runtime.test_flows import docs
from tests.runtime.world import open_world, upstream
from tests.transports.certificates import Certificates

pytestmark = pytest.mark.interpreted  # the spy

TOKEN = "mcpmux_0123456789abcdefghijklmnopqrstuvwxyz"
ANN = Auth(tokens={"ann": StaticToken(sha256=hash_token(TOKEN), scopes=("read",))})
META = {VERSION: MODERN, CAPABILITIES: {}}
LIST = {"jsonrpc": "2.0", "id": 1, "method": "resources/list", "params": {"_meta": META}}


class Listening:
    """A running listener, and the principals of the calls that came in by it."""

    def __init__(self, url: str, world: Any) -> None:
        self.url = url
        self.principals: list[str] = []
        router = world.mux.router
        exchange = router.exchange

        async def spy(call: Any, notify: Any) -> Any:
            self.principals.append(call.principal.name)
            return await exchange(call, notify)

        router.exchange = spy


@asynccontextmanager
async def open_listening(
    listeners: Listeners, auth: Auth, gate: Gate | None = None, limits: Limits | None = None
) -> AsyncIterator[Listening]:
    limits = limits or Limits()
    config = Config(upstreams=(upstream("docs"),), listeners=listeners, auth=auth, limits=limits)
    async with open_world({"docs": docs()}) as world:
        announced: list[str] = []
        gate = gate or await make_gate(config)
        serving = Serving(config.limits, world.mux.service, trio.Event(), announced.append, gate)
        for listener in listeners.bound:
            await world.nursery.start(serve_listener, listener, serving)
        with trio.fail_after(20):
            yield Listening(announced[0], world)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def trusting(made: Certificates, certificate: str | None = None, key: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=made.ca)
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context


def mutual(made: Certificates) -> ServerTls:
    return ServerTls(certificate=made.server, key=made.server_key, client_ca=made.ca)


WS = Listeners(websocket=(WebSocketListener(port=0),))


async def shake_hands(url: str, target: str = "/mcp", **headers: str) -> tuple[int, str]:
    """Return the status and head of the answer to a WebSocket handshake."""
    address = url.partition("://")[2].partition("/")[0]
    fields = {
        "Host": address,
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version": "13",
    } | headers
    head = f"GET {target} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    async with await trio.open_tcp_stream("127.0.0.1", int(address.rpartition(":")[2])) as stream:
        await stream.send_all(head.encode() + b"\r\n")
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += await stream.receive_some()
    return int(answer.split()[1]), answer.decode().lower()


@asynccontextmanager
async def open_socket(url: str, token: str, context: ssl.SSLContext | None = None) -> AsyncIterator[Any]:
    """Open a WebSocket; the library leaves the stream below it open when the server closes."""
    url = url.replace("127.0.0.1", "localhost")
    headers = [(b"Authorization", f"Bearer {token}".encode())] if token else []
    async with trio.open_nursery() as nursery:
        connection = await connect_websocket_url(nursery, url, context, extra_headers=headers)
        try:
            yield connection
            await connection.aclose()
        finally:
            await trio.aclose_forcefully(connection._stream)
            nursery.cancel_scope.cancel()


async def test_a_websocket_needs_its_token_at_the_handshake():
    async with open_listening(WS, ANN) as mux:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
            status, head = await shake_hands(mux.url, **headers)
            assert (status, "www-authenticate: bearer " in head) == (401, True)
        assert (await shake_hands(mux.url, f"/mcp?access_token={TOKEN}"))[0] == 401
        assert (await shake_hands(mux.url, Authorization=f"Bearer {TOKEN}"))[0] == 101
        async with open_socket(mux.url, TOKEN) as socket:
            await socket.send_message(json.dumps(LIST))
            assert "result" in json.loads(await socket.get_message())
        assert mux.principals == ["ann"]


async def test_a_principal_gets_its_websockets_back_at_their_end():
    auth = Auth(tokens={**ANN.tokens, "bob": StaticToken(sha256=hash_token(f"{TOKEN}b"))})
    async with open_listening(WS, auth, limits=Limits(max_connections=4)) as mux:
        async with open_socket(mux.url, TOKEN), open_socket(mux.url, TOKEN):
            status, head = await shake_hands(mux.url, Authorization=f"Bearer {TOKEN}")
            assert (status, "retry-after: 1" in head) == (429, True)
            assert (await shake_hands(mux.url, Authorization=f"Bearer {TOKEN}b"))[0] == 101
        while (await shake_hands(mux.url, Authorization=f"Bearer {TOKEN}"))[0] != 101:
            await trio.testing.wait_all_tasks_blocked(0.01)


@pytest.mark.parametrize(
    "origin", ["https://evil.example.com", "http://localhost.evil.example.com", "null", "", "http://[::1"]
)
async def test_a_foreign_page_gets_no_websocket_whatever_its_token(origin: str):
    async with open_listening(WS, ANN) as mux:
        assert (await shake_hands(mux.url, Origin=origin, Authorization=f"Bearer {TOKEN}"))[0] == 403


@pytest.mark.parametrize(
    "host", ["evil.example.com", "evil.example.com:{port}", "127.0.0.1.nip.io:{port}", "[::2]"]
)
async def test_a_rebound_name_gets_no_websocket(host: str):
    """DNS rebinding: the page's own name leads to us, so Host and Origin agree."""
    async with open_listening(WS, Auth()) as mux:
        name = host.format(port=mux.url.rpartition(":")[2].partition("/")[0])
        assert (await shake_hands(mux.url, Host=name, Origin=f"http://{name}"))[0] == 403
        assert (await shake_hands(mux.url, Host=name))[0] == 403


@pytest.mark.parametrize("host", ["LOCALHOST:1", "127.0.0.1", "[::1]:8484"])
async def test_our_own_names_get_one(host: str):
    async with open_listening(WS, Auth()) as mux:
        assert (await shake_hands(mux.url, Host=host))[0] == 101


def code_of(closed: ConnectionClosed) -> int:
    """Return the code with which the peer has closed."""
    assert closed.reason is not None
    return closed.reason.code


async def test_a_websocket_ends_when_its_token_expires():
    clock = Clock()
    clock.now += 629.7  # 300 ms are left
    gate = make_test_gate(Issuing(), clock)
    auth = Auth(tokens=ANN.tokens)
    async with open_listening(WS, auth, gate) as mux:
        async with open_socket(mux.url, sign(claims())) as socket:
            await socket.send_message(json.dumps(LIST))
            assert "result" in json.loads(await socket.get_message())
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    await socket.get_message()
            assert code_of(closed.value) == 1008
        assert mux.principals == ["corp:alice"]


async def test_a_websocket_ends_when_its_token_is_taken_back():
    gate = make_test_gate(tokens=dict(ANN.tokens))
    async with open_listening(WS, ANN, gate) as mux, open_socket(mux.url, TOKEN) as socket:
        await socket.send_message(json.dumps(LIST))
        assert "result" in json.loads(await socket.get_message())
        gate.adopt(Auth(), "mux")
        with pytest.raises(ConnectionClosed) as closed:
            await socket.get_message()
        assert code_of(closed.value) == 1008
        assert (await shake_hands(mux.url, Authorization=f"Bearer {TOKEN}"))[0] == 401


async def test_a_websocket_hears_of_missing_scopes_as_an_error():
    auth = Auth(tokens=ANN.tokens, method_scopes={"tools/*": ("tools",)})
    async with open_listening(WS, auth) as mux:
        async with open_socket(mux.url, TOKEN) as socket:
            await socket.send_message(json.dumps(LIST | {"method": "tools/list"}))
            error = json.loads(await socket.get_message())["error"]
            assert (error["code"], "scopes" in error["message"]) == (-32600, True)
        assert mux.principals == []


async def ask_lines(url: str, context: ssl.SSLContext) -> Json:
    port = int(url.rpartition(":")[2])
    plain = await trio.open_tcp_stream("127.0.0.1", port)
    async with trio.SSLStream(plain, context, server_hostname="localhost", https_compatible=True) as stream:
        await stream.send_all(json.dumps(LIST).encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            answer += await stream.receive_some()
        return json.loads(answer)


async def test_a_certificate_names_the_principal_on_tcp(made: Certificates):
    listeners = Listeners(tcp=(TcpListener(port=0, tls=mutual(made)),))
    for auth in (Auth(), ANN):  # tokens cannot be shown there
        async with open_listening(listeners, auth) as mux:
            assert "result" in await ask_lines(mux.url, trusting(made, made.client, made.client_key))
            assert mux.principals == ["cert:dns:someone"]


async def test_a_certificate_names_the_principal_on_a_websocket(made: Certificates):
    listeners = Listeners(websocket=(WebSocketListener(port=0, tls=mutual(made)),))
    async with open_listening(listeners, Auth()) as mux:
        async with open_socket(mux.url, "", trusting(made, made.client, made.client_key)) as socket:
            await socket.send_message(json.dumps(LIST))
            assert "result" in json.loads(await socket.get_message())
        assert mux.principals == ["cert:dns:someone"]


async def ask_https(url: str, context: ssl.SSLContext, **headers: str) -> tuple[int, Json]:
    port = int(url.rpartition(":")[2].partition("/")[0])
    plain = await trio.open_tcp_stream("127.0.0.1", port)
    body = json.dumps(LIST).encode()
    fields = {
        "Host": "localhost",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": MODERN,
        "Mcp-Method": "resources/list",
        "Content-Length": str(len(body)),
        "Connection": "close",
    } | headers
    head = "POST /mcp HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    async with trio.SSLStream(plain, context, server_hostname="localhost", https_compatible=True) as stream:
        await stream.send_all(head.encode() + b"\r\n" + body)
        answer = b""
        async for chunk in stream:
            answer += chunk
    return int(answer.split()[1]), json.loads(answer.partition(b"\r\n\r\n")[2])


async def test_a_certificate_names_the_principal_over_https(made: Certificates):
    listeners = Listeners(http=(HttpListener(port=0, tls=mutual(made)),))
    context = trusting(made, made.client, made.client_key)
    async with open_listening(listeners, Auth()) as mux:
        assert (await ask_https(mux.url, context))[0] == 200
        assert mux.principals == ["cert:dns:someone"]


async def test_with_tokens_a_certificate_alone_will_not_do_unless_it_is_said(made: Certificates):
    listeners = Listeners(http=(HttpListener(port=0, tls=mutual(made)),))
    context = trusting(made, made.client, made.client_key)
    async with open_listening(listeners, ANN) as mux:
        assert (await ask_https(mux.url, context))[0] == 401
        assert (await ask_https(mux.url, context, Authorization=f"Bearer {TOKEN}"))[0] == 200
        assert mux.principals == ["ann"]
    async with open_listening(listeners, Auth(tokens=ANN.tokens, certificates=True)) as mux:
        assert (await ask_https(mux.url, context))[0] == 200
        assert mux.principals == ["cert:dns:someone"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "mux.example.com"])
@pytest.mark.parametrize("kind", [HttpListener, WebSocketListener, TcpListener])
async def test_an_open_door_to_the_network_is_refused(host: str, kind: Any):
    name = {HttpListener: "http", WebSocketListener: "websocket", TcpListener: "tcp"}[kind]
    settings: dict[str, Any] = {name: (kind(host=host, port=1),)}
    listeners = Listeners(**settings)
    config = Config(upstreams=(upstream("docs"),), listeners=listeners)
    with pytest.raises(ConfigError) as refused:
        await make_gate(config)
    place = "[::]:1" if host == "::" else f"{host}:1"  # the form in which a file has it
    assert f"listeners.{name} {place}" in str(refused.value)
    assert "allow_anyone" in str(refused.value)
    allowed = Config(upstreams=(upstream("docs"),), listeners=listeners, auth=Auth(allow_anyone=True))
    assert await make_gate(allowed) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "LocalHost"])
async def test_loopback_needs_nothing_said(host: str):
    listeners = Listeners(http=(HttpListener(host=host, port=1),), tcp=(TcpListener(host=host, port=2),))
    assert await make_gate(Config(upstreams=(upstream("docs"),), listeners=listeners)) is None


async def test_tokens_open_no_back_door_on_tcp(made: Certificates):
    listeners = Listeners(tcp=(TcpListener(port=1),))
    with pytest.raises(ConfigError, match="show a token on TCP"):
        await make_gate(Config(upstreams=(upstream("docs"),), listeners=listeners, auth=ANN))
    guarded = Listeners(tcp=(TcpListener(host="0.0.0.0", port=1, tls=mutual(made)),))
    assert await make_gate(Config(upstreams=(upstream("docs"),), listeners=guarded, auth=ANN)) is not None
