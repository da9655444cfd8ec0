"""A server of both eras speaks to each client in the client's own; what then happens to its sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mcpmux.config import Http, Stdio, Upstream
from mcpmux.errors import ConnectFailed
from mcpmux.upstreams.registry import PAUSE_SECONDS, era_session_key, mirrors
from tests.peers.client import ScriptedClient
from tests.peers.revision import LEGACY, MODERN, Json
from tests.peers.server import RpcFailure
from tests.peers.subscribable import Subscribable
from tests.runtime.test_asking import client_of
from tests.runtime.world import World, open_world

MIRROR = {"x": {"era": "mirror"}}


class Session(Subscribable):
    """One session with a server of both eras: the first question decides which it is."""

    def __init__(self, world: TwoFaced) -> None:
        super().__init__(MODERN, capabilities=world.offers[MODERN])
        self._world = world

    async def handle(self, method: str, params: Json, message: Json) -> Json:
        if method == "initialize" and LEGACY in self._world.offers:
            self.revision, self.oracle = LEGACY, type(self.oracle)(LEGACY)
            self.capabilities = self._world.offers[LEGACY]
        if method == "initialize":
            self._world.initializes += 1
        if method == "tools/call":
            result = {"content": [{"type": "text", "text": self.revision}]}
            return result | {"resultType": "complete"} if self.modern else result
        return await super().handle(method, params, message)


class TwoFaced(World):
    """`x` is a server with a session for each connection; `offers`: its capabilities in each of its eras."""

    def __init__(self, servers: dict[str, Any]) -> None:
        super().__init__(servers)
        self.offers = dict.fromkeys((LEGACY, MODERN), OFFERS)
        self.sessions: list[tuple[Session, Any]] = []
        self.initializes = 0
        self.refuses = False

    @asynccontextmanager
    async def open_channel(self, upstream: Upstream, hear: Any, watch: Any = None) -> AsyncIterator[Any]:
        if self.refuses:
            raise ConnectFailed("nobody there")
        session = self.servers["x"] = Session(self)
        async with super().open_channel(upstream, hear, watch) as channel:
            self.sessions.append((session, self._pipes["x"]))
            yield channel

    def session(self, revision: str) -> Session:
        """Return the shared modern session, or the newest legacy one."""
        if revision == MODERN:
            return self.sessions[0][0]
        return next(session for session, _ in reversed(self.sessions) if session.revision == LEGACY)

    async def end(self, session: Session) -> None:
        """End a session at the server."""
        await next(pipe for open_session, pipe in self.sessions if open_session is session).aclose()


OFFERS: Json = {
    "resources": {"subscribe": True, "listChanged": True},
    "tools": {"listChanged": True},
}


def open_two_faced(**settings: Any) -> Any:
    settings = {"target": Http("http://unused.invalid/"), **MIRROR["x"], **settings}
    return open_world({"x": None}, settings={"x": settings}, world_class=TwoFaced)


async def era_met_by(client: ScriptedClient) -> str:
    return (await client.request("tools/call", {"name": "x__t"}))["content"][0]["text"]


async def test_each_client_meets_the_server_in_its_own_era(autojump_clock):
    async with open_two_faced() as world:
        modern, legacy = await client_of(world, MODERN), await client_of(world, LEGACY)
        another = await client_of(world, LEGACY)
        assert [await era_met_by(client) for client in (modern, legacy, another)] == [MODERN, LEGACY, LEGACY]
        assert len(world.sessions) == 2


@pytest.mark.parametrize(("era", "met"), [("newest", MODERN), ("auto", LEGACY), ("legacy", LEGACY)])
async def test_the_configuration_decides(era, met, autojump_clock):
    async with open_two_faced(era=era) as world:
        assert await era_met_by(await client_of(world, LEGACY)) == met
        assert all(session.revision == LEGACY for session, _ in world.sessions) == (era == "legacy")


def test_a_child_process_is_not_started_twice_unless_told():
    child = Upstream(name="x", target=Stdio("server"))
    assert not mirrors(child)
    assert mirrors(Upstream(name="x", target=Http("http://localhost/")))
    assert mirrors(Upstream(name="x", target=Stdio("server"), era="mirror"))


async def test_a_legacy_client_is_told_what_the_legacy_server_offers(autojump_clock):
    async with open_two_faced() as world:
        world.offers[LEGACY] = {"tools": {}}
        facts = await world.client().initialize(LEGACY)
        assert "resources" not in facts["capabilities"]


async def test_a_client_with_a_session_of_its_own_meets_its_era_there(autojump_clock):
    async with open_two_faced(session="per-client") as world:
        modern, legacy = await client_of(world, MODERN), await client_of(world, LEGACY)
        assert [await era_met_by(client) for client in (modern, legacy)] == [MODERN, LEGACY]


async def test_a_modern_server_is_asked_once_in_a_while(autojump_clock):
    async with open_two_faced() as world:
        del world.offers[LEGACY]
        clients = [world.client() for _ in range(3)]
        for client in clients:
            await client.initialize(LEGACY)
            assert (await client.request("tools/call", {"name": "x__t"}))["content"][0]["text"] == MODERN
        assert world.initializes == 1
        assert era_session_key("x") not in world.mux.upstreams._by_key
        await trio.sleep(PAUSE_SECONDS)
        await client_of(world, LEGACY)
        assert world.initializes == 2


async def test_a_lane_that_is_lost_is_opened_again(autojump_clock):
    async with open_two_faced() as world:
        client = await client_of(world, LEGACY)
        await client.request("resources/subscribe", {"uri": "x+memo:1"})
        await trio.sleep(60)
        await world.end(world.session(LEGACY))
        updated = await client.receive_method("notifications/resources/updated")  # the catch-up
        assert updated["params"]["uri"] == "x+memo:1"
        assert await era_met_by(client) == LEGACY
        assert world.session(LEGACY).subscribed == {"memo:1"}
        await world.session(LEGACY).update("memo:1")
        await client.receive_method("notifications/resources/updated")


async def test_the_interest_of_a_lane_survives_its_end(autojump_clock):
    async with open_two_faced() as world:
        client = await client_of(world, LEGACY)
        await client.request("resources/subscribe", {"uri": "x+memo:1"})
        await client.request("resources/subscribe", {"uri": "memo:2"})
        await trio.sleep(60)
        del world.offers[LEGACY]
        await world.end(world.session(LEGACY))
        caught_up = {
            (await client.receive_method("notifications/resources/updated"))["params"]["uri"]
            for _ in range(2)
        }
        assert caught_up == {"x+memo:1", "memo:2"}
        assert world.session(MODERN).subscribed == {"memo:1", "memo:2"}
        await world.session(MODERN).update("memo:2")
        updated = await client.receive_method("notifications/resources/updated")
        assert updated["params"]["uri"] == "memo:2"
        await client.request("resources/unsubscribe", {"uri": "x+memo:1"})
        await trio.sleep(1)
        assert world.session(MODERN).subscribed == {"memo:2"}


async def test_a_server_with_updates_in_one_era_is_asked_in_it(autojump_clock):
    async with open_two_faced() as world:
        world.offers[LEGACY] = {"tools": {}}
        client = await client_of(world, LEGACY)
        await client.request("resources/subscribe", {"uri": "x+memo:1"})
        assert world.session(MODERN).subscribed == {"memo:1"}
        await world.session(MODERN).update("memo:1")
        await client.receive_method("notifications/resources/updated")
        await client.request("resources/unsubscribe", {"uri": "x+memo:1"})
        await trio.sleep(1)
        assert world.session(MODERN).subscribed == set()
        with pytest.raises(RpcFailure, match="memo:9"):
            await client.request("resources/subscribe", {"uri": "x+memo:9"})


async def test_an_unsubscribe_finds_interest_wherever_it_is(autojump_clock):
    async with open_two_faced() as world:
        client = await client_of(world, LEGACY)
        await client.request("resources/subscribe", {"uri": "x+memo:1"})
        legacy = world.session(LEGACY)
        await trio.sleep(60)
        world.refuses = True
        await world.end(legacy)
        await client.receive_method("notifications/resources/updated")
        await client.request("resources/unsubscribe", {"uri": "x+memo:1"})
        await trio.sleep(1)
        assert world.session(MODERN).subscribed == set()


async def test_calls_while_a_lane_is_away_are_served(autojump_clock):
    async with open_two_faced() as world:
        client = await client_of(world, LEGACY)
        world.refuses = True
        await world.end(world.session(LEGACY))
        await trio.sleep(1)
        assert await era_met_by(client) == MODERN
        with pytest.raises(RpcFailure, match="Unknown tool"):
            await client.request("tools/call", {"name": "nobody"})
