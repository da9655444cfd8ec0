"""What limits mean for several replicas."""

from __future__ import annotations

from typing import Any

from mcpmux.config import Http, Stdio
from tests.cluster.replicas import LEASE, Replica, Replicas, open_replicas
from tests.runtime.scripted import MODERN, ScriptedServer

DOCS = Http(url="http://docs.example/mcp")


# What is in flight with an upstream


def slots_of(replica: Replica) -> int:
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
