"""How mcpmux becomes a client of an authorization server: known by hand, by its own URL, or registered now.

The order is that of "Client Registration", 2025-11-25 and 2026-07-28. Source: RFC 7591, sections 2 and 3.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mcpmux.auth.http import ACCEPT, OAuthHttp
from mcpmux.auth.metadata import AuthorizationServer
from mcpmux.auth.token_store import Login, OAuthClient
from mcpmux.config.auth import OAuth
from mcpmux.errors import RemoteProtocolError
from mcpmux.printable import printable

SHOWN_CHARACTERS = 200


class _Registered(msgspec.Struct):
    client_id: str
    client_secret: str | None = None
    token_endpoint_auth_method: str | None = None


def configured_client(config: OAuth, server: AuthorizationServer) -> OAuthClient:
    """mcpmux as the configuration says it is registered."""
    assert config.client_id is not None
    if config.client_secret is None:
        return OAuthClient(config.client_id)
    method = "client_secret_post"
    if server.takes("client_secret_basic") or not server.takes(method):
        method = "client_secret_basic"
    return OAuthClient(config.client_id, config.client_secret.reveal(), method)


def known_client(
    config: OAuth, server: AuthorizationServer, redirect_uri: str, kept: Login | None
) -> OAuthClient | None:
    """The client that mcpmux is there already; None when it has to register."""
    if config.client_id is not None:
        return configured_client(config, server)
    if config.client_metadata_url is not None and server.client_id_metadata_document_supported:
        return OAuthClient(config.client_metadata_url)
    if kept is None or kept.issuer != server.issuer:
        return None
    return kept.client if kept.client.registered and kept.client.redirect_uri == redirect_uri else None


async def register(
    http: OAuthHttp, server: AuthorizationServer, redirect_uri: str, scopes: tuple[str, ...]
) -> OAuthClient:
    """Register with the authorization server. Raises RemoteProtocolError that says what else there is."""
    if server.registration_endpoint is None:
        raise RemoteProtocolError(
            f"{server.issuer} registers no clients by itself: register mcpmux there, "
            "and set `oauth.client_id` of the upstream"
        )
    wish = client_metadata(server, redirect_uri, scopes)
    fields = (*ACCEPT, ("Content-Type", "application/json"))
    answer = await http.post(server.registration_endpoint, fields, msgspec.json.encode(wish))
    try:
        members = msgspec.json.decode(answer.body, type=dict[str, Any])
        if answer.status not in (200, 201):
            error = f"{members.get('error', '')} {members.get('error_description', '')}"
            raise RemoteProtocolError(
                f"{server.issuer} does not register mcpmux (status {answer.status}): "
                f"{printable(error.strip()[:SHOWN_CHARACTERS])}"
            )
        made = msgspec.convert(members, _Registered)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise RemoteProtocolError(
            f"{server.issuer} answered the registration with status {answer.status} and no client"
        ) from None
    method = made.token_endpoint_auth_method or str(wish["token_endpoint_auth_method"])
    if made.client_secret is None:
        method = "none"
    elif method == "none":
        method = "client_secret_post"
    return OAuthClient(made.client_id, made.client_secret, method, redirect_uri, registered=True)


def client_metadata(
    server: AuthorizationServer, redirect_uri: str, scopes: tuple[str, ...]
) -> dict[str, Any]:
    """What mcpmux asks to be registered as."""
    methods = ("none", "client_secret_basic", "client_secret_post")
    wish: dict[str, Any] = {
        "client_name": "mcpmux",
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": next((each for each in methods if server.takes(each)), "none"),
        "application_type": "native",
    }
    if scopes:
        wish["scope"] = " ".join(scopes)
    return wish
