"""The server card: what everybody may know of an endpoint, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from mcpmux import __version__
from mcpmux.clients.server_card import ServerCard, make_card
from mcpmux.config import Auth, Config, HttpListener, Identity, Issuer, ServerTls, StaticToken
from mcpmux.config.argument import parse_upstream_argument
from mcpmux.errors import ConfigError
from mcpmux.hosts.configuration import read_config
from mcpmux.transports.http.message import HttpRequest
from tests.bare_reply import reply_on
from tests.clients.test_http_guard import ANN, APP, LOCAL, STATIC, open_guarded

CARD = "/mcp/server-card"
URL = "https://mux.example.com/mcp"
TOKENS = {"ann": StaticToken(sha256="0" * 64)}
ISSUER = {"corp": Issuer(issuer="https://login.example.com")}


def made(**settings: Any) -> Config:
    return Config(upstreams=(parse_upstream_argument("a=x y"),), **settings)


class Client:
    def __init__(self, host: str) -> None:
        headers = {"host": host}
        self.request = HttpRequest("GET", CARD, "", headers, b"", "", http_1_0=True, keep_alive=False)
        self.reply, self.received = reply_on(self, self.request), b""

    async def send(self, data: bytes) -> None:
        self.received += data


def card_of(config: Config) -> ServerCard:
    return ServerCard(HttpListener(port=0), lambda: config)


async def test_a_stranger_gets_the_card_of_a_guarded_endpoint_and_nothing_else():
    config = made(auth=Auth(tokens=STATIC), identity=Identity(name="mux", title="The mux"))
    async with open_guarded(card=card_of(config)) as mux:
        status, headers, body = await mux.get(CARD, {})
        assert (status, headers["content-type"]) == (200, "application/mcp-server-card+json")
        token = {"description": "Token of a client", "isRequired": True, "isSecret": True}
        assert json.loads(body) == {
            "$schema": "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json",
            "name": "dev.mcpmux/mux",
            "title": "The mux",
            "version": __version__,
            "description": "MCP servers behind one endpoint",
            "remotes": [
                {
                    "type": "streamable-http",
                    "url": f"http://{mux.pool.origin.authority}/mcp",
                    "supportedProtocolVersions": [
                        *("2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
                    ],
                    "headers": [
                        {
                            "name": "Authorization",
                            "value": "Bearer {token}",
                            "variables": {"token": token},
                            "isRequired": True,
                            "isSecret": True,
                        }
                    ],
                }
            ],
        }
        assert (await mux.get(CARD, ANN))[2] == body
        for path in ("/server-card", "/mcp/docs/server-card", f"{CARD}/x"):
            assert (await mux.get(path, {}))[0] == 401
        assert (await mux.get(CARD, ANN, "POST"))[0] == 405


async def test_pages_of_any_origin_may_read_it_under_our_hosts():
    async with open_guarded(card=card_of(made())) as mux:
        page = {"Origin": "https://any.example.com"}
        for who in (page, page | ANN, {"Origin": APP}, {"Origin": LOCAL}):
            status, headers, _ = await mux.get(CARD, who)
            assert (status, headers["access-control-allow-origin"]) == (200, "*")
        status, headers, body = await mux.get(CARD, page, "OPTIONS")
        assert (status, body) == (204, b"")
        assert headers["access-control-allow-headers"] == "Content-Type, If-None-Match"
        assert headers["access-control-expose-headers"] == "ETag"
        async with await trio.open_tcp_stream("127.0.0.1", mux.pool.origin.port) as stream:
            await stream.send_all(f"GET {CARD} HTTP/1.1\r\nHost: rebound.example.com\r\n\r\n".encode())
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 403 ")
        assert (await mux.get("/mcp", page))[0] == 403


async def test_a_card_that_is_known_is_not_sent_again():
    async with open_guarded(card=card_of(made())) as mux:
        _, headers, _ = await mux.get(CARD, {})
        assert headers["cache-control"] == "public, max-age=3600"
        status, again, body = await mux.get(CARD, {"If-None-Match": headers["etag"]})
        assert (status, body, again["etag"]) == (304, b"", headers["etag"])
        assert (await mux.get(CARD, {"If-None-Match": '"other"'}))[0] == 200


def remote_of(auth: Auth) -> dict[str, Any]:
    remote: dict[str, Any] = make_card(made(auth=auth), URL)["remotes"][0]
    return remote


def test_a_required_token_is_declared_unless_there_is_a_login():
    assert "headers" not in remote_of(Auth())
    assert remote_of(Auth(tokens=TOKENS))["headers"][0]["isRequired"] is True
    assert remote_of(Auth(tokens=TOKENS, certificates=True))["headers"][0]["isRequired"] is False
    assert "headers" not in remote_of(Auth(tokens=TOKENS, issuers=ISSUER, resource=URL))


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("com.example/mux", "com.example/mux"),
        ("a/b/c", "dev.mcpmux/a-b-c"),
        ("Jane's  mux", "dev.mcpmux/Jane-s-mux"),
        ("ü", "dev.mcpmux/-"),
        ("x" * 300, "x" * 100),
    ],
)
def test_any_name_becomes_one_that_a_card_may_have(name: str, shown: str):
    card = make_card(made(identity=Identity(name=name, title="t" * 300)), None)
    assert card["name"].endswith(shown)
    assert card["title"] == "t" * 100
    assert "remotes" not in card


@pytest.mark.interpreted  # a stand-in
async def test_the_url_is_the_configured_one_else_as_the_client_says_it():
    over_tls = HttpListener(port=0, path="/a/", tls=ServerTls(certificate="x.pem"))
    configs = [made(auth=Auth(resource=URL)), made()]
    card = ServerCard(over_tls, lambda: configs[0])
    assert card.path == "/a/server-card"
    async with open_guarded(card=card_of(configs[0])) as mux:
        assert json.loads((await mux.get(CARD, {}))[2])["remotes"][0]["url"] == URL
    for host, remotes in (("a.example:1", b'"url":"https://a.example:1/a/"'), ("a b", b"")):
        client = Client(host)
        await ServerCard(over_tls, lambda: configs[1]).answer(client.request, client.reply)
        assert remotes in client.received
        assert (b'"remotes"' in client.received) is bool(remotes)


def test_no_view_is_at_its_path():
    text = '[upstreams.a]\ncommand = "x"\n[views.server-card]\ninclude = [{ kind = "tools" }]\n'
    with pytest.raises(ConfigError, match=r"views.server-card: at its path is the server card"):
        read_config("-", {}, text.encode)
