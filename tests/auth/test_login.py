"""`log_in`: a person logs in at the authorization server of an upstream, and what goes wrong with that."""

from __future__ import annotations

import stat
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from mcpmux.errors import McpmuxError
from tests.auth.oauth_world import Json, World, browse, query_of


async def fails(world: World, why: str, **oauth: Any) -> str:
    with pytest.raises(McpmuxError, match=why) as caught, capture_logs() as logs:
        await world.log_in(world.target(**oauth))
    assert "SECRET" not in f"{caught.value}{logs}"
    assert world.file.load() is None
    return str(caught.value)


async def test_a_login_asks_for_what_the_specification_wants(world: World) -> None:
    login = await world.log_in(world.target())
    query, form = world.asked[0], world.forms[0]
    assert query["resource"] == form["resource"] == world.url
    assert (query["response_type"], query["code_challenge_method"]) == ("code", "S256")
    assert query["redirect_uri"].startswith("http://127.0.0.1:")
    assert query["scope"] == "read", "as the upstream's metadata says"
    assert len(query["state"]) >= 32
    assert form["client_id"] == query["client_id"] == "client-1"
    assert login.issuer == world.issuer
    assert world.file.load() == login
    kept = world.file.path
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    wish = world.registered[0]
    assert wish["token_endpoint_auth_method"] == "none"
    assert wish["application_type"] == "native"
    assert wish["redirect_uris"] == [query["redirect_uri"]]
    assert set(wish["grant_types"]) == {"authorization_code", "refresh_token"}


async def test_each_login_has_its_own_state_and_verifier_and_keeps_the_client(world: World) -> None:
    await world.log_in(world.target())
    await world.log_in(world.target())
    first, second = world.asked
    assert first["state"] != second["state"]
    assert first["code_challenge"] != second["code_challenge"]
    assert first["client_id"] == second["client_id"]
    assert first["redirect_uri"] == second["redirect_uri"]
    assert len(world.registered) == 1


async def test_scopes_are_those_of_the_configuration_and_the_command(world: World) -> None:
    world.metadata = {"scopes_supported": ["offline_access"]}
    await world.log_in(world.target(scopes=("a", "b")), "c", "a")
    assert world.asked[0]["scope"] == "a b c offline_access"


async def test_client_is_the_configured_one(world: World) -> None:
    target = world.own_target(grant="authorization_code")
    await world.log_in(target)
    assert world.registered == []
    assert world.asked[0]["client_id"] == "me"
    assert world.forms[0]["basic"] == "me:SECRET-client"
    assert "client_secret" not in world.forms[0]


@pytest.mark.parametrize("supported", [True, False])
async def test_client_metadata_document_is_used_where_it_is_taken(world: World, supported: bool) -> None:
    world.metadata = {"client_id_metadata_document_supported": supported}
    await world.log_in(world.target(client_metadata_url="https://me.example/client.json"))
    assert world.asked[0]["client_id"] == ("https://me.example/client.json" if supported else "client-1")
    assert len(world.registered) == (0 if supported else 1)


async def test_without_registration_it_says_what_to_do(world: World) -> None:
    world.metadata = {"registration_endpoint": None}
    await fails(world, r"set `oauth\.client_id`")


async def test_a_server_without_resource_metadata_is_its_own_authority(world: World) -> None:
    """2025-03-26."""
    world.resource, world.challenges = None, False
    login = await world.log_in(world.target())
    assert login.resource == world.url


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"iss": "https://evil.example"}, "the answer is not of http://127"),
        ({"iss": None}, "does not say that it is of http://127"),
        ({"code": None, "error": "access_denied", "error_description": "no!"}, r"'access_denied' \(no!\)"),
        ({"code": None}, "sent no code"),
        ({"code": ""}, "sent no code"),
    ],
)
async def test_bad_answers_of_the_browser_are_refused(world: World, said: Json, why: str) -> None:
    world.answer_browser = lambda right: right | said
    await fails(world, why)
    assert world.forms == [], "no code goes to any token endpoint"


async def test_the_error_of_another_issuer_is_not_shown(world: World) -> None:
    world.answer_browser = lambda right: {
        "state": right["state"],
        "iss": "https://evil.example",
        "error": "FORGED",
    }
    assert "FORGED" not in await fails(world, "the answer is not of")


async def test_iss_is_compared_letter_by_letter(world: World) -> None:
    world.answer_browser = lambda right: right | {"iss": right["iss"] + "/"}
    await fails(world, "the answer is not of")


async def test_iss_may_be_missing_where_it_is_not_promised(world: World) -> None:
    world.metadata = {"authorization_response_iss_parameter_supported": False}
    world.answer_browser = lambda right: right | {"iss": None}
    assert await world.log_in(world.target())


async def test_a_wrong_state_does_not_end_the_wait(world: World) -> None:

    async def show(url: str) -> None:
        query = query_of(url)
        for state in ("wrong", "", query["state"] + "x"):
            await browse(f"{query['redirect_uri']}?code=stolen&state={state}")
        double = f"{query['redirect_uri']}?code=a&code=b&state={query['state']}"
        await browse(double)
        await browse(url)

    login = await world.log_in(world.target(), show=show)
    assert login.tokens.access == "SECRET-access-1"
    assert world.forms[0]["code"] == "code-1"


async def test_nobody_comes_back(world: World) -> None:

    async def show(_url: str) -> None:
        """Open no browser."""

    with pytest.raises(McpmuxError, match="nobody came back"):
        await world.log_in(world.target(), show=show, seconds=0.1)


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"code_challenge_methods_supported": None}, "PKCE"),
        ({"code_challenge_methods_supported": ["plain"]}, "PKCE"),
        ({"issuer": "https://honest.example"}, "that of another issuer"),
        ({"token_endpoint": None}, "cannot be used"),
        ({"token_endpoint": 7}, "cannot be used"),
        ({"authorization_endpoint": None}, "nobody can log in"),
        ({"authorization_endpoint": "http://evil.example/"}, "without TLS"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "is none"),
        ({"registration_endpoint": "https://169.254.169.254/latest"}, "cloud metadata address"),
        ({"registration_endpoint": "https://10.0.0.1/"}, "private address"),
        ({"token_endpoint": "https://169.254.169.254/latest"}, "cloud metadata address"),
        (None, "no metadata of an authorization server"),
    ],
)
async def test_bad_authorities_are_refused(world: World, metadata: Json | None, why: str) -> None:
    world.metadata = metadata
    await fails(world, why)


@pytest.mark.parametrize(
    ("resource", "why"),
    [
        ({"resource": "https://other.example/mcp"}, "that of another resource"),
        ({"resource": 7}, "no `resource`"),
        ({"authorization_servers": []}, "no `authorization_servers`"),
        ({"authorization_servers": ["http://evil.example"]}, "without TLS"),
        ({"authorization_servers": ["https://169.254.169.254"]}, "cloud metadata address"),
        ({"authorization_servers": ["nonsense"]}, "is none"),
    ],
)
async def test_bad_resource_metadata_is_refused(world: World, resource: Json, why: str) -> None:
    world.resource = resource
    await fails(world, why)


async def test_another_issuer_than_the_configured_one_is_refused(world: World) -> None:
    await fails(world, "is .* now, and not https://login.example", issuer="https://login.example")
    assert not [path for path in world.paths if "oauth-authorization-server" in path]


async def test_redirects_of_metadata_are_not_followed(world: World) -> None:
    world.moves = True
    await fails(world, "no metadata")
    assert not [path for path in world.paths if path.startswith("/moved")]


@pytest.mark.parametrize(
    "answer",
    [
        (200, b""),
        (200, b"<html>"),
        (200, b"[1]"),
        (200, b"{}"),
        (200, b'{"access_token": 7, "token_type": "Bearer"}'),
        (200, b'{"access_token": "a\\r\\nX: y", "token_type": "Bearer"}'),
        (200, b'{"access_token": "", "token_type": "Bearer"}'),
        (200, b'{"access_token": "a", "token_type": "DPoP"}'),
        (200, b'{"access_token": "a", "token_type": []}'),
        (200, b'{"access_token": "a", "scope": 7, "token_type": "mac"}'),
        (200, b'{"access_token": "a", "expires_in": {}, "token_type": "mac"}'),
        (200, b"[" * 100_000),
        (200, b"\xff" * 100),
        (302, b"{}"),
        (400, b'{"error": "invalid_grant"}'),
        (400, b'{"error": ["x"]}'),
        (500, b"SECRET"),
        (503, b'{"error": "x"}'),
    ],
)
async def test_garbage_from_the_token_endpoint_is_an_error(world: World, answer: tuple[int, bytes]) -> None:
    world.answer_token = lambda form: answer
    await fails(world, "token|answered|gave")


async def test_a_port_that_is_taken_is_left_alone(world: World) -> None:
    login = await world.log_in(world.target())
    assert login.client.redirect_uri is not None
    port = int(login.client.redirect_uri.rpartition(":")[2].partition("/")[0])
    taken = await trio.open_tcp_listeners(port, host="127.0.0.1")
    try:
        again = await world.log_in(world.target())
        assert again.client.redirect_uri != login.client.redirect_uri
        assert len(world.registered) == 2
        with pytest.raises(McpmuxError, match="cannot listen on"):
            await world.log_in(world.target(redirect_port=port))
    finally:
        for listener in taken:
            await listener.aclose()
