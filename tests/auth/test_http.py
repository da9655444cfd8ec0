"""Requests to authorization servers: to whom they go, by which way, and within what bounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import trio

from mcpmux.auth import discovery
from mcpmux.auth.discovery import BODY_BYTES, HEAD_BYTES, OAuthHttp, fetch_json
from mcpmux.config import ClientTls, Http, OAuth, Secret
from mcpmux.errors import ConnectFailed, MessageTooLarge, RemoteProtocolError, TransportError
from tests.transports.certificates import Certificates
from tests.transports.forward_proxy import open_proxy
from tests.transports.test_https import server_tls, serving

OWN = "http://127.0.0.1:1/mcp"
METADATA = "169.254.169.254"


def make_http(
    own: str = OWN, tls: ClientTls | None = None, ca: str | None = None, proxy: str | None = None
) -> OAuthHttp:
    secret = None if proxy is None else Secret(proxy)
    return OAuthHttp(Http(own, tls=tls or ClientTls(), oauth=OAuth(ca=ca), proxy=secret))


class Resolver(trio.abc.HostnameResolver):
    """Gives the addresses of `answers`, one after the other, and the last one again and again."""

    def __init__(self, *answers: str) -> None:
        self.asked: list[str] = []
        self._answers = list(answers)

    async def getaddrinfo(self, host: Any, port: Any, *_: Any) -> list[Any]:
        self.asked.append(host.decode() if isinstance(host, bytes) else host)
        address = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        family = trio.socket.AF_INET6 if ":" in address else trio.socket.AF_INET
        return [(family, trio.socket.SOCK_STREAM, 6, "", (address, port))]

    async def getnameinfo(self, *_: Any) -> tuple[str, str]:
        raise AssertionError("nobody asks for names")


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


async def reply_ok(request: Any, reply: Any) -> None:
    await reply.send(200, (("Content-Type", "application/json"),), request.body or b"{}")


# ── addresses ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_name_is_resolved_once_and_what_was_judged_is_asked(certificates: Certificates) -> None:
    """DNS rebinding: the second answer would be the cloud's metadata."""
    async with serving(server_tls(certificates, "elsewhere"), reply_ok) as port:
        resolver = Resolver("127.0.0.1", METADATA)
        trio.socket.set_custom_hostname_resolver(resolver)
        asking = make_http(ca=certificates.ca)
        assert (await asking.ask(f"https://elsewhere.example:{port}/")).status == 200
        assert resolver.asked == ["elsewhere.example"]
        with pytest.raises(RemoteProtocolError, match="is at a link-local or cloud metadata address"):
            await asking.ask(f"https://elsewhere.example:{port}/")
        assert resolver.asked == ["elsewhere.example"] * 2


@pytest.mark.parametrize("address", ["10.0.0.1", "fd00::1", METADATA, "fe80::1", "100.100.100.200"])
async def test_a_name_that_resolves_to_a_forbidden_address_is_not_connected(address: str) -> None:
    trio.socket.set_custom_hostname_resolver(Resolver(address))
    with pytest.raises(RemoteProtocolError, match="which it names for authorization, is at a"):
        await make_http().ask("https://as.example/token", (), b"SECRET")


async def test_a_host_of_the_configuration_is_asked_wherever_it_is() -> None:
    async with serving(None, reply_ok) as port:
        trio.socket.set_custom_hostname_resolver(Resolver("127.0.0.1"))
        answer = await make_http(f"http://intern.example:{port}/mcp").ask(f"http://intern.example:{port}/x")
    assert answer.body == b"{}"


# ── TLS ───────────────────────────────────────────────────────────────────────────────────────────


async def test_the_upstream_has_its_own_settings_and_all_others_their_authorities(
    certificates: Certificates,
) -> None:
    asks = server_tls(certificates, "elsewhere", client_ca=certificates.ca)
    own_tls = ClientTls(
        ca=certificates.ca,
        certificate=certificates.client,
        key=certificates.client_key,
        server_name="elsewhere.example",
    )
    async with serving(asks, reply_ok) as own, serving(server_tls(certificates), reply_ok) as other:
        url = f"https://127.0.0.1:{own}/mcp"
        asking = make_http(url, own_tls, certificates.ca)
        assert (await asking.ask(url)).status == 200
        assert (await asking.ask(f"https://127.0.0.1:{other}/")).status == 200
        with pytest.raises(ConnectFailed, match="TLS"):
            await make_http(url, own_tls, certificates.strange_ca).ask(f"https://127.0.0.1:{other}/")
        with pytest.raises(TransportError, match=r"tls\.ca: "):
            await make_http(url, own_tls, certificates.missing).ask(f"https://127.0.0.1:{other}/")


async def test_keys_of_an_issuer_are_fetched_with_its_authorities(certificates: Certificates) -> None:
    async with serving(server_tls(certificates), reply_ok) as port:
        assert await fetch_json(f"https://localhost:{port}/keys", certificates.ca) == b"{}"
        with pytest.raises(ConnectFailed, match="TLS"):
            await fetch_json(f"https://localhost:{port}/keys", None)


# ── proxies ───────────────────────────────────────────────────────────────────────────────────────


async def test_the_upstreams_proxy_is_that_of_its_authorization_server(certificates: Certificates) -> None:
    async with (
        serving(server_tls(certificates, "elsewhere"), reply_ok) as port,
        open_proxy(places={"elsewhere.example": port}) as proxy,
    ):
        trio.socket.set_custom_hostname_resolver(Resolver(METADATA))  # whom the proxy asks is its affair
        asking = make_http(ca=certificates.ca, proxy=f"http://127.0.0.1:{proxy.port}")
        assert (await asking.ask("https://elsewhere.example/")).status == 200
        for address in ("10.0.0.1", METADATA, "[fd00::1]"):
            with pytest.raises(RemoteProtocolError, match="is at a"):
                await asking.ask(f"https://{address}/")
    assert proxy.requests == [("CONNECT", "elsewhere.example:443")]


async def test_the_environment_names_a_proxy_that_the_setting_outranks(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        serving(server_tls(certificates, "elsewhere"), reply_ok) as port,
        open_proxy(places={"elsewhere.example": port}) as proxy,
    ):
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        trio.socket.set_custom_hostname_resolver(Resolver("127.0.0.1"))
        url = f"https://elsewhere.example:{port}/"
        assert (await make_http(ca=certificates.ca).ask(url)).status == 200
        assert len(proxy.requests) == 1
        assert (await make_http(ca=certificates.ca, proxy="").ask(url)).status == 200
        assert len(proxy.requests) == 1
        monkeypatch.setenv("HTTPS_PROXY", "socks5://me:SECRET@127.0.0.1:1")
        with pytest.raises(TransportError, match="HTTPS_PROXY: expected the URL of") as caught:
            await make_http(ca=certificates.ca).ask(url)
    assert "SECRET" not in str(caught.value)


async def test_keys_of_an_issuer_are_fetched_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    async with serving(None, reply_ok) as port:
        assert await fetch_json(f"http://127.0.0.1:{port}/keys", None) == b"{}"


# ── bounds ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=["an upstream's", "an issuer's"])
def ask(request: pytest.FixtureRequest) -> Iterator[Any]:
    async def get(url: str) -> bytes:
        if request.param == "an issuer's":
            return await fetch_json(url, None)
        return (await make_http().ask(url)).body

    yield get


async def test_a_document_is_bounded_in_size(ask: Any) -> None:
    size = BODY_BYTES

    async def send(_request: Any, reply: Any) -> None:
        await reply.send(200, (), b"x" * size)

    async with serving(None, send) as port:
        assert len(await ask(f"http://127.0.0.1:{port}/")) == 512 * 1024
        size += 1
        with pytest.raises(MessageTooLarge):
            await ask(f"http://127.0.0.1:{port}/")


async def test_a_head_is_bounded_in_size(ask: Any) -> None:
    async def send(_request: Any, reply: Any) -> None:
        await reply.send(200, (("X", "x" * HEAD_BYTES),), b"")

    async with serving(None, send) as port:
        with pytest.raises(RemoteProtocolError, match=f"head is larger than {16 * 1024} bytes"):
            await ask(f"http://127.0.0.1:{port}/")


async def test_an_answer_is_bounded_in_time(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert discovery.FETCH_SECONDS == 10
    monkeypatch.setattr(discovery, "FETCH_SECONDS", 0.2)

    async def hang(_request: Any, _reply: Any) -> None:
        await trio.sleep_forever()

    async with serving(None, hang) as port:
        with pytest.raises(TransportError, match=rf"^127\.0\.0\.1:{port} did not answer within 0\.2 s$"):
            await ask(f"http://127.0.0.1:{port}/?SECRET")


async def test_a_redirect_is_not_followed(ask: Any) -> None:
    paths = []

    async def move(request: Any, reply: Any) -> None:
        paths.append(request.path)
        await reply.send(302, (("Location", "/there"),), b"moved")

    async with serving(None, move) as port:
        try:
            assert await ask(f"http://127.0.0.1:{port}/here") == b"moved"
        except RemoteProtocolError as error:
            assert "answered with status 302" in str(error)
    assert paths == ["/here"]
