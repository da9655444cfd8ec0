"""Letters between replicas that are refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from structlog.testing import capture_logs

from mcpmux.cluster.card import Card, Neighbour
from mcpmux.cluster.encryption import ClusterSeal
from mcpmux.cluster.memory_store import MemoryStore
from mcpmux.cluster.port import HandedRequest, Outcome, ReplicaClient
from mcpmux.cluster.replica import Replica, open_replica
from mcpmux.config import ClientTls, Config, Limits, Merging, Secret
from mcpmux.config.cluster import Cluster
from mcpmux.transports.http.message import HttpRequest
from mcpmux.transports.tls import TlsContexts
from tests.runtime.world import upstream

KEY = "key of this cluster"
PATIENCE = 5.0


class Untouched:
    """A reply that must not be touched."""

    def __getattr__(self, name: str) -> None:
        raise AssertionError(f"the client is answered: {name}")


@asynccontextmanager
async def open_alone() -> AsyncIterator[Replica]:
    config = Config(
        upstreams=(upstream("docs"),),
        merging=Merging(cursor_key=Secret(KEY)),
        cluster=Cluster(url=Secret("redis://unused"), replica="a"),
    )
    with trio.fail_after(PATIENCE):
        async with open_replica(config, MemoryStore(trio.current_time)) as replica:
            yield replica


@pytest.mark.parametrize(
    ("to", "key", "reason"),
    [
        ("0123456789", KEY, "it is for another replica"),  # started again, at the same address
        (None, "key of another cluster", "it is not signed"),
    ],
)
async def test_a_request_that_is_refused_counts_as_not_handed_over(to, key, reason):
    async with open_alone() as replica:
        client = ReplicaClient(ClusterSeal(key.encode()), TlsContexts(), ClientTls(), Limits())
        handed = HandedRequest.of(
            0, HttpRequest("POST", "/mcp", "", {}, b"{}", "127.0.0.1:1", False, True, "")
        )
        neighbour = Neighbour(to or replica.members.replica, Card("a", replica.members._url))
        with capture_logs() as logs:
            outcome = await client.hand_over(neighbour, handed, Untouched())
        client.close()
    assert outcome is Outcome.UNSENT
    (told,) = (each["reason"] for each in logs if each["event"] == "a request was not handed over")
    assert told.startswith(reason)
