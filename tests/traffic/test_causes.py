"""Which exchange the messages of a session belong to that was opened in the middle of one."""

from __future__ import annotations

import pytest
import trio

from mcpmux import app
from mcpmux.config import Config
from mcpmux.traffic.recorder import Recorder
from tests.runtime.world import World, upstream
from tests.traffic.replay_world import LEGACY, MODERN, Tape, Varied, call, client_of


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
async def test_a_private_session_belongs_to_its_exchange_only_while_it_opens(revision: str, autojump_clock):
    world, tape = World({"x": Varied(LEGACY)}), Tape()
    recorder = Recorder([tape], [], trio.current_time)
    config = Config(upstreams=(upstream("x", era="newest", session="per-client"),))
    async with (
        app.open_mux(config, world.open_channel, recorder) as world.mux,
        trio.open_nursery() as world.nursery,
    ):
        client = await client_of(world, revision)
        await client.walk("tools/list", "tools")
        await call(client, "x__count", progressToken="p")
        await call(client, "x__ask")
        await trio.sleep(120)  # a health check or two
        world.nursery.cancel_scope.cancel()

    theirs = [record for record in tape.records if (record.peer or "").startswith("x#")]
    [opener] = {record.exchange for record in theirs if record.method == "initialize"}
    names = {
        record.target: record.exchange for record in tape.records if record.leg == "client" and record.target
    }
    assert {
        record.exchange for record in tape.records if record.method == "tools/list" and record.leg == "client"
    } == {opener}
    assert {record.exchange for record in theirs if record.method == "notifications/progress"} == {
        names["x__count"]
    }
    exchanges = {record.exchange for record in theirs if record.method == "roots/list"}
    assert len(exchanges) == 1 and opener not in exchanges
    if revision == LEGACY:
        assert exchanges == {names["x__ask"]}
    assert {record.exchange for record in theirs if record.method == "ping"} == {None}
