"""Tokens as values, and what is kept of a login. No repr shows a secret."""

from __future__ import annotations

import math
import re
from base64 import b64encode
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

import msgspec

from mcpmux.auth.challenge import read_scopes
from mcpmux.errors import ConfigError, RemoteProtocolError, TransportError
from mcpmux.printable import printable
from mcpmux.transports.http.message import Fields

if TYPE_CHECKING:
    from oauthlib.oauth2 import WebApplicationClient

    from mcpmux.transports.web_client import WebAnswer


# Requests to authorization servers and what they answer: the one place that knows the library, oauthlib.
#
# Promises: an answer that is no usable token raises; no error repeats what was sent. Source: RFC 6749,
# sections 4, 5 and 6; RFC 7636; RFC 8707, section 2.

FORM: Fields = (("Content-Type", "application/x-www-form-urlencoded"),)
VERIFIER_CHARACTERS = 64  # 43 to 128 by RFC 7636, section 4.1
LONGEST_LIFE = 10 * 365 * 24 * 3600.0  # seconds; whatever says more means "for ever"
SHOWN_CHARACTERS = 200  # of a server's words

NO_LIBRARY = "`oauth` of upstreams needs the library oauthlib: pip install oauthlib"

_TOKEN = re.compile(r"[\x21-\x7e]{1,32768}")


class Denied(RemoteProtocolError):
    """The authorization server says no. `error`: its word for that, such as "invalid_grant"."""

    def __init__(self, issuer: str, error: str, description: str = "") -> None:
        more = f" ({printable(description[:SHOWN_CHARACTERS])})" if description else ""
        super().__init__(f"{issuer} answered {printable(error[:SHOWN_CHARACTERS])!r}{more}")
        self.error = error


def new_verifier() -> tuple[str, str]:
    """A new code verifier and its S256 challenge."""
    client = _library_client("")
    verifier: str = client.create_code_verifier(VERIFIER_CHARACTERS)
    return verifier, client.create_code_challenge(verifier, "S256")


def authorization_url(endpoint: str, asked: dict[str, str]) -> str:
    """The URL that a person opens to agree."""
    try:
        from oauthlib.common import add_params_to_uri
    except ImportError:
        raise ConfigError([NO_LIBRARY]) from None
    url: str = add_params_to_uri(endpoint, list(asked.items()))
    return url


def token_form(client: OAuthClient, grant: str, members: dict[str, str]) -> tuple[Fields, bytes]:
    """Headers and body of a token request of `client`, which is authenticated as its `method` says."""
    try:
        from oauthlib.oauth2.rfc6749.parameters import prepare_token_request
    except ImportError:
        raise ConfigError([NO_LIBRARY]) from None
    fields = FORM
    if client.method == "client_secret_basic" and client.secret is not None:
        pair = f"{quote_plus(client.id)}:{quote_plus(client.secret)}"
        fields = (*fields, ("Authorization", "Basic " + b64encode(pair.encode()).decode()))
    else:
        members = {**members, "client_id": client.id}
        if client.secret is not None:
            members["client_secret"] = client.secret
    return fields, prepare_token_request(grant, **members).encode()


def read_tokens(answer: WebAnswer, issuer: str, asked: tuple[str, ...], now: float) -> Tokens:
    """The tokens in an answer to a token request for the scopes `asked`. Raises Denied, RemoteProtocolError.

    A server that is overloaded or broken raises TransportError: asking again may help.
    """
    members = _members_in(answer.body)
    if answer.status >= 500 or answer.status == 429:
        raise TransportError(f"the token endpoint of {issuer} answered with status {answer.status}")
    if members is None:
        raise RemoteProtocolError(
            f"the token endpoint of {issuer} answered {answer.status}, and no JSON object"
        )
    error, description = members.get("error"), members.get("error_description")
    if isinstance(error, str):
        raise Denied(issuer, error, description if isinstance(description, str) else "")
    if answer.status != 200:
        raise RemoteProtocolError(f"the token endpoint of {issuer} answered with status {answer.status}")
    found = _parse(answer.body, issuer)
    access, refresh = found.get("access_token"), found.get("refresh_token")
    kind = found.get("token_type", "bearer")
    if not isinstance(access, str) or _TOKEN.fullmatch(access) is None:
        raise RemoteProtocolError(f"the token endpoint of {issuer} gave no token that can be sent")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise RemoteProtocolError(f"the token endpoint of {issuer} gave no bearer token")
    lasts = found.get("expires_in")
    expires = None
    if isinstance(lasts, int | float) and not isinstance(lasts, bool):
        expires = now + min(max(float(lasts), 0.0), LONGEST_LIFE)
    scope = members.get("scope")
    scopes = read_scopes(scope) if isinstance(scope, str) else asked
    return Tokens(access, refresh if isinstance(refresh, str) and refresh else None, expires, scopes)


def _parse(body: bytes, issuer: str) -> dict[str, Any]:
    try:
        from oauthlib.oauth2 import OAuth2Error
        from oauthlib.oauth2.rfc6749.parameters import parse_token_response
    except ImportError:
        raise ConfigError([NO_LIBRARY]) from None
    try:
        found: dict[str, Any] = parse_token_response(body.decode())
    except (OAuth2Error, ValueError, TypeError, AttributeError, OverflowError):  # whatever the members hold
        raise RemoteProtocolError(f"the token endpoint of {issuer} gave no token") from None
    return found


def _members_in(body: bytes) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _library_client(client_id: str) -> WebApplicationClient:
    try:
        from oauthlib.oauth2 import WebApplicationClient
    except ImportError:
        raise ConfigError([NO_LIBRARY]) from None
    return WebApplicationClient(client_id)


class Tokens(msgspec.Struct, frozen=True):
    """What a token endpoint gave. `expires`: seconds since 1970; None when it did not say."""

    access: str
    refresh: str | None = None
    expires: float | None = None
    scopes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Tokens until {self.expires}, {'with' if self.refresh else 'without'} refresh>"

    @property
    def until(self) -> float:
        """Seconds since 1970."""
        return math.inf if self.expires is None else self.expires


class OAuthClient(msgspec.Struct, frozen=True):
    """mcpmux as an authorization server knows it. `method`: of authenticating at its token endpoint."""

    id: str
    secret: str | None = None
    method: str = "none"
    redirect_uri: str | None = None
    registered: bool = False
    """Whether mcpmux registered it itself, so that it may do so again."""

    def __repr__(self) -> str:
        return f"<OAuthClient {self.method}>"


class Login(msgspec.Struct, frozen=True):
    """A login at one issuer for one upstream. `wanted`: scopes that the upstream asked for since."""

    upstream: str
    url: str
    issuer: str
    resource: str
    client: OAuthClient
    tokens: Tokens
    asked: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Login {self.upstream} at {self.issuer}>"
