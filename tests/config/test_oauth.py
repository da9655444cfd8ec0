from __future__ import annotations

from typing import Any

import pytest

from mcpmux.config import Http, OAuth, Secret, WebSocket
from tests.config.documents import problems_of, read

URL = "https://x.example/mcp"
ISSUER = "https://login.example.com"
PROVIDER = {"issuer": "https://sso.example.com", "client_id": "me-there"}
PAIR = {"client_id": "me", "client_secret": "planted-secret"}


def document(url: str = URL, **oauth: Any) -> dict[str, Any]:
    return {"upstreams": {"x": {"url": url, "oauth": oauth}}}


def target_of(raw: dict[str, Any]) -> Any:
    return read(raw).upstreams[0].target


def test_everything_is_read():
    settings: dict[str, Any] = {
        **PAIR,
        "grant": "client_credentials",
        "issuer": ISSUER,
        "scopes": ["a"],
        "redirect_port": 8123,
    }
    assert target_of(document(**settings)).oauth == OAuth(
        grant="client_credentials",
        issuer=ISSUER,
        client_id="me",
        client_secret=Secret("planted-secret"),
        scopes=("a",),
        redirect_port=8123,
    )


def test_a_private_key_stands_in_place_of_a_secret():
    settings = {"grant": "client_credentials", "client_id": "me", "private_key": "-----BEGIN\nplanted\n"}
    oauth = target_of(document(**settings)).oauth
    assert oauth.private_key.reveal() == settings["private_key"]
    assert "planted" not in repr(oauth)


def test_an_identity_provider_is_named_with_its_own_client():
    settings: dict[str, Any] = {
        "grant": "identity_assertion",
        "client_id": "me",
        "identity_provider": {**PROVIDER, **PAIR},
    }
    provider = target_of(document(**settings)).oauth.identity_provider
    assert (provider.issuer, provider.client_id) == (PROVIDER["issuer"], "me")
    assert provider.client_secret == Secret("planted-secret")


def test_an_empty_table_is_enough_and_none_is_none():
    assert target_of(document()) == Http(URL, oauth=OAuth())
    assert target_of(document("wss://x.example/mcp")) == WebSocket("wss://x.example/mcp", oauth=OAuth())
    assert target_of({"upstreams": {"x": {"url": URL}}}).oauth is None


def test_in_a_host_file_it_stands_in_our_own_table():
    entry = {"url": URL, "oauth": {"clientId": "of the host app"}, "mcpmux": {"oauth": {"scopes": ["a"]}}}
    assert target_of({"mcpServers": {"x": entry}}).oauth == OAuth(scopes=("a",))


@pytest.mark.parametrize(
    ("oauth", "problem"),
    [
        ({"grant": "password"}, "oauth.grant: expected one of"),
        ({"issuer": "http://login.example.com"}, "oauth.issuer: expected an https:// URL"),
        ({"client_secret": "planted-secret", "issuer": ISSUER}, "needs `client_id`"),
        (PAIR, "`client_secret` needs `issuer`"),
        (
            {"grant": "client_credentials", "issuer": ISSUER},
            "needs `client_id` and `private_key`, or `client_secret` and `issuer`",
        ),
        ({"private_key": "planted-key"}, "`private_key` needs `client_id`"),
        ({**PAIR, "issuer": ISSUER, "private_key": "planted-key"}, "and no `client_secret`"),
        ({"grant": "identity_assertion", "client_id": "me"}, "`identity_provider` goes with `grant`"),
        ({"identity_provider": PROVIDER}, "`identity_provider` goes with `grant`"),
        ({"grant": "identity_assertion", "identity_provider": PROVIDER}, "needs `client_id`"),
        ({"client_metadata_url": "http://me.example/x"}, "an https:// URL with a path"),
        ({"client_metadata_url": "https://me.example/"}, "an https:// URL with a path"),
        ({"client_metadata_url": "https://me.example/x", "client_id": "me"}, "remove one of them"),
        ({"scopes": ["a b"]}, "expected a scope"),
        ({"token": "planted-secret"}, "unknown key"),
    ],
)
def test_mistakes_are_told_without_values(oauth: dict[str, Any], problem: str):
    (sentence,) = problems_of(document(**oauth))
    assert problem in sentence
    assert "planted" not in sentence


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"command": "npx", "oauth": {}}, "`oauth` does not go with `command`"),
        ({"url": "tcp://x:1", "oauth": {}}, "`oauth` does not go with a tcp:// URL"),
        ({"url": URL, "oauth": {}, "headers": {"authorization": "x"}}, "remove one of them"),
    ],
)
def test_it_goes_with_servers_that_take_headers_and_with_no_other_authorization(
    entry: dict[str, Any], problem: str
):
    (sentence,) = problems_of({"upstreams": {"x": entry}})
    assert problem in sentence
