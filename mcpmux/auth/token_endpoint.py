"""Token requests, and what authorization servers answer. By oauthlib, which is imported with this module.

Promises: an answer that is no usable token raises; no error repeats what was sent. Source: RFC 6749,
sections 2.3.1, 4, 5 and 6; RFC 8707, section 2.
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
from mcpmux.auth.http import ACCEPT, OAuthHttp
from mcpmux.auth.metadata import AuthorizationServer
from mcpmux.auth.token_store import OAuthClient, Tokens
from mcpmux.errors import RemoteProtocolError, TransportError
from mcpmux.printable import printable
from mcpmux.transports.http.message import Fields

if TYPE_CHECKING:
    from mcpmux.transports.web_client import WebAnswer

FORM: Fields = (*ACCEPT, ("Content-Type", "application/x-www-form-urlencoded"))
LONGEST_LIFE = 10 * 365 * 24 * 3600.0  # seconds; whatever says more means "for ever"
SHOWN_CHARACTERS = 200  # of a server's words

_TOKEN = re.compile(r"[\x21-\x7e]{1,32768}")


class Denied(RemoteProtocolError):
    """The authorization server says no, with a word for that such as "invalid_grant"."""

    def __init__(self, issuer: str, error: str, description: str = "") -> None:
        more = f" ({printable(description[:SHOWN_CHARACTERS])})" if description else ""
        super().__init__(f"{issuer} answered {printable(error[:SHOWN_CHARACTERS])!r}{more}")


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
    fields, body = _token_form(client, form)
    answer = await http.post(server.token_endpoint, fields, body)
    return _read_tokens(answer, server.issuer, scopes, now)


def _token_form(client: OAuthClient, form: dict[str, str]) -> tuple[Fields, bytes]:
    """Headers and body of a token request of `client`, which is authenticated as its `method` says."""
    fields = FORM
    if client.method == "client_secret_basic" and client.secret is not None:
        pair = f"{quote_plus(client.id)}:{quote_plus(client.secret)}"
        fields = (*fields, ("Authorization", "Basic " + b64encode(pair.encode()).decode()))
    else:
        form = {**form, "client_id": client.id}
        if client.secret is not None:
            form["client_secret"] = client.secret
    return fields, prepare_token_request(**form).encode()


def _read_tokens(answer: WebAnswer, issuer: str, asked: tuple[str, ...], now: float) -> Tokens:
    where = f"the token endpoint of {issuer}"
    if answer.status >= 500 or answer.status == 429:
        raise TransportError(f"{where} answered with status {answer.status}")
    try:
        members = msgspec.json.decode(answer.body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
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
    kind = found.get("token_type", "bearer")
    if not isinstance(access, str) or _TOKEN.fullmatch(access) is None:
        raise RemoteProtocolError(f"{where} gave no token that can be sent")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise RemoteProtocolError(f"{where} gave no bearer token")
    scope = members.get("scope")
    return Tokens(
        access,
        refresh if isinstance(refresh, str) and refresh else None,
        _end_of(found.get("expires_in"), now),
        read_scopes(scope) if isinstance(scope, str) else asked,
    )


def _end_of(seconds: object, now: float) -> float | None:
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        return None
    return now + min(max(float(seconds), 0.0), LONGEST_LIFE)
