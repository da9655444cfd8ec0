"""Authenticate mcpmux to an authorization server without a secret, by `private_key_jwt`.

A JWT signed with the private key of the configuration. It is valid for this server only, once, and for
LIFE_SECONDS. By joserfc: without it, importing this module raises ConfigError.

Source: RFC 7523, sections 2.2 and 3; RFC 8414, section 2; the extension OAuth Client Credentials.
"""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from typing import Final

from mcpmux.auth.discovery import AuthorizationServer
from mcpmux.config import Secret
from mcpmux.errors import ConfigError, TransportError

try:
    from joserfc import jwt
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, Key, RSAKey, import_key
except ImportError:
    raise ConfigError(["oauth.private_key needs the library joserfc: pip install 'mcpmux[auth]'"]) from None

LIFE_SECONDS: Final = 60
JWT_BEARER: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"

_RSA: Final = ("RS256", "PS256")
_EC: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}


def sign_assertion(
    private_key: Secret, client_id: str, server: AuthorizationServer, now: float
) -> dict[str, str]:
    """Return the parameters that authenticate a token request. Raises TransportError for an invalid key."""
    key = _read_key(private_key.reveal())
    if isinstance(key, ECKey):
        # An EC key fits exactly one algorithm, so there is no choice.
        algorithm = _EC.get(key.curve_name, "ES256")
    else:
        # Without a list in its metadata, RS256 is the algorithm that a server most likely takes.
        taken = server.token_endpoint_auth_signing_alg_values_supported or _RSA
        algorithm = next((name for name in _RSA if name in taken), _RSA[0])
    header = {"alg": algorithm} if key.kid is None else {"alg": algorithm, "kid": key.kid}
    claims = {
        "iss": client_id,
        "sub": client_id,
        "aud": server.issuer,  # its token endpoint would be valid, too, but may be another server's
        "jti": secrets.token_urlsafe(),
        "iat": int(now),
        "exp": int(now) + LIFE_SECONDS,
    }
    signed = jwt.encode(header, claims, key, algorithms=[algorithm])
    return {"client_assertion_type": JWT_BEARER, "client_assertion": signed}


def _read_key(text: str) -> RSAKey | ECKey:
    keys: list[Key] = []
    with suppress(JoseError, ValueError):
        if text.lstrip().startswith("{"):
            keys.append(import_key(json.loads(text)))
    for kind in ("RSA", "EC") if not keys else ():
        with suppress(JoseError, ValueError):
            keys.append(import_key(text, kind))
    for key in keys:
        if isinstance(key, RSAKey | ECKey) and key.is_private:
            return key
    raise TransportError("`oauth.private_key` is no private key, RSA or EC, as PEM or JWK")
