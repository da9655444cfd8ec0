"""The survey of a cluster from outside."""

from __future__ import annotations

import time

import pytest

from mcpmux import __version__
from mcpmux.cluster.letter import Card
from mcpmux.cluster.seal import ClusterSeal
from mcpmux.cluster.store import Lease, MemoryStore, Roll
from mcpmux.cluster.survey import find_clocks_apart, find_other_versions, read_roll, survey
from tests.cluster.nodes import KEY, LEASE
from tests.cluster.replicas import open_replicas
from tests.peers.server import ScriptedServer

NOW = 1_000_000.0
SEAL = ClusterSeal(b"key")


def lease(name: str, *, ahead: float = 0.0, left: float = 2.0, seal: ClusterSeal = SEAL) -> Lease:
    """Take a lease of three seconds for a replica whose clock is so many seconds ahead."""
    card = Card(name, f"http://{name}", at=NOW + left - 3.0 + ahead, lease=3.0)
    return Lease(f"id-{name}", card.seal(seal, f"id-{name}"), left)


async def test_replicas_are_seen_and_notice_nothing():
    servers = {"a": ScriptedServer(tools=[]), "b": ScriptedServer(tools=[])}
    async with open_replicas(**servers) as replicas:
        ids = {name: replicas[name].node.members.replica for name in "ab"}
        surveyed = await survey(MemoryStore(time.time), ClusterSeal(KEY.encode()))
        assert (surveyed.store, surveyed.replicas, surveyed.problems) == ("memory of this process", [], [])
        assert str(surveyed) == "memory of this process; no replica is there now"
        surveyed = await survey(replicas.store, ClusterSeal(KEY.encode()))
        assert [(replica.name, replica.id, replica.version) for replica in surveyed.replicas] == [
            (name, ids[name], __version__) for name in "ab"
        ]
        assert all(replica.url in str(surveyed) for replica in surveyed.replicas)
        await replicas["a"].kill()
        while len((await survey(replicas.store, ClusterSeal(KEY.encode()))).replicas) == 2:
            await replicas["b"].node.members.changed(LEASE)
        assert replicas["b"].node.members.replica == ids["b"]


async def test_a_replica_with_another_key_is_counted():
    roll = Roll(NOW, [lease("a"), lease("x", seal=ClusterSeal(b"another key"))])
    (seen,), (problem,) = read_roll(roll, SEAL)
    assert seen.name == "a"
    assert problem.startswith("1 of 2 replicas have another `cursor_key`")


async def test_what_says_something_else_is_of_another_version():
    unread = Lease("id", SEAL.seal("replica", "id", b"\xc1"), 1.0)
    (_, (problem,)) = read_roll(Roll(NOW, [unread]), SEAL)
    assert "are of a version of mcpmux that does not work together with this one" in problem


@pytest.mark.parametrize(("left", "ahead"), [(3.0, 0.0), (0.5, 40.0), (2.0, -12.5)])
def test_the_clock_of_a_replica_is_measured_at_its_lease(left: float, ahead: float):
    ((seen,), _) = read_roll(Roll(NOW, [lease("a", left=left, ahead=ahead)]), SEAL)
    assert seen.clock == pytest.approx(ahead)


def test_a_card_without_a_clock_is_no_reason_to_complain():
    sealed = Card("a", "http://a").seal(SEAL, "id")
    ((seen,), problems) = read_roll(Roll(NOW, [Lease("id", sealed, 1.0)]), SEAL)
    assert (seen.clock, problems) == (None, [])


def test_clocks_may_differ_by_as_much_as_letters_may_be_old():
    assert find_clocks_apart([("a", 1e6), ("b", 1e6 + 30), ("c", 1e6 + 10)]) == []
    (problem,) = find_clocks_apart([("a", -20.0), ("b", 11.0), ("c", 0.0)])
    assert problem.startswith("the clock of b is 31 s ahead of that of a;")


def test_replicas_of_other_versions_are_named():
    ((seen,), _) = read_roll(Roll(NOW, [lease("a")]), SEAL)
    assert find_other_versions([seen]) == []
    card = Card("b", "http://b", version="0.1").seal(SEAL, "b")
    ((other,), _) = read_roll(Roll(NOW, [Lease("b", card, 1.0)]), SEAL)
    (warning,) = find_other_versions([seen, other])
    assert "b runs 0.1" in warning and "a runs" not in warning
