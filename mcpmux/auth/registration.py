"""How mcpmux becomes a client of an authorization server: known by hand, by its own URL, or registered now.

The order is that of "Client Registration", 2025-11-25 and 2026-07-28. Source: RFC 7591, section 3.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mcpmux.auth.authority import Authority
from mcpmux.auth.client_credentials import configured_client
from mcpmux.auth.http import OAuthHttp
from mcpmux.auth.tokens import Login, OAuthClient
from mcpmux.config.auth import OAuth
from mcpmux.errors import RemoteProtocolError
from mcpmux.printable import printable

SHOWN_CHARACTERS = 200


class _Registered(msgspec.Struct):
    client_id: str
    client_secret: str | None = None
    token_endpoint_auth_method: str | None = None


def known_client(
    config: OAuth, authority: Authority, redirect_uri: str, kept: Login | None
) -> OAuthClient | None:
    """The client that mcpmux is there already; None when it has to register."""
    if config.client_id is not None:
        return configured_client(config, authority)
    if config.client_metadata_url is not None and authority.client_id_metadata_document_supported:
        return OAuthClient(config.client_metadata_url)
    if kept is None or kept.issuer != authority.issuer:
        return None
    return kept.client if kept.client.registered and kept.client.redirect_uri == redirect_uri else None


async def register(
    http: OAuthHttp, authority: Authority, redirect_uri: str, scopes: tuple[str, ...]
) -> OAuthClient:
    """Register with the authorization server. Raises RemoteProtocolError that says what else there is."""
    if authority.registration_endpoint is None:
        raise RemoteProtocolError(
            f"{authority.issuer} registers no clients by itself: register mcpmux there, "
            "and set `oauth.client_id` of the upstream"
        )
    wish = wish_of(authority, redirect_uri, scopes)
    fields = (("Content-Type", "application/json"),)
    answer = await http.post(authority.registration_endpoint, fields, msgspec.json.encode(wish))
    try:
        members = msgspec.json.decode(answer.body, type=dict[str, Any])
        if answer.status not in (200, 201):
            error = f"{members.get('error', '')} {members.get('error_description', '')}"
            raise RemoteProtocolError(
                f"{authority.issuer} does not register mcpmux (status {answer.status}): "
                f"{printable(error.strip()[:SHOWN_CHARACTERS])}"
            )
        made = msgspec.convert(members, _Registered)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise RemoteProtocolError(
            f"{authority.issuer} answered the registration with status {answer.status} and no client"
        ) from None
    method = made.token_endpoint_auth_method or str(wish["token_endpoint_auth_method"])
    if made.client_secret is None:
        method = "none"
    elif method == "none":
        method = "client_secret_post"
    return OAuthClient(made.client_id, made.client_secret, method, redirect_uri, registered=True)


def wish_of(authority: Authority, redirect_uri: str, scopes: tuple[str, ...]) -> dict[str, Any]:
    """What mcpmux asks to be registered as."""
    method = next(
        (each for each in ("none", "client_secret_basic", "client_secret_post") if authority.takes(each)),
        "none",
    )
    wish: dict[str, Any] = {
        "client_name": "mcpmux",
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
        "application_type": "native",
    }
    if scopes:
        wish["scope"] = " ".join(scopes)
    return wish
