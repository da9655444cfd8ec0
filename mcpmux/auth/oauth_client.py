"""mcpmux as a client of an authorization server: how it becomes one, and how it gets tokens.

It is known by hand, by its own URL, or registers now, in the order of "Client Registration", 2025-11-25 and
2026-07-28. No error repeats what was sent. oauthlib is imported with this module.

Source: RFC 6749, sections 2.3.1, 4, 5 and 6; RFC 7591, sections 2 and 3; RFC 8707, section 2.
"""

from __future__ import annotations

import re
from base64 import b64encode
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

import msgspec
from oauthlib.oauth2 import OAuth2Error
from oauthlib.oauth2.rfc6749.parameters import parse_token_response, prepare_token_request

from mcpmux.auth.bearer import read_scopes
from mcpmux.auth.discovery import AuthorizationServer
from mcpmux.auth.http import ACCEPT, OAuthHttp
from mcpmux.auth.token_store import Login, OAuthClient, Tokens
from mcpmux.config.auth import OAuth
from mcpmux.errors import RemoteProtocolError, TransportError
from mcpmux.printable import printable
from mcpmux.protocol.envelope import UNREADABLE
from mcpmux.transports.http.message import Fields

if TYPE_CHECKING:
    from mcpmux.transports.web_client import WebAnswer

LONGEST_LIFE = 10 * 365 * 24 * 3600.0  # seconds; whatever says more means "for ever"
SHOWN_CHARACTERS = 200  # of a server's words

_TOKEN = re.compile(r"[\x21-\x7e]{1,32768}")


class _Registered(msgspec.Struct):
    client_id: str
    client_secret: str | None = None
    token_endpoint_auth_method: str | None = None


class Denied(RemoteProtocolError):
    """The authorization server says no, with a word for that such as "invalid_grant"."""

    def __init__(self, issuer: str, error: str, description: str = "") -> None:
        more = f" ({printable(description[:SHOWN_CHARACTERS])})" if description else ""
        super().__init__(f"{issuer} answered {printable(error[:SHOWN_CHARACTERS])!r}{more}")


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
    methods = ("none", "client_secret_basic", "client_secret_post")
    method = next((each for each in methods if server.takes(each)), "none")
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
    fields = (*ACCEPT, ("Content-Type", "application/json"))
    answer = await http.ask(server.registration_endpoint, fields, msgspec.json.encode(wish))
    try:
        members = msgspec.json.decode(answer.body, type=dict[str, Any])
        if answer.status not in (200, 201):
            error = f"{members.get('error', '')} {members.get('error_description', '')}"
            raise RemoteProtocolError(
                f"{server.issuer} does not register mcpmux (status {answer.status}): "
                f"{printable(error.strip()[:SHOWN_CHARACTERS])}"
            )
        made = msgspec.convert(members, _Registered)
    except UNREADABLE:
        raise RemoteProtocolError(
            f"{server.issuer} answered the registration with status {answer.status} and no client"
        ) from None
    method = made.token_endpoint_auth_method or method
    if made.client_secret is None:
        method = "none"
    elif method == "none":
        method = "client_secret_post"
    return OAuthClient(made.client_id, made.client_secret, method, redirect_uri, registered=True)


async def request_tokens(
    http: OAuthHttp,
    server: AuthorizationServer,
    client: OAuthClient,
    form: dict[str, str],
    scopes: tuple[str, ...],
    now: float,
) -> Tokens:
    """Tokens for a grant: `form` has its `grant_type` and what goes with that.

    `scopes`: what the answer means when it does not say.

    Raises Denied, other RemoteProtocolErrors, and TransportError, after which asking again may help.
    """
    fields: Fields = (*ACCEPT, ("Content-Type", "application/x-www-form-urlencoded"))
    if client.method == "client_secret_basic" and client.secret is not None:
        pair = f"{quote_plus(client.id)}:{quote_plus(client.secret)}"
        fields = (*fields, ("Authorization", "Basic " + b64encode(pair.encode()).decode()))
    else:
        form = {**form, "client_id": client.id}
        if client.secret is not None:
            form["client_secret"] = client.secret
    answer = await http.ask(server.token_endpoint, fields, prepare_token_request(**form).encode())
    return _read_tokens(answer, server.issuer, scopes, now)


def _read_tokens(answer: WebAnswer, issuer: str, asked: tuple[str, ...], now: float) -> Tokens:
    where = f"the token endpoint of {issuer}"
    if answer.status >= 500 or answer.status == 429:
        raise TransportError(f"{where} answered with status {answer.status}")
    try:
        members = msgspec.json.decode(answer.body, type=dict[str, Any])
    except UNREADABLE:
        raise RemoteProtocolError(f"{where} answered {answer.status}, and no JSON object") from None
    error, description = members.get("error"), members.get("error_description")
    if isinstance(error, str):
        raise Denied(issuer, error, description if isinstance(description, str) else "")
    if answer.status != 200:
        raise RemoteProtocolError(f"{where} answered with status {answer.status}")
    try:
        found: dict[str, Any] = parse_token_response(answer.body.decode())
    except (OAuth2Error, ValueError, TypeError, AttributeError, OverflowError):  # whatever the members hold
        raise RemoteProtocolError(f"{where} gave no token") from None
    access, refresh = found.get("access_token"), found.get("refresh_token")
    kind, seconds = found.get("token_type", "bearer"), found.get("expires_in")
    if not isinstance(access, str) or _TOKEN.fullmatch(access) is None:
        raise RemoteProtocolError(f"{where} gave no token that can be sent")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise RemoteProtocolError(f"{where} gave no bearer token")
    expires = None
    if isinstance(seconds, int | float) and not isinstance(seconds, bool):
        expires = now + min(max(float(seconds), 0.0), LONGEST_LIFE)
    scope = members.get("scope")
    return Tokens(
        access,
        refresh if isinstance(refresh, str) and refresh else None,
        expires,
        read_scopes(scope) if isinstance(scope, str) else asked,
    )
