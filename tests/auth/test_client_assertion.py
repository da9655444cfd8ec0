"""`private_key_jwt`: the signature with which mcpmux identifies itself."""

from __future__ import annotations

import json
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey

from mcpmux.auth.client_assertion import JWT_BEARER, LIFE_SECONDS, sign_assertion
from mcpmux.auth.discovery import AuthorizationServer
from mcpmux.config import Secret
from mcpmux.errors import TransportError
from tests.auth.made import ED, NOW, RSA
from tests.auth.oauth_world import World
from tests.auth.test_credential import shown_by, trouble_of

EC = ECKey.generate_key("P-256")
EC_384 = ECKey.generate_key("P-384")
ISSUER = "https://login.example.com"


def server(*algorithms: str) -> AuthorizationServer:
    return AuthorizationServer(
        ISSUER, f"{ISSUER}/token", token_endpoint_auth_signing_alg_values_supported=algorithms or None
    )


def pem(key: Any, *, private: bool = True) -> Secret:
    return Secret(key.as_pem(private=private).decode())


def read(key: Any, algorithm: str, shown: dict[str, str]) -> jwt.Token:
    assert shown.keys() == {"client_assertion_type", "client_assertion"}
    assert shown["client_assertion_type"] == JWT_BEARER
    return jwt.decode(shown["client_assertion"], key, algorithms=[algorithm])


@pytest.mark.parametrize(
    ("key", "taken", "algorithm"),
    [
        (RSA, (), "RS256"),
        (RSA, ("ES256", "PS256"), "PS256"),
        (RSA, ("PS256", "RS256"), "RS256"),
        (EC, (), "ES256"),
        (EC_384, ("RS256",), "ES384"),
    ],
)
def test_each_key_signs_for_one_server_and_a_short_time(key: Any, taken: tuple[str, ...], algorithm: str):
    token = read(key, algorithm, sign_assertion(pem(key), "me", server(*taken), NOW))
    jti = token.claims.pop("jti")
    assert len(jti) >= 32
    times = {"iat": int(NOW), "exp": int(NOW) + LIFE_SECONDS}
    assert token.claims == {"iss": "me", "sub": "me", "aud": ISSUER, **times}
    assert "kid" not in token.header
    again = read(key, algorithm, sign_assertion(pem(key), "me", server(*taken), NOW))
    assert again.claims["jti"] != jti


def test_a_jwk_says_which_key_it_is():
    key = Secret(json.dumps(RSA.as_dict(private=True)))
    assert read(RSA, "RS256", sign_assertion(key, "me", server(), NOW)).header["kid"] == "rsa-1"


@pytest.mark.parametrize(
    "key",
    [pem(RSA, private=False), pem(ED), Secret("planted"), Secret("{planted"), Secret('{"kty":"planted"}')],
)
def test_what_is_no_private_key_is_told_without_showing_it(key: Secret):
    with pytest.raises(TransportError, match="is no private key") as caught:
        sign_assertion(key, "me", server(), NOW)
    assert "planted" not in str(caught.value)


def with_key(world: World, key: Secret) -> Any:
    return world.target(grant="client_credentials", client_id="me", private_key=key)


async def test_a_signed_assertion_is_shown_in_place_of_id_and_secret(world: World) -> None:
    assert await shown_by(world.credential(with_key(world, pem(EC)))) == "Bearer SECRET-access-1"
    (form,) = world.forms
    shown = {name: form.pop(name) for name in ("client_assertion_type", "client_assertion")}
    assert read(EC, "ES256", shown).claims["aud"] == world.issuer
    assert form == {"grant_type": "client_credentials", "resource": world.url, "scope": "read"}
    login = await world.log_in(world.target(client_id="me", private_key=pem(EC)))
    assert "client_assertion" in world.forms[-1]
    assert "PRIVATE" not in world.file.path.read_text()
    assert login.client.method == "private_key_jwt"


async def test_a_bad_key_is_the_upstreams_trouble(world: World) -> None:
    trouble = await trouble_of(world.credential(with_key(world, Secret("planted"))))
    assert "`oauth.private_key` is no private key" in trouble
    assert world.forms == []
