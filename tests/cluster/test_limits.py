"""Limits of several replicas together."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import trio

from mcpmux.config import Http, Stdio
from mcpmux.config.auth import Auth, StaticToken
from tests.cluster.nodes import LEASE, Member
from tests.cluster.replicas import Replicas, move, open_replicas
from tests.peers.http_client import Answer, request
from tests.peers.revision import LEGACY, MODERN, Json
from tests.peers.server import ScriptedServer

DOCS = Http(url="http://docs.example/mcp")
SHORT = 0.5  # seconds after which an unused session ends; its record, and its place, in twice that


# Requests in flight with an upstream


def slots_of(replica: Member) -> int:
    return replica.mux.upstreams["docs"].limiter.slots


async def see_slots(replicas: Replicas, **slots: int) -> None:
    """Wait until replicas have these parts."""
    for name, number in slots.items():
        while slots_of(replicas[name]) != number:
            await replicas[name].node.members.changed(LEASE)


async def start(replicas: Replicas, names: str, **settings: Any) -> None:
    for name in names:
        await replicas.start(name, ScriptedServer(MODERN), **settings)


async def test_replicas_share_the_limit_of_an_upstream_as_they_come_and_go():
    async with open_replicas() as replicas:
        await start(replicas, "abc", target=DOCS, max_in_flight=7)
        await see_slots(replicas, a=3, b=3, c=3)
        await replicas["c"].kill()
        await see_slots(replicas, a=4, b=4)
        await replicas["b"].node.leave()
        await see_slots(replicas, a=7)
        await start(replicas, "d", target=DOCS, max_in_flight=7)
        await see_slots(replicas, a=4, d=4)


async def test_while_the_store_is_away_the_last_known_members_count():
    async with open_replicas() as replicas:
        await start(replicas, "ab", target=DOCS, max_in_flight=7)
        await see_slots(replicas, a=4, b=4)
        first = replicas["a"]
        first.line.is_cut = True
        while first.node.members.is_inside:
            await first.node.members.changed(LEASE)
        assert slots_of(first) == 4
        first.line.is_cut = False
        while not await first.node.members.inside():
            pass
        await see_slots(replicas, a=4, b=4)


async def test_a_process_of_a_replica_has_its_whole_limit():
    async with open_replicas() as replicas:
        await start(replicas, "ab", target=Stdio("unused"), max_in_flight=7)
        await replicas.know_each_other()
        assert [slots_of(replicas[name]) for name in "ab"] == [7, 7]


# Sessions of a principal


def token_of(name: str) -> str:
    return f"token-of-{name}"


def static_token(name: str) -> StaticToken:
    return StaticToken(sha256=hashlib.sha256(token_of(name).encode()).hexdigest())


AUTH = Auth(tokens={name: static_token(name) for name in ("ann", "bob")})
INITIALIZE = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


def as_(name: str) -> Json:
    return {"Authorization": f"Bearer {token_of(name)}"}


async def begin(replica: Member, name: str) -> Answer:
    """Ask for a session of that principal."""
    return await replica.client.send(request("initialize", INITIALIZE), as_(name))


async def begun(replica: Member, name: str) -> Json:
    """Begin a session, and return its headers."""
    answer = await begin(replica, name)
    assert answer.status == 200, answer.last
    return {**as_(name), "Mcp-Session-Id": answer.headers["mcp-session-id"], "MCP-Protocol-Version": LEGACY}


def assert_refused(answer: Answer) -> None:
    assert answer.status == 429
    assert answer.headers["retry-after"]
    error = answer.last["error"]
    assert (error["code"], error["data"]["limit"]) == (-31003, "limits.max_sessions_per_principal")
    assert "this principal has 2 sessions" in error["message"]


async def begun_at_last(replica: Member, name: str) -> Json:
    """Begin a session as soon as there is room for it, and return its headers."""
    while (answer := await begin(replica, name)).status != 200:
        assert_refused(answer)
        await replica.node.members.changed(LEASE)
    return {**as_(name), "Mcp-Session-Id": answer.headers["mcp-session-id"], "MCP-Protocol-Version": LEGACY}


async def start_limited(replicas: Replicas, names: str = "abc", **settings: Any) -> list[Member]:
    await start(replicas, names, auth=AUTH, most_sessions=2, **settings)
    await replicas.know_each_other()
    return [replicas[name] for name in names]


async def test_the_sessions_of_a_principal_are_limited_over_all_replicas():
    async with open_replicas() as replicas:
        a, b, c = await start_limited(replicas)
        first, _ = await begun(a, "ann"), await begun(b, "ann")
        for replica in (a, b, c):
            assert_refused(await begin(replica, "ann"))
        await begun(c, "bob")
        assert (await c.client.send(b"", first, "DELETE")).status == 204
        await begun_at_last(b, "ann")
        assert_refused(await begin(a, "ann"))


async def test_a_session_that_is_taken_over_is_counted_once():
    async with open_replicas() as replicas:
        a, b, c = await start_limited(replicas)
        session = await begun(a, "ann")
        await a.kill()
        assert (await b.client.send(request("ping"), session)).status == 200
        await begun(c, "ann")
        for replica in (b, c):
            assert_refused(await begin(replica, "ann"))
        assert (await c.client.send(b"", session, "DELETE")).status == 204
        await begun_at_last(b, "ann")


async def test_a_session_of_a_killed_replica_counts_until_its_record_ends():
    async with open_replicas() as replicas:
        a, b = await start_limited(replicas, "ab", idle=SHORT)
        await begun(a, "ann")
        await begun(a, "ann")
        assert_refused(await begin(b, "ann"))
        await a.kill()
        await begun_at_last(b, "ann")


async def test_a_session_that_lasts_is_counted_for_as_long():
    async with open_replicas() as replicas:
        a, b = await start_limited(replicas, "ab", idle=SHORT)
        sessions = [await begun(a, "ann"), await begun(a, "ann")]
        async with a.client.stream("GET", None, sessions[0]), b.client.stream("GET", None, sessions[1]):
            until = trio.current_time() + 5 * SHORT
            while trio.current_time() < until:
                assert_refused(await begin(b, "ann"))
                await b.node.members.changed(LEASE)
        await begun_at_last(b, "ann")


async def test_a_replica_that_comes_back_counts_the_sessions_that_it_still_has():
    async with open_replicas() as replicas:
        a, b = await start_limited(replicas, "ab")
        await begun(a, "ann")
        async with a.client.stream("GET", None, as_("ann"), "/sse"):
            a.line.is_cut = True
            while b.node.members.others:
                await b.node.members.changed(LEASE)
            extra = await begun(b, "ann")  # for all that others know the stream has gone with its replica
            a.line.is_cut = False
            while not await a.node.members.inside():
                pass
            assert (await b.client.send(b"", extra, "DELETE")).status == 204
            while not b.line.asked["leave_places"]:
                await trio.lowlevel.checkpoint()
            for replica in (a, b):
                assert_refused(await begin(replica, "ann"))


async def test_streams_are_counted_with_sessions_and_end_with_their_replica():
    async with open_replicas() as replicas:
        a, b, _ = await start_limited(replicas)
        async with a.client.stream("GET", None, as_("ann"), "/sse"):
            async with b.client.stream("GET", None, as_("ann"), "/sse"):
                assert_refused(await begin(b, "ann"))
                refused = await b.client.send(b"", as_("ann"), "GET", "/sse")
                assert_refused(refused)
            await begun_at_last(b, "ann")  # one of them has ended
            assert_refused(await begin(b, "ann"))
            await a.kill()
        await begun_at_last(b, "ann")
        assert_refused(await begin(b, "ann"))


async def test_without_the_store_no_session_begins_and_ends_are_reported_later():
    async with open_replicas() as replicas:
        a, b = await start_limited(replicas, "ab")
        first, _ = await begun(a, "ann"), await begun(b, "ann")
        a.line.is_cut = True
        assert (await a.client.send(b"", first, "DELETE")).status in (204, 503)
        for path in ("/mcp", "/sse"):
            method = "POST" if path == "/mcp" else "GET"
            answer = await a.client.send(request("initialize", INITIALIZE), as_("bob"), method, path)
            assert answer.status == 503
            assert "the store of the cluster is away" in answer.last["error"]["message"]
        assert_refused(await begin(b, "ann"))
        a.line.is_cut = False
        while not await a.node.members.inside():
            pass
        await a.client.send(b"", first, "DELETE")
        await begun_at_last(b, "ann")


async def test_a_session_that_does_not_begin_is_not_counted():
    async with open_replicas() as replicas:
        (a,) = await start_limited(replicas, "a")
        for _ in range(3):
            bad = await a.client.send(request("initialize", {}), as_("ann"))
            assert bad.last["error"]["code"] == -32602
        await begun_at_last(a, "ann")
        await begun_at_last(a, "ann")
        assert_refused(await begin(a, "ann"))


@pytest.mark.parametrize(("most", "commands"), [(None, 0), (5, 1)])
async def test_the_limit_costs_one_command_a_session(most, commands):
    async with open_replicas() as replicas:
        await start(replicas, "ab", auth=AUTH, most_sessions=most)
        await replicas.know_each_other()
        commands_seen = replicas["a"].line.asked
        session = await begun(replicas["a"], "ann")
        assert (commands_seen["save"], commands_seen["take_place"]) == (1, commands)
        for _ in range(20):
            assert (await replicas["a"].client.send(request("ping"), session)).status == 200
        assert set(commands_seen) == {"renew", "save"} | ({"take_place"} if commands else set())
        assert commands_seen["take_place"] == commands


async def test_a_session_taken_over_is_no_longer_counted_for_its_replica():
    async with open_replicas() as replicas:
        a, b = await start_limited(replicas, "ab")
        session = await begun(a, "ann")
        a.line.is_cut = True
        move(a.node, "http://127.0.0.1:9")
        while (await b.client.send(request("ping"), session)).status != 200 or not len(b.node._places):
            await b.node.members.changed(LEASE)
        a.line.is_cut = False
        while not await a.node.members.inside():
            pass
        assert (len(a.node._places), len(b.node._places)) == (0, 1)
