"""Keys, tokens and a gate for tests. Tokens are signed by joserfc itself, not by code of mcpmux."""

from __future__ import annotations

import json
import warnings
from typing import Any

import trio
from joserfc import jws
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from mcpmux.auth.gate import Gate
from mcpmux.config import Auth, Issuer, StaticToken
from mcpmux.errors import TransportError

NOW = 1_800_000_000.0
ISSUER = "https://login.example.com"
RESOURCE = "https://mux.example.com/mcp"
KEYS_URL = "https://login.example.com/keys"

RSA = RSAKey.generate_key(2048, {"kid": "rsa-1"})
RSA_NEW = RSAKey.generate_key(2048, {"kid": "rsa-2"})
EC = ECKey.generate_key("P-256", {"kid": "ec-1"})
ED = OKPKey.generate_key("Ed25519", {"kid": "ed-1"})
STRANGE = RSAKey.generate_key(2048, {"kid": "rsa-1"})  # the same name, another key

Json = dict[str, Any]


def public(*keys: Any) -> bytes:
    """Return a JWKS."""
    return json.dumps({"keys": [key.as_dict(private=False, kid=key.kid) for key in keys]}).encode()


def claims(**changes: Any) -> Json:
    """Return the claims of a good token with `changes`; None removes a claim."""
    values = {
        "iss": ISSUER,
        "aud": RESOURCE,
        "sub": "alice",
        "exp": int(NOW) + 600,
        "iat": int(NOW),
        "scope": "read call",
    }
    return {key: value for key, value in (values | changes).items() if value is not None}


def sign(said: Any, key: Any = RSA, algorithm: str = "RS256", **header: Any) -> str:
    """Return a token; `header` changes its header, None takes a member out."""
    members = {"alg": algorithm, "kid": key.kid, "typ": "at+jwt"} | header
    members = {name: value for name, value in members.items() if value is not None}
    registry = jws.JWSRegistry(algorithms=[algorithm], strict_check_header=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # EdDSA has another name now
        return jws.serialize_compact(members, json.dumps(said).encode(), key, registry=registry)


def secret_key(data: bytes, kid: str) -> OctKey:
    return OctKey.import_key(data, {"kid": kid})


class Issuing:
    """An issuer as `fetch` sees it. `documents`: by URL; a missing one is a server that is down.

    `seconds`: how long each takes.
    """

    def __init__(self, *keys: Any, seconds: float = 0) -> None:
        self.documents: dict[str, bytes] = {}
        self.seconds = seconds
        self.asked: list[str] = []
        self.publish(*(keys or (RSA, EC, ED)))

    def publish(self, *keys: Any) -> None:
        self.documents[KEYS_URL] = public(*keys)

    async def fetch(self, url: str, _ca: str | None) -> bytes:
        await trio.sleep(self.seconds)
        self.asked.append(url)
        if url not in self.documents:
            raise TransportError("connection refused")
        return self.documents[url]


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def make_gate(
    issuing: Issuing | None = None,
    clock: Clock | None = None,
    tokens: dict[str, StaticToken] | None = None,
    issuer: Json | None = None,
    **auth: Any,
) -> Gate:
    described: Json = {"issuer": ISSUER, "jwks_url": KEYS_URL} | (issuer or {})
    issuers = {"corp": Issuer(**described)}
    config = Auth(
        tokens=tokens or {},
        issuers=issuers if issuing is not None else {},
        resource=RESOURCE if issuing is not None else None,
        **auth,
    )
    return Gate(config, "mux", issuing.fetch if issuing else _nobody, clock or Clock())


async def _nobody(_url: str, _ca: str | None) -> bytes:
    raise AssertionError("nobody is asked")


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}
