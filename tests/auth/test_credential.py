"""Tokens for upstreams: got, kept fresh, taken back, and never shown to anybody else."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from structlog.testing import capture_logs
from trio_websocket import WebSocketRequest, serve_websocket

from mcpmux.auth.bearer import hash_token
from mcpmux.auth.credential import AHEAD_SECONDS, NEW_SECONDS, RETRY_SECONDS, Credential
from mcpmux.channels.http_peer import HttpPlace
from mcpmux.channels.opener import open_sse, open_stream_channel
from mcpmux.config import OAuth, Secret, WebSocket
from mcpmux.errors import ConnectFailed, RpcError, TransportError
from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.http.route import HttpOrigin
from mcpmux.transports.http.sse_streams import NoEventStream
from tests.auth.oauth_world import World, open_mux
from tests.peers.blocking_client import HttpClient
from tests.peers.revision import MODERN
from tests.process.running import Running
from tests.runtime.web_world import exchange

REFUSED = "Bearer"


async def shown_by(credential: Credential) -> str:
    header = credential.header_now() or await credential.header()
    ((name, value),) = header
    assert name == "Authorization"
    return value


async def trouble_of(credential: Credential) -> str:
    with pytest.raises(TransportError) as caught:
        await credential.header()
    return str(caught.value)


async def read(mux: Any) -> Any:
    return (await exchange(mux, "resources/read", {"uri": "a:1"}))["contents"]


async def test_client_credentials_are_exchanged_for_a_token(world: World) -> None:
    credential = world.credential(world.own_target())
    assert credential.header_now() == ()
    assert await shown_by(credential) == "Bearer SECRET-access-1"
    assert await shown_by(credential) == "Bearer SECRET-access-1"
    (form,) = world.forms
    assert form == {
        "grant_type": "client_credentials",
        "basic": "me:SECRET-client",
        "resource": world.url,
        "scope": "read",
    }
    assert world.file.load() is None, "nothing is kept"


async def test_a_token_is_renewed_ahead_of_its_end(world: World) -> None:
    credential = world.credential(world.own_target())
    await shown_by(credential)
    world.clock.now += 3600 - AHEAD_SECONDS - 1
    assert await shown_by(credential) == "Bearer SECRET-access-1"
    world.clock.now += 1
    assert await shown_by(credential) == "Bearer SECRET-access-2"


async def test_a_token_of_unknown_life_is_not_renewed_before_it_is_refused(world: World) -> None:
    world.lifetime = None
    credential = world.credential(world.own_target())
    shown = await credential.header()
    world.clock.now += 10**9
    assert await credential.header() == shown
    assert await credential.refused(shown, 401, REFUSED)
    assert await shown_by(credential) == "Bearer SECRET-access-2"


async def test_many_who_wait_cause_one_request(world: World) -> None:
    credential = world.credential(world.own_target())
    seen: list[str] = []

    async def ask() -> None:
        seen.append(await shown_by(credential))

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(ask)
    assert seen == ["Bearer SECRET-access-1"] * 50
    assert len(world.forms) == 1
    world.clock.now += NEW_SECONDS
    old = credential.header_now()
    renewed: list[bool] = []

    async def lose() -> None:
        renewed.append(await credential.refused(old, 401, REFUSED))

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(lose)
    assert renewed == [True] * 50
    assert len(world.forms) == 2


async def test_a_login_is_refreshed_and_its_rotated_refresh_token_kept(world: World) -> None:
    target = world.target()
    await world.log_in(target)
    credential = world.credential(target)
    assert await shown_by(credential) == "Bearer SECRET-access-1"
    for number in (2, 3):
        world.clock.now += 3600
        assert await shown_by(credential) == f"Bearer SECRET-access-{number}"
        kept = world.file.load()
        assert kept is not None
        assert kept.tokens.refresh == f"SECRET-refresh-{number}"
    assert world.forms[-1]["refresh_token"] == "SECRET-refresh-2"
    assert world.forms[-1]["resource"] == world.url


async def test_a_refresh_token_that_is_not_rotated_stays(world: World) -> None:
    world.rotates = False
    await world.log_in(world.target())
    credential = world.credential(world.target())
    for number in (2, 3):
        world.clock.now += 3600
        assert await shown_by(credential) == f"Bearer SECRET-access-{number}"


async def test_a_client_that_leaves_loses_no_refresh_token(world: World) -> None:
    await world.log_in(world.target())
    credential = world.credential(world.target())
    world.clock.now += 3600
    with trio.CancelScope() as scope:

        async def leave() -> None:
            scope.cancel()
            await trio.lowlevel.checkpoint()

        world.before_token = leave
        await credential.header()
        await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    kept = world.file.load()
    assert kept is not None
    assert kept.tokens.refresh == "SECRET-refresh-2"
    assert await shown_by(credential) == "Bearer SECRET-access-2"
    assert world.grants.count("refresh_token") == 1


async def test_a_token_endpoint_that_hangs_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcpmux.auth.discovery.FETCH_SECONDS", 0.2)
    world.before_token = trio.sleep_forever
    credential = world.credential(world.own_target())
    assert "did not answer within 0.2 s" in await trouble_of(credential)


async def test_a_token_endpoint_that_is_not_there_is_told(world: World) -> None:
    world.metadata = {"token_endpoint": "http://127.0.0.1:1/token"}
    credential = world.credential(world.own_target())
    assert "cannot connect to 127.0.0.1:1" in await trouble_of(credential)


async def test_nobody_is_logged_in(world: World) -> None:
    credential = world.credential(world.target())
    assert "run `mcpmux auth login web`" in await trouble_of(credential)
    await world.log_in(world.target())
    world.clock.now += RETRY_SECONDS
    assert await shown_by(credential) == "Bearer SECRET-access-1"
    assert world.shown == [""], "only the login's question without a token reached the upstream"


async def test_a_login_done_meanwhile_is_taken_over(world: World) -> None:
    await world.log_in(world.target())
    credential = world.credential(world.target())
    shown = await credential.header()
    await world.log_in(world.target())
    assert await credential.refused(shown, 401, REFUSED)
    assert await shown_by(credential) == "Bearer SECRET-access-2"
    assert "refresh_token" not in world.grants


async def test_a_refresh_token_that_another_has_used_is_no_loss(world: World) -> None:
    """Two mcpmux share a login: the second finds the first's tokens."""
    await world.log_in(world.target())
    first, second = (world.credential(world.target()) for _ in range(2))
    await first.header()
    await second.header()
    world.clock.now += 3600
    assert await shown_by(first) == await shown_by(second) == "Bearer SECRET-access-2"
    assert world.grants.count("refresh_token") == 1


async def test_simultaneous_renewals_of_a_login_use_its_refresh_token_once(world: World) -> None:
    await world.log_in(world.target())
    both = [world.credential(world.target()) for _ in range(2)]
    for credential in both:
        await credential.header()
    world.clock.now += 3600
    came = [trio.Event(), trio.Event()]

    async def wait_for_the_other() -> None:
        next(event for event in came if not event.is_set()).set()
        with trio.move_on_after(0.5):
            await came[1].wait()

    world.before_token = wait_for_the_other
    async with trio.open_nursery() as nursery:
        for credential in both:
            nursery.start_soon(credential.header)
    assert {await shown_by(credential) for credential in both} == {"Bearer SECRET-access-2"}
    assert world.grants.count("refresh_token") == 1


async def test_an_ended_login_says_what_to_run(world: World) -> None:
    await world.log_in(world.target())
    credential = world.credential(world.target())
    world.refresh.clear()
    world.clock.now += 3600
    trouble = await trouble_of(credential)
    assert "has ended" in trouble
    assert "run `mcpmux auth login web`" in trouble
    count = len(world.forms)
    assert await trouble_of(credential) == trouble
    assert len(world.forms) == count, "not asked again at once"


async def test_tokens_are_bound_to_their_issuer(world: World) -> None:
    await world.log_in(world.target())
    credential = world.credential(world.target())
    shown = await credential.header()
    world.resource = {"authorization_servers": ["https://8.8.8.8"]}
    world.clock.now += NEW_SECONDS
    assert not await credential.refused(shown, 401, REFUSED)
    assert credential.advice is not None
    assert "its authorization server is 'https://8.8.8.8' now" in credential.advice
    assert "run `mcpmux auth login web`" in credential.advice
    assert "refresh_token" not in world.grants


async def test_a_login_elsewhere_than_configured_is_not_used(world: World) -> None:
    await world.log_in(world.target())
    credential = world.credential(world.target(issuer="https://other.example"))
    assert "which is not `oauth.issuer`" in await trouble_of(credential)


async def test_a_client_secret_goes_to_no_other_issuer(world: World) -> None:
    world.resource = {"authorization_servers": ["https://8.8.8.8"]}
    credential = world.credential(world.own_target())
    assert "is 'https://8.8.8.8' now" in await trouble_of(credential)
    assert world.forms == []


async def test_a_good_token_outlives_a_token_endpoint_that_is_down(world: World) -> None:
    credential = world.credential(world.own_target())
    await credential.header()
    world.answer_token = lambda form: (503, b"")
    world.clock.now += 3600 - AHEAD_SECONDS
    assert await shown_by(credential) == "Bearer SECRET-access-1"
    count = len(world.forms)
    assert await shown_by(credential) == "Bearer SECRET-access-1"
    assert len(world.forms) == count
    world.clock.now += AHEAD_SECONDS
    assert "status 503" in await trouble_of(credential)
    world.answer_token = lambda form: None
    world.clock.now += RETRY_SECONDS
    assert await shown_by(credential) == "Bearer SECRET-access-2"


async def test_a_clock_that_is_set_back_delays_no_renewal(world: World) -> None:
    credential = world.credential(world.own_target())
    world.answer_token = lambda form: (503, b"")
    await trouble_of(credential)
    world.answer_token = lambda form: None
    world.clock.now -= 3600
    shown = await credential.header()
    world.clock.now -= 3600
    assert await credential.refused(shown, 401, REFUSED)
    assert await shown_by(credential) == "Bearer SECRET-access-2"


async def test_a_new_token_that_is_refused_makes_no_storm(world: World) -> None:
    credential = world.credential(world.own_target())
    for _ in range(5):
        assert not await credential.refused(await credential.header(), 401, REFUSED)
    assert len(world.forms) == 1
    assert credential.advice == "it refuses a token that was made for it just now"


async def test_step_up_of_client_credentials_asks_for_all_scopes_once(world: World) -> None:
    credential = world.credential(world.own_target())
    shown = await credential.header()
    challenge = 'Bearer error="insufficient_scope", scope="write"'
    assert await credential.refused(shown, 403, challenge)
    assert world.forms[-1]["scope"] == "read write"
    assert not await credential.refused(await credential.header(), 403, challenge)
    assert not await credential.refused(await credential.header(), 403, "Bearer")
    assert len(world.forms) == 2


async def test_step_up_of_a_login_needs_the_person(world: World) -> None:
    await world.log_in(world.target())
    credential = world.credential(world.target())
    challenge = 'Bearer error="insufficient_scope", scope="write"'
    assert not await credential.refused(await credential.header(), 403, challenge)
    assert credential.advice is not None
    assert "(write): run `mcpmux auth login web`" in credential.advice
    await world.log_in(world.target())
    assert world.asked[-1]["scope"] == "read write"
    kept = world.file.load()
    assert kept is not None
    assert kept.wanted == ()


# ── with mcpmux in front ──────────────────────────────────────────────────────────────────────────


async def test_calls_carry_the_token_and_go_on_when_it_is_taken_back(world: World) -> None:
    async with open_mux(world.own_target()) as mux:
        assert await read(mux) == []
        assert set(world.shown) == {"Bearer SECRET-access-1"}
        world.good.clear()
        world.clock.now += NEW_SECONDS
        with capture_logs() as logs:
            world.shown.clear()
            assert "just now" in await refused_read(mux)
        assert "SECRET" not in repr(logs)


async def refused_read(mux: Any) -> str:
    with pytest.raises(RpcError) as caught:
        await read(mux)
    return caught.value.message


async def test_the_upstreams_trouble_says_what_to_run(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    async with open_mux(world.target()) as mux:
        assert "run `mcpmux auth login web`" in await refused_read(mux)
        assert world.shown == []


async def test_a_login_is_used_and_refreshed_when_refused(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with capture_logs() as logs:
        await world.log_in(world.target())
        async with open_mux(world.target()) as mux:
            assert await read(mux) == []
            world.good.clear()
            count = len(world.methods())
            assert await read(mux) == []
            assert world.methods()[count:] == ["resources/read"], "repeated once, carried out once"
            assert world.shown[-2:] == ["Bearer SECRET-access-1", "Bearer SECRET-access-2"]
            world.good.clear()
            world.needs = "write"
            assert "just now" in await refused_read(mux)
    assert "SECRET" not in repr(logs)


async def test_scope_that_is_missing_is_told(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    await world.log_in(world.target())
    async with open_mux(world.target()) as mux:
        assert await read(mux) == []
        world.needs = "write"
        assert "it wants more than the login allows (write)" in await refused_read(mux)


@pytest.mark.process
async def test_the_clients_own_token_never_goes_upstream(tmp_path: Path, world: World) -> None:
    """An MCP server "MUST NOT pass through the token it received" (Security Considerations, 2026-07-28)."""
    token = "CLIENT-" + "x" * 40
    oauth = {"grant": "client_credentials", "client_id": "me", "client_secret": "SECRET-client"}
    upstream = {"url": world.url, "oauth": oauth | {"issuer": world.issuer}}
    plain = {"url": world.url, "headers": {"X-Static": "1"}}
    document = {
        "upstreams": {"asks": upstream, "plain": plain},
        "auth": {"tokens": {"alice": {"sha256": hash_token(token)}}},
        "listeners": {"http": ["127.0.0.1:0"]},
    }
    config = tmp_path / "mcpmux.json"
    await trio.Path(config).write_text(json.dumps(document))
    answer = await trio.to_thread.run_sync(read_through, config, token)
    assert answer["result"]["contents"] == []
    sent = [request.headers for request, _ in world.seen]
    assert {headers.get("authorization") for headers in sent} >= {"Bearer SECRET-access-1"}
    assert "" in world.shown, "the plain one has nothing to show"
    assert "CLIENT" not in repr(world.shown) + repr(sent)


def read_through(config: Path, token: str) -> Any:
    """Read with a token, check that mcpmux logs no secret, and return the answer."""
    params = {"uri": "asks+a:1", "_meta": {"x.example/authorization": "kept"}}
    with Running("serve", str(config), "--log-level", "debug") as mux:
        client = HttpClient(mux.line().strip(), MODERN, {"Authorization": f"Bearer {token}"})
        answer = client.ask("resources/read", params)[-1]
        assert mux.stop() == 0
        assert "new token" in mux.stderr
        assert "SECRET" not in mux.stderr
        assert "CLIENT" not in mux.stderr
        return answer


async def test_a_websocket_server_gets_the_token_and_its_renewal(world: World) -> None:
    async with trio.open_nursery() as nursery:

        async def take(request: WebSocketRequest) -> None:
            shown = dict(request.headers).get(b"authorization", b"").decode()
            world.shown.append(shown)
            if shown.removeprefix("Bearer ") not in world.good:
                await request.reject(401, extra_headers=[(b"WWW-Authenticate", b"Bearer")])
            else:
                await request.reject(418)

        serve = partial(serve_websocket, take, "127.0.0.1", 0, None)
        server: Any = await nursery.start(serve)
        url = f"ws://127.0.0.1:{server.port}/mcp"
        issuer, world.url = world.issuer, url.replace("ws", "http", 1)
        world.metadata = {"token_endpoint": f"{issuer}/token", "issuer": issuer}
        secret = Secret("SECRET-client")
        oauth = OAuth(grant="client_credentials", client_id="me", client_secret=secret, issuer=issuer)
        target = WebSocket(url, oauth=oauth)
        credential = world.credential(target)
        for expected in ("418", "401", "418"):
            with pytest.raises(ConnectFailed, match=expected):
                async with open_stream_channel(target, 1024, 5, unheard, None, credential):
                    raise AssertionError("nobody lets us in")
            if expected == "418":
                world.good.clear()
                world.clock.now += NEW_SECONDS
        assert world.shown == [f"Bearer SECRET-access-{number}" for number in (1, 1, 2)]
        nursery.cancel_scope.cancel()


async def test_an_http_sse_server_gets_the_token_and_its_renewal(world: World) -> None:
    target = world.own_target()
    credential = world.credential(target)
    with HttpPool(HttpOrigin.from_url(world.url)) as pool:
        place = HttpPlace(pool, world.url, (), 1024, unheard, 5, None, credential)
        for expected in ("405", "401", "405"):  # the last thing that is to be seen of the scripted server
            with pytest.raises(NoEventStream, match=expected):
                async with open_sse(place):
                    raise AssertionError("nobody lets us in")
            if expected == "405":
                world.good.clear()
                world.clock.now += NEW_SECONDS
        with pytest.raises(TransportError, match="401: it refuses a token that was made for it just now"):
            world.clock.now -= NEW_SECONDS
            async with open_sse(place):
                raise AssertionError("nobody lets us in")
    assert world.shown == [f"Bearer SECRET-access-{number}" for number in (1, 1, 2, 2)]


def unheard(_notification: Any) -> None:
    """Ignore the notification."""


def test_a_token_is_in_no_repr(tmp_path: Path) -> None:
    world = World("http://127.0.0.1:1", msgspec.UNSET)  # type: ignore[arg-type]  # never asked
    assert "SECRET" not in repr(world.own_target())
    assert "SECRET" not in repr(world.credential(world.own_target()))
