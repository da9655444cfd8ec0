"""What the log says of the cluster, and how often."""

from __future__ import annotations

from typing import cast

import trio
from structlog.testing import capture_logs

from mcpmux.cluster.membership import Membership
from mcpmux.cluster.seal import ClusterSeal
from mcpmux.cluster.store import MemoryStore, Store
from tests.cluster.nodes import LEASE, Line

STRANGER = "another replica has another `cursor_key`, or is not of this version"


def member(store: Store, key: str = "key of this cluster") -> Membership:
    return Membership(store, ClusterSeal(key.encode()), "a", "http://127.0.0.1:1", LEASE)


async def test_a_store_that_is_away_at_the_start_is_told_of_once():
    line = Line(MemoryStore(trio.current_time))
    line.is_cut = True
    replica = member(cast("Store", line))
    with capture_logs() as logs:
        for _ in range(3):
            await replica.renew()
    (told,) = logs
    assert (told["event"], told["reason"]) == ("the store of the cluster is away", "the store is cut off")


async def test_a_replica_with_another_key_is_told_of_once():
    store = MemoryStore(trio.current_time)
    stranger, replica = member(store, "key of another cluster"), member(store)
    with capture_logs() as logs:
        for _ in range(3):
            await stranger.renew()
            await replica.renew()
        await stranger.leave()
        await replica.renew()
        await member(store, "key of another cluster").renew()
        await replica.renew()
    events = [each["event"] for each in logs if each["event"] == STRANGER]
    assert len(events) == 4  # each has told of the other, and both later ones of each other
