"""Our HTTP client and server against each other, and inside TLS against the standard library's."""

from __future__ import annotations

import re
import ssl
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from mcpmux.config import ClientTls, Limits, ServerTls
from mcpmux.errors import ConnectFailed, RemoteProtocolError
from mcpmux.logs import configure_logs
from mcpmux.transports import tls as tls_handshake
from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.http.route import HttpOrigin, Route
from mcpmux.transports.http.server import REFUSED_CONNECTIONS, serve_http
from mcpmux.transports.tls import client_context, server_context
from tests.http_request import requested
from tests.peers.http_server import open_http

LARGE = bytes(range(256)) * 8192  # 2 MiB
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def echo(request, reply):
    await reply.send(200, (("Content-Type", "text/plain"),), request.body)


@asynccontextmanager
async def serving(context, handler=echo, host="127.0.0.1", **limits):
    """Open a server of ours, and yield its port."""
    with trio.fail_after(60):
        async with open_http(
            handler,
            host=host,
            refuse=lambda status, sentence, _: ((), f"{status} {sentence}".encode()),
            limits=Limits(**limits),
            tls=context and (lambda: context),
        ) as port:
            yield port


@asynccontextmanager
async def capturing():
    """Capture every event of the log, at all levels."""
    configure_logs("debug", "console")
    try:
        with capture_logs() as logs:
            yield logs
    finally:
        configure_logs("warning", "console")


async def until(logs):
    """Wait for the first event; sockets need a moment."""
    while not logs:
        await trio.testing.wait_all_tasks_blocked(0.01)


@asynccontextmanager
async def scripted(script):
    """Run `script` on each TCP connection to a server, and yield its port."""
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            listener, *_ = await nursery.start(partial(trio.serve_tcp, script, 0, host="127.0.0.1"))
            yield listener.socket.getsockname()[1]
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def full_server(certificates, **limits):
    """Open a server of ours inside TLS whose only place is taken. Yields its port, and a pool to it."""
    taken = trio.Event()

    async def wait(_request, _reply):
        taken.set()
        await trio.sleep_forever()

    async with (
        serving(server_tls(certificates), wait, max_connections=1, **limits) as port,
        trio.open_nursery() as nursery,
    ):
        with pool_to(port, certificates) as pool:
            nursery.start_soon(ask, pool)
            await taken.wait()
            yield port, pool
            nursery.cancel_scope.cancel()


def server_tls(certificates, name="server", **more):
    key = getattr(certificates, f"{name}_key")
    return server_context(ServerTls(certificate=getattr(certificates, name), key=key, **more))


def plain_pool_to(port):
    return HttpPool(HttpOrigin(False, "127.0.0.1", port))


def pool_to(port, certificates, host="127.0.0.1", **tls):
    settings = ClientTls(**{"ca": certificates.ca, **tls})
    origin = HttpOrigin(True, host, port)
    context = client_context(settings)
    return HttpPool(origin, route=Route(origin, lambda: context, settings.server_name))


async def ask(pool, body=b"hello"):
    async with requested(pool, "POST", "/", (), body, idempotent=False) as response:
        return await response.read()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("body", [b"hello", LARGE])
async def test_bodies_travel_both_ways_and_the_connection_is_reused(certificates, version, body):
    context = server_tls(certificates)
    context.maximum_version = version
    accepted = []

    async def handler(request, reply):
        accepted.append(request.peer)
        await echo(request, reply)

    async with serving(context, handler) as port:
        with pool_to(port, certificates) as pool:
            for _ in range(3):
                assert await ask(pool, body) == body
    assert len(set(accepted)) == 1


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
async def test_names_and_addresses_are_verified(certificates, host):
    listen_on = "::1" if host == "::1" else "127.0.0.1"
    async with serving(server_tls(certificates), host=listen_on) as port:
        with pool_to(port, certificates, host) as pool:
            assert await ask(pool) == b"hello"


async def test_name_of_the_server_is_told_in_the_handshake(certificates):
    names = []
    context = server_tls(certificates)
    context.sni_callback = lambda _tls, name, _context: names.append(name)
    async with serving(context) as port:
        with pool_to(port, certificates, "localhost") as pool:
            await ask(pool)
    assert names == ["localhost"]


@pytest.mark.parametrize(
    ("server", "tls", "problem"),
    [
        ("expired", {}, "the server's certificate has expired"),
        ("elsewhere", {}, "the server's certificate is for another name .*`tls.server_name`"),
        ("server", {"ca": None}, "the server's certificate is not trusted .*`tls.ca`"),
        ("server", {"ca": "strange_ca"}, "the server's certificate is not trusted .*`tls.ca`"),
        ("server", {"server_name": "elsewhere.example"}, "for another name"),
    ],
)
async def test_server_that_does_not_prove_itself_is_not_talked_to(certificates, server, tls, problem):
    if tls.get("ca"):
        tls = {"ca": getattr(certificates, tls["ca"])}
    async with serving(server_tls(certificates, server)) as port, capturing() as logs:
        with (
            pool_to(port, certificates, **tls) as pool,
            pytest.raises(ConnectFailed, match=rf"^cannot connect to 127.0.0.1:{port}: TLS: .*{problem}"),
        ):
            await ask(pool)
        await until(logs)
    assert [log["event"] for log in logs] == ["TLS handshake failed"]
    assert "the client refuses our certificate" in logs[0]["reason"]


async def test_server_of_another_name_is_accepted_when_that_name_is_expected(certificates):
    async with serving(server_tls(certificates, "elsewhere")) as port:
        with pool_to(port, certificates, server_name="elsewhere.example") as pool:
            assert await ask(pool) == b"hello"


@pytest.mark.parametrize("server", ["expired", "elsewhere"])
async def test_any_server_is_accepted_when_none_is_verified(certificates, server):
    async with serving(server_tls(certificates, server)) as port:
        with pool_to(port, certificates, ca=None, verify=False) as pool:
            assert await ask(pool) == b"hello"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("client", "to_client", "in_log"),
    [
        (
            None,
            "the server (wants a client certificate|refuses the handshake; it may want)",
            "no certificate",
        ),
        ("strange_client", "the server refuses our client certificate", "not accepted: .*local issuer"),
        ("expired_client", "the server refuses our client certificate", "not accepted: .*expired"),
    ],
)
async def test_client_that_does_not_prove_itself_is_not_served(
    certificates, client, version, to_client, in_log
):
    context = server_tls(certificates, client_ca=certificates.ca)
    context.maximum_version = version
    shown = {}
    if client:
        shown = {"certificate": getattr(certificates, client), "key": getattr(certificates, f"{client}_key")}
    async with serving(context) as port, capturing() as logs:
        with (
            pool_to(port, certificates, **shown) as pool,
            pytest.raises(ConnectFailed, match=rf"^cannot connect to 127.0.0.1:{port}: TLS: {to_client}"),
        ):
            await ask(pool)
        await until(logs)
    (failure,) = logs
    assert failure["event"] == "TLS handshake failed"
    assert re.search(in_log, failure["reason"])


@pytest.mark.parametrize("version", VERSIONS)
async def test_client_with_a_certificate_of_the_authority_is_served(certificates, version):
    context = server_tls(certificates, client_ca=certificates.ca)
    context.maximum_version = version
    shown = {"certificate": certificates.client, "key": certificates.client_key}
    async with serving(context) as port:
        with pool_to(port, certificates, **shown) as pool:
            assert await ask(pool) == b"hello"


async def test_old_version_is_refused_in_both_directions(certificates):
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    old.load_cert_chain(certificates.server, certificates.server_key)
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    async with serving(old) as port:
        with (
            pool_to(port, certificates) as pool,
            pytest.raises(ConnectFailed, match=r"speaks no version of TLS from 1.2 on"),
        ):
            await ask(pool)


async def test_plain_request_to_a_tls_port_is_told_so(certificates):
    async with serving(server_tls(certificates)) as port:
        with HttpPool(HttpOrigin(False, "127.0.0.1", port)) as pool:
            async with requested(pool, "POST", "/", (), LARGE, idempotent=False) as response:
                assert response.status == 400
                assert await response.read() == b"400 this is a TLS port: use https://"


async def test_tls_to_a_plain_port_is_told_so(certificates):
    async with serving(None) as port:
        with (
            pool_to(port, certificates) as pool,
            pytest.raises(ConnectFailed, match="the server does not speak TLS there; is it http://"),
        ):
            await ask(pool)


async def test_server_without_manners_that_wants_tls_is_seen_through(certificates):
    """The standard library answers plain HTTP with an alert, or only closes."""

    async def script(stream):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.server, certificates.server_key)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        incoming.write(b"OPTIONS / HTTP/1.1\r\n\r\n")
        with pytest.raises(ssl.SSLError):
            context.wrap_bio(incoming, outgoing, server_side=True).do_handshake()
        await stream.receive_some()
        await stream.send_all(outgoing.read() or b"\x15\x03\x03\x00\x02\x02\x46")

    async with scripted(script) as port:
        with (
            HttpPool(HttpOrigin(False, "127.0.0.1", port)) as pool,
            pytest.raises(RemoteProtocolError, match="the server speaks TLS there: use https://"),
        ):
            await ask(pool)


async def test_handshake_with_a_silent_server_is_given_up(certificates, monkeypatch):
    monkeypatch.setattr(tls_handshake, "HANDSHAKE_SECONDS", 0.05)
    closed = trio.Event()

    async def say_nothing(stream):
        while await stream.receive_some():
            pass
        closed.set()

    async with scripted(say_nothing) as port:
        with (
            pool_to(port, certificates) as pool,
            pytest.raises(ConnectFailed, match=r"did not end within 0.05 s; does the server speak TLS there"),
        ):
            await ask(pool)
        await closed.wait()


async def test_server_that_leaves_during_the_handshake_is_told(certificates):
    async def leave(stream):
        await stream.receive_some()

    async with scripted(leave) as port:
        with pool_to(port, certificates) as pool, pytest.raises(ConnectFailed, match=r"TLS: .*handshake"):
            await ask(pool)


@pytest.mark.parametrize("begun", [b"", b"\x16", b"\x16\x03\x01\x40\x00" + bytes(50)])
async def test_silent_client_is_cut_off_and_holds_up_nobody(certificates, begun):
    async with (
        serving(server_tls(certificates), head_timeout=1.0) as port,  # longer than a handshake
        await trio.open_tcp_stream("127.0.0.1", port) as silent,
    ):
        if begun:
            await silent.send_all(begun)
        with pool_to(port, certificates) as pool:
            assert await ask(pool) == b"hello"
        with suppress(trio.BrokenResourceError):
            while await silent.receive_some():
                pass


async def test_draining_does_not_wait_for_a_handshake(certificates):
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    stopping = trio.Event()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            context = server_tls(certificates)
            serve = partial(serve_http, refuse=lambda *_: ((), b""), stopping=stopping, tls=lambda: context)
            await nursery.start(serve, listeners, echo)
            async with await trio.open_tcp_stream(*listeners[0].socket.getsockname()) as silent:
                await silent.send_all(b"\x16")
                await trio.testing.wait_all_tasks_blocked()
                stopping.set()
                with suppress(trio.BrokenResourceError):
                    assert not await silent.receive_some()


async def test_too_many_connections_are_told_inside_tls(certificates):
    assert REFUSED_CONNECTIONS >= 1
    async with (
        full_server(certificates) as (_, pool),
        requested(pool, "POST", "/", (), b"", idempotent=False) as response,
    ):
        assert (response.status, await response.read()) == (503, b"503 too many connections")


both = pytest.mark.parametrize("secure", [True, False], ids=["tls", "plain"])


@both
async def test_a_large_body_travels_both_ways_and_comes_back_in_pieces(certificates, secure):
    async def echo_in_pieces(request, reply):
        await reply.open(200, ())
        for start in range(0, len(request.body), 100_000):
            await reply.write(request.body[start : start + 100_000])

    async with serving(server_tls(certificates) if secure else None, echo_in_pieces) as port:
        with pool_to(port, certificates) if secure else plain_pool_to(port) as pool:
            for _ in range(2):
                assert await ask(pool, LARGE) == LARGE


@pytest.mark.parametrize("version", VERSIONS)
async def test_client_of_the_standard_library_is_served(certificates, version):
    context = ssl.create_default_context(cafile=certificates.ca)
    context.maximum_version = version
    async with serving(server_tls(certificates)) as port:
        stream = await trio.open_ssl_over_tcp_stream("localhost", port, ssl_context=context)
        async with stream:
            for _ in range(2):
                await stream.send_all(GET)
                assert b"200 OK" in await stream.receive_some()


@pytest.mark.parametrize("goodbye", [True, False])
async def test_server_of_the_standard_library_is_talked_to(certificates, goodbye):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server, certificates.server_key)

    async def script(stream):
        tls = trio.SSLStream(stream, context, server_side=True, https_compatible=not goodbye)
        data = b""
        while not data.endswith(b"hello"):
            data += await tls.receive_some()
        await tls.send_all(b"HTTP/1.1 200 OK\r\n\r\nto the end")
        await tls.aclose()

    async with scripted(script) as port:
        with pool_to(port, certificates) as pool:
            assert await ask(pool) == b"to the end"
            assert await ask(pool) == b"to the end"


async def test_refused_client_reads_why_even_if_it_has_sent_much(certificates):
    """Refuse a client that has sent, in TLS 1.3, before the server looked at its certificate."""
    context = ssl.create_default_context(cafile=certificates.ca)
    async with (
        serving(server_tls(certificates, client_ca=certificates.ca)) as port,
        await trio.open_ssl_over_tcp_stream("localhost", port, ssl_context=context) as stream,
    ):
        await stream.send_all(GET + bytes(300_000))
        with pytest.raises(trio.BrokenResourceError) as caught:
            await stream.receive_some()
        assert "CERTIFICATE_REQUIRED" in str(caught.value.__cause__)


async def test_client_above_the_limit_that_says_nothing_is_sent_nothing(certificates):
    async with (
        full_server(certificates, head_timeout=0.1) as (port, _),
        await trio.open_tcp_stream("127.0.0.1", port) as silent,
    ):
        assert await silent.receive_some() == b""
