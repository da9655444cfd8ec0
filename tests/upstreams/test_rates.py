"""Limits on how many requests may begin, for clients of every revision."""

from __future__ import annotations

import attrs
import pytest
import trio

from mcpmux.config import Limits
from mcpmux.config.model import RateLimit
from mcpmux.protocol.principal import ANYONE, Principal
from tests.peers.http_client import request
from tests.runtime.http_front import open_endpoint
from tests.runtime.test_access import REVISIONS, client_of, stores
from tests.runtime.world import World, open_world

CALL = {"name": "docs__open-tool"}
READ = {"uri": "docs+file:///open/0"}


def limit(world: World, *limits: RateLimit) -> None:
    config = attrs.evolve(world.mux.config, limits=Limits(rate=limits))
    assert world.mux.apply(config).settings == ("limits.rate",)


@pytest.mark.parametrize("down", REVISIONS)
async def test_what_is_too_much_is_refused_until_it_is_not(down, autojump_clock):
    servers = stores()
    async with open_world(servers) as world:
        alice, bob = [await client_of(world, Principal(name), down) for name in ("alice", "bob")]
        limit(world, RateLimit(requests=2, per=20.0))
        servers["docs"].seen.clear()
        await alice.request("tools/call", CALL)
        await alice.request("resources/read", READ)
        error = await alice.refusal("tools/call", CALL)
        assert error["code"] == -31003
        assert error["message"] == "Busy: no more than 2 requests may begin in 20 s; try again later"
        assert error["data"] == {"retryAfterSeconds": 10, "limit": "limits.rate[0]"}
        await bob.request("tools/call", CALL)
        assert len(servers["docs"].asked("tools/call", "resources/read")) == 3
        await trio.sleep(10)
        await alice.request("tools/call", CALL)


@pytest.mark.parametrize("prefix", ["docs", ""])
async def test_exchanges_with_an_upstream_are_counted_for_all_clients(prefix, autojump_clock):
    servers = {"docs": stores()["docs"]}
    async with open_world(servers, settings={"docs": {"prefix": prefix}}) as world:
        clients = [await client_of(world, ANYONE, revision) for revision in REVISIONS]
        limit(world, RateLimit(requests=3, per=60.0, upstreams=("docs",), methods=("tools/call",), each=()))
        name = f"{prefix}__open-tool" if prefix else "open-tool"
        for client in clients[:3]:
            await client.request("tools/call", {"name": name})
        error = await clients[3].refusal("tools/call", {"name": name})
        assert (error["code"], error["data"]["upstream"]) == (-31003, "docs")
        assert "exchanges with docs" in error["message"]
        await clients[4].request("resources/list")


async def test_an_upstream_past_its_rate_is_left_out_and_named(autojump_clock):
    async with open_world(stores()) as world:
        client = await client_of(world, ANYONE, REVISIONS[-1])
        limit(world, RateLimit(requests=1, per=60.0, upstreams=("vault",), methods=("tools/list",)))
        for is_whole in (True, False):
            world.mux.merger.forget()
            for session in world.mux.upstreams.sessions():
                session.forget()
            page = await client.request("tools/list")
            assert ("dev.mcpmux/upstreams" not in page["_meta"]) is is_whole
        assert [tool["name"].partition("__")[0] for tool in page["tools"]] == ["docs", "docs"]
        missing = page["_meta"]["dev.mcpmux/upstreams"]["vault"]
        assert "exchanges with vault" in missing["reason"]


@pytest.mark.parametrize("down", REVISIONS)
async def test_subscriptions_count_too(down, autojump_clock):
    async with open_world(stores()) as world:
        client = await client_of(world, ANYONE, down)
        is_modern = down == REVISIONS[-1]
        method = "subscriptions/listen" if is_modern else "resources/subscribe"
        params = {"notifications": {"resourceSubscriptions": [READ["uri"]]}} if is_modern else READ
        limit(world, RateLimit(requests=1, per=60.0, methods=(method,)))
        await client.start(method, params)
        await client.drain()
        request_id = await client.start(method, params)
        (answer,) = await client.drain()
        assert (answer["id"], answer["error"]["code"]) == (request_id, -31003)


async def test_http_says_when_it_is_worth_to_come_back():
    async with open_endpoint() as client:
        session = await client.initialize()
        limit(client.world, RateLimit(requests=1, per=3600.0))
        assert (await client.modern("tools/list")).status == 200
        refused = await client.modern("tools/list")
        assert (refused.status, refused.headers["retry-after"]) == (429, "3600")
        assert refused.last["error"]["data"]["retryAfterSeconds"] == 3600
        refused = await client.send(request("tools/list"), session)
        assert (refused.status, refused.last["error"]["code"]) == (200, -31003)
