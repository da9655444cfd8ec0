from __future__ import annotations

import os
import ssl
from base64 import b64encode
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from mcpmux.config import ClientTls, Secret
from mcpmux.errors import ConfigError, ConnectFailed
from mcpmux.transports.http import route as http_route
from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.http.route import HttpOrigin, Proxy, Route, choose_proxy, is_loopback, parse_proxy
from mcpmux.transports.tls import client_context
from tests.http_request import requested
from tests.transports.forward_proxy import open_proxy
from tests.transports.test_https import echo, scripted, server_tls, serving

HTTP = HttpOrigin.from_url("http://api.example.com/mcp")
HTTPS = HttpOrigin.from_url("https://api.example.com/mcp")
ONE, TWO = "http://one.example:3128", "http://two.example:8080"
PASSWORD = "p@ss:PLANTED"
BASIC = b"Basic " + b64encode(b"me:" + PASSWORD.encode())


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch):
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name == "REQUEST_METHOD":
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("environ", "origin", "chosen"),
    [
        ({}, HTTP, None),
        ({"HTTP_PROXY": ONE}, HTTP, ONE),
        ({"HTTP_PROXY": ONE}, HTTPS, None),
        ({"HTTPS_PROXY": ONE}, HTTPS, ONE),
        ({"https_proxy": ONE}, HTTPS, ONE),
        ({"https_proxy": ONE, "HTTPS_PROXY": TWO}, HTTPS, ONE),
        ({"ALL_PROXY": ONE}, HTTP, ONE),
        ({"all_proxy": ONE}, HTTPS, ONE),
        ({"ALL_PROXY": ONE, "HTTP_PROXY": TWO}, HTTP, TWO),
        ({"HTTP_PROXY": ""}, HTTP, None),
        ({"HTTP_PROXY": "one.example:3128"}, HTTP, ONE),
        ({"HTTP_PROXY": ONE, "REQUEST_METHOD": "GET"}, HTTP, None),
        ({"http_proxy": ONE, "REQUEST_METHOD": "GET"}, HTTP, ONE),
        ({"HTTP_PROXY": ONE, "NO_PROXY": "*"}, HTTP, None),
        ({"HTTP_PROXY": ONE, "NO_PROXY": "other.example, api.example.com"}, HTTP, None),
        ({"HTTP_PROXY": ONE, "no_proxy": ".example.com"}, HTTP, None),
        ({"HTTP_PROXY": ONE, "NO_PROXY": "example.com"}, HTTP, None),
        ({"HTTP_PROXY": ONE, "NO_PROXY": "ample.com"}, HTTP, ONE),
        ({"HTTP_PROXY": ONE, "NO_PROXY": "api.example.com:80"}, HTTP, None),
        ({"HTTP_PROXY": ONE, "NO_PROXY": "api.example.com:81"}, HTTP, ONE),
        ({"HTTP_PROXY": ONE, "NO_PROXY": "10.0.0.0/8"}, HttpOrigin(False, "10.1.2.3", 80), None),
        ({"HTTP_PROXY": ONE, "NO_PROXY": "10.0.0.0/8"}, HttpOrigin(False, "11.1.2.3", 80), ONE),
        ({"HTTP_PROXY": ONE, "NO_PROXY": "10.0.0.0/8"}, HTTP, ONE),
        ({"HTTP_PROXY": ONE, "NO_PROXY": "fd00::/8"}, HttpOrigin(False, "fd00::1", 80), None),
        ({"HTTP_PROXY": ONE, "NO_PROXY": "[fd00::1]"}, HttpOrigin(False, "fd00::1", 80), None),
        ({"HTTP_PROXY": ONE}, HttpOrigin(False, "localhost", 80), None),
        ({"HTTP_PROXY": ONE}, HttpOrigin(False, "127.8.9.10", 80), None),
        ({"HTTP_PROXY": ONE}, HttpOrigin(False, "::1", 80), None),
    ],
)
def test_environment_decides(monkeypatch, environ, origin, chosen):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    proxy = choose_proxy(origin, None)
    assert (None if proxy is None else str(proxy)) == chosen


@pytest.mark.parametrize(("setting", "chosen"), [("", None), (TWO, TWO)])
def test_setting_outranks_the_environment_and_its_exceptions(monkeypatch, setting, chosen):
    monkeypatch.setenv("HTTP_PROXY", ONE)
    monkeypatch.setenv("NO_PROXY", "*")
    for origin in (HTTP, HttpOrigin(False, "127.0.0.1", 80)):
        proxy = choose_proxy(origin, Secret(setting))
        assert (None if proxy is None else str(proxy)) == chosen


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("http://one.example", Proxy(HttpOrigin(False, "one.example", 80))),
        ("https://one.example/", Proxy(HttpOrigin(True, "one.example", 443))),
        ("http://[::1]:3128", Proxy(HttpOrigin(False, "::1", 3128))),
        ("http://me@h", Proxy(HttpOrigin(False, "h", 80), "Basic " + b64encode(b"me:").decode())),
        ("me:p%40ss:PLANTED@h:1", Proxy(HttpOrigin(False, "h", 1), BASIC.decode())),
    ],
)
def test_url_of_a_proxy(url, proxy):
    assert parse_proxy(url, "proxy") == proxy
    assert proxy.authorization is None or proxy.authorization not in repr(proxy) + str(proxy)


@pytest.mark.parametrize(
    "url", ["socks5://me:PLANTED@h:1", "http://", "http://me:PLANTED@h:99999", "ftp://h"]
)
def test_what_is_no_http_proxy_is_named_by_its_source(monkeypatch, url):
    monkeypatch.setenv("ALL_PROXY", url)
    with pytest.raises(ConfigError, match=r"^environment variable ALL_PROXY: expected the URL of") as caught:
        choose_proxy(HTTP, None)
    assert "PLANTED" not in str(caught.value)
    assert ("SOCKS" in str(caught.value)) == url.startswith("socks")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.1.2.3", "::1"])
def test_loopback_is_known(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["localhost.example", "10.0.0.1", "mylocalhost", "::2", "0.0.0.0"])
def test_other_hosts_are_no_loopback(host):
    assert not is_loopback(host)


async def ask(pool, body=b"hello", target="/a?b=c"):
    async with requested(pool, "POST", target, (), body, idempotent=False) as response:
        return await response.read()


def proxy_at(port, userinfo="", scheme="http"):
    return parse_proxy(f"{scheme}://{userinfo}127.0.0.1:{port}", "proxy")


@asynccontextmanager
async def through(origin, port, userinfo="", certificates=None):
    tls = partial(client_context, ClientTls(ca=certificates.ca)) if certificates else None
    with (
        trio.fail_after(60),
        HttpPool(origin, route=Route(origin, tls, None, proxy_at(port, userinfo))) as pool,
    ):
        yield pool


async def test_plain_requests_go_by_way_of_the_proxy_on_one_connection():
    seen = []

    async def handler(request, reply):
        seen.append((request.path, request.query, request.headers))
        await echo(request, reply)

    async with (
        serving(None, handler) as port,
        open_proxy(places={"api.example.com": port}) as proxy,
        through(HTTP, proxy.port) as pool,
    ):
        assert [await ask(pool) for _ in range(3)] == [b"hello"] * 3
    assert proxy.requests == [("POST", "http://api.example.com/a?b=c")] * 3
    assert proxy.connections == 1
    assert [headers["host"] for _, _, headers in seen] == ["api.example.com"] * 3


async def test_secure_requests_go_through_one_tunnel(certificates):
    origin = HttpOrigin(True, "localhost", 8443)
    async with (
        serving(server_tls(certificates)) as port,
        open_proxy(BASIC, {"localhost": port}) as proxy,
        through(origin, proxy.port, f"me:{PASSWORD.replace('@', '%40')}@", certificates) as pool,
    ):
        assert [await ask(pool) for _ in range(3)] == [b"hello"] * 3
    assert proxy.requests == [("CONNECT", "localhost:8443")]
    assert proxy.connections == 1


async def test_tunnel_does_not_excuse_a_server_from_proving_itself(certificates):
    origin = HttpOrigin(True, "api.example.com", 443)
    async with (
        serving(server_tls(certificates)) as port,
        open_proxy(places={"api.example.com": port}) as proxy,
        through(origin, proxy.port, "", certificates) as pool,
    ):
        with pytest.raises(ConnectFailed, match="certificate is for another name"):
            await ask(pool)


@pytest.mark.parametrize("secure", [False, True])
async def test_proxy_may_itself_be_inside_tls(certificates, secure):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server, certificates.server_key)
    trusting = partial(client_context, ClientTls(ca=certificates.ca))
    origin = HttpOrigin(secure, "localhost", 4444)
    async with (
        serving(server_tls(certificates) if secure else None) as port,
        open_proxy(BASIC, {"localhost": port}, context) as proxy,
    ):
        there = proxy_at(proxy.port, "me:p%40ss%3APLANTED@", "https")
        route = Route(origin, trusting if secure else None, None, there, trusting)
        with trio.fail_after(60), HttpPool(origin, route=route) as pool:
            assert [await ask(pool, b"x" * 300_000) for _ in range(2)] == [b"x" * 300_000] * 2
    assert proxy.connections == 1


@pytest.mark.parametrize("secure", [False, True])
async def test_streams_arrive_piece_by_piece_and_leaving_them_is_noticed(certificates, secure):
    is_received, cancelled = trio.Event(), trio.Event()

    async def tell(_request, reply):
        await reply.open(200, (), b"1")
        await is_received.wait()
        await reply.write(b"2")
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    origin = HttpOrigin(secure, "localhost", 4444)
    async with (
        serving(server_tls(certificates) if secure else None, tell) as port,
        open_proxy(places={"localhost": port}) as proxy,
        through(origin, proxy.port, "", certificates if secure else None) as pool,
    ):
        async with requested(pool, "GET", "/", (), b"", idempotent=True) as response:
            assert await response.receive_some() == b"1"
            is_received.set()
            assert await response.receive_some() == b"2"
        await cancelled.wait()


@pytest.mark.parametrize("origin", [HTTP, HTTPS])
@pytest.mark.parametrize(
    ("userinfo", "problem"),
    [
        ("", "asks for credentials; put user and password into its URL"),
        ("me:PLANTED@", "refuses the user and"),
    ],
)
async def test_proxy_that_wants_other_credentials_is_named_and_they_are_not(
    certificates, origin, userinfo, problem
):
    async with open_proxy(BASIC) as proxy:
        secure = certificates if origin.secure else None
        async with through(origin, proxy.port, userinfo, secure) as pool:
            with pytest.raises(
                ConnectFailed, match=f"the proxy http://127.0.0.1:{proxy.port} {problem}"
            ) as caught:
                await ask(pool)
    assert "PLANTED" not in str(caught.value) + repr(pool)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"HTTP/1.1 403 Filtered\r\n\r\n", r"does not connect to api.example.com:443: status 403$"),
        (b"HTTP/1.0 502\r\n\r\n", "does not connect to api.example.com:443: status 502$"),
        (b"SSH-2.0-x\r\n", "what answers at .* is no HTTP proxy"),
        (b"HTTP/1.1 yes\r\n\r\n", "what answers at .* is no HTTP proxy"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 5000, "what answers at .* is no HTTP proxy"),
        (b"HTTP/1.1 200 OK\r\n\r\nmore", "sends bytes that nobody asked for"),
        (b"HTTP/1.1 200 OK\r\n", "closed the connection instead of an answer"),
        (b"", "closed the connection instead of an answer"),
    ],
)
async def test_proxy_that_makes_no_tunnel_is_told_in_clear_words(certificates, answer, problem):
    async def script(stream):
        await stream.receive_some()
        await stream.send_all(answer)

    async with scripted(script) as port, through(HTTPS, port, "me:PLANTED@", certificates) as pool:
        with pytest.raises(ConnectFailed, match=problem) as caught:
            await ask(pool)
    assert f"http://127.0.0.1:{port}" in str(caught.value)
    assert "PLANTED" not in str(caught.value)


async def test_silent_proxy_is_given_up(certificates, monkeypatch):
    monkeypatch.setattr(http_route, "TUNNEL_SECONDS", 0.05)
    closed = trio.Event()

    async def script(stream):
        while await stream.receive_some():
            pass
        closed.set()

    async with scripted(script) as port, through(HTTPS, port, "", certificates) as pool:
        with pytest.raises(ConnectFailed, match=r"did not connect to api.example.com:443 within 0.05 s"):
            await ask(pool)
        await closed.wait()


@pytest.mark.parametrize("origin", [HTTP, HTTPS])
async def test_proxy_that_is_down_is_named(certificates, origin):
    async with scripted(partial(trio.sleep, 0)) as port:
        pass
    secure = certificates if origin.secure else None
    async with through(origin, port, "me:PLANTED@", secure) as pool:
        with pytest.raises(
            ConnectFailed, match=f"^the proxy http://127.0.0.1:{port} cannot be used: .*connection refused"
        ) as caught:
            await ask(pool)
    assert "PLANTED" not in str(caught.value)
