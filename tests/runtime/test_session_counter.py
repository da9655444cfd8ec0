"""The limit of sessions of a principal, in one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.config import Limits
from mcpmux.protocol.codes import Busy
from mcpmux.protocol.principal import Principal
from mcpmux.runtime.sessions import SessionCounter
from tests.clients.test_sse_endpoint import open_site
from tests.peers.client import QuietClient, ScriptedClient
from tests.peers.http_client import request
from tests.peers.revision import CLIENT, LEGACY
from tests.peers.server import RpcFailure
from tests.runtime.http_front import open_endpoint
from tests.runtime.stream_world import KINDS, Server, open_stream_world
from tests.runtime.test_flows import docs
from tests.runtime.world import open_world

SETTING = "limits.max_sessions_per_principal"
ONE = Limits(max_sessions_per_principal=1)
INITIALIZE = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": CLIENT}


def begins(counter: SessionCounter, session_id: str, name: str) -> bool:
    """Return whether a session may begin, which in one process is known without a wait."""
    beginning: Coroutine[Any, Any, None] = counter.begin(session_id, Principal(name, view="some"))
    try:
        beginning.send(None)
    except StopIteration:
        return True
    except Busy as refusal:
        assert (refusal.status, refusal.data["limit"]) == (429, SETTING)
        return False
    pytest.fail("it waits")


names = st.sampled_from(["ann", "bob", ""])
acts = st.lists(st.tuples(st.sampled_from(["begin", "begin", "end"]), st.integers(0, 9), names), max_size=60)


@given(st.integers(1, 3), acts)
def test_every_principal_has_as_many_sessions_as_it_may(most: int, acts: list[tuple[str, int, str]]):
    counter, owners = SessionCounter(most), dict[str, str]()
    for act, number, name in acts:
        session_id = f"{number} of {name}"
        if act == "end":
            counter.end(session_id)
            owners.pop(session_id, None)
            continue
        has_room = session_id in owners or Counter(owners.values())[name] < most
        assert begins(counter, session_id, name) is has_room
        if has_room:
            owners[session_id] = name


def test_without_a_limit_nothing_is_counted():
    counter = SessionCounter()
    assert all(begins(counter, str(number), "ann") for number in range(1000))
    assert not counter._counts


async def test_sessions_over_http_are_counted_until_they_end():
    async with open_endpoint(limits=ONE) as client:
        session = await client.initialize()
        refused = await client.send(request("initialize", INITIALIZE))
        assert (refused.status, refused.last["error"]["data"]["limit"]) == (429, SETTING)
        assert (await client.modern("resources/list")).status == 200  # which is in no session
        assert (await client.send(b"", session, "DELETE")).status == 204
        assert (await client.send(request("initialize", {}))).last["error"]["code"] == -32602
        await client.initialize()


async def test_a_refused_session_takes_the_place_of_none_that_is_open():
    async with open_endpoint(limits=ONE, max_sessions=1) as client:
        session = await client.initialize()
        assert (await client.send(request("initialize", INITIALIZE))).status == 429
        assert (await client.send(request("ping"), session)).status == 200


async def test_streams_over_http_are_counted_until_they_end():
    async with open_site(limits=ONE) as site:
        async with site.stream() as (address, _):
            status, refusal = await site.send("GET", "/sse")
            assert (status, refusal["error"]["data"]["limit"]) == (429, SETTING)
        await site.until_gone(address)
        async with site.client(LEGACY) as client:  # one stream with one session is one of them
            await client.request("ping")


@pytest.mark.parametrize("kind", KINDS)
async def test_sessions_on_other_streams_are_counted_until_their_stream_ends(kind: str, tmp_path: Path):
    async with open_stream_world(kind, Server(LEGACY), tmp_path, ONE) as world:
        await world.mux.upstreams["x"].supervision.settled()
        await world.client(LEGACY)
        other = QuietClient(await world.connect())
        with pytest.raises(RpcFailure) as refused:
            await other.initialize(LEGACY)
        assert refused.value.error["data"]["limit"] == SETTING
        await (await world.client()).request("resources/list")  # which is in no session
        await trio.aclose_forcefully(world.pipes[0].resource)
        while not await may_begin(other):
            await trio.lowlevel.checkpoint()


async def may_begin(client: ScriptedClient) -> bool:
    try:
        await client.initialize(LEGACY)
    except RpcFailure:
        return False
    return True


async def test_the_client_that_started_mcpmux_is_not_counted():
    async with open_world({"docs": docs()}, limits=ONE) as world:
        for _ in range(3):
            await world.client().initialize(LEGACY)
