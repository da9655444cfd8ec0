"""JSON Web Tokens of issuers that are trusted: whether one counts, and what it says about whoever has it.

Promises: a signature counts only when its algorithm is allowed, which no symmetric one and not "none" can be,
and the key is of a kind that fits the algorithm and came out of a key set of the issuer. What a token says
about where its key is (`jku`, `jwk`, `x5u`) is not looked at. By joserfc, which is imported with this module.

Source: RFC 7515 (JWS), RFC 7519 (JWT), RFC 9068 (`scope`, media type), RFC 8693 section 4.2. `scp` is what
some servers say.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import msgspec
from joserfc import jws
from joserfc.errors import ClaimError, ExpiredTokenError, JoseError
from joserfc.jwt import JWTClaimsRegistry
from joserfc.util import json_b64decode

from mcpmux.auth.bearer import BadToken
from mcpmux.auth.jwks import IssuerKeys, SigningKey
from mcpmux.config.auth import Issuer
from mcpmux.protocol.principal import Principal, is_name

HEADER_CHARACTERS = 2048
MOST_SCOPES = 1000

TYPES = frozenset({"", "jwt", "at+jwt", "application/at+jwt", "application/jwt"})
"""Of a header's `typ`, in lower case. A token of another type (a logout token, …) is no access token."""


class TrustedIssuer(NamedTuple):
    """`name` is what the configuration calls it."""

    name: str
    config: Issuer
    keys: IssuerKeys


class Verified(NamedTuple):
    """What a token says that counts. `expires`: seconds since 1970, with what clocks may differ."""

    principal: Principal
    expires: float
    issuer: TrustedIssuer


async def verify_token(
    token: str, issuers: Mapping[str, TrustedIssuer], resource: str, now: float
) -> Verified:
    """What an access token for `resource` says. `issuers`: by identifier.

    Raises BadToken, and Turned when the issuer's keys cannot be had.
    """
    header_part, *rest = token.split(".", 3)
    if len(rest) != 2 or len(header_part) > HEADER_CHARACTERS:
        raise BadToken("this is no token that is known here")
    header = _read_part(header_part)
    kind = header.get("typ", "")
    if not isinstance(kind, str) or kind.lower() not in TYPES:
        raise BadToken("this is not an access token, but one of another type")
    identifier = _read_part(rest[0]).get("iss")  # not verified so far: it tells whose keys to try
    issuer = issuers.get(identifier) if isinstance(identifier, str) else None
    if issuer is None:
        raise BadToken("the token's issuer is not one that is trusted here")
    config = issuer.config
    algorithm, kid = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in config.algorithms:
        raise BadToken("the token is signed by an algorithm that is not accepted here")
    if kid is not None and not isinstance(kid, str):
        raise BadToken("the token's `kid` is no text")
    claims = _verify_signature(token, await issuer.keys.find(kid, algorithm), algorithm)
    _check_claims(claims, config, config.audience or _spellings(resource), now)
    subject = claims.get(config.principal)
    if not is_name(subject):
        raise BadToken(f"the token names nobody: its {config.principal!r} is missing or cannot be a name")
    principal = Principal(f"{issuer.name}:{subject}", _scopes_of(claims))
    return Verified(principal, claims["exp"] + config.leeway, issuer)


def _read_part(part: str) -> dict[str, Any]:
    try:
        members = json_b64decode(part.encode())
    except (JoseError, ValueError, TypeError, RecursionError):
        members = None
    if not isinstance(members, dict):
        raise BadToken("this is no token that is known here")
    return members


def _verify_signature(token: str, keys: Collection[SigningKey], algorithm: str) -> dict[str, Any]:
    """The claims of a token whose signature is by one of `keys`."""
    payload = next((said for key in keys if (said := _signed(token, key, algorithm)) is not None), None)
    if payload is None:
        raise BadToken("the token's signature is not good")
    try:
        claims = msgspec.json.decode(payload)
    except (ValueError, RecursionError):
        claims = None
    if not isinstance(claims, dict):
        raise BadToken("the token says nothing")
    return claims


def _signed(token: str, key: SigningKey, algorithm: str) -> bytes | None:
    """What is signed; None when it is not signed by this key."""
    registry = jws.JWSRegistry(algorithms=[algorithm], strict_check_header=False)
    registry.max_header_length = HEADER_CHARACTERS
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # EdDSA has another name now, and is what servers say
            return jws.deserialize_compact(token, key.key, registry=registry).payload
    except (JoseError, ValueError, TypeError, RecursionError):
        return None


def _check_claims(claims: Mapping[str, Any], config: Issuer, audience: Collection[str], now: float) -> None:
    """Whether the token is of the issuer, for us, and valid `now` (seconds since 1970)."""
    registry = JWTClaimsRegistry(
        now=int(now),
        leeway=int(config.leeway),
        iss={"essential": True, "value": config.issuer},
        aud={"essential": True, "values": list(audience)},
        exp={"essential": True},
    )
    try:
        registry.validate(dict(claims))
    except ExpiredTokenError:
        raise BadToken("the token has expired") from None
    except ClaimError as error:
        raise BadToken(f"the token's {error.claim!r} is not accepted") from None
    except (JoseError, ValueError, TypeError, OverflowError):
        raise BadToken("the token's claims make no sense") from None


def _spellings(resource: str) -> tuple[str, ...]:
    """A resource with and without a slash at its end: clients and servers differ in how they write it."""
    bare = resource.rstrip("/")
    return bare, f"{bare}/"


def _scopes_of(claims: Mapping[str, Any]) -> frozenset[str]:
    """`scope` (text) or `scp` (text or a list)."""
    said = claims.get("scope", claims.get("scp", ""))
    scopes = said.split() if isinstance(said, str) else said
    if (
        not isinstance(scopes, list)
        or len(scopes) > MOST_SCOPES
        or not all(isinstance(scope, str) for scope in scopes)
    ):
        raise BadToken("the token's scopes are neither text nor a list")
    return frozenset(scopes)
