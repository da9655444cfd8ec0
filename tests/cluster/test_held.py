"""Held exchanges of all replicas, shown and decided at any of them."""

from __future__ import annotations

from typing import Any

import trio

from mcpmux.app.held import MuxDesk, SharedDesk, answer_others
from mcpmux.traffic.admin.held import HeldState, HoldOrder, held_routes
from tests.cluster.replicas import Replicas, open_replicas
from tests.peers.server import ScriptedServer


async def find_no_row(_exchange: int) -> None:
    return None


def desk_at(replicas: Replicas, name: str) -> SharedDesk:
    """Return the desk of a replica, which answers the others from now on."""
    own = MuxDesk(replicas[name].mux, find_no_row)
    replicas[name].node.inspector = answer_others(held_routes(own))
    return SharedDesk(replicas[name].node.ask_inspectors, own)


async def held_at(desk: SharedDesk, count: int) -> list[HeldState]:
    while len(held := await desk.read()) < count:
        await trio.lowlevel.checkpoint()
    return held


async def test_any_replica_shows_and_decides_what_another_holds():
    servers = {
        name: ScriptedServer("2026-07-28", tools=[{"name": "t", "inputSchema": {"type": "object"}}])
        for name in "abc"
    }
    answers: dict[str, Any] = {}
    async with open_replicas(**servers) as replicas, trio.open_nursery() as nursery:
        desks = {name: desk_at(replicas, name) for name in "ab"}  # c has no admin listener

        async def call(name: str) -> None:
            params = {"name": "docs__t", "arguments": {"path": "/a"}}
            answers[name] = await replicas[name].client.modern("tools/call", params)

        assert await desks["a"].follow(HoldOrder("method=tools/call")) == []
        for name in "ab":
            nursery.start_soon(call, name)
        for desk, there in ((desks["a"], "b"), (desks["b"], "a")):
            held = await held_at(desk, 2)
            assert [state.replica for state in held] == [None, there]
            assert all(state.message["name"] == "t" and state.row is None for state in held)
            assert desk.order.filter == "method=tools/call"
        own, other = held
        bad = await desks["b"].decide(other.key, {"verdict": "hold"})
        assert bad.problem and not bad.is_gone
        assert not (await desks["b"].decide(other.key, {"verdict": "refuse", "reason": "from b"})).problem
        assert (await desks["b"].decide(other.key, {"verdict": "pass"})).is_gone
        assert (await desks["b"].decide("0-1", {"verdict": "pass"})).is_gone  # of a replica that is not there
        assert not (await desks["b"].decide(own.key, {"verdict": "refuse", "reason": "here"})).problem
    assert answers["a"].last["error"]["message"] == "Refused by the admin page: from b"
    assert answers["b"].last["error"]["message"] == "Refused by the admin page: here"
