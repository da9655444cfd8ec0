"""Tokens that an identity provider lets a person have, for upstreams that trust it."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mcpmux.auth.authorization_code import log_in
from mcpmux.auth.credential import RETRY_SECONDS
from mcpmux.auth.token_store import Login, login_file
from mcpmux.auth.upstream_auth import http_of_login
from mcpmux.config import Http, Secret
from mcpmux.config.auth import IdentityProvider
from mcpmux.errors import McpmuxError
from tests.auth.oauth_world import NOW, Json, World, browse, open_world
from tests.auth.test_credential import shown_by, trouble_of

EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
LIFE = 600


def id_token(number: int) -> str:
    claims = json.dumps({"sub": "alice", "exp": NOW + LIFE * number}).encode()
    return f"SECRET{number}.{base64.urlsafe_b64encode(claims).rstrip(b'=').decode()}.signature"


class Provider:
    """Answers at the token endpoint of a World. `made`: ID tokens so far; `changes`: of answers, by grant."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.made = 0
        self.changes: dict[str, Json] = {}
        world.answer_token = self._answer

    def _answer(self, form: Json) -> tuple[int, bytes]:
        if form["grant_type"] == EXCHANGE:
            answer = {"access_token": "SECRET-assertion", "token_type": "N_A", "expires_in": 300}
        else:
            self.made += 1
            answer = {
                "access_token": "SECRET-unused",
                "token_type": "Bearer",
                "refresh_token": "SECRET-refresh",
            }
            answer["id_token"] = id_token(self.made)
        answer |= self.changes.get(form["grant_type"], {})
        return 400 if "error" in answer else 200, json.dumps(answer).encode()


class Organization:
    """An upstream's authorization server and an identity provider."""

    def __init__(self, upstream: World, provider: World) -> None:
        self.upstream, self.provider = upstream, Provider(provider)
        self.forms = provider.forms

    def target(self, **provider: Any) -> Http:
        secret = Secret("SECRET-there")
        place = {"issuer": self.provider.world.issuer, "client_id": "me-there", "client_secret": secret}
        identity = IdentityProvider(**{**place, **provider})
        return self.upstream.own_target(grant="identity_assertion", identity_provider=identity)

    async def log_in(self) -> Login:
        target = self.target()
        file = login_file("web", target, self.upstream.file.folder)
        return await log_in(http_of_login(target), file, self.upstream.clock, browse, (), 5)


@pytest.fixture
async def here(world: World, tmp_path: Path) -> AsyncIterator[Organization]:
    async with open_world(tmp_path) as provider:
        yield Organization(world, provider)


async def test_an_id_token_becomes_an_assertion_and_that_a_token(here: Organization) -> None:
    provider, upstream = here.provider.world, here.upstream
    login = await here.log_in()
    assert login.issuer == provider.issuer
    (request,) = provider.asked
    assert request["scope"] == "openid"
    assert request["client_id"] == "me-there"
    assert "resource" not in request
    assert "resource" not in here.forms[0]
    assert "/mcp" not in provider.paths
    assert await shown_by(upstream.credential(here.target())) == "Bearer SECRET-access-1"
    assert here.forms[1:] == [
        {
            "grant_type": EXCHANGE,
            "requested_token_type": "urn:ietf:params:oauth:token-type:id-jag",
            "audience": upstream.issuer,
            "resource": upstream.url,
            "scope": "read",
            "subject_token": id_token(1),
            "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
            "basic": "me-there:SECRET-there",
        }
    ]
    assert upstream.forms == [  # which is not shown the ID token
        {
            "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
            "assertion": "SECRET-assertion",
            "resource": upstream.url,
            "scope": "read",
            "basic": "me:SECRET-client",
        }
    ]


async def test_one_login_is_good_for_all_upstreams_that_name_the_provider(
    tmp_path: Path, here: Organization
) -> None:
    async with open_world(tmp_path) as another:
        await here.log_in()
        other = Organization(another, here.provider.world)
        assert await shown_by(here.upstream.credential(here.target())) == "Bearer SECRET-access-1"
        assert await shown_by(another.credential(other.target())) == "Bearer SECRET-access-1"
        assert [form["audience"] for form in here.forms[1:]] == [here.upstream.issuer, another.issuer]


async def test_an_id_token_is_renewed_when_it_expires(here: Organization) -> None:
    here.upstream.lifetime = LIFE
    await here.log_in()
    credential = here.upstream.credential(here.target())
    await credential.header()
    here.upstream.clock.now += LIFE
    assert await shown_by(credential) == "Bearer SECRET-access-2"
    grants = ["authorization_code", EXCHANGE, "refresh_token", EXCHANGE]
    assert [form["grant_type"] for form in here.forms] == grants
    assert "resource" not in here.forms[2]
    assert here.forms[3]["subject_token"] == id_token(2)


async def test_without_a_login_it_says_what_to_run(here: Organization) -> None:
    assert "run `mcpmux auth login web`" in await trouble_of(here.upstream.credential(here.target()))
    assert here.forms == here.upstream.forms == []


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"error": "access_denied", "error_description": "not for you"}, r"'access_denied' \(not for you\)"),
        ({"token_type": "Bearer"}, "gave no n_a token"),
        ({"access_token": None}, "gave no token that can be sent"),
    ],
)
async def test_what_the_provider_denies_is_not_asked_for(here: Organization, answer: Json, why: str) -> None:
    await here.log_in()
    here.provider.changes[EXCHANGE] = answer
    credential = here.upstream.credential(here.target())
    with pytest.raises(McpmuxError, match=why):
        await credential.header()
    assert here.upstream.forms == []


@pytest.mark.parametrize("token", [None, 1, "", "SECRET", "SECRET.!.x", "SECRET.e30.x"])
async def test_a_login_without_an_id_token_is_none(here: Organization, token: Any) -> None:
    here.provider.changes["authorization_code"] = {"id_token": token}
    with pytest.raises(McpmuxError, match="gave no ID token") as caught:
        await here.log_in()
    assert "SECRET" not in str(caught.value)


async def test_a_file_with_the_id_token_is_read_each_time(tmp_path: Path, here: Organization) -> None:
    file = tmp_path / "token"
    credential = here.upstream.credential(here.target(token_file=str(file)))
    assert f"the ID token in {file} cannot be read: no such file" in await trouble_of(credential)
    for number in (1, 2):
        file.write_text(f"{id_token(number)}\n")
        here.upstream.clock.now += here.upstream.lifetime or RETRY_SECONDS
        await credential.header()
        assert here.forms[-1]["subject_token"] == id_token(number)
    assert here.provider.made == 0
