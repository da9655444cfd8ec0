"""`WebClient`: requests go where they may, are bounded, and disclose no more than asked for."""

from __future__ import annotations

import gzip
import re
from base64 import b64encode
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from mcpmux.config import ClientTls
from mcpmux.errors import (
    ConfigError,
    ConnectFailed,
    McpmuxError,
    MessageTooLarge,
    RemoteProtocolError,
    TransportClosed,
    TransportError,
)
from mcpmux.transports import web_client
from mcpmux.transports.http.message import HEAD_FIELDS
from mcpmux.transports.http.route import parse_proxy
from mcpmux.transports.web_client import MOST_ADDRESSES, WebClient
from tests.transports.forward_proxy import open_proxy
from tests.transports.test_https import echo, scripted, server_tls, serving

ACCEPT = (("Accept", "application/json"),)
NOWHERE = "nowhere.invalid"  # no resolver knows it (RFC 6761, section 6.4)


def answering(answer, seen=None):
    """Return a script that reads one request and says `answer`, then hangs up."""

    async def script(stream):
        data = b""
        while b"\r\n\r\n" not in data:
            data += await stream.receive_some()
        if seen is not None:
            seen.append(data)
        with suppress(trio.BrokenResourceError):
            await stream.send_all(answer)

    return script


def finding(*addresses, asked=None):
    async def find(host, port):
        if asked is not None:
            asked.append((host, port))
        return addresses

    return find


async def refusing(host, _port):
    raise RemoteProtocolError(f"{host} is not to be asked")


# ── what is sent and what comes back ──────────────────────────────────────────────────────────────


async def test_a_request_says_what_it_is_told_and_little_more():
    seen: list[Any] = []

    async def handler(request, reply):
        seen.append(request)
        await reply.send(201, (("A-B", "c"), ("a-b", "d")), b"hi")

    async with serving(None, handler) as port:
        fields = (*ACCEPT, ("X-Secret", "s"))
        answer = await WebClient().ask("POST", f"http://127.0.0.1:{port}/a?b=%20c", fields, b"body")
    assert (answer.status, answer.body, answer.headers["a-b"]) == (201, b"hi", "c, d")
    (request,) = seen
    assert (request.method, request.path, request.query, request.body) == ("POST", "/a", "b=%20c", b"body")
    assert dict(request.headers) == {
        "host": f"127.0.0.1:{port}",
        "accept": "application/json",
        "accept-encoding": "identity",
        "connection": "keep-alive",
        "content-length": "4",
        "user-agent": "mcpmux",
        "x-secret": "s",
    }


async def test_a_connection_serves_one_request_and_is_closed():
    ended, both = [], trio.Event()

    async def script(stream):
        await answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")(stream)
        ended.append(await stream.receive_some())
        if len(ended) == 2:
            both.set()

    async with scripted(script) as port:
        for _ in range(2):
            assert (await WebClient().ask("GET", f"http://127.0.0.1:{port}/", ())).status == 200
        with trio.fail_after(5):
            await both.wait()
    assert ended == [b"", b""]


async def test_no_redirect_is_followed():
    seen: list[Any] = []
    moved = b"HTTP/1.1 307 Elsewhere\r\nLocation: /there\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n"
    async with scripted(answering(moved, seen)) as port:
        for _ in range(2):
            answer = await WebClient().ask("GET", f"http://127.0.0.1:{port}/here", ACCEPT)
            assert (answer.status, answer.headers["location"]) == (307, "/there")
    assert [head.split()[1] for head in seen] == [b"/here", b"/here"]
    assert not re.search(rb"(?i)cookie", seen[1])


async def test_nothing_is_decompressed():
    packed = gzip.compress(b"hello")
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    async with scripted(answering(head + packed)) as port:
        assert (await WebClient().ask("GET", f"http://127.0.0.1:{port}/", ())).body == packed


async def test_the_environment_counts_for_nothing(monkeypatch, tmp_path):
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password PLANTED\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    seen: list[Any] = []
    async with scripted(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", seen)) as port:
        assert (await WebClient().ask("GET", f"http://127.0.0.1:{port}/", ())).status == 200
    assert b"uthorization" not in seen[0]


@pytest.mark.parametrize(
    "url", ["", "nonsense", "ftp://h/", "http://", "http://me:PLANTED@h/", "http://h:99999/", "http://\n/"]
)
async def test_what_is_no_url_of_a_server_is_not_asked(url):
    with pytest.raises(RemoteProtocolError, match="is none") as caught:
        await WebClient().ask("GET", url, ())
    assert "PLANTED" not in str(caught.value)


def test_one_module_knows_the_library():
    package = Path(web_client.__file__).parents[1]
    knowing = re.compile(r"^\s*(?:import|from) (?:httpx|httpcore)\b", re.MULTILINE)
    assert [path.name for path in package.rglob("*.py") if knowing.search(path.read_text())] == [
        "web_client.py"
    ]


# ── bounds ────────────────────────────────────────────────────────────────────────────────────────

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDLESS = b"HTTP/1.1 200 OK\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        LENGTH % 101,  # and not a byte of it
        LENGTH % 10**15,
        CHUNKED + b"65\r\n" + b"x" * 101 + b"\r\n0\r\n\r\n",
        CHUNKED + b"32\r\n" + b"x" * 50 + b"\r\n33\r\n" + b"x" * 51 + b"\r\n",
        ENDLESS + b"x" * 101,
    ],
)
async def test_a_body_that_is_too_large_is_refused(answer):
    async with scripted(answering(answer)) as port:
        with pytest.raises(MessageTooLarge, match="larger than 100 bytes"):
            await WebClient(body_bytes=100).ask("GET", f"http://127.0.0.1:{port}/", ())


@pytest.mark.parametrize(
    "answer",
    [LENGTH % 100 + b"x" * 100, CHUNKED + b"64\r\n" + b"x" * 100 + b"\r\n0\r\n\r\n", ENDLESS + b"x" * 100],
)
async def test_a_body_that_just_fits_is_taken(answer):
    async with scripted(answering(answer)) as port:
        answer = await WebClient(body_bytes=100).ask("GET", f"http://127.0.0.1:{port}/", ())
    assert answer.body == b"x" * 100


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (b"A: " + b"a" * 2000 + b"\r\n", "head is larger than 1000 bytes"),
        (b"A: a\r\n" * (HEAD_FIELDS + 1), f"more than {HEAD_FIELDS} header fields"),
        (b"A: " + b"a" * 10**6, "no whole HTTP response"),
    ],
)
async def test_a_head_that_is_too_large_is_refused(fields, why):
    async with scripted(answering(b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n")) as port:
        with pytest.raises(RemoteProtocolError, match=why):
            await WebClient(head_bytes=1000).ask("GET", f"http://127.0.0.1:{port}/", ())


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        LENGTH % 5 + b"hell",
        CHUNKED + b"nonsense",
        CHUNKED + b"5\r\nhello\r\n",
    ],
)
async def test_an_incomplete_response_is_an_error_that_repeats_no_request(answer):
    async with scripted(answering(answer)) as port:
        with pytest.raises((RemoteProtocolError, TransportError)) as caught:
            await WebClient().ask(
                "GET", f"http://127.0.0.1:{port}/?q=PLANTED", (("X", "PLANTED"),), b"PLANTED"
            )
    assert f"127.0.0.1:{port}" in str(caught.value)
    assert "PLANTED" not in str(caught.value)


async def test_whoever_cancels_leaves_no_connection_behind():
    ended = trio.Event()

    async def hang(stream):
        await stream.receive_some()
        scope.cancel()
        assert await stream.receive_some() == b""
        ended.set()

    async with scripted(hang) as port:
        with trio.CancelScope() as scope:
            await WebClient().ask("GET", f"http://127.0.0.1:{port}/", ())
        assert scope.cancelled_caught
        with trio.fail_after(5):
            await ended.wait()


async def test_a_stream_is_read_as_it_comes_and_left_at_will():
    ended = trio.Event()

    async def script(stream):
        await stream.receive_some()
        await stream.send_all(CHUNKED)
        with suppress(trio.BrokenResourceError):
            while True:
                await stream.send_all(b"5\r\nhello\r\n" * 3)
                await trio.lowlevel.checkpoint()
        ended.set()

    async with scripted(script) as port:
        client = WebClient(body_bytes=1)  # which is for what is read whole
        async with client.open("GET", f"http://127.0.0.1:{port}/", ()) as response:
            text = b""
            async for chunk in response:
                text += chunk
                if len(text) > 10:
                    break
        assert text.startswith(b"hellohello")
        with trio.fail_after(5):
            await ended.wait()


async def test_a_failure_of_the_reader_stays_what_it_is():
    async with scripted(answering(LENGTH % 5 + b"hello")) as port:
        with pytest.raises(KeyError):
            async with WebClient().open("GET", f"http://127.0.0.1:{port}/", ()):
                raise KeyError


# ── where it goes ─────────────────────────────────────────────────────────────────────────────────


async def test_what_was_found_is_connected_to_and_the_name_is_not_resolved():
    queries: list[Any] = []
    seen: list[Any] = []
    async with scripted(answering(LENGTH % 0, seen)) as port:
        client = WebClient(find=finding("127.0.0.1", asked=queries))
        assert (await client.ask("GET", f"http://{NOWHERE}:{port}/", ())).status == 200
    assert queries == [(NOWHERE, port)]
    assert f"\r\nHost: {NOWHERE}:{port}\r\n".encode() in seen[0]


async def test_what_is_not_to_be_asked_is_not_connected_to():
    seen: list[Any] = []
    async with scripted(answering(LENGTH % 0, seen)) as port:
        with pytest.raises(RemoteProtocolError, match=r"127\.0\.0\.1 is not to be asked"):
            await WebClient(find=refusing).ask("GET", f"http://127.0.0.1:{port}/", ())
    assert seen == []


async def test_the_port_that_is_asked_about_is_that_of_the_scheme():
    queries: list[Any] = []
    for scheme in ("http", "https"):
        with pytest.raises(ConnectFailed):
            await WebClient(find=finding(asked=queries)).ask("GET", f"{scheme}://{NOWHERE}/", ())
    assert queries == [(NOWHERE, 80), (NOWHERE, 443)]


async def test_addresses_are_tried_in_their_order_and_not_all_of_many():
    async with scripted(answering(LENGTH % 0)) as port:
        url = f"http://{NOWHERE}:{port}/"
        deaf = [f"127.0.0.{last}" for last in range(2, 2 + MOST_ADDRESSES)]
        assert (await WebClient(find=finding(*deaf[1:], "127.0.0.1")).ask("GET", url, ())).status == 200
        with pytest.raises(ConnectFailed, match=f"cannot connect to {NOWHERE}:{port}: connection refused"):
            await WebClient(find=finding(*deaf, "127.0.0.1")).ask("GET", url, ())


async def test_nobody_there_is_told():
    with pytest.raises(ConnectFailed, match=r"^cannot connect to 127\.0\.0\.1:1: connection refused$"):
        await WebClient().ask("GET", "http://127.0.0.1:1/?q=PLANTED", ())


# ── TLS ───────────────────────────────────────────────────────────────────────────────────────────


def trusting(certificates, **more):
    return ClientTls(**{"ca": certificates.ca, **more})


async def test_a_server_proves_its_name_though_it_is_reached_by_address(certificates):
    names = []
    context = server_tls(certificates)
    context.sni_callback = lambda _tls, name, _context: names.append(name)
    async with serving(context) as port:
        client = WebClient(trusting(certificates), find=finding("127.0.0.1"))
        assert (await client.ask("POST", f"https://localhost:{port}/", (), b"hi")).body == b"hi"
        with pytest.raises(ConnectFailed, match="TLS: the server's certificate is for another name"):
            await client.ask("GET", f"https://{NOWHERE}:{port}/", ())
    assert names == ["localhost", NOWHERE]


@pytest.mark.parametrize(
    ("host", "found"),
    [("localhost.", "127.0.0.1"), ("localhost", "::1"), ("[::1]", "::1"), ("127.0.0.1", None)],
)
async def test_names_and_addresses_of_every_kind_are_verified(certificates, host, found):
    async with serving(server_tls(certificates), host=found or host) as port:
        client = WebClient(trusting(certificates), find=found and finding(found))
        assert (await client.ask("POST", f"https://{host}:{port}/", (), b"hi")).body == b"hi"


@pytest.mark.parametrize(
    ("server", "tls", "why"),
    [
        ("expired", {}, "the server's certificate has expired"),
        ("server", {"ca": None}, "TLS: "),
        ("server", {"server_name": "elsewhere.example"}, "for another name"),
        ("elsewhere", {}, "for another name"),
    ],
)
async def test_a_bad_certificate_is_told(certificates, server, tls, why):
    async with serving(server_tls(certificates, server)) as port:
        with pytest.raises(ConnectFailed, match=f"^cannot connect to 127.0.0.1:{port}: TLS: .*{why}|{why}"):
            await WebClient(trusting(certificates, **tls)).ask("GET", f"https://127.0.0.1:{port}/", ())


async def test_settings_of_tls_count(certificates):
    wants = server_tls(certificates, "elsewhere", client_ca=certificates.ca)
    shown = {"certificate": certificates.client, "key": certificates.client_key}
    async with serving(wants) as port:
        url = f"https://127.0.0.1:{port}/"
        named = trusting(certificates, server_name="elsewhere.example", **shown)
        assert (await WebClient(named).ask("POST", url, (), b"hi")).body == b"hi"
        careless = ClientTls(verify=False, **shown)
        assert (await WebClient(careless).ask("POST", url, (), b"hi")).body == b"hi"
        with pytest.raises(TransportError, match="wants a client certificate"):
            await WebClient(trusting(certificates, server_name="elsewhere.example")).ask("GET", url, ())
    with pytest.raises(ConfigError, match=r"tls\.ca"):
        await WebClient(ClientTls(ca=certificates.missing)).ask("GET", url, ())


# ── proxies ───────────────────────────────────────────────────────────────────────────────────────

BASIC = b"Basic " + b64encode(b"me:PLANTED")


def proxy_at(proxy, user="", scheme="http"):
    return parse_proxy(f"{scheme}://{user}127.0.0.1:{proxy.port}", "proxy")


async def test_plain_requests_go_through_a_proxy_whole(certificates):
    seen: list[Any] = []

    async def handler(request, reply):
        seen.append(request.headers)
        await echo(request, reply)

    async with serving(None, handler) as port, open_proxy(BASIC, {"api.example": port}) as proxy:
        client = WebClient(proxy=proxy_at(proxy, "me:PLANTED@"), find=refusing)
        assert (await client.ask("POST", "http://api.example/a?b", (), b"hi")).body == b"hi"
    assert proxy.requests == [("POST", "http://api.example/a?b")]
    assert seen[0]["host"] == "api.example"
    assert "proxy-authorization" not in seen[0]


@pytest.mark.parametrize("tls", [{}, {"server_name": "localhost"}])
async def test_https_goes_through_a_tunnel_and_is_verified_behind_it(certificates, tls):
    host = "api.example" if tls else "localhost"
    async with serving(server_tls(certificates)) as port, open_proxy(BASIC, {host: port}) as proxy:
        client = WebClient(trusting(certificates, **tls), proxy_at(proxy, "me:PLANTED@"), refusing)
        assert (await client.ask("POST", f"https://{host}/x", (), b"hi")).body == b"hi"
        with pytest.raises(ConnectFailed, match="for another name") as caught:
            await client._replace(tls=trusting(certificates)).ask("GET", f"https://other.example:{port}/", ())
    assert proxy.requests == [("CONNECT", f"{host}:443"), ("CONNECT", f"other.example:{port}")]
    assert "PLANTED" not in str(caught.value)


async def test_the_proxy_itself_may_be_behind_tls(certificates, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", certificates.ca)  # which OpenSSL takes for the system's authorities
    async with (
        serving(server_tls(certificates, "elsewhere")) as port,
        open_proxy(None, {"elsewhere.example": port}, server_tls(certificates)) as proxy,
    ):
        client = WebClient(trusting(certificates), proxy_at(proxy, scheme="https"))
        assert (await client.ask("POST", "https://elsewhere.example/", (), b"hi")).body == b"hi"
        monkeypatch.setenv("SSL_CERT_FILE", certificates.strange_ca)
        with pytest.raises(ConnectFailed, match=r"through the proxy https://127\.0\.0\.1:.*TLS"):
            await client.ask("GET", "https://elsewhere.example/", ())


@pytest.mark.parametrize(
    "url", ["http://10.0.0.1/", "https://10.0.0.1/", "http://[fd00::1]/", "http://2130706433/"]
)
async def test_an_address_is_judged_although_a_proxy_connects_to_it(url):
    async with open_proxy() as proxy:
        with pytest.raises(RemoteProtocolError, match="is not to be asked"):
            await WebClient(proxy=proxy_at(proxy), find=refusing).ask("GET", url, ())
    assert proxy.requests == []


@pytest.mark.parametrize("url", ["http://api.example/", "https://api.example/"])
@pytest.mark.parametrize(
    ("user", "why"), [("", "asks for credentials"), ("me:PLANTED2@", "refuses the user and")]
)
async def test_a_proxy_that_wants_credentials_is_told(url, user, why):
    async with open_proxy(BASIC) as proxy:
        with pytest.raises(ConnectFailed, match=f"the proxy http://127.0.0.1:{proxy.port} {why}") as caught:
            await WebClient(proxy=proxy_at(proxy, user)).ask("GET", url, ())
    assert "PLANTED" not in str(caught.value)


async def test_a_proxy_that_does_not_connect_is_told():
    async with scripted(answering(b"HTTP/1.1 502 Bad \x1b Gateway\r\nContent-Length: 0\r\n\r\n")) as port:
        proxy = parse_proxy(f"http://127.0.0.1:{port}", "proxy")
        with pytest.raises(McpmuxError) as caught:
            await WebClient(proxy=proxy).ask("GET", "https://api.example/", ())
    assert caught.value.in_full.isprintable()
    async with scripted(answering(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")) as port:
        proxy = parse_proxy(f"http://127.0.0.1:{port}", "proxy")
        with pytest.raises(ConnectFailed, match=r"does not connect to api.example: status 502$") as refused:
            await WebClient(proxy=proxy).ask("GET", "https://api.example/", ())
        assert refused.value.in_full.endswith("status 502 (Bad Gateway)")
    with pytest.raises(ConnectFailed, match=f"through the proxy http://127.0.0.1:{port}: connection refused"):
        await WebClient(proxy=proxy).ask("GET", "https://api.example/", ())


async def test_a_connection_that_breaks_is_told():
    async def script(stream):
        await stream.receive_some()
        stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    async with scripted(script) as port:
        with pytest.raises(TransportClosed, match=f"the connection to 127.0.0.1:{port} broke off"):
            await WebClient().ask("GET", f"http://127.0.0.1:{port}/", ())
