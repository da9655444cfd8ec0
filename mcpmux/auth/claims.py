"""What a verified token says about whoever has it. Pure.

Source: RFC 7519 (JWT), RFC 9068 (`scope`, media type), RFC 8693 section 4.2; `scp` is what some servers say.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from mcpmux.auth.bearer import BadToken
from mcpmux.errors import ConfigError, RemoteProtocolError
from mcpmux.protocol.principal import Principal, is_name

if TYPE_CHECKING:
    from joserfc.jwk import Key


# Signatures of JWTs: the one place that knows the library for them, joserfc, imported at first use.
#
# Promises: a signature counts only when its algorithm is allowed, which no symmetric one and not "none" can
# be, and the key is of a kind that fits the algorithm and came out of a key set of the issuer. What a token
# says about where its key is (`jku`, `jwk`, `x5u`) is not looked at.

MOST_KEYS = 200  # of one issuer; large providers have about ten
MOST_TRIED = 4  # keys for one token, when it does not say which or several are called the same
LEAST_RSA_BITS = 2048  # RFC 7518, section 3.3
MOST_RSA_BITS = 8192  # a check of a longer one takes too long
HEADER_CHARACTERS = 2048

_FITTING = {"RSA": ("RS", "PS"), "EC": ("ES",), "OKP": ("Ed",)}
_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "EdDSA": "Ed25519", "Ed25519": "Ed25519"}

NO_LIBRARY = "auth.issuers need the library joserfc: pip install 'mcpmux[auth]'"


class UnknownKey(BadToken):
    """The token is signed with a key that is not among those that are known; the issuer may have new ones."""


class SigningKey(NamedTuple):
    """One key of an issuer. `kid` and `algorithm` are None when the issuer does not say."""

    kid: str | None
    algorithm: str | None
    kind: str
    curve: str | None
    key: Key

    def fits(self, algorithm: str) -> bool:
        """Whether a signature by this algorithm can be of this key."""
        if self.algorithm not in (None, algorithm) or not algorithm.startswith(_FITTING[self.kind]):
            return False
        return self.curve is None or self.curve == _CURVES.get(algorithm)


class KeySet:
    """The keys of one issuer."""

    def __init__(self, keys: Collection[SigningKey]) -> None:
        self._keys = tuple(keys)

    def __repr__(self) -> str:
        return f"<KeySet {[key.kid for key in self._keys]}>"

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, kid: str | None, algorithm: str) -> tuple[SigningKey, ...]:
        """The keys that a token may mean, usually one. Raises UnknownKey."""
        fitting = tuple(key for key in self._keys if key.fits(algorithm) and kid in (None, key.kid))
        if not fitting:
            raise UnknownKey("the token is signed with a key that its issuer does not have")
        return fitting[:MOST_TRIED]


def require_library() -> None:
    """Raises ConfigError when the library is not installed."""
    try:
        import joserfc.jws  # noqa: F401  # only whether it is there
    except ImportError:
        raise ConfigError([NO_LIBRARY]) from None


def read_key_set(data: bytes) -> KeySet:
    """The usable keys in a JWKS (RFC 7517): public, for signatures, strong. Raises RemoteProtocolError."""
    try:
        document: Any = msgspec.json.decode(data)
        entries = document["keys"]
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise TypeError
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError, KeyError):
        raise RemoteProtocolError("this is no JSON Web Key Set") from None
    keys = [key for entry in entries[:MOST_KEYS] if (key := _read_key(entry)) is not None]
    if not keys:
        raise RemoteProtocolError("no key in the key set can be used for signatures")
    return KeySet(keys)


def _read_key(entry: Mapping[str, Any]) -> SigningKey | None:
    """None for what is damaged, weak, secret, or not for checking signatures."""
    from joserfc.errors import JoseError
    from joserfc.jwk import RSAKey, import_key

    kind, kid, algorithm = entry.get("kty"), entry.get("kid"), entry.get("alg")
    operations = entry.get("key_ops")
    if not isinstance(kind, str) or kind not in _FITTING or entry.get("use", "sig") != "sig":
        return None
    if operations is not None and (not isinstance(operations, list) or "verify" not in operations):
        return None
    if not all(text is None or isinstance(text, str) for text in (kid, algorithm)):
        return None
    public = {name: entry[name] for name in ("kty", "n", "e", "crv", "x", "y") if name in entry}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of weak keys, which are not used
            key = import_key(public)
    except (JoseError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None
    if isinstance(key, RSAKey) and not LEAST_RSA_BITS <= key.raw_value.key_size <= MOST_RSA_BITS:
        return None
    return SigningKey(kid, algorithm, kind, entry.get("crv"), key)


def read_header(token: str) -> dict[str, Any]:
    """The header of a compact JWS, unverified. Raises BadToken."""
    from joserfc.errors import JoseError
    from joserfc.util import json_b64decode

    head, *rest = token.split(".", 3)
    if len(rest) != 2 or len(head) > HEADER_CHARACTERS:
        raise BadToken("this is no token that is known here")
    try:
        header = json_b64decode(head.encode())
    except (JoseError, ValueError, TypeError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise BadToken("this is no token that is known here")
    return header


def read_issuer(token: str) -> str | None:
    """Who the token says has issued it, unverified: to know whose keys to try. Raises BadToken."""
    from joserfc.errors import JoseError
    from joserfc.util import json_b64decode

    try:
        claims: Any = json_b64decode(token.split(".")[1].encode())
        issuer = claims.get("iss")
    except (JoseError, ValueError, TypeError, AttributeError, IndexError, RecursionError):
        raise BadToken("this is no token that is known here") from None
    return issuer if isinstance(issuer, str) else None


def key_wanted(header: Mapping[str, Any], algorithms: Collection[str]) -> tuple[str | None, str]:
    """(`kid`, `alg`) of a header. Raises BadToken when the algorithm is not allowed."""
    algorithm, kid = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in algorithms:
        raise BadToken("the token is signed by an algorithm that is not accepted here")
    if kid is not None and not isinstance(kid, str):
        raise BadToken("the token's `kid` is no text")
    return kid, algorithm


def verify(token: str, keys: Collection[SigningKey], algorithm: str) -> dict[str, Any]:
    """The claims of a token whose signature is by one of `keys`. Raises BadToken."""
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
    from joserfc import jws
    from joserfc.errors import JoseError

    registry = jws.JWSRegistry(algorithms=[algorithm], strict_check_header=False)
    registry.max_header_length = HEADER_CHARACTERS
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # EdDSA has another name now, and is what servers say
            return jws.deserialize_compact(token, key.key, registry=registry).payload
    except (JoseError, ValueError, TypeError, RecursionError):
        return None


def check_claims(
    claims: Mapping[str, Any], issuer: str, audience: Collection[str], leeway: float, now: float
) -> None:
    """Whether the token is of `issuer`, for us, and valid `now` (seconds since 1970). Raises BadToken."""
    from joserfc.errors import ClaimError, ExpiredTokenError, JoseError
    from joserfc.jwt import JWTClaimsRegistry

    registry = JWTClaimsRegistry(
        now=int(now),
        leeway=int(leeway),
        iss={"essential": True, "value": issuer},
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
