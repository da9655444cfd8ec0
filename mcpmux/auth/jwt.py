"""Verify JSON Web Tokens of trusted issuers, with the keys of these issuers.

A signature counts only when its algorithm is allowed, which no symmetric one and not "none" can be, and the
key fits the algorithm and comes from a key set of the issuer. A token's own pointers to a key
(`jku`, `jwk`, `x5u`) are ignored. Keys that are damaged, weak, secret, or not for checking signatures
are left out.

  * For any number of waiting clients, keys are fetched once at a time, and at most every RETRY_SECONDS: a
    token with an invented `kid` makes no traffic.
  * Keys that are older than FRESH_SECONDS are fetched again when one is needed. While the issuer does not
    answer the known ones are used, for STALE_SECONDS at most.

By joserfc: without it, importing this module raises ConfigError.

Source: RFC 7515 (JWS), RFC 7517 (JWK), RFC 7519 (JWT), RFC 9068 (`scope`, media type), RFC 8693 section
4.2. Some servers call `scope` `scp`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import structlog
import trio

from mcpmux.auth.bearer import BadToken
from mcpmux.auth.discovery import server_urls
from mcpmux.config.auth import ALGORITHMS, TRUSTED_URL, Issuer
from mcpmux.config.report import InvalidValue
from mcpmux.errors import ConfigError, McpmuxError, RemoteProtocolError, TransportError
from mcpmux.protocol.envelope import UNREADABLE
from mcpmux.protocol.principal import Admission, Principal, Turned, is_name
from mcpmux.transports.byte_stream import reason_of

try:
    from joserfc import jws
    from joserfc.errors import ClaimError, ExpiredTokenError, JoseError
    from joserfc.jwk import Key, RSAKey, import_key
    from joserfc.jwt import JWTClaimsRegistry
except ImportError:
    raise ConfigError(["auth.issuers need the library joserfc: pip install 'mcpmux[auth]'"]) from None

RETRY_SECONDS = 30.0  # between two attempts to fetch keys
FRESH_SECONDS = 3600.0  # withdrawn keys are trusted no longer than this, when the issuer answers
LOAD_SECONDS = 20.0  # for metadata and keys, as clients wait for them
STALE_SECONDS = 24 * 3600.0  # and no longer than this when it does not answer

MOST_KEYS = 200  # of one issuer; large providers have about ten
MOST_TRIED = 4  # keys for one token, when it names none or several have the same name
LEAST_RSA_BITS = 2048  # RFC 7518, section 3.3
MOST_RSA_BITS = 8192  # checking a longer one takes too long

HEADER_CHARACTERS = 2048
MOST_SCOPES = 1000

TYPES = frozenset({"", "jwt", "at+jwt", "application/at+jwt", "application/jwt"})
"""Of a header's `typ`, in lower case. A token of another type (a logout token, …) is no access token."""

FetchDocument = Callable[[str, str | None], Awaitable[bytes]]
"""(URL, file of authorities) → the document. Raises McpmuxError."""

_PUBLIC = ("kty", "n", "e", "crv", "x", "y", "kid", "alg")
_CURVES = ("P-256", "P-384", "P-521", "Ed25519")

_REGISTRY = jws.JWSRegistry(algorithms=list(ALGORITHMS), strict_check_header=False)
_REGISTRY.max_header_length = HEADER_CHARACTERS

log = structlog.get_logger()


# Keys


def fits(key: Key, algorithm: str) -> bool:
    """Return whether a key can make a signature by this algorithm."""
    with suppress(JoseError):
        jws.JWSRegistry.algorithms[algorithm].check_key(key)
        return True
    return False


def read_key_set(data: bytes) -> tuple[Key, ...]:
    """Return the usable keys in a JWKS: public, for signatures, strong. Raises RemoteProtocolError."""
    try:
        entries = msgspec.json.decode(data, type=_KeySet).keys
    except UNREADABLE:
        raise RemoteProtocolError("this is no JSON Web Key Set") from None
    keys = tuple(key for entry in entries[:MOST_KEYS] if (key := _read_key(entry)) is not None)
    if not keys:
        raise RemoteProtocolError("no key in the key set can be used for signatures")
    return keys


class _KeySet(msgspec.Struct):
    keys: list[dict[str, Any]]


class _Metadata(msgspec.Struct):
    issuer: str
    jwks_uri: str


def _read_key(entry: Mapping[str, Any]) -> Key | None:
    """Return the key; None if it is damaged, weak, secret, or not for checking signatures."""
    operations = ["verify"] if entry.get("key_ops") is None else entry["key_ops"]
    if entry.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about weak keys, which are rejected below
            # Public members only: the private part of a key that was published by mistake is never loaded.
            key = import_key({name: entry[name] for name in _PUBLIC if entry.get(name) is not None})
    except (JoseError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None
    if isinstance(key, RSAKey):
        return key if LEAST_RSA_BITS <= key.raw_value.key_size <= MOST_RSA_BITS else None
    return key if entry.get("crv") in _CURVES else None


@dataclass(eq=False)
class TrustedIssuer:
    """An issuer and its known keys. `name`: its name in the configuration."""

    name: str
    config: Issuer
    _fetch: FetchDocument
    _keys: tuple[Key, ...] = ()
    _fetched: float = -math.inf
    _tried: float = -math.inf
    _turn: trio.Lock = field(default_factory=trio.Lock)

    async def find(self, kid: str | None, algorithm: str) -> tuple[Key, ...]:
        """Return the keys that a token may mean. Raises BadToken if there are none, Turned if unavailable."""
        if trio.current_time() - self._fetched > FRESH_SECONDS:
            await self._renew()
        keys = self._fitting(kid, algorithm)
        # An unknown `kid` may be of a new key. `_renew` limits how often strangers can cause this.
        if not keys and await self._renew():
            keys = self._fitting(kid, algorithm)
        if trio.current_time() - self._fetched > STALE_SECONDS:
            sentence = f"the keys of {self.config.issuer} cannot be had at the moment"
            raise Turned(503, sentence, (("Retry-After", "30"),))
        if not keys:
            raise BadToken("the token is signed with a key that its issuer does not have")
        return keys[:MOST_TRIED]

    def _fitting(self, kid: str | None, algorithm: str) -> tuple[Key, ...]:
        return tuple(key for key in self._keys if kid in (None, key.kid) and fits(key, algorithm))

    async def _renew(self) -> bool:
        """Try to fetch the keys, unless that was done a moment ago. Return whether there are new ones."""
        fetched = self._fetched
        async with self._turn:
            if self._fetched > fetched:
                return True  # another client's request did while we waited
            now = trio.current_time()
            if now - self._tried < RETRY_SECONDS:
                return False
            self._tried = now
            problem = f"no answer within {LOAD_SECONDS:g} s"
            # Shielded: a client that leaves must not cancel the fetch for the others.
            with trio.move_on_after(LOAD_SECONDS, shield=True):
                try:
                    self._keys = await self._load()
                    self._fetched = trio.current_time()
                    named = [key.kid for key in self._keys]
                    log.info("keys of an issuer", issuer=self.config.issuer, keys=named)
                    return True
                except McpmuxError as error:
                    problem = str(error)
            log.warning("keys of an issuer cannot be had", issuer=self.config.issuer, reason=problem)
            return False

    async def _load(self) -> tuple[Key, ...]:
        """Return the issuer's keys, from a file or URL. Raises McpmuxError."""
        if self.config.jwks_file is not None:
            return await trio.to_thread.run_sync(_read_key_file, self.config.jwks_file)
        url = self.config.jwks_url or await self._discover()
        return read_key_set(await self._fetch(url, self.config.ca))

    async def _discover(self) -> str:
        """Return the URL of the keys in the issuer's metadata. Raises McpmuxError."""
        problem: McpmuxError = RemoteProtocolError("it has no metadata")
        for url in server_urls(self.config.issuer):
            try:
                metadata = msgspec.json.decode(await self._fetch(url, self.config.ca), type=_Metadata)
                if metadata.issuer == self.config.issuer:  # exactly, by RFC 8414 section 3.3
                    return str(TRUSTED_URL.read(metadata.jwks_uri))
                problem = RemoteProtocolError("its metadata is that of another issuer")
            except InvalidValue as error:
                problem = RemoteProtocolError(f"its metadata names a bad `jwks_uri`: {error}")
            except UNREADABLE:
                problem = RemoteProtocolError("its metadata has no `issuer` or no `jwks_uri`")
            except McpmuxError as error:
                problem = error
        raise problem


def check_key_file(name: str, config: Issuer) -> None:
    """Raise ConfigError when the file of keys cannot be used. Reads it: call it in a thread."""
    if config.jwks_file is not None:
        try:
            _read_key_file(config.jwks_file)
        except McpmuxError as error:
            raise ConfigError([f"auth.issuers.{name}.jwks_file: {error}"]) from None


def _read_key_file(path: str) -> tuple[Key, ...]:
    try:
        return read_key_set(Path(path).read_bytes())
    except OSError as error:
        raise TransportError(f"{path}: {reason_of(error)}") from None
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"{path}: {error}") from None


# Tokens


async def verify_token(
    token: str, issuers: Mapping[str, TrustedIssuer], resource: str, now: float, part: str = ""
) -> Admission:
    """Return the admission by an access token for `resource`, until it expires, with the issuer's leeway.

    `part`: another URL that a token may be for, such as that of a view. Such a token is admitted only there.
    `issuers`: by identifier. Raises BadToken, and Turned when the issuer's keys cannot be had.
    """
    try:
        signed = jws.extract_compact(token.encode(), registry=_REGISTRY)
        header = msgspec.convert(signed.headers(), dict[str, Any])
        claims = msgspec.json.decode(signed.payload, type=dict[str, Any])
    except (JoseError, ValueError, TypeError, *UNREADABLE):
        raise BadToken("the token says nothing that can be read here") from None
    kind, algorithm, kid = header.get("typ", ""), header.get("alg"), header.get("kid")
    if not isinstance(kind, str) or kind.lower() not in TYPES:
        raise BadToken("this is not an access token, but one of another type")
    identifier = claims.get("iss")  # not verified yet: it only chooses the keys to try
    issuer = issuers.get(identifier) if isinstance(identifier, str) else None
    if issuer is None:
        raise BadToken("the token's issuer is not one that is trusted here")
    config = issuer.config
    if not isinstance(algorithm, str) or algorithm not in config.algorithms:
        raise BadToken("the token is signed by an algorithm that is not accepted here")
    if kid is not None and not isinstance(kid, str):
        raise BadToken("the token's `kid` is no text")
    keys = await issuer.find(kid, algorithm)
    if not any(_is_signed_by(key, signed) for key in keys):
        raise BadToken("the token's signature is not good")
    audience = config.audience or _spellings(resource)
    also = _spellings(part) if part and not config.audience else ()
    _check_claims(claims, config, (*audience, *also), now)
    named = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
    subject = claims.get(config.principal)
    if not is_name(subject):
        raise BadToken(f"the token names nobody: its {config.principal!r} is missing or cannot be a name")
    principal = Principal(f"{issuer.name}:{subject}", _scopes_of(claims))
    ground, only = (f"issuers.{issuer.name}", (config, resource)), ""
    # Admitted by `part` alone: then the token must not count for any other URL.
    if not any(name in audience for name in named):
        only = part
    return Admission(principal, claims["exp"] + config.leeway, ground, only)


def _spellings(url: str) -> tuple[str, str]:
    bare = url.rstrip("/")  # clients and servers differ about the slash at the end
    return bare, f"{bare}/"


def _is_signed_by(key: Key, signature: jws.CompactSignature) -> bool:
    with suppress(JoseError, ValueError, TypeError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # EdDSA has a new name, but servers use the old one
        return jws.validate_compact(signature, key, registry=_REGISTRY)
    return False


def _check_claims(claims: Mapping[str, Any], config: Issuer, audience: Collection[str], now: float) -> None:
    """Check that a token is of the issuer, for us, and valid `now` (seconds since 1970). Raises BadToken."""
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


def _scopes_of(claims: Mapping[str, Any]) -> frozenset[str]:
    """Return the scopes in `scope` (text) or `scp` (text or a list). Raises BadToken."""
    claim = claims.get("scope", claims.get("scp", ""))
    scopes = claim.split() if isinstance(claim, str) else claim
    is_list = isinstance(scopes, list) and len(scopes) <= MOST_SCOPES
    if not is_list or not all(isinstance(scope, str) for scope in scopes):
        raise BadToken("the token's scopes are neither text nor a list")
    return frozenset(scopes)
