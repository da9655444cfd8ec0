"""What a verified token says about whoever has it. Pure.

Source: RFC 7519 (JWT), RFC 9068 (`scope`, media type), RFC 8693 section 4.2; `scp` is what some servers say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcpmux.auth.bearer import BadToken
from mcpmux.protocol.principal import Principal, is_name

TYPES = frozenset({"", "jwt", "at+jwt", "application/at+jwt", "application/jwt"})
"""Of a header's `typ`, in lower case. A token of another type (a logout token, …) is no access token."""

MOST_SCOPES = 1000


def check_type(header: Mapping[str, Any]) -> None:
    """Raises BadToken when it is no access token."""
    kind = header.get("typ", "")
    if not isinstance(kind, str) or kind.lower() not in TYPES:
        raise BadToken("this is not an access token, but one of another type")


def principal_of(claims: Mapping[str, Any], issuer: str, claim: str) -> Principal:
    """Whoever the token is about, of `issuer` as it is called in the configuration. Raises BadToken."""
    subject = claims.get(claim)
    if not is_name(subject):
        raise BadToken(f"the token names nobody: its {claim!r} is missing or cannot be a name")
    return Principal(f"{issuer}:{subject}", scopes_of(claims))


def scopes_of(claims: Mapping[str, Any]) -> frozenset[str]:
    """The scopes that a token carries: `scope` (text) or `scp` (text or a list). Raises BadToken."""
    said = claims.get("scope", claims.get("scp", ""))
    scopes = said.split() if isinstance(said, str) else said
    if not isinstance(scopes, list) or len(scopes) > MOST_SCOPES:
        raise BadToken("the token's scopes are neither text nor a list")
    if not all(isinstance(scope, str) for scope in scopes):
        raise BadToken("the token's scopes are neither text nor a list")
    return frozenset(scopes)
