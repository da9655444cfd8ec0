"""The members of a cluster, seen from outside, with each engine."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
import trio

from mcpmux.cluster.redis_store import open_redis_store
from mcpmux.cluster.store import MemoryStore, Store
from mcpmux.config import Secret
from mcpmux.config.cluster import Cluster
from tests.cluster.redis_server import RedisServer

ANY_BYTES = bytes(range(256))
LONG = 60.0
SHORT = 0.1


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.process)])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    if request.param == "memory":
        yield MemoryStore(time.time)
        return
    server: RedisServer = request.getfixturevalue("shared_redis")
    config = Cluster(url=Secret(f"redis://{server.address}"), prefix="test-members", timeout=5.0)
    async with open_redis_store(config) as redis:
        for lease in (await redis.members()).leases:  # of a run before
            await redis.leave(lease.replica)
        yield redis


async def test_leases_that_hold_are_told_without_a_lease_of_ones_own(store: Store):
    assert (await store.members()).leases == []
    await store.renew("b", ANY_BYTES, LONG, joining=True)
    await store.renew("a", b"", SHORT, joining=True)
    with trio.fail_after(5):
        while len((await store.members()).leases) > 1:  # nobody else has to notice that it has ended
            await trio.lowlevel.checkpoint()
    roll = await store.members()
    (lease,) = roll.leases
    assert (lease.replica, lease.card) == ("b", ANY_BYTES)
    assert LONG - 20 < lease.seconds <= LONG
    assert abs(roll.at - time.time()) < 20
    await store.leave("b")
    assert (await store.members()).leases == []
