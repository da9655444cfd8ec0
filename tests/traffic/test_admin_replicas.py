"""The replicas of a cluster over the admin listener."""

from __future__ import annotations

import json
from pathlib import Path

from mcpmux.cluster.letter import ReplicaState
from mcpmux.traffic.telemetry import prometheus
from mcpmux.traffic.telemetry.prometheus import cluster_gauges, render
from tests.cluster.nodes import LEASE
from tests.cluster.replicas import move, open_replicas
from tests.peers.http_client import request
from tests.peers.revision import Json
from tests.peers.server import ScriptedServer
from tests.peers.subscribable import Subscribable
from tests.traffic.admin_world import Listening, ask, get, listening
from tests.traffic.test_prometheus import parse


def server() -> ScriptedServer:
    return ScriptedServer(tools=[])


def subscribable() -> Subscribable:
    return Subscribable("2025-11-25")


async def test_all_replicas_are_told_this_one_first():
    async with (
        open_replicas(a=server(), b=server()) as replicas,
        listening(replicas=replicas["b"].node) as here,
    ):
        b, a = (await get(here, "/api/replicas"))["replicas"]
        assert [(replica["name"], replica["state"], replica["others"]) for replica in (b, a)] == [
            ("b", "inside", 1),
            ("a", "inside", 1),
        ]
        assert a["id"] == replicas["a"].node.members.replica
        move(replicas["a"].node, "http://127.0.0.1:1")
        await replicas["a"].node.members.renew()
        await replicas["b"].node.members.renew()
        _, a = (await get(here, "/api/replicas"))["replicas"]
        assert (a["name"], a["state"]) == ("a", "silent")
        assert "connection refused" in a["trouble"]


async def test_a_replica_is_ready_without_its_store_but_not_after_leaving():
    async with (
        open_replicas(a=server(), b=server()) as replicas,
        listening(replicas=replicas["a"].node, ready="listening") as here,
    ):
        a = replicas["a"]
        assert await ready(here) == (200, {"ready": True})
        a.line.is_cut = True
        while a.node.members.is_inside:
            await a.node.members.changed(LEASE)
        status, body = await ready(here)
        assert (status, body["ready"]) == (200, True)
        assert body["note"].startswith("the store of the cluster is away;")
        a.line.is_cut = False
        while not await a.node.members.inside():
            pass
        assert await ready(here) == (200, {"ready": True})
        await a.node.leave()
        assert await ready(here) == (503, {"ready": False})


async def ready(here: Listening) -> tuple[int, Json]:
    status, _, body = await ask(here, "/health/ready")
    return status, json.loads(body)


async def test_metrics_say_how_this_replica_is():
    async with open_replicas(a=subscribable(), b=subscribable()) as replicas:
        a, b = replicas["a"], replicas["b"]
        session = await a.client.initialize()
        await b.client.send(request("ping"), session)
        metrics = parse(render(cluster_gauges(a.node.describe())))
        assert {name: value[()] for name, value in metrics.items()} == {
            "mcpmux_cluster_replicas": 2,
            "mcpmux_cluster_inside": 1,
            "mcpmux_cluster_store_away": 0,
            "mcpmux_cluster_owned_upstreams": 0,
            "mcpmux_cluster_sessions": 1,
            "mcpmux_cluster_takeovers_total": 0,
            "mcpmux_cluster_handed_over_total": 0,
            "mcpmux_cluster_handed_in_total": 1,
            "mcpmux_cluster_store_commands_total": a.line.commands,
            "mcpmux_cluster_events_waiting": 0,
            "mcpmux_cluster_store_lag_milliseconds": a.node.describe().lag_ms,
        }
        await a.kill()
        await b.client.send(request("ping"), session)
        b.line.is_cut = True
        while b.node.members.is_inside:
            await b.node.members.changed(LEASE)
        metrics = parse(render(cluster_gauges(b.node.describe())))
        assert metrics["mcpmux_cluster_replicas"][()] == 1
        assert metrics["mcpmux_cluster_inside"][()] == 0
        assert metrics["mcpmux_cluster_store_away"][()] == 1
        assert metrics["mcpmux_cluster_handed_over_total"][()] == 1
        assert metrics["mcpmux_cluster_takeovers_total"][()] == 1


async def test_every_metric_of_a_cluster_is_documented():
    document = Path(prometheus.__file__).parents[1].joinpath("README.md").read_text()
    state = ReplicaState(name="a", id="a", url="http://a", version="1", state="inside", owned=3, lag_ms=1.0)
    owned = parse(render(cluster_gauges(state)))["mcpmux_cluster_owned_upstreams"]
    assert owned[()] == 3
    names = [family.name.removeprefix("mcpmux_cluster") for family in cluster_gauges(state)]
    assert [name for name in names if f"{name}`" not in document] == []


async def test_without_a_cluster_there_are_none():
    async with listening() as here:
        assert await get(here, "/api/replicas") == {"replicas": []}
