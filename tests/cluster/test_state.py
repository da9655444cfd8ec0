"""The state that replicas report about themselves and each other."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
import trio

from mcpmux import __version__
from mcpmux.cluster import membership, replica
from mcpmux.cluster.letter import Neighbour, ReplicaState
from mcpmux.errors import ConnectFailed
from tests.cluster.nodes import LEASE
from tests.cluster.replicas import Replicas, move, open_replicas
from tests.peers.http_client import request
from tests.peers.server import ScriptedServer
from tests.peers.subscribable import Subscribable


def servers(names: str) -> dict[str, ScriptedServer]:
    return {name: Subscribable("2025-11-25") for name in names}


async def states_at(replicas: Replicas, name: str) -> dict[str, ReplicaState]:
    return {state.name: state for state in await replicas[name].node.describe_all()}


async def test_every_replica_knows_how_all_are():
    start = time.time()
    async with open_replicas(**servers("abc")) as replicas:
        for name in "cab":
            states = await replicas[name].node.describe_all()
            assert [state.name for state in states] == [name, *sorted(set("abc") - {name})]
            assert all(state.state == "inside" and state.trouble is None for state in states)
            assert all(state.version == __version__ and not state.store_away for state in states)
            assert all(state.others == 2 for state in states)
            assert all(start <= (state.since or 0) <= time.time() for state in states)
            assert all(state.commands > 0 and (state.lag_ms or 0) >= 0 for state in states)
            assert {state.id: state.url for state in states} == {
                replica.node.members.replica: replica.node.members.card.url
                for replica in replicas.all.values()
            }


async def test_counts_are_of_what_went_from_one_replica_to_another():
    async with open_replicas(**servers("abc")) as replicas:
        session = await replicas["a"].client.initialize()
        for name in "abb":
            assert (await replicas[name].client.send(request("ping"), session)).status == 200
        states = await states_at(replicas, "c")
        assert [states[name].sessions for name in "abc"] == [1, 0, 0]
        assert [states[name].handed_over for name in "abc"] == [0, 2, 0]
        assert [states[name].handed_in for name in "abc"] == [2, 0, 0]
        assert [states[name].taken_over for name in "abc"] == [0, 0, 0]
        await replicas["a"].kill()
        assert (await replicas["b"].client.send(request("ping"), session)).status == 200
        while len(replicas["c"].node.members.others) > 1:
            await replicas["c"].node.members.changed(LEASE)
        states = await states_at(replicas, "c")
        assert sorted(states) == ["a", "b", "c"]
        assert states["a"].state == "gone"
        assert re.fullmatch(r"it has gone \d+ s ago", states["a"].trouble or "")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(membership, "TRACE_SECONDS", 0.0)
            assert sorted(await states_at(replicas, "c")) == ["b", "c"]
        assert (states["b"].sessions, states["b"].taken_over) == (1, 1)


async def test_a_replica_that_is_cut_off_says_why_and_is_still_asked():
    async with open_replicas(**servers("ab")) as replicas:
        a = replicas["a"].node
        assert 0 < a.describe().lease_seconds <= LEASE
        replicas["a"].line.is_cut = True
        while a.members.is_inside:
            await a.members.changed(LEASE)
        own = a.describe()
        assert (own.state, own.trouble, own.store_away) == ("outside", "the store is cut off", True)
        assert own.lease_seconds == 0
        assert (await states_at(replicas, "a"))["b"].state == "inside"
        replicas["a"].line.is_cut = False
        while not await a.members.inside():
            pass
        assert (a.describe().state, a.describe().store_away) == ("inside", False)
        await a.leave()
        own = a.describe()
        assert (own.state, own.trouble) == ("left", "it stops")


async def test_events_that_the_store_does_not_take_are_counted():
    async with open_replicas(**servers("a")) as replicas:
        a = replicas["a"]
        (sessions,) = a.node._sessions
        a.line.is_cut = True
        for _ in range(3):
            sessions.events.put("session", b"event", 10)
        await sessions.events.written()
        assert a.node.describe().events_waiting == 3
        a.line.is_cut = False
        while a.node.describe().events_waiting:
            await a.node.members.changed(LEASE)


async def test_one_that_does_not_answer_is_listed_with_the_reason(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(replica, "ASK_SECONDS", 0.3)
    async with open_replicas(**servers("abc")) as replicas, trio.open_nursery() as nursery:
        (deaf,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, never, [deaf])
        move(replicas["b"].node, "http://127.0.0.1:1")
        move(replicas["c"].node, f"http://127.0.0.1:{deaf.socket.getsockname()[1]}")
        for name in "bca":
            await replicas[name].node.members.renew()
        began = trio.current_time()
        states = await states_at(replicas, "a")
        assert trio.current_time() - began < 10
        assert [states[name].state for name in "abc"] == ["inside", "silent", "silent"]
        assert "connection refused" in (states["b"].trouble or "")
        assert states["c"].trouble == "it does not answer within 0.3 s"
        assert states["c"].id == replicas["c"].node.members.replica
        assert states["c"].since is None
        nursery.cancel_scope.cancel()


async def never(stream: Any) -> None:
    async with stream:
        await trio.sleep_forever()


async def test_a_state_that_was_refused_is_no_state():
    async with open_replicas(**servers("ab")) as replicas:
        (other,) = replicas["a"].node.members.others
        client = replicas["a"].node._client
        assert (await client.ask_state(other)).name == "b"
        with pytest.raises(ConnectFailed, match="it refuses: it is for another replica"):
            await client.ask_state(Neighbour("nobody", other.card))
